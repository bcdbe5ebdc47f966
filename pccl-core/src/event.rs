//! One typed stream of what happened, for logs, metrics, the simulator's oracle and people.

use std::fmt;

use crate::ids::{Epoch, MemberId, PeerGroup, Round, Serial};
use crate::wire::control::{OpName, Outcome, Stamp};
use crate::wire::reason::{AbortReason, EvictReason, LossCause, RefuseReason};

/// Something that happened at the master or at a peer. Printed by `Display` for people.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A newcomer registered.
    Registered {
        /// Who.
        member: MemberId,
        /// Its name.
        name: String,
        /// Its group.
        group: PeerGroup,
    },
    /// A registration was turned down.
    Refused {
        /// Its name.
        name: String,
        /// Why.
        reason: RefuseReason,
    },
    /// A newcomer was admitted.
    Admitted {
        /// Who.
        member: MemberId,
        /// By which round.
        round: Round,
    },
    /// A member is lost.
    Lost {
        /// Who.
        member: MemberId,
        /// Its name.
        name: String,
        /// How.
        cause: LossCause,
    },
    /// A member, or this peer, was evicted.
    Evicted {
        /// Who.
        member: MemberId,
        /// Why.
        reason: EvictReason,
    },
    /// A member's control connection closed; it may come back.
    Detached {
        /// Who.
        member: MemberId,
        /// What the socket said.
        cause: String,
    },
    /// A member came back.
    Attached {
        /// Who.
        member: MemberId,
    },
    /// A group changed.
    Group {
        /// Which.
        group: PeerGroup,
        /// Its epoch now.
        epoch: Epoch,
        /// Its ring now.
        ring: Vec<MemberId>,
    },
    /// A verdict was given (at the master) or taken (at a peer).
    Verdict {
        /// On which use.
        op: OpName,
        /// In which group.
        group: PeerGroup,
        /// Its place in the order of verdicts.
        serial: Serial,
        /// What.
        outcome: Outcome,
        /// State of the run at that moment.
        stamp: Stamp,
    },
    /// The first segment of an operation left for another member (from the engine's event of that
    /// name): from now on the operation can be half done when this peer dies.
    FirstSegmentSent {
        /// Which use.
        op: OpName,
    },
    /// A round or query completed.
    Completed {
        /// Which.
        vote: crate::wire::control::VoteName,
    },
    /// A try at a unanimous call failed.
    VoteFailed {
        /// Which.
        vote: crate::wire::control::VoteName,
        /// Why.
        reason: AbortReason,
    },
    /// Members wait for others, for longer than the warning limit. (Rule 17)
    Waiting {
        /// Who waits, and in what.
        waits: String,
        /// For whom.
        missing: Vec<MemberId>,
    },
    /// A peer cannot be dialled by the side whose part it is.
    CannotDial {
        /// Who dialled.
        from: MemberId,
        /// Whom.
        to: MemberId,
        /// What each address said.
        cause: String,
    },
    /// Two members cannot exchange data.
    EdgeBroken {
        /// One end.
        a: MemberId,
        /// The other end.
        b: MemberId,
    },
    /// A member's state is not the elected one, although it is at the elected revision.
    Diverged {
        /// Its group.
        group: PeerGroup,
        /// Who.
        member: MemberId,
        /// The elected revision.
        revision: u64,
        /// Which of its tensors differ; the first few of them.
        keys: Vec<String>,
        /// Who holds the elected content; the first few of them.
        holders: Vec<MemberId>,
        /// Revision of the last synchronisation of the group: then all were the same.
        since: u64,
    },
    /// The clock of this process jumped: it was stopped, swapped out, or asleep. (Rule 14)
    Stalled {
        /// By how much, in milliseconds.
        gap_ms: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registered {
                member,
                name,
                group,
            } => write!(f, "newcomer {member} ({name}) registered for group {group}"),
            Self::Refused { name, reason } => write!(f, "newcomer ({name}) refused: {reason}"),
            Self::Admitted { member, round } => write!(f, "{member} admitted by round {round}"),
            Self::Lost {
                member,
                name,
                cause,
            } => write!(f, "{member} ({name}) lost: it {cause}"),
            Self::Evicted { member, reason } => write!(f, "{member} evicted: {reason}"),
            Self::Detached { member, cause } => {
                write!(f, "{member}'s connection to the master closed: {cause}")
            }
            Self::Attached { member } => write!(f, "{member} came back to the master"),
            Self::Group { group, epoch, ring } => {
                write!(f, "group {group} is now, at {epoch}, the ring {ring:?}")
            }
            Self::Verdict {
                op,
                group,
                serial,
                outcome,
                stamp,
            } => {
                write!(f, "group {group}: {} ", op.key)?;
                match outcome {
                    Outcome::Commit => f.write_str("committed")?,
                    Outcome::Abort(reason) => write!(f, "failed: {reason}")?,
                }
                write!(f, " ({serial}, {})", stamp.epoch)
            }
            Self::FirstSegmentSent { op } => write!(f, "{}: data is under way", op.key),
            Self::Completed { vote } => write!(f, "{} {} completed", vote.call, vote.round),
            Self::VoteFailed { vote, reason } => write!(f, "{} failed: {reason}", vote.call),
            Self::Waiting { waits, missing } => write!(f, "{waits} waits for {missing:?}"),
            Self::CannotDial { from, to, cause } => {
                write!(f, "{from} cannot dial {to}: {cause}")
            }
            Self::EdgeBroken { a, b } => write!(f, "{a} and {b} cannot exchange data"),
            Self::Diverged {
                group,
                member,
                revision,
                keys,
                holders,
                since,
            } => {
                write!(
                    f,
                    "group {group}: at revision {revision} the tensors {keys:?} of {member} are \
                     not those of {holders:?}; at revision {since} all were the same"
                )
            }
            Self::Stalled { gap_ms } => write!(
                f,
                "this process stood still for {gap_ms} ms; deadlines start anew"
            ),
        }
    }
}
