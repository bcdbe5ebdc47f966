//! Which master to dial, as the user says it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result, UsageError};
use crate::runtime::dial;
use crate::transport::secure::{Identity, Party};
use crate::wire::ticket::{Secret, Ticket};

/// A master: its addresses, and in a run with tickets how to recognise it and to be let in.
#[derive(Clone)]
pub(crate) struct Target {
    /// Without secrets.
    shown: String,
    addresses: Vec<String>,
    secured: Option<Secured>,
}

/// What a ticket adds.
#[derive(Clone, Debug)]
pub(crate) struct Secured {
    pub(crate) ticket: Ticket,
    /// The own key.
    pub(crate) party: Arc<Party>,
}

impl Target {
    /// From an address or a ticket. `identity` is asked for the own key pair if that is a ticket.
    pub(crate) fn new(
        master: &str,
        identity: impl FnOnce() -> std::io::Result<Identity>,
    ) -> Result<Self> {
        if !Ticket::is_meant(master) {
            return Ok(Self {
                shown: master.to_owned(),
                addresses: vec![master.to_owned()],
                secured: None,
            });
        }
        let ticket = Ticket::parse(master).map_err(|e| UsageError::Address {
            address: "a ticket".into(),
            cause: e.to_string(),
        })?;
        let key = |e: std::io::Error| {
            let why = format!("cannot use or make the own key pair: {e}");
            let name = "identity";
            Error::Usage(UsageError::Argument { name, why })
        };
        let party = identity().and_then(Party::new).map_err(key)?;
        Ok(Self {
            shown: ticket.to_string(),
            addresses: ticket.addresses.clone(),
            secured: Some(Secured {
                ticket,
                party: Arc::new(party),
            }),
        })
    }

    /// The master whose own key pair this is.
    pub(crate) fn operator(master: &str, identity: Identity) -> Result<Self> {
        let ticket = Ticket {
            addresses: vec![master.to_owned()],
            key: identity.key(),
            // The key is proof enough.
            invitation: 0,
            secret: Secret([0; 16]),
        };
        Self::new(&ticket.reveal(), || Ok(identity))
    }

    /// For people.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// What a ticket adds; none for an address.
    pub(crate) fn secured(&self) -> Option<&Secured> {
        self.secured.as_ref()
    }

    /// Who speaks TLS, if that is spoken.
    pub(crate) fn party(&self) -> Option<Arc<Party>> {
        self.secured.as_ref().map(|secured| secured.party.clone())
    }

    /// Addresses that its names stand for, looked up anew each time: a master that moves keeps its
    /// name. One that cannot be looked up is no loss while there are others.
    pub(crate) async fn resolve(&self, limit: Duration) -> Result<Vec<SocketAddr>> {
        let mut found: Vec<SocketAddr> = Vec::new();
        let mut error = None;
        for address in &self.addresses {
            match dial::resolve(address, limit).await {
                Ok(more) => more.into_iter().for_each(|a| {
                    if !found.contains(&a) {
                        found.push(a);
                    }
                }),
                Err(e) => error = Some(e),
            }
        }
        match error {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.shown).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PublicKey;

    #[test]
    fn a_ticket_is_taken_wherever_an_address_is_and_never_shown() {
        let ticket = Ticket {
            addresses: vec!["127.0.0.1:1".into(), "[::1]:1".into()],
            key: PublicKey([1; 32]),
            invitation: 1,
            secret: Secret([2; 16]),
        };
        let target = Target::new(&ticket.reveal(), Identity::new).unwrap();
        assert_eq!(target.shown(), "127.0.0.1:1 or [::1]:1");
        assert_eq!(target.addresses.len(), 2);
        let plain = Target::new("127.0.0.1:1", || panic!("no key is needed")).unwrap();
        assert!(plain.secured().is_none() && plain.party().is_none());
        let broken = &ticket.reveal()[..60];
        let error = Target::new(broken, Identity::new).unwrap_err().to_string();
        assert!(!error.contains(&broken[5..]), "{error}");
    }
}
