//! Whose fault it was, in which phase, and what to do about it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::ids::MemberId;
use crate::types::{DataType, OpKey};
use crate::wire::control::Stamp;
use crate::wire::reason::{AbortReason, EvictReason, RefuseReason, RequestCause, WaitsIn};

/// Result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller's mistake; nothing was started.
    #[error("{0}")]
    Usage(#[from] UsageError),
    /// The group has one member only: there is nobody to reduce with.
    #[error("the group has no other member; wait for one to join (update_topology)")]
    TooFewPeers,
    /// The operation or unanimous call failed at every member alike. Buffers are as they were.
    #[error("{what} failed at all members: {reason}")]
    Aborted {
        /// Which call.
        what: WaitsIn,
        /// Why.
        reason: AbortReason,
        /// World sizes that hold from now on.
        stamp: Stamp,
    },
    /// The master cannot be reached, or something else answers at its address.
    #[error("cannot reach the master at {address} ({phase}): {cause}")]
    Unreachable {
        /// As given.
        address: String,
        /// Which step failed.
        phase: ConnectPhase,
        /// What the socket, or the other side, said.
        cause: String,
    },
    /// The master turned the registration down.
    #[error("the master at {address} refused this peer: {reason}")]
    Refused {
        /// As given.
        address: String,
        /// Why.
        reason: RefuseReason,
    },
    /// Joining was given up before the members had admitted this peer; nothing is left of it.
    #[error(
        "gave up joining the run before its members admitted this peer (they do so in \
         update_topology): {0}"
    )]
    NotAdmitted(RequestCause),
    /// This peer is no member any more; `connect` or `update_topology` joins again.
    #[error("this peer was evicted from the run: {0}")]
    Evicted(EvictReason),
    /// The master was away for longer than the master limit, so this peer has left the run.
    #[error(
        "no word from the master at {address} for {waited:?}; this peer has left the run and must \
         join and synchronise again"
    )]
    MasterLost {
        /// As given.
        address: String,
        /// How long it waited.
        waited: Duration,
    },
    /// A call was abandoned: this peer has left the run without waiting for the verdict.
    #[error(
        "the call was abandoned; this peer has left the run and must join and synchronise again"
    )]
    Abandoned,
    /// Several operations were given up between two of them.
    #[error("given up after {committed} of {total} operations")]
    GivenUp {
        /// How many were committed.
        committed: usize,
        /// How many there are.
        total: usize,
    },
    /// The master was stopped in good order, which ends the run.
    #[error("the master at {address} was stopped")]
    MasterStopped {
        /// As given.
        address: String,
    },
    /// A bug in this library, or the system refused a resource that it needs.
    #[error("internal: {0}")]
    Internal(String),
}

/// A mistake of the caller.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// A call that needs a run came before `connect`.
    #[error("not connected: call connect first")]
    NotConnected,
    /// `connect` on a member.
    #[error("already connected")]
    AlreadyConnected,
    /// The communicator is being destroyed.
    #[error("the communicator is closed")]
    Closed,
    /// A unanimous call or synchronisation while operations are open.
    #[error("operations are still open ({0}); wait for them first")]
    OperationsOpen(usize),
    /// The key is in use.
    #[error("{0} is still open; wait for it first")]
    InUse(OpKey),
    /// Another unanimous call of this communicator is open.
    #[error("{0} is still open on another thread")]
    CallOpen(WaitsIn),
    /// More operations open, or more failed ones remembered, than the limit.
    #[error("{open} operations are open or remembered; the limit is {limit}")]
    TooMany {
        /// How many there are.
        open: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Send and receive buffer have different lengths, or not the descriptor's.
    #[error("the {which} buffer has {got} bytes; {count} x {data_type:?} takes {want}")]
    BufferLength {
        /// Send or receive.
        which: &'static str,
        /// Bytes given.
        got: usize,
        /// Bytes needed.
        want: u64,
        /// Elements.
        count: u64,
        /// Of what type.
        data_type: DataType,
    },
    /// The buffers overlap without being the same.
    #[error("send and receive buffer overlap in part; give the same buffer, or separate ones")]
    PartialOverlap,
    /// An address that cannot be parsed or resolved.
    #[error("bad address {address:?}: {cause}")]
    Address {
        /// As given.
        address: String,
        /// What is wrong.
        cause: String,
    },
    /// Anything else that is wrong with an argument.
    #[error("bad argument {name}: {why}")]
    Argument {
        /// Which.
        name: &'static str,
        /// What is wrong.
        why: String,
    },
}

/// Steps of getting a control connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConnectPhase {
    /// Name look-up.
    Resolve,
    /// TCP connection.
    Dial,
    /// First frames.
    Handshake,
}

impl std::fmt::Display for ConnectPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Resolve => "looking up its name",
            Self::Dial => "dialling",
            Self::Handshake => "greeting it",
        })
    }
}

/// Addresses of a peer, each with what it said when it was dialled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DialFailure {
    /// Who was dialled.
    pub peer: MemberId,
    /// One entry per address.
    pub attempts: Vec<(SocketAddr, String)>,
}
