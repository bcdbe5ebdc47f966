//! Where one lane is in what comes in, and in what goes out.

use std::collections::VecDeque;

use crc32fast::Hasher;

use super::edge::STANDING_CREDIT;
use super::op::{Part, Trouble};
use super::outgoing::Outgoing;
use crate::ids::{MemberId, Time};
use crate::wire::lane::{DataHeader, HEADER_BYTES};

/// One lane.
#[derive(Debug)]
pub(super) struct Lane {
    /// Who is at the other end.
    pub(super) peer: MemberId,
    /// Its place among the lanes of its edge.
    pub(super) slot: u8,
    /// What comes in.
    pub(super) rx: Incoming,
    /// What goes out: the frame that the lane is at.
    pub(super) tx: Option<Frame>,
    /// Payload of the outgoing frame, where it is not borrowed.
    pub(super) tx_buffer: Vec<u8>,
    /// How far closing the lane in good order is.
    pub(super) closing: Closing,
    /// Whether the driver does not ask for frames until it is told that there is one.
    pub(super) asleep: bool,
    /// When something last came in, or was first expected.
    pub(super) quiet_since: Time,
    /// When something last went out.
    pub(super) last_sent: Time,
    /// Whether a sign of life is to be sent.
    pub(super) alive_due: bool,
    /// Standing credit in use by what was sent on this lane.
    pub(super) early_out: u64,
    /// Standing credit in use by what came on this lane.
    pub(super) early_in: u64,
    /// The part of `early_in` that can be given back.
    pub(super) credit_due: u64,
    /// Operations (serials) that can send on standing credit, which they can only on this lane.
    pub(super) early: VecDeque<u64>,
}

/// How far an orderly end is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Closing {
    /// Not wanted.
    No,
    /// The frame that says so is to be sent.
    Wanted,
    /// It has been sent, or is being sent.
    Said,
}

/// What comes in on a lane.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Bytes that have come and belong to no frame yet; long enough for many small frames.
    pub(super) staging: Vec<u8>,
    /// How many of them there are.
    pub(super) staged: usize,
    /// The frame whose payload comes next.
    pub(super) frame: Option<IncomingFrame>,
    /// Payload that goes through scratch.
    pub(super) buffer: Vec<u8>,
    /// Whether the other end has said goodbye.
    pub(super) bye: bool,
}

/// A frame whose header is here.
#[derive(Debug)]
pub(super) struct IncomingFrame {
    pub(super) header: DataHeader,
    /// Bytes of payload that are here.
    pub(super) filled: usize,
    /// Of header and payload so far.
    pub(super) checksum: Option<Hasher>,
    pub(super) target: Target,
}

/// Where a payload goes, and what happens to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// Nowhere: its operation is finished, or failed. Also for frames without payload.
    Discard,
    /// To scratch, to be decoded.
    Open,
    /// To scratch; the operation may not have been called here yet.
    Early,
    /// To scratch, to be folded.
    Partial {
        /// Serial of the operation here.
        op: u64,
        /// What it is.
        part: Part,
    },
    /// To its room, where it waits for the contributions of others.
    Waiting {
        /// Serial of the operation here.
        op: u64,
        /// What it is.
        part: Part,
    },
    /// To scratch, to be decoded: a quantised result.
    Coded {
        /// Serial of the operation here.
        op: u64,
        /// What it is.
        part: Part,
    },
    /// To the receive buffer.
    Result {
        /// Serial of the operation here.
        op: u64,
        /// What it is.
        part: Part,
    },
    /// Nowhere: it does not fit the operation. What is wrong counts only if the frame came
    /// unharmed.
    Refused {
        /// Serial of the operation here.
        op: u64,
        /// Why.
        trouble: Trouble,
    },
}

/// A frame on its way out.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) header: [u8; HEADER_BYTES],
    /// Bytes of payload.
    pub(super) length: usize,
    /// Bytes of header and payload that a socket has taken.
    pub(super) at: usize,
    pub(super) what: Sending,
    /// Whether it uses standing credit.
    pub(super) early: bool,
    /// Whether the payload lies with the operation; otherwise in the lane's own buffer.
    pub(super) borrowed: bool,
}

impl Frame {
    /// Bytes of the payload that a socket has taken.
    pub(super) fn payload_at(&self) -> usize {
        self.at.saturating_sub(HEADER_BYTES)
    }

    /// Whether all of it has been taken.
    pub(super) fn is_complete(&self) -> bool {
        self.at == HEADER_BYTES + self.length
    }
}

/// What an outgoing frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sending {
    /// The OPEN of an operation.
    Open(u64),
    /// Data of an operation.
    Data(u64, Outgoing),
    /// Room of an operation.
    Grant(u64),
    /// Standing credit.
    Credit,
    /// The end of the lane.
    Bye,
    /// A sign of life.
    Alive,
}

impl Sending {
    /// Serial of the operation that it belongs to.
    pub(super) fn op(&self) -> Option<u64> {
        match self {
            Self::Open(op) | Self::Data(op, _) | Self::Grant(op) => Some(*op),
            Self::Credit | Self::Bye | Self::Alive => None,
        }
    }
}

impl Lane {
    /// A lane on which nothing has happened yet.
    pub(super) fn new(peer: MemberId, slot: u8, now: Time) -> Self {
        Self {
            peer,
            slot,
            rx: Incoming {
                staging: vec![0; STAGING],
                staged: 0,
                frame: None,
                buffer: Vec::new(),
                bye: false,
            },
            tx: None,
            tx_buffer: Vec::new(),
            closing: Closing::No,
            asleep: true,
            quiet_since: now,
            last_sent: now,
            alive_due: false,
            early_out: 0,
            early_in: 0,
            credit_due: 0,
            early: VecDeque::new(),
        }
    }

    /// Its bit in sets of lanes of its edge.
    pub(super) fn bit(&self) -> u64 {
        1 << self.slot
    }

    /// Whether enough standing credit can be given back to be worth a frame.
    pub(super) fn owes_credit(&self) -> bool {
        self.credit_due >= CREDIT_STEP
    }

    /// Whether new frames other than the goodbye may be given to it.
    pub(super) fn takes_frames(&self) -> bool {
        self.closing == Closing::No && !self.rx.bye
    }
}

/// Bytes that are read at once when a header is expected. Many small frames fit in, and the part
/// of a large one that is copied out of it is small.
const STAGING: usize = 4 * 1024;

/// Standing credit is given back in steps of this size: the sender has most of it all the time,
/// and small operations do not cost a frame each.
const CREDIT_STEP: u64 = STANDING_CREDIT / 4;
