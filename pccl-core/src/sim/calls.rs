//! Calls of a simulated user, from the moment they are made to the moment they return.

use std::collections::BTreeMap;

use super::fetch::Fetch;
use super::oracle::{Point, UseKey};
use crate::collective::buffers::OwnedBuffers;
use crate::error::Error;
use crate::ids::{CallId, MemberId, Round, RunId, Serial, Tag};
use crate::membership::peer::Answer;
use crate::types::{OpKey, OpKind, ReduceDescriptor, UnanimousCall};
use crate::wire::control::{OpName, Outcome, Stamp, SyncPlan, VoteName};

/// What was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Connect,
    Vote(UnanimousCall),
    Reduce(ReduceDescriptor),
    Sync,
    Leave,
}

/// How a call ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// A use of a key.
    Use {
        op: OpName,
        outcome: Result<Outcome, Error>,
        stamp: Stamp,
    },
    /// Anything else.
    Answer(Result<Answer, Error>),
}

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) kind: Kind,
    /// Tag of an all-reduce.
    pub(super) tag: Option<Tag>,
    pub(super) point: Point,
    /// Uses of its key before it, since the last round.
    pub(super) turn: u32,
    /// Group size that the library showed when it took the call.
    pub(super) shown: u32,
    /// Who the caller was.
    pub(super) who: Option<(RunId, MemberId)>,
    /// Its contribution.
    pub(super) given: Vec<u8>,
    pub(super) in_place: bool,
    /// The buffers while they are lent.
    pub(super) kept: Option<OwnedBuffers>,
    /// Name of the use, once it was started.
    pub(super) started: Option<(OpName, Serial)>,
    /// Stamp of its verdict: what is shown when it returns may be newer. (Rule 16)
    pub(super) stamp: Option<Stamp>,
    /// Members that contribute.
    pub(super) ring: usize,
    /// Its vote, and rounds completed before it.
    pub(super) vote: Option<(Round, VoteName)>,
    pub(super) sent_done: bool,
    pub(super) sent_abort: bool,
    pub(super) wrong: bool,
    pub(super) plan: Option<SyncPlan>,
    pub(super) fetched: Option<(u64, u64)>,
    pub(super) fetch_tries: u32,
    pub(super) fetch: Option<Fetch>,
    pub(super) ending: Option<Ending>,
}

impl Call {
    /// A call that has just been made.
    pub(super) fn new(
        kind: Kind,
        point: Point,
        shown: u32,
        who: Option<(RunId, MemberId)>,
    ) -> Self {
        Self {
            kind,
            tag: None,
            point,
            turn: 0,
            shown,
            who,
            given: Vec::new(),
            in_place: false,
            kept: None,
            started: None,
            stamp: None,
            ring: 0,
            vote: None,
            sent_done: false,
            sent_abort: false,
            wrong: false,
            plan: None,
            fetched: None,
            fetch_tries: 0,
            fetch: None,
            ending: None,
        }
    }
}

/// Calls that have not returned, and how often each key was used since the last round.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) open: BTreeMap<CallId, Call>,
    turns: BTreeMap<OpKey, u32>,
}

impl Calls {
    /// Whether a call has not ended.
    pub(super) fn is_open(&self, call: CallId) -> bool {
        self.open.get(&call).is_some_and(|c| c.ending.is_none())
    }

    /// Whether uses of keys are open.
    pub(super) fn ops_open(&self) -> bool {
        self.uses().next().is_some()
    }

    /// Whether a vote is open.
    pub(super) fn vote_open(&self) -> bool {
        self.open
            .values()
            .any(|c| c.ending.is_none() && matches!(c.kind, Kind::Vote(_)))
    }

    /// Open uses of keys.
    pub(super) fn uses(&self) -> impl Iterator<Item = &Call> {
        self.open
            .values()
            .filter(|c| c.ending.is_none() && matches!(c.kind, Kind::Reduce(_) | Kind::Sync))
    }

    /// Number of the next use of a key since the last round.
    pub(super) fn take_turn(&mut self, key: OpKey) -> u32 {
        let turn = self.turns.entry(key).or_default();
        *turn += 1;
        *turn - 1
    }

    /// A use was turned down before it began.
    pub(super) fn give_turn_back(&mut self, key: OpKey) {
        if let Some(turn) = self.turns.get_mut(&key) {
            *turn = turn.saturating_sub(1);
        }
    }

    /// A round has completed.
    pub(super) fn new_round(&mut self) {
        self.turns.clear();
    }

    /// A call that is not a use has its answer. Whether that is its first.
    pub(super) fn complete(&mut self, call: CallId, result: Result<Answer, Error>) -> bool {
        self.end(call, Ending::Answer(result))
    }

    /// A call has ended. Whether that is its first end.
    pub(super) fn end(&mut self, call: CallId, ending: Ending) -> bool {
        match self.open.get_mut(&call) {
            Some(open) if open.ending.is_none() => {
                open.ending = Some(ending);
                true
            }
            _ => false,
        }
    }

    /// The master was told that a use is done here.
    pub(super) fn sent_done(&mut self, op: OpName) {
        if let Some(call) = self.use_of(op) {
            call.sent_done = true;
        }
    }

    /// The master was asked for an abort.
    pub(super) fn sent_abort(&mut self, op: OpName) {
        if let Some(call) = self.use_of(op) {
            call.sent_abort = true;
        }
    }

    /// A vote was sent.
    pub(super) fn sent_vote(&mut self, round: Round, vote: VoteName) {
        for call in self.open.values_mut() {
            if call.kind == Kind::Vote(vote.call) && call.ending.is_none() {
                call.vote = Some((round, vote));
            }
        }
    }

    /// The result of a use was made wrong.
    pub(super) fn wrong(&mut self, op: OpName, quoted: Serial) {
        for call in self.open.values_mut() {
            if call.started == Some((op, quoted)) {
                call.wrong = true;
            }
        }
    }

    /// A use has its verdict, with this stamp.
    pub(super) fn verdict(&mut self, op: OpName, stamp: Stamp) {
        if let Some(call) = self.use_of(op) {
            call.stamp = Some(stamp);
        }
    }

    fn use_of(&mut self, op: OpName) -> Option<&mut Call> {
        self.open.values_mut().find(|c| {
            c.ending.is_none()
                && (c.started.is_some_and(|s| s.0 == op)
                    || (c.started.is_none() && c.is_of(op.key)))
        })
    }
}

impl Call {
    fn is_of(&self, key: OpKey) -> bool {
        match self.kind {
            Kind::Sync => key.kind == OpKind::Sync,
            _ => self.tag == Some(key.tag) && key.kind == OpKind::Collective,
        }
    }

    /// The use that it is, by its name.
    pub(super) fn use_key(&self, op: OpName, group: crate::ids::PeerGroup) -> Option<UseKey> {
        Some(UseKey {
            run: self.who?.0,
            group,
            round: op.round,
            key: op.key,
            turn: self.turn,
        })
    }
}
