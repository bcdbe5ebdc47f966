//! Why something failed, in words that travel: every member gets the same reason.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, MemberId};
use crate::types::{Algorithm, OpKey, UnanimousCall};

/// How the master came to count a member as lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum LossCause {
    /// It said goodbye.
    Left,
    /// Its control connection closed, and another member saw its lanes close too.
    Died,
    /// Its control connection closed and did not come back within the peer time-out.
    Disconnected,
    /// No sign of life for the peer time-out.
    Silent,
    /// The master evicted it.
    Evicted,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Left => "left",
            Self::Died => "died (its connections to the master and to other members closed)",
            Self::Disconnected => "lost its connection to the master and did not come back in time",
            Self::Silent => "gave no sign of life for the peer time-out",
            Self::Evicted => "was evicted",
        })
    }
}

/// Why a member asked for the abort of an operation or took back a vote.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum RequestCause {
    /// The time limit of its call passed.
    TimedOut,
    /// The user cancelled, or interrupted the call.
    Cancelled,
    /// The communicator was destroyed with the operation open.
    Destroyed,
    /// A lane with the operation's data on it died.
    LaneDied {
        /// The member at the other end.
        peer: MemberId,
        /// What the socket, or the check of a frame, said.
        cause: String,
    },
    /// What a peer sent cannot belong to this operation.
    BadFrame {
        /// The member that sent it.
        peer: MemberId,
        /// What is wrong with it.
        what: String,
    },
    /// The shared state could not be fetched.
    FetchFailed {
        /// What happened with each member that was asked.
        what: String,
    },
    /// The group has no plan for the algorithm that it asked for.
    NoPlan {
        /// Which.
        algorithm: Algorithm,
    },
    /// A bug at the member, or its system refused memory.
    Internal {
        /// What.
        what: String,
    },
}

impl RequestCause {
    /// The same with its text cut to [`TEXT_LIMIT`]: it is kept, and told to a whole group.
    #[must_use]
    pub fn shortened(self) -> Self {
        match self {
            Self::LaneDied { peer, cause } => Self::LaneDied {
                peer,
                cause: shortened(cause),
            },
            Self::BadFrame { peer, what } => Self::BadFrame {
                peer,
                what: shortened(what),
            },
            Self::FetchFailed { what } => Self::FetchFailed {
                what: shortened(what),
            },
            Self::Internal { what } => Self::Internal {
                what: shortened(what),
            },
            other @ (Self::TimedOut | Self::Cancelled | Self::Destroyed | Self::NoPlan { .. }) => {
                other
            }
        }
    }
}

/// A text for people, cut to [`TEXT_LIMIT`].
pub fn shortened(mut text: String) -> String {
    if text.len() > TEXT_LIMIT {
        text.truncate(text.floor_char_boundary(TEXT_LIMIT));
        text.push_str("...");
        text.shrink_to_fit();
    }
    text
}

/// Bytes of a text that somebody else has written, and that is kept or passed on: sixteen members
/// with what a socket said of each fit.
pub const TEXT_LIMIT: usize = 4 * 1024;

impl fmt::Display for RequestCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("its time limit passed"),
            Self::Cancelled => f.write_str("its user cancelled it"),
            Self::Destroyed => f.write_str("its communicator was destroyed with the call open"),
            Self::LaneDied { peer, cause } => write!(f, "its lane to {peer} died: {cause}"),
            Self::BadFrame { peer, what } => write!(f, "{peer} sent it a bad frame: {what}"),
            Self::FetchFailed { what } => write!(f, "it could not fetch the state: {what}"),
            Self::NoPlan { algorithm } => {
                let why = match algorithm {
                    Algorithm::Ring => "no order in which all neighbours can reach each other",
                    Algorithm::Star => "no member that all others are known to reach",
                    Algorithm::Direct => {
                        "too many members, or a pair that is not known to reach each other"
                    }
                };
                write!(f, "there is no plan for the algorithm {algorithm}: {why}")
            }
            Self::Internal { what } => write!(f, "it could not go on: {what}"),
        }
    }
}

/// Why an operation, or a try at a unanimous call, failed for every member in it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum AbortReason {
    /// A member was lost before all had the result.
    MemberLost {
        /// Who.
        member: MemberId,
        /// What the operators call it, and where it was.
        name: String,
        /// How.
        cause: LossCause,
    },
    /// Somebody opened the operation under an epoch that had passed.
    StaleEpoch {
        /// The epoch it was opened under.
        opened: Epoch,
        /// The group's epoch at that moment.
        present: Epoch,
    },
    /// A member asked for it.
    Requested {
        /// Who.
        by: MemberId,
        /// Why.
        cause: RequestCause,
        /// Without whom the call could not end. Apart, so that errors stay small.
        missing: Box<Missing>,
    },
    /// Members disagree on what the operation is.
    Mismatch {
        /// What each version is, and who holds it.
        versions: Vec<(String, Vec<MemberId>)>,
    },
    /// Members ended with different results: the odd ones out are named.
    Diverged {
        /// Those whose result is not the most frequent one; all, if none is.
        odd: Vec<MemberId>,
    },
    /// Members wait in calls that can never complete together.
    Contradiction {
        /// Who waits in what.
        calls: Vec<(MemberId, WaitsIn)>,
    },
    /// The order of the ring changed since two members cannot reach each other.
    EdgeBroken {
        /// One end.
        a: MemberId,
        /// The other.
        b: MemberId,
    },
    /// The state synchronisation has no content that may be distributed, or this member's content
    /// may not take part in it.
    State {
        /// Which rule, which key, what was expected, who has it.
        what: String,
    },
}

