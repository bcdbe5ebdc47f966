//! What goes into the engine, and what comes out, besides the bytes of its lanes.

use crate::ids::{CallId, Digest, Epoch, LaneId, MemberId, Serial};
use crate::types::ReduceDescriptor;
use crate::wire::control::{GroupView, OpName};
use crate::wire::reason::RequestCause;

/// An all-reduce to run.
#[derive(Clone, Debug)]
pub struct StartReduce {
    /// The user's call.
    pub call: CallId,
    /// Which use of its key.
    pub op: OpName,
    /// Last verdict at the time of the call; goes into the OPEN on the lanes.
    pub quoted: Serial,
    /// What to do.
    pub descriptor: ReduceDescriptor,
    /// Group and order that the plan is made from.
    pub group: GroupView,
    /// Own number; has a rank in `group`.
    pub own: MemberId,
}

/// Something that the engine tells its driver.
#[derive(Clone, PartialEq, Debug)]
pub enum EngineEvent {
    /// The first segment of an operation has been handed to a socket.
    FirstSegmentSent {
        /// Which.
        op: OpName,
        /// The user's call.
        call: CallId,
    },
    /// All of the result is in the receive buffer, and the OPEN of every plan neighbour is there.
    Done {
        /// Which.
        op: OpName,
        /// As it was opened.
        quoted: Serial,
        /// Digest of the result.
        result: Digest,
    },
    /// The operation cannot go on.
    Failed {
        /// Which.
        op: OpName,
        /// As it was opened.
        quoted: Serial,
        /// Why.
        cause: RequestCause,
    },
    /// The lane carried what no correct member sends, or fell silent: close it, now.
    LaneFault {
        /// Which.
        lane: LaneId,
        /// Who is at the other end.
        peer: MemberId,
        /// What is wrong.
        what: String,
    },
    /// The other end closed the lane in good order.
    LaneBye {
        /// Which.
        lane: LaneId,
    },
}

/// How much an operation has moved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OpStats {
    /// Bytes of payload handed to sockets.
    pub tx_bytes: u64,
    /// Bytes of payload taken from sockets into the operation.
    pub rx_bytes: u64,
    /// Members that took part.
    pub world: u32,
}

/// Group as the engine knows it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EngineGroup {
    /// As last heard of: lanes and held OPENs follow it.
    pub view: GroupView,
    /// Epoch last shown to the user.
    pub shown: Epoch,
}
