//! Planted bugs: one per rule that the machines implement, so that the simulator can show that it
//! would find them. Without the feature `sim` every question is answered "no" at compile time.

/// A bug that can be planted; each takes one rule of agreement back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(not(feature = "sim"), allow(dead_code, unreachable_pub))]
pub enum Bug {
    /// Rule 1: an OPEN carries the epoch last heard of instead of the one last shown.
    OpenWithKnownEpoch,
    /// Rule 1: a vote is dropped when the view has changed since.
    VoteDroppedOnViewChange,
    /// Rule 2: a peer takes any verdict for the name, whatever serial it quoted.
    VerdictWithoutSerial,
    /// Rule 2: verdicts are forgotten as soon as they are sent.
    VerdictForgotten,
    /// Rule 2: DONE is sent without the OPEN of every plan neighbour.
    DoneWithoutOpens,
    /// Rule 2: an abort is not remembered for members that have not opened the use.
    AbortForgotten,
    /// Rule 3: messages of a lower incarnation are obeyed.
    OldIncarnationObeyed,
    /// Rule 4: the master does not compare descriptors.
    DescriptorsNotCompared,
    /// Rule 4: the master does not compare results.
    ResultsNotCompared,
    /// Rule 5: a time-out fails the call locally without asking the master.
    TimeoutDecidesLocally,
    /// Rule 5: a failed try at a unanimous call fails only for who gave it up.
    VoteFailsAlone,
    /// Rule 6: contradictory calls are not looked for.
    ContradictionMissed,
    /// Rule 7: a sender does not wait for a grant.
    WindowIgnored,
    /// Rule 8: an in-place buffer is not restored.
    NotRestored,
    /// Rule 9: partial sums are added in order of arrival.
    OrderOfArrival,
    /// Rule 10: a peer takes the order of the ring from its own list.
    OwnOrder,
    /// Rule 10: a peer chooses algorithms by integers of its own.
    OwnChoice,
    /// Rule 11: frames are not checked.
    CrcIgnored,
    /// Rule 12: a dead lane does not abort the operations on it.
    DeadLaneIgnored,
    /// Rule 13: a member whose control connection closes is lost at once.
    LostAtOnce,
    /// Rule 13: unread input of a replaced connection is still read.
    OldConnectionRead,
    /// Rule 14: deadlines are not restarted after a gap in the own loop.
    GapIgnored,
    /// Rule 15: a newcomer without a possible plan counts as pending.
    AdmittedUnreachable,
    /// Rule 15: a newcomer that comes back after its admission is not given the result.
    AdmissionLost,
    /// Rule 16: attributes go back to those of an older stamp.
    AttributesGoBack,
    /// Rule 17: a peer goes on waiting for a verdict for ever when the master is gone.
    MasterLimitIgnored,
    /// Rule 18: an evicted peer keeps its old number when it joins again.
    RejoinAsOld,
}

#[cfg(feature = "sim")]
impl Bug {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::OpenWithKnownEpoch,
        Self::VoteDroppedOnViewChange,
        Self::VerdictWithoutSerial,
        Self::VerdictForgotten,
        Self::DoneWithoutOpens,
        Self::AbortForgotten,
        Self::OldIncarnationObeyed,
        Self::DescriptorsNotCompared,
        Self::ResultsNotCompared,
        Self::TimeoutDecidesLocally,
        Self::VoteFailsAlone,
        Self::ContradictionMissed,
        Self::WindowIgnored,
        Self::NotRestored,
        Self::OrderOfArrival,
        Self::OwnOrder,
        Self::OwnChoice,
        Self::CrcIgnored,
        Self::DeadLaneIgnored,
        Self::LostAtOnce,
        Self::OldConnectionRead,
        Self::GapIgnored,
        Self::AdmittedUnreachable,
        Self::AdmissionLost,
        Self::AttributesGoBack,
        Self::MasterLimitIgnored,
        Self::RejoinAsOld,
    ];
}

/// Whether `bug` is planted on this thread.
#[cfg(not(feature = "sim"))]
#[inline(always)]
pub(crate) const fn planted(_bug: Bug) -> bool {
    false
}

/// Whether `bug` is planted on this thread.
#[cfg(feature = "sim")]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.with(|cell| cell.get() == Some(bug))
}

/// Plants `bug` (or none) on this thread.
#[cfg(feature = "sim")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.with(|cell| cell.set(bug));
}

#[cfg(feature = "sim")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}
