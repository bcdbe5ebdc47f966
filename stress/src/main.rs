//! Measures PCCL, with every peer a process of its own.
//!
//! `pccl-stress bench` starts a master and peers, which are this program again, and drives them over
//! their standard input and output (`words`). They may as well run on other machines: a prefix
//! such as `ssh HOST` starts each where it is to be.
//!
//! One file or folder per subcommand: `bench`, what it measures and prints; `peer`, over the
//! public interface of the library; `master`; `floor`, the simple loop that a peer is compared to.
//! Shared: `serve`, how a peer and the loop carry out orders; `processes`, how they are
//! started and driven; `content`, what they reduce and how it is checked.

mod bench;
mod content;
mod floor;
mod master;
mod peer;
mod processes;
mod serve;
mod usage;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures PCCL, with every peer a process of its own.
#[derive(Parser)]
#[command(name = "pccl-stress", version)]
struct Cli {
    /// What to log on standard error: error, warn, info, debug, trace, or a filter such as
    /// "pccl=debug".
    #[arg(long, global = true)]
    log_level: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure all-reduces beside a bare loop over TCP that moves and adds the same bytes.
    Bench(bench::Options),
    /// A peer that carries out the orders on its standard input.
    Peer(peer::Options),
    /// A master that lives until its standard input ends.
    Master(master::Options),
    /// One process of the bare loop.
    Floor(floor::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = log_to(cli.log_level.as_deref()).and_then(|()| match cli.command {
        Command::Bench(options) => bench::run(&options, cli.log_level.as_deref()),
        Command::Peer(options) => peer::run(&options),
        Command::Master(options) => master::run(&options),
        Command::Floor(options) => floor::run(&options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("pccl-stress: {why}");
            ExitCode::FAILURE
        }
    }
}

fn log_to(filter: Option<&str>) -> Result<(), String> {
    let Some(filter) = filter else {
        return Ok(());
    };
    let parsed = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|e| format!("bad --log-level {filter:?}: {e}"))?;
    tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}
