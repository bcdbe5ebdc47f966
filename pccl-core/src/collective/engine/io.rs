//! What goes into the engine, and what comes out, besides the bytes of its lanes.

use crate::config::Timing;
use crate::ids::{CallId, Digest, Epoch, LaneId, MemberId, Serial};
use crate::types::ReduceDescriptor;
use crate::wire::control::{GroupView, OpName};
use crate::wire::reason::RequestCause;

/// Settings of an engine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EngineConfig {
    /// Bytes of one data frame's payload at most, on an edge of one lane; rounded to a multiple of
    /// 8 and kept between 8 and [`PAYLOAD_LIMIT`](crate::wire::lane::PAYLOAD_LIMIT).
    pub segment: u32,
    /// Whether lanes protect what they carry (TLS, QUIC), so that frames need no checksum.
    /// (Rule 11)
    pub protected: bool,
    /// Heartbeat interval and peer time-out.
    pub timing: Timing,
    /// Bytes of scratch lent to operations whose partials are wider than their elements, beyond
    /// the small room that each of them owns. Default 32 MiB: what a link of 1 Gbit/s with 200 ms
    /// of round trip has in flight. (Rule 7)
    pub scratch: u64,
}

impl EngineConfig {
    /// Bytes of one data frame's payload at most, on an edge of so many lanes. They share a link:
    /// in equal parts, a frame is as long on its way however many they are.
    pub(super) fn segment_on(&self, lanes: usize) -> u64 {
        let segment = u64::from(self.segment);
        let part = segment / (lanes as u64).max(1) / 8 * 8;
        part.max(LEAST_PART.min(segment))
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            segment: 512 * 1024,
            protected: false,
            timing: Timing::default(),
            scratch: 32 * 1024 * 1024,
        }
    }
}

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
    /// The other end closed the lane in good order: nothing more comes from it.
    LaneBye {
        /// Which.
        lane: LaneId,
    },
    /// What `close_lane` asked for has been handed to the socket: nothing more goes out on the
    /// lane, and it can be closed.
    ByeSent {
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

/// A smaller frame is not worth its own call to the system, and its header.
const LEAST_PART: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_a_segment_down_to_a_limit() {
        let config = |segment| EngineConfig {
            segment,
            ..EngineConfig::default()
        };
        let found = [0, 1, 2, 3, 8, 64].map(|lanes| config(512 << 10).segment_on(lanes));
        assert_eq!(found, [524_288, 524_288, 262_144, 174_760, 65_536, 65_536]);
        let found = [1, 8].map(|lanes| config(1_000).segment_on(lanes));
        assert_eq!(found, [1_000; 2]);
    }
}
