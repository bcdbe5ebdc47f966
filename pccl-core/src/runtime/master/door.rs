//! Who gets in: the door of a master that gives tickets. It asks its book, and keeps that in a file.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use super::book::{Book, Seconds, Whom};
use crate::config::TicketConfig;
use crate::error::{Error, Result, UsageError};
use crate::ids::PublicKey;
use crate::runtime::calls::lock;
use crate::transport::secure::{Met, Party, keep};
use crate::wire::control::{AdminRequest, TicketProof};
use crate::wire::ticket::Ticket;

/// The door.
pub(super) struct Door {
    party: Party,
    book: Mutex<Book>,
    file: Option<PathBuf>,
    /// What tickets say.
    addresses: Vec<String>,
}

/// What became of an operator's wish.
pub(super) struct Done {
    /// For the operator.
    pub(super) said: std::result::Result<String, String>,
    /// Whether somebody who is in may have to go.
    pub(super) bans: bool,
}

impl Door {
    /// The door that the settings say, as its file has kept it. Tickets say these addresses.
    pub(super) fn open(config: &TicketConfig, addresses: Vec<String>) -> Result<Self> {
        let opened = match &config.identity {
            Some(path) => kept(path),
            None => Book::new(),
        };
        let opened = opened.and_then(|book| {
            Ok(Self {
                party: Party::new(book.identity.clone())?,
                book: Mutex::new(book),
                file: config.identity.clone(),
                addresses,
            })
        });
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

    /// Ticket of the oldest invitation for everybody, if there is one.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        let book = lock(&self.book);
        self.ticket_of(&book, book.standing()?)
    }

    fn ticket_of(&self, book: &Book, number: u32) -> Option<Ticket> {
        Some(Ticket {
            addresses: self.addresses.clone(),
            key: self.party.key(),
            invitation: number,
            secret: book.invitation(number)?,
        })
    }

    /// Whether somebody shows that it holds a ticket that is valid for it, in this very session.
    pub(super) fn admits(&self, met: &Met, proof: &TicketProof) -> bool {
        lock(&self.book).admits(met, proof, now())
    }

    /// Whether somebody shows the key of the master itself, as who has its file can.
    pub(super) fn is_operator(&self, met: &Met) -> bool {
        met.key == self.party.key()
    }

    /// Whether nobody from this address, or with this key, may come in.
    pub(super) fn bars(&self, address: IpAddr, key: Option<PublicKey>) -> bool {
        lock(&self.book).bars(address, key, now())
    }

    /// Somebody joins with an invitation; whether it still may.
    pub(super) fn enter(&self, invitation: u32, key: PublicKey) -> bool {
        let mut book = lock(&self.book);
        let (may, changed) = book.enter(invitation, key);
        if changed && let Err(cause) = self.keep(&book) {
            tracing::error!(%cause, "cannot note that an invitation was used");
        }
        may
    }

    /// Does what an operator wants, and keeps it.
    pub(super) fn administer(&self, request: &AdminRequest) -> Done {
        let mut book = lock(&self.book);
        let said = self.change(&mut book, request);
        let reads = matches!(request, AdminRequest::List);
        let kept = match &said {
            Ok(_) if !reads => self.keep(&book),
            _ => Ok(()),
        };
        let unkept = |e: io::Error| format!("done, but it will not outlive the master: {e}");
        Done {
            said: said.and_then(|said| kept.map(|()| said).map_err(unkept)),
            bans: matches!(request, AdminRequest::Ban { .. }),
        }
    }

    fn change(
        &self,
        book: &mut Book,
        request: &AdminRequest,
    ) -> std::result::Result<String, String> {
        let ok = |did: bool, nothing: &str| match did {
            true => Ok("done".to_owned()),
            false => Err(nothing.to_owned()),
        };
        match request {
            AdminRequest::List => Ok(book.list()),
            AdminRequest::Invite(wanted) => {
                let number = book.invite(wanted, now()).map_err(|e| e.to_string())?;
                let ticket = self.ticket_of(book, number);
                ticket.map(|t| t.reveal()).ok_or_else(|| "no ticket".into())
            }
            AdminRequest::Revoke { invitation } => {
                ok(book.revoke(*invitation), "there is no such invitation")
            }
            AdminRequest::Ban { whom, seconds } => {
                let whom: Whom = whom.parse()?;
                let banned = book.ban(whom, *seconds, now());
                banned.map(|()| "done".into()).map_err(|e| e.to_string())
            }
            AdminRequest::Unban { whom } => ok(book.unban(&whom.parse()?), "there is no such ban"),
            AdminRequest::Allow { key, allowed } => {
                book.allow(*key, *allowed);
                ok(true, "")
            }
        }
    }

    fn keep(&self, book: &Book) -> io::Result<()> {
        match &self.file {
            Some(path) => keep(path, &book.text()),
            None => Ok(()),
        }
    }
}

fn kept(path: &Path) -> io::Result<Book> {
    match std::fs::read_to_string(path) {
        Ok(text) => Book::parse(&text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let book = Book::new()?;
            keep(path, &book.text())?;
            Ok(book)
        }
        Err(e) => Err(e),
    }
}

fn now() -> Seconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::Invite;

    fn said(door: &Door, request: &AdminRequest) -> String {
        door.administer(request).said.unwrap()
    }

    #[test]
    fn what_an_operator_does_outlives_the_master_in_a_file_for_its_owner_only() {
        let thread = std::thread::current().id();
        let folder = format!("pccl-door-{}-{thread:?}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("master");
        let config = TicketConfig {
            identity: Some(file.clone()),
            addresses: Vec::new(),
        };
        let open = || Door::open(&config, vec!["127.0.0.1:1".into()]).unwrap();
        let door = open();
        let first = door.ticket().unwrap();
        assert_eq!(open().ticket(), Some(first.clone()));
        let invited = said(&door, &AdminRequest::Invite(Invite::default()));
        let second = Ticket::parse(&invited).unwrap();
        assert_ne!(second.secret, first.secret);
        let invitation = first.invitation;
        said(&door, &AdminRequest::Revoke { invitation });
        assert_eq!(open().ticket(), Some(second));
        let whom = "192.0.2.0/24".to_owned();
        let seconds = None;
        said(&door, &AdminRequest::Ban { whom, seconds });
        assert!(open().bars("192.0.2.9".parse().unwrap(), None));
        let again = door.administer(&AdminRequest::Revoke { invitation });
        assert!(again.said.is_err());
        std::fs::write(&file, "nonsense").unwrap();
        let error = Door::open(&config, Vec::new()).err().unwrap().to_string();
        assert!(error.contains("holds no key pair"), "{error}");
        let forgetful = Door::open(&TicketConfig::default(), Vec::new()).unwrap();
        assert_ne!(forgetful.ticket().unwrap().secret, first.secret);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
