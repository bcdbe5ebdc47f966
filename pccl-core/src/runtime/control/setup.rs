//! Where a peer listens.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::config::{PeerConfig, Place};
use crate::error::{Error, UsageError};
use crate::membership::peer::OwnAddresses;
use crate::runtime::dial;
use crate::runtime::target::Target;
use crate::transport::listener::Listener;
use crate::transport::sockopt;

/// Binds the port that members dial, and says what to announce. By default on the address that
/// reaches the master: a peer that shares its machine with the master, and dials it there, is not
/// reachable from elsewhere.
pub(super) async fn listen(
    master: &Target,
    config: &PeerConfig,
    limit: Duration,
) -> Result<(Listener, OwnAddresses), Error> {
    let candidates = match &config.listen {
        Some(wanted) => look_up(wanted, limit).await?,
        None => {
            let masters = master.resolve(limit).await?;
            let local = masters
                .iter()
                .find_map(|m| sockopt::address_towards(*m).ok());
            vec![SocketAddr::new(local.unwrap_or(ANY), 0)]
        }
    };
    let listener = bind(&candidates)?;
    let address = listener.address().map_err(|e| bad(ANY.to_string(), &e))?;
    if master.secured().is_none() && !address.ip().is_loopback() {
        tracing::warn!(
            target: "pccl::peer",
            %address,
            "security is off: whoever is on the way to this peer can read and change what it sends; \
             join with a ticket of the master (pccl-master --security ticket)"
        );
    }
    let port = address.port();
    let mut announce = Vec::new();
    for place in &config.announce {
        announce.extend(look_up(place, limit).await?);
    }
    if address.ip().is_unspecified() {
        let own = sockopt::addresses_outside(address.is_ipv6());
        announce.extend(own.map(|ip| SocketAddr::new(ip, port)));
    }
    for told in announce.iter_mut().filter(|told| told.port() == 0) {
        told.set_port(port);
    }
    let mut seen = BTreeSet::new();
    announce.retain(|told| seen.insert(*told));
    Ok((listener, OwnAddresses { port, announce }))
}

/// Listens at the first of these that can be bound.
fn bind(candidates: &[SocketAddr]) -> Result<Listener, Error> {
    let mut error = bad(String::new(), &"the name has no address");
    for candidate in candidates {
        match Listener::bind(*candidate) {
            Ok(listener) => return Ok(listener),
            Err(e) => error = bad(candidate.to_string(), &e),
        }
    }
    Err(error)
}

/// A name of the own host that means nothing is the caller's mistake.
async fn look_up(place: &Place, limit: Duration) -> Result<Vec<SocketAddr>, Error> {
    let found = dial::resolve(place.as_str(), limit).await;
    found.map_err(|e| bad(place.to_string(), &e))
}

fn bad(address: String, cause: &dyn std::fmt::Display) -> Error {
    let cause = cause.to_string();
    Error::Usage(UsageError::Address { address, cause })
}

/// Where to listen when the system knows no way to the master (yet).
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
