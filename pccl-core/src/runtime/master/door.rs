//! Who gets in: the master's key pair and its invitations, and the file that keeps them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::config::TicketConfig;
use crate::error::{Error, Result, UsageError};
use crate::transport::secure::{Identity, Met, Party, keep};
use crate::wire::control::TicketProof;
use crate::wire::ticket::{self, Secret, Ticket};

/// The door of a master that gives tickets.
pub(super) struct Door {
    party: Party,
    invitations: BTreeMap<u32, Secret>,
}

impl Door {
    /// The door that the settings say, as its file has kept it.
    pub(super) fn open(config: &TicketConfig) -> Result<Self> {
        let opened = match &config.identity {
            Some(path) => Self::kept(path),
            None => Self::new(),
        };
        opened.map_err(|e| {
            let of = match &config.identity {
                Some(path) => format!(" of {}", path.display()),
                None => String::new(),
            };
            let why = format!("cannot use or make the key pair and invitations{of}: {e}");
            let name = "identity";
            Error::Usage(UsageError::Argument { name, why })
        })
    }

    /// Who the master is to those that dial it.
    pub(super) fn party(&self) -> &Party {
        &self.party
    }

    /// The ticket of the standing invitation.
    pub(super) fn ticket(&self, addresses: Vec<String>) -> Ticket {
        let (invitation, secret) = match self.invitations.first_key_value() {
            Some((number, secret)) => (*number, *secret),
            // A file without one invites nobody.
            None => (0, Secret([0; 16])),
        };
        Ticket {
            addresses,
            key: self.party.key(),
            invitation,
            secret,
        }
    }

    /// Whether somebody shows that it holds a ticket, in this very session.
    pub(super) fn admits(&self, met: &Met, proof: &TicketProof) -> bool {
        let secret = self.invitations.get(&proof.invitation);
        secret.is_some_and(|secret| secret.accepts(&met.binding, &proof.proof))
    }

    fn new() -> io::Result<Self> {
        Self::with(Identity::new()?, BTreeMap::from([(FIRST, fresh()?)]))
    }

    fn with(identity: Identity, invitations: BTreeMap<u32, Secret>) -> io::Result<Self> {
        Ok(Self {
            party: Party::new(identity)?,
            invitations,
        })
    }

    fn kept(path: &Path) -> io::Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let (identity, invitations) = parse(&text)?;
                Self::with(identity, invitations)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let identity = Identity::new()?;
                let invitations = BTreeMap::from([(FIRST, fresh()?)]);
                keep(path, &text(&identity, &invitations))?;
                Self::with(identity, invitations)
            }
            Err(e) => Err(e),
        }
    }
}

fn fresh() -> io::Result<Secret> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(Secret(bytes))
}

/// What the file holds: the key pair in the first line, then a line per invitation.
fn text(identity: &Identity, invitations: &BTreeMap<u32, Secret>) -> String {
    let mut text = format!("{}\n", identity.text());
    for (number, secret) in invitations {
        text.push_str(&format!(
            "{INVITATION} {number} {}\n",
            ticket::encode(&secret.0)
        ));
    }
    text
}

fn parse(text: &str) -> io::Result<(Identity, BTreeMap<u32, Secret>)> {
    let mut lines = text.lines();
    let identity = Identity::from_text(lines.next().unwrap_or_default().trim())?;
    let mut invitations = BTreeMap::new();
    for (at, line) in lines.enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (number, secret) = invitation(line).ok_or_else(|| {
            let what = format!("line {} is no invitation", at + 2);
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        invitations.insert(number, secret);
    }
    Ok((identity, invitations))
}

fn invitation(line: &str) -> Option<(u32, Secret)> {
    let mut words = line.split_whitespace();
    if words.next() != Some(INVITATION) {
        return None;
    }
    let number = words.next()?.parse().ok()?;
    let secret = ticket::decode(words.next()?).ok()?;
    let secret = Secret(secret.try_into().ok()?);
    words.next().is_none().then_some((number, secret))
}

/// Number of the invitation that a new master begins with.
const FIRST: u32 = 1;

/// How the line of an invitation begins.
const INVITATION: &str = "invitation";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PublicKey;

    fn folder() -> std::path::PathBuf {
        let name = format!(
            "pccl-door-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn key_and_invitations_outlive_the_master_in_a_file_for_its_owner_only() {
        let folder = folder();
        let config = TicketConfig {
            identity: Some(folder.join("master")),
            addresses: Vec::new(),
        };
        let ticket = |door: &Door| door.ticket(vec!["127.0.0.1:1".into()]).reveal();
        let first = ticket(&Door::open(&config).unwrap());
        assert_eq!(ticket(&Door::open(&config).unwrap()), first);
        let forgetful = TicketConfig::default();
        assert_ne!(ticket(&Door::open(&forgetful).unwrap()), first);
        std::fs::write(folder.join("master"), "pccl-secret-key-AA\n").unwrap();
        let error = Door::open(&config).err().unwrap().to_string();
        assert!(error.contains("holds no key pair"), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_proof_opens_the_door_in_its_own_session_only() {
        let door = Door::open(&TicketConfig::default()).unwrap();
        let ticket = door.ticket(Vec::new());
        let met = |binding| Met {
            key: PublicKey([1; 32]),
            binding: [binding; 32],
        };
        let proof = TicketProof {
            invitation: ticket.invitation,
            proof: ticket.secret.proof(&met(5).binding),
        };
        assert!(door.admits(&met(5), &proof));
        // Recorded and said again in another session.
        assert!(!door.admits(&met(6), &proof));
        let other = TicketProof {
            invitation: 9,
            ..proof
        };
        assert!(!door.admits(&met(5), &other));
    }
}