/// Whom a call was waiting for when somebody gave it up, as the master knew it; the first few of
/// many.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Missing {
    /// It was not given up for want of anybody.
    #[default]
    Nobody,
    /// These had not made the call.
    Calls(Vec<MemberId>),
    /// All had made it; these did not have the result yet.
    Results(Vec<MemberId>),
}

impl Missing {
    /// The members themselves.
    pub fn members(&self) -> &[MemberId] {
        match self {
            Self::Nobody => &[],
            Self::Calls(members) | Self::Results(members) => members,
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => Ok(()),
            Self::Calls(members) => write!(f, "; not called by {members:?}"),
            Self::Results(members) => write!(f, "; called by all, but no result at {members:?}"),
        }
    }
}

impl AbortReason {
    /// Whether a retry is pointless since the members' programs disagree.
    pub fn is_mismatch(&self) -> bool {
        matches!(
            self,
            Self::Mismatch { .. }
                | Self::Contradiction { .. }
                | Self::Requested {
                    cause: RequestCause::NoPlan { .. },
                    ..
                }
        )
    }
}

impl fmt::Display for AbortReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemberLost {
                member,
                name,
                cause,
            } => write!(f, "member {member} ({name}) {cause}"),
            Self::StaleEpoch { opened, present } => write!(
                f,
                "it was opened for membership {opened}, which had already changed to {present}; \
                 read the world size and call again"
            ),
            Self::Requested { by, cause, missing } => {
                write!(f, "member {by} gave up: {cause}{missing}")
            }
            Self::Mismatch { versions } => {
                f.write_str("the members' calls differ:")?;
                for (what, who) in versions {
                    write!(f, " [{what}] by {who:?}")?;
                }
                Ok(())
            }
            Self::Diverged { odd } => write!(f, "the results differ; odd ones out: {odd:?}"),
            Self::Contradiction { calls } => {
                f.write_str("these calls can never complete together:")?;
                for (who, what) in calls {
                    write!(f, " {who} waits in {what};")?;
                }
                Ok(())
            }
            Self::EdgeBroken { a, b } => {
                write!(
                    f,
                    "members {a} and {b} cannot reach each other; the order was changed"
                )
            }
            Self::State { what } => f.write_str(what),
        }
    }
}

/// A call that a member waits in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum WaitsIn {
    /// A unanimous call.
    Call(UnanimousCall),
    /// A collective or a synchronisation.
    Op(OpKey),
}

impl fmt::Display for WaitsIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(call) => call.fmt(f),
            Self::Op(key) => key.fmt(f),
        }
    }
}

/// Why a member is none any more.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum EvictReason {
    /// The master lost it; it was alive after all.
    Lost(LossCause),
    /// No plan exists that avoids its broken edges.
    Unreachable {
        /// Members that it cannot exchange data with.
        from: Vec<MemberId>,
    },
    /// Its part of the shared state broke a rule, or it could not fetch what was elected.
    State {
        /// Which rule, which key, what was expected, who has it.
        what: String,
    },
    /// The master does not know it: the run that it belonged to has ended.
    UnknownMember,
    /// It sent what no correct member sends.
    Protocol {
        /// What.
        what: String,
    },
    /// An operator asked for it.
    Operator,
}

impl fmt::Display for EvictReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(cause) => write!(f, "the master had counted it as lost: it {cause}"),
            Self::Unreachable { from } => write!(
                f,
                "it cannot exchange data with {from:?}; open its listening port, or theirs"
            ),
            Self::State { what } => f.write_str(what),
            Self::UnknownMember => f.write_str("the master does not know it: its run has ended"),
            Self::Protocol { what } => write!(f, "it broke the protocol: {what}"),
            Self::Operator => f.write_str("an operator evicted it"),
        }
    }
}

/// Why a registration was turned down.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum RefuseReason {
    /// No protocol version in common.
    Version {
        /// Oldest and newest that the master speaks.
        supported: (u16, u16),
    },
    /// Another arithmetic version than the run's.
    Arithmetic {
        /// The run's.
        run: u32,
    },
    /// No plan exists on the edges that the newcomer can use.
    Unreachable {
        /// Members that it cannot exchange data with.
        from: Vec<MemberId>,
    },
    /// The run is full.
    Full {
        /// Most members (and newcomers) it takes.
        limit: u32,
    },
    /// The master is stopping.
    Stopping,
    /// It takes only those that show a valid ticket of its run, and this one showed none, or one that
    /// is not valid any more.
    Ticket,
    /// An operator has banned its key or its address.
    Banned,
    /// The first frame was none that opens a connection.
    Malformed {
        /// What is wrong with it.
        what: String,
    },
}

impl fmt::Display for RefuseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version {
                supported: (low, high),
            } => write!(
                f,
                "no protocol version in common: the master speaks {low} to {high}; update one side"
            ),
            Self::Arithmetic { run } => write!(
                f,
                "this run computes with arithmetic version {run}; use the same library version"
            ),
            Self::Unreachable { from } => write!(
                f,
                "it cannot exchange data with {from:?}; open its listening port, or theirs"
            ),
            Self::Full { limit } => write!(f, "the run is full ({limit} members)"),
            Self::Stopping => f.write_str("the master is stopping"),
            Self::Ticket => f.write_str(
                "it takes only those that show a valid ticket of its run; ask for a (new) one",
            ),
            Self::Banned => f.write_str("an operator has banned it"),
            Self::Malformed { what } => write!(f, "malformed first frame: {what}"),
        }
    }
}
