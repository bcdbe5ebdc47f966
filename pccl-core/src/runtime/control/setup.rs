//! Where a peer listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::config::PeerConfig;
use crate::error::{Error, UsageError};
use crate::membership::peer::OwnAddresses;
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
    let wanted = match config.listen {
        Some(wanted) => wanted,
        None => {
            let masters = master.resolve(limit).await?;
            let local = masters
                .iter()
                .find_map(|m| sockopt::address_towards(*m).ok());
            SocketAddr::new(local.unwrap_or(ANY), 0)
        }
    };
    let bad = |e: std::io::Error| {
        Error::Usage(UsageError::Address {
            address: wanted.to_string(),
            cause: e.to_string(),
        })
    };
    let listener = Listener::bind(wanted).map_err(bad)?;
    let address = listener.address().map_err(bad)?;
    if master.secured().is_none() && !address.ip().is_loopback() {
        tracing::warn!(
            target: "pccl::peer",
            %address,
            "security is off: whoever is on the way to this peer can read and change what it sends; \
             join with a ticket of the master (pccl-master --security ticket)"
        );
    }
    let port = address.port();
    let announce = config.announce.clone();
    Ok((listener, OwnAddresses { port, announce }))
}

/// Where to listen when the system knows no way to the master (yet).
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
