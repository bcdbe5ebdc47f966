//! Settings, their defaults, and the reasons for them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::types::{Algorithm, DigestKind};

/// Time limits of a run. One knob, from which the others derive: `peer_timeout`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Time between heartbeats. Default one second: five fit into the peer time-out, so that a
    /// single lost packet never counts.
    pub heartbeat: Duration,
    /// Silence after which somebody counts as lost. Default five seconds.
    pub peer_timeout: Duration,
    /// How long peers go on without the master before they leave. Default one minute: a restart.
    pub master_limit: Duration,
}

impl Timing {
    /// Limits derived from a peer time-out: heartbeats at a fifth of it, the master limit at
    /// twelve times.
    pub fn from_peer_timeout(peer_timeout: Duration) -> Self {
        Self {
            heartbeat: peer_timeout / 5,
            peer_timeout,
            master_limit: peer_timeout.saturating_mul(12),
        }
    }

    /// What is wrong with these limits, if anything is. Peers are told them in whole milliseconds;
    /// with none between heartbeats, or with less silence than that allowed, nobody would live.
    pub(crate) fn mistake(&self) -> Option<String> {
        let limits = [self.heartbeat, self.peer_timeout, self.master_limit];
        let fit = |limit: &Duration| (SHORTEST..=LONGEST).contains(limit);
        if !limits.iter().all(fit) {
            return Some(format!(
                "{limits:?} are not all {SHORTEST:?} to {LONGEST:?}"
            ));
        }
        let (heartbeat, peer_timeout) = (self.heartbeat, self.peer_timeout);
        (heartbeat >= peer_timeout).then(|| {
            format!("heartbeats every {heartbeat:?} do not fit a peer time-out of {peer_timeout:?}")
        })
    }

    /// Limit of every handshake, and of how long a lane waits for the master's message. A peer
    /// that does not finish its first words within a peer time-out is none.
    pub fn handshake(&self) -> Duration {
        self.peer_timeout
    }

    /// Within this time an edge must get a lane, or it is broken. Two peer time-outs: one for
    /// each direction of dialling.
    pub fn dial(&self) -> Duration {
        self.peer_timeout * 2
    }

    /// Grace of a member whose control connection closed and whose lanes another member saw
    /// close, beyond three of its round trips. (Rule 13)
    pub fn corroborated_loss(&self) -> Duration {
        Duration::from_millis(20)
    }

    /// Waiting longer than this is worth a warning. (Rule 17)
    pub fn warn_after(&self) -> Duration {
        self.peer_timeout * 2
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::from_peer_timeout(Duration::from_secs(5))
    }
}

/// The unit in which peers are told.
const SHORTEST: Duration = Duration::from_millis(1);

/// Twelve days: beyond a run's patience, and what derives from it still fits every clock.
const LONGEST: Duration = Duration::from_secs(12 * 86_400);

/// Settings of a master.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MasterConfig {
    /// Time limits of the run; peers learn them when they register.
    pub timing: Timing,
    /// Limits on what members may make it hold.
    pub limits: MasterLimits,
    /// Digests of the shared state; peers learn it when they register. Default fast ones:
    /// cryptographic ones are worth their time where not every member is trusted.
    pub digests: DigestKind,
    /// Who may join, and whether what they say is encrypted.
    pub security: Security,
}

/// Who may talk in a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Security {
    /// Everybody who reaches the ports; nothing is encrypted or authenticated. For networks in which
    /// everybody is trusted. The default.
    #[default]
    Off,
    /// Only who holds a ticket of the master, and the members that it has let in: TLS 1.3 on every
    /// connection, of peers among themselves too.
    Ticket(TicketConfig),
}

/// Settings of a master that gives tickets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TicketConfig {
    /// File that holds the master's key pair and its invitations; made if it is not there, readable by
    /// its owner only. Without one, both last as long as the master.
    pub identity: Option<PathBuf>,
    /// What the ticket says where the master is, each as `host:port`. Default: the address it listens
    /// on, or, if that is any address, those of this machine that lead outside.
    pub addresses: Vec<String>,
}

/// Limits on what the master holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MasterLimits {
    /// Members and newcomers. Default 16,384: each costs a descriptor and a few KiB.
    pub members: u32,
    /// Uses remembered per group: open ones, and aborts that not all have opened yet. (Rule 2)
    /// Default 1,024.
    pub uses: usize,
    /// Bytes of lists of tensors of a group's open synchronisations, those that members share
    /// counted once: what they offer, and then what they have to fetch. Default 64 MiB: a hundred
    /// members that begin with ten thousand tensors each, no two the same.
    pub lists: usize,
}

