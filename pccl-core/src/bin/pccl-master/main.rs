//! Runs the master of a run, or asks a running one for its status.

mod operator;
mod signals;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pccl_core::config::{MasterConfig, Security, TicketConfig, Timing};
use pccl_core::types::DigestKind;
use pccl_core::{Master, master_status};

use self::operator::Operation;

/// Master of a PCCL run: keeps the peers in agreement, and moves none of their data.
#[derive(Parser)]
#[command(name = "pccl-master", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Subcommand)]
enum Command {
    /// Print the status of a run as JSON, and exit.
    Status {
        /// Address of its master, as HOST:PORT, or a ticket.
        address: String,
    },
    #[command(flatten)]
    Operator(Operation),
}

#[derive(Args)]
struct Serve {
    /// Where to listen, as HOST:PORT.
    #[arg(
        long,
        visible_alias = "listen-address",
        default_value = "0.0.0.0:48148"
    )]
    listen: String,
    /// Seconds of silence after which a peer counts as lost. All other limits derive from it.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    peer_timeout: f64,
    /// Digests of shared states: fast ones find accidents, cryptographic ones forgers too.
    #[arg(long, value_enum, default_value_t = Digests::Fast)]
    digests: Digests,
    /// Who may join: anybody (off), or who has a ticket, with all that is said encrypted. The ticket
    /// is printed, alone on its line, on the standard output.
    #[arg(long, value_enum, default_value_t = Mode::Off)]
    security: Mode,
    /// File that keeps the master's key and its invitation, so that a ticket outlives the master; made
    /// if it is not there. Means --security ticket.
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Where the ticket says that the master is, as HOST:PORT; may be given several times. Default:
    /// where it listens, or this machine's addresses. Means --security ticket.
    #[arg(long, value_name = "HOST:PORT")]
    announce: Vec<String>,
    /// What to log: error, warn, info, debug, trace, or a filter such as "pccl=debug".
    #[arg(long, default_value = "info")]
    log_level: String,
}

/// As [`DigestKind`].
#[derive(Clone, Copy, ValueEnum)]
enum Digests {
    Fast,
    Cryptographic,
}

/// As [`Security`].
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Off,
    Ticket,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Status { address }) => status(&address),
        Some(Command::Operator(operation)) => operation.run(),
        None => serve(&cli.serve),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("pccl-master: {why}");
            ExitCode::FAILURE
        }
    }
}

impl Serve {
    fn security(&self) -> Security {
        let tickets = TicketConfig {
            identity: self.identity.clone(),
            addresses: self.announce.clone(),
        };
        let asked = self.security == Mode::Ticket || tickets != TicketConfig::default();
        match asked {
            true => Security::Ticket(tickets),
            false => Security::Off,
        }
    }
}

fn status(address: &str) -> Result<(), String> {
    let status = master_status(address).map_err(|e| e.to_string())?;
    println!("{status}");
    Ok(())
}

fn serve(options: &Serve) -> Result<(), String> {
    let filter = tracing_subscriber::EnvFilter::try_new(&options.log_level)
        .map_err(|e| format!("bad --log-level {:?}: {e}", options.log_level))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let config = MasterConfig {
        timing: Timing::from_peer_timeout(Duration::from_secs_f64(options.peer_timeout)),
        digests: match options.digests {
            Digests::Fast => DigestKind::Fast,
            Digests::Cryptographic => DigestKind::Cryptographic,
        },
        security: options.security(),
        ..MasterConfig::default()
    };
    let mut master = Master::start(&options.listen, config).map_err(|e| e.to_string())?;
    let stop = master.stopper();
    let asked = move || {
        tracing::info!("asked to end");
        stop();
    };
    signals::at_each(asked).map_err(|e| format!("cannot listen for signals: {e}"))?;
    if let Some(ticket) = master.ticket() {
        println!("{ticket}");
    }
    tracing::info!(address = %master.local_addr(), "the master listens");
    let why = master.join().map_err(|e| e.to_string())?;
    tracing::info!(%why, "ended");
    Ok(())
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (SHORTEST..=LONGEST).contains(&seconds) => Ok(seconds),
        Ok(_) => Err(format!("must be between {SHORTEST} and {LONGEST}")),
        Err(e) => Err(e.to_string()),
    }
}

/// Below this, the pauses of an ordinary scheduler would count as losses.
const SHORTEST: f64 = 0.05;

/// A day: beyond it the limits derived from it mean nothing.
const LONGEST: f64 = 86_400.0;
