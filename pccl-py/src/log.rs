//! Log lines on standard error, for programs without a `tracing` subscriber of this library: all
//! Python programs.

use tracing_subscriber::filter::LevelFilter;

/// Starts it. `PCCL_LOG_LEVEL` says how much: TRACE, DEBUG, INFO, WARN, ERR or NONE. By default
/// warnings: whom a call has been waiting for, who was lost and how.
pub(crate) fn start() {
    let level = std::env::var("PCCL_LOG_LEVEL").ok();
    // Only a second start fails, as in a second interpreter of this process: one is enough.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level.map_or(LevelFilter::WARN, |level| filter(&level)))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
}

fn filter(level: &str) -> LevelFilter {
    match level.to_ascii_uppercase().as_str() {
        "TRACE" => LevelFilter::TRACE,
        "DEBUG" => LevelFilter::DEBUG,
        "INFO" => LevelFilter::INFO,
        "ERR" | "ERROR" | "FATAL" => LevelFilter::ERROR,
        "NONE" | "OFF" => LevelFilter::OFF,
        _ => LevelFilter::WARN,
    }
}