impl Default for MasterLimits {
    fn default() -> Self {
        Self {
            members: 16_384,
            uses: 1_024,
            lists: 64 << 20,
        }
    }
}

/// Where something is: `host:port`, `address:port` or `[address]:port`. Names are looked up when they
/// are needed, and anew each time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(String);

impl Place {
    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Self {
        Self(address.to_string())
    }
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.parse::<SocketAddr>().is_err() {
            let (host, port) = text
                .rsplit_once(':')
                .ok_or_else(|| "it has no port (host:port)".to_owned())?;
            port.parse::<u16>()
                .map_err(|e| format!("bad port {port:?}: {e}"))?;
            let outside = |c: char| c.is_whitespace() || "/:[]@".contains(c);
            if host.is_empty() || host.contains(outside) {
                return Err(format!("{host:?} is no name of a host, nor an address"));
            }
        }
        Ok(Self(text.to_owned()))
    }
}

/// Settings of a peer.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerConfig {
    /// What the operators shall call it. Default: host name and process number are not looked up;
    /// the empty name shows as the member's number.
    pub name: String,
    /// Group to join.
    pub group: crate::ids::PeerGroup,
    /// Connections per edge; zero chooses by the path's round-trip time: one within a building, up
    /// to eight over long distances. The larger of both ends' wishes holds.
    pub pool: u16,
    /// Where to listen; port zero lets the system choose one. `[::]:0` takes both families of
    /// addresses. Default: the address that reaches the master, any port.
    pub listen: Option<Place>,
    /// Where others are told to dial, before the address that the master sees: of a provider that maps
    /// ports, or a name. Port zero is the one that is listened on. Who listens on any address tells
    /// those of this machine that lead outside besides.
    pub announce: Vec<Place>,
    /// Bytes of one data frame's payload at most, on an edge of one lane; a multiple of 8. Several
    /// lanes share a link, and have it in equal parts, down to 64 KiB: then a frame is as long on
    /// its way however many they are. Default 512 KiB: large enough that a frame's cost is its
    /// bytes, small enough that what came is still in the cache when it is folded.
    pub segment: u32,
    /// Threads that compute digests of the shared state at most. Default zero: one per core, up to
    /// 16; memory is slower than that.
    pub digest_threads: u16,
    /// By which algorithm all-reduces go that ask for none, at all members the same. Default none: what the
    /// environment variable `PCCL_ALGORITHM` says (`ring`, `star` or `direct`), or, if it is not set,
    /// what suits the size of the tensor and the links of the group.
    pub algorithm: Option<Algorithm>,
    /// Whether chunks of the shared state may be compressed for members whose link is slower than
    /// the compressor, if they shrink by a tenth. Default true.
    pub compress_state: bool,
    /// File that holds this peer's key pair, for runs with tickets; made if it is not there, readable
    /// by its owner only. Default: a new key pair for every communicator, kept nowhere.
    pub identity: Option<PathBuf>,
}

impl Default for PeerConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            group: crate::ids::PeerGroup(0),
            pool: 0,
            listen: None,
            announce: Vec::new(),
            segment: 512 * 1024,
            digest_threads: 0,
            algorithm: None,
            compress_state: true,
            identity: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_names_or_addresses_with_a_port() {
        for good in [
            "a.example:1",
            "127.0.0.1:0",
            "[::1]:65535",
            "[::]:0",
            "localhost:80",
        ] {
            let place: Place = good.parse().unwrap();
            assert_eq!(place.as_str(), good);
        }
        for bad in [
            "",
            "a",
            "a:",
            ":1",
            "a:65536",
            "::1:1:x",
            "[::1]",
            "a b:1",
            "http://a:1",
        ] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_that_nobody_could_live_with_are_mistakes() {
        assert_eq!(Timing::default().mistake(), None);
        let day = Timing::from_peer_timeout(Duration::from_secs(86_400));
        assert_eq!(day.mistake(), None);
        let short = Timing::from_peer_timeout(Duration::from_micros(4_999));
        assert!(short.mistake().is_some());
        assert!(Timing::from_peer_timeout(Duration::MAX).mistake().is_some());
        let upside_down = Timing {
            heartbeat: Duration::from_secs(5),
            ..Timing::default()
        };
        assert!(upside_down.mistake().is_some());
    }
}
