//! What an operator asks of a running master that gives tickets.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pccl_core::administer;
use pccl_core::ids::PublicKey;
use pccl_core::wire::control::{AdminRequest, Invite};

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Operation {
    /// Print a ticket of a new invitation.
    Invite {
        #[command(flatten)]
        master: Master,
        /// For so many different keys; any number without.
        #[arg(long, value_name = "N")]
        uses: Option<u32>,
        /// For so long, as in 90s, 30m, 12h or 7d; for good without.
        #[arg(long = "for", value_name = "DURATION", value_parser = seconds)]
        lasts: Option<u64>,
        /// For this key alone.
        #[arg(long, value_parser = key, conflicts_with = "uses")]
        key: Option<PublicKey>,
    },
    /// Take an invitation back; who has joined with it stays.
    Revoke {
        #[command(flatten)]
        master: Master,
        /// Number of the invitation, as `list` shows it.
        invitation: u32,
    },
    /// Put out who is in, and let nobody in, with a key or from an address.
    Ban {
        #[command(flatten)]
        master: Master,
        /// A key (or the first eight characters or more), an address, or a network as ADDRESS/BITS.
        whom: String,
        /// For so long, as in 90s, 30m, 12h or 7d; for good without.
        #[arg(value_parser = seconds)]
        duration: Option<u64>,
    },
    /// Lift a ban.
    Unban {
        #[command(flatten)]
        master: Master,
        /// As it was banned.
        whom: String,
    },
    /// Let in only this key, and others that are allowed, whatever ticket is shown.
    Allow {
        #[command(flatten)]
        master: Master,
        /// Which.
        #[arg(value_parser = key)]
        key: PublicKey,
    },
    /// Take a key off the list of those that are allowed; an empty list allows all.
    Disallow {
        #[command(flatten)]
        master: Master,
        /// Which.
        #[arg(value_parser = key)]
        key: PublicKey,
    },
    /// Print invitations, bans and allowed keys.
    List {
        #[command(flatten)]
        master: Master,
    },
}

/// Which master, and how it knows its operator.
#[derive(Args)]
pub(crate) struct Master {
    /// Its file, as it was started with.
    #[arg(long, value_name = "FILE")]
    identity: PathBuf,
    /// Where it is, as HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:48148")]
    master: String,
}

impl Operation {
    /// Does it, and prints what came of it.
    pub(crate) fn run(self) -> Result<(), String> {
        let (master, request) = match self {
            Self::Invite {
                master,
                uses,
                lasts: seconds,
                key,
            } => {
                let invite = Invite { uses, seconds, key };
                (master, AdminRequest::Invite(invite))
            }
            Self::Revoke { master, invitation } => (master, AdminRequest::Revoke { invitation }),
            Self::Ban {
                master,
                whom,
                duration: seconds,
            } => (master, AdminRequest::Ban { whom, seconds }),
            Self::Unban { master, whom } => (master, AdminRequest::Unban { whom }),
            Self::Allow { master, key } => (master, AdminRequest::Allow { key, allowed: true }),
            Self::Disallow { master, key } => (
                master,
                AdminRequest::Allow {
                    key,
                    allowed: false,
                },
            ),
            Self::List { master } => (master, AdminRequest::List),
        };
        let said = administer(&master.identity, &master.master, request);
        println!("{}", said.map_err(|e| e.to_string())?.trim_end());
        Ok(())
    }
}

fn key(text: &str) -> Result<PublicKey, String> {
    text.parse()
}

/// A number and its unit.
fn seconds(text: &str) -> Result<u64, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let of = |(unit, seconds)| {
        let number = text.strip_suffix(unit)?.parse::<u64>().ok()?;
        number.checked_mul(seconds)
    };
    units
        .into_iter()
        .find_map(of)
        .ok_or_else(|| "a number with its unit, as in 90s, 30m, 12h or 7d".into())
}
