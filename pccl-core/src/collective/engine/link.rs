//! One operation and one of its neighbours.

use crate::ids::MemberId;

/// What an operation knows of a neighbour, and the neighbour of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    /// The neighbour.
    pub(super) peer: MemberId,
    /// Serial of the operation there; none until a frame of the operation came from there.
    pub(super) serial: Option<u64>,
    /// Whether its OPEN is here.
    pub(super) opened: bool,
    /// How far the own OPEN is.
    pub(super) open: OpenSent,
    /// Lanes (by slot) that have carried something of the operation to the neighbour: whether it
    /// arrived is not known before the verdict. (Rule 12)
    pub(super) used: u64,
    /// Whether the operation stands in the edge's queue of those with something to send.
    pub(super) queued: bool,
    /// Whether it stands in a lane's queue of those with something to send early.
    pub(super) queued_early: bool,
}

/// How far an own OPEN is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpenSent {
    /// In the edge's queue.
    Queued,
    /// Given to the lane in this slot, or sent on it.
    On(u8),
    /// Sent on a lane that is closed since, in good order.
    Gone,
}

impl Link {
    /// A link on which nothing has happened yet.
    pub(super) fn new(peer: MemberId) -> Self {
        Self {
            peer,
            serial: None,
            opened: false,
            open: OpenSent::Queued,
            used: 0,
            queued: false,
            queued_early: false,
        }
    }
}
