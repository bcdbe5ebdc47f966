//! Requests of the system, or of a person, to end.

use std::io;

/// Calls `stop` at each SIGINT and SIGTERM.
#[cfg(unix)]
pub(crate) fn at_each(stop: impl Fn() + Send + 'static) -> io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let listen = move || signals.forever().for_each(|_| stop());
    let thread = std::thread::Builder::new().name("pccl-signals".into());
    thread.spawn(listen).map(drop)
}

/// Calls `stop` at each Ctrl-C, and when the session or the system ends.
#[cfg(windows)]
pub(crate) fn at_each(stop: impl Fn() + Send + 'static) -> io::Result<()> {
    ctrlc::set_handler(stop).map_err(io::Error::other)
}
