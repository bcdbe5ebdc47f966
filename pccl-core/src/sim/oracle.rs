//! The one that watches: it is told what users, machines and faults do, and asks each invariant.

use std::collections::BTreeMap;

use super::core::{Core, HostId, ProcId};
use super::coverage::Cover;
use super::invariants::equal_bits::EqualBits;
use super::invariants::innocent::{self, Suspect};
use super::invariants::liveness::Liveness;
use super::invariants::mismatch::Mismatch;
use super::invariants::one_answer::OneAnswer;
use super::invariants::one_outcome::OneOutcome;
use super::invariants::stamps::{self, Stamps};
use super::invariants::{buffers_restored, no_failure_without_cause};
use crate::event::Event;
use crate::ids::{CallId, MemberId, PeerGroup, Round, RunId};
use crate::types::{Algorithm, Attributes, OpKey, ReduceDescriptor};
use crate::wire::control::{GroupView, Outcome, Stamp, VoteName};
use crate::wire::reason::{AbortReason, EvictReason, LossCause};

/// One use of a key as the users count: the `turn`-th call with that key since the round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct UseKey {
    /// Of which run.
    pub(super) run: RunId,
    /// Of which group.
    pub(super) group: PeerGroup,
    /// Unanimous calls completed before it.
    pub(super) round: Round,
    /// Which operation.
    pub(super) key: OpKey,
    /// Uses of that key since the round, before this one.
    pub(super) turn: u32,
}

/// One try at a unanimous call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct TryKey {
    /// Of which run.
    pub(super) run: RunId,
    /// Rounds completed before it; its name alone counts queries within a round.
    pub(super) round: Round,
    /// Which.
    pub(super) vote: VoteName,
}

/// Place in a user's program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Point {
    /// Step.
    pub(super) step: u64,
    /// Place within the step.
    pub(super) place: u32,
}

/// A finished call on an operation.
pub(super) struct EndedUse<'a> {
    pub(super) proc: ProcId,
    pub(super) member: MemberId,
    pub(super) key: UseKey,
    pub(super) outcome: &'a Outcome,
    pub(super) stamp: Stamp,
    pub(super) point: Point,
    /// World size that the caller was shown when it called.
    pub(super) shown: u32,
}

/// All invariants with a memory.
#[derive(Default, Debug)]
pub(super) struct Oracle {
    pub(super) outcomes: OneOutcome,
    pub(super) bits: EqualBits,
    pub(super) stamps: Stamps,
    pub(super) mismatch: Mismatch,
    pub(super) answers: OneAnswer,
    pub(super) liveness: Liveness,
    /// Who is (or was) which member of which run.
    pub(super) who: BTreeMap<(RunId, MemberId), ProcId>,
    /// What the innocent invariant needs to know about processes.
    pub(super) known: BTreeMap<ProcId, Known>,
    /// Runs that had a second master beside them, or lost theirs.
    pub(super) other_master: bool,
    /// Look-ups of the master's name gave sometimes one, sometimes another.
    pub(super) led_astray: bool,
    /// Somebody was evicted by an operator.
    pub(super) operator: bool,
    /// Some path between peers does not work, or bits flip.
    pub(super) edges_trouble: bool,
    /// Fetches fail or programs deviate.
    pub(super) state_trouble: bool,
}

/// A process as the oracle knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) host: HostId,
    pub(super) group: PeerGroup,
    pub(super) alive: bool,
    /// The run and number that it believes to have.
    pub(super) member: Option<(RunId, MemberId)>,
    pub(super) leaving: bool,
}

impl Core {
    /// A call begins.
    pub(super) fn saw_call(&mut self, proc: ProcId, call: CallId, what: impl FnOnce() -> String) {
        self.oracle.answers.called(proc, call);
        self.oracle.liveness.called(proc, call, what(), self.now);
    }

    /// A call is answered.
    pub(super) fn saw_answer(&mut self, proc: ProcId, call: CallId) {
        self.oracle.liveness.answered(proc, call);
        let word = self.oracle.answers.answered(proc, call);
        self.judge("one_answer", word);
    }

    /// A call failed.
    pub(super) fn saw_failure(&mut self, proc: ProcId, what: impl FnOnce() -> String) {
        if self.scenario.calm {
            let word = no_failure_without_cause::failed(&format!("{proc:?}: {}", what()));
            self.judge("no_failure_without_cause", word);
        }
    }

    /// A member was given a verdict.
    pub(super) fn saw_verdict(&mut self, end: &EndedUse<'_>) {
        self.cover(match end.outcome {
            Outcome::Commit => Cover::Commit,
            Outcome::Abort(_) => Cover::Abort,
        });
        if let Outcome::Abort(reason) = end.outcome {
            match reason {
                AbortReason::Contradiction { .. } => self.cover(Cover::Contradiction),
                AbortReason::Mismatch { .. } => self.cover(Cover::Mismatch),
                AbortReason::Diverged { .. } => self.cover(Cover::Diverged),
                _ => {}
            }
        }
        let word = self
            .oracle
            .outcomes
            .verdict(end.proc, end.key, end.outcome, end.point);
        self.judge("one_outcome", word);
        let word = self.oracle.stamps.verdict(end.proc, end.key, end.stamp);
        self.judge("stamps", word);
        let undisturbed = self.scenario.undisturbed();
        let word = self
            .oracle
            .mismatch
            .verdict(end.key, end.outcome, undisturbed);
        self.judge("mismatch", word);
    }

    /// An all-reduce was given a commit.
    pub(super) fn saw_commit(&mut self, end: &EndedUse<'_>, ring: usize, bytes: &[u8]) {
        let word = self
            .oracle
            .bits
            .committed(end.proc, end.key, end.member, bytes);
        self.judge("equal_bits", word);
        let word = stamps::committed(end.key, ring, end.shown);
        self.judge("stamps", word);
    }

    /// A synchronisation was given a commit, and the member holds this content.
    pub(super) fn saw_synced(&mut self, end: &EndedUse<'_>, revision: u64, content: (u64, u64)) {
        let word = self.oracle.bits.synced(end.key, revision, content);
        self.judge(
            "equal_bits",
            word.map_err(|w| format!("{:?}: {w}", end.proc)),
        );
    }

    /// An engine starts an all-reduce.
    pub(super) fn saw_start(
        &mut self,
        key: UseKey,
        own: MemberId,
        descriptor: ReduceDescriptor,
        group: &GroupView,
        bytes: Vec<u8>,
    ) {
        self.watch_start(key);
        let algorithm = group.choice.algorithm(&descriptor);
        if group.ring.len() > 1 {
            self.cover(match algorithm {
                Algorithm::Ring => Cover::ByRing,
                Algorithm::Star => Cover::ByStar,
                Algorithm::Direct => Cover::Directly,
            });
            if !group.choice.ring {
                self.cover(Cover::NoRing);
            }
        }
        self.oracle.mismatch.called(key, descriptor);
        self.oracle.bits.started(key, own, descriptor, group, bytes);
    }

    /// The buffers of a call are the user's again.
    pub(super) fn saw_buffers(
        &mut self,
        key: UseKey,
        given: &[u8],
        send: &[u8],
        in_place: bool,
        committed: bool,
    ) {
        let word = buffers_restored::returned(key, given, send, in_place, committed);
        self.judge("buffers_restored", word);
    }

    /// A member's vote ended.
    pub(super) fn saw_vote(
        &mut self,
        proc: ProcId,
        group: PeerGroup,
        vote: TryKey,
        ended: Result<Option<bool>, &AbortReason>,
        stamp: Option<Stamp>,
    ) {
        let word = self
            .oracle
            .outcomes
            .vote(proc, vote, ended.map_err(|r| format!("{r:?}")));
        self.judge("one_outcome", word);
        if let Some(stamp) = stamp {
            let word = self.oracle.stamps.vote(proc, group, vote, stamp);
            self.judge("stamps", word);
        }
    }

    /// A call returned; the library shows these attributes now.
    pub(super) fn saw_attributes(
        &mut self,
        proc: ProcId,
        stamp: Stamp,
        shows: Attributes,
        others_open: bool,
    ) {
        let word = self.oracle.stamps.shown(proc, stamp, shows, others_open);
        self.judge("stamps", word);
    }

    /// A peer is no member any more.
    pub(super) fn saw_gone(&mut self, proc: ProcId, shows: Attributes) {
        let word = self.oracle.stamps.gone(proc, shows);
        self.judge("stamps", word);
    }

    /// A peer has got a number.
    pub(super) fn saw_registered(&mut self, proc: ProcId, run: RunId, member: MemberId) {
        if let Some(known) = self.oracle.known.get_mut(&proc) {
            known.member = Some((run, member));
            known.leaving = false;
        }
        if let Some(other) = self.oracle.who.insert((run, member), proc) {
            let what = format!("{run} gave {member} to {other:?} and to {proc:?}");
            self.violate("one_outcome", what);
        }
    }

    /// A process ended, by whatever cause.
    pub(super) fn saw_exit(&mut self, proc: ProcId) {
        self.oracle.answers.gone(proc);
        self.oracle.liveness.gone(proc);
        if let Some(known) = self.oracle.known.get_mut(&proc) {
            known.alive = false;
        }
    }

    /// A master tells an event.
    pub(super) fn saw_master_event(&mut self, run: RunId, event: &Event) {
        if self.scenario.calm {
            let word = no_failure_without_cause::event(event);
            self.judge("no_failure_without_cause", word);
        }
        match event {
            Event::Lost { member, cause, .. } => {
                let Some(suspect) = self.suspect(run, *member) else {
                    return;
                };
                if suspect.alive && *cause != LossCause::Left {
                    self.cover(Cover::EvictedAlive);
                }
                match cause {
                    LossCause::Left => self.cover(Cover::Left),
                    LossCause::Died if !suspect.alive => self.cover(Cover::FastLoss),
                    _ => {}
                }
                let timing = self.scenario.timing;
                let word = innocent::lost(suspect, *cause, self.now, timing, &self.faults);
                self.judge("innocent", word.map_err(|w| format!("{member}: {w}")));
            }
            Event::Evicted { member, reason } => self.saw_evicted(run, *member, reason),
            _ => {}
        }
    }

    /// A member was told, or the master tells, that it is none any more.
    pub(super) fn saw_evicted(&mut self, run: RunId, member: MemberId, reason: &EvictReason) {
        let Some(suspect) = self.suspect(run, member) else {
            return;
        };
        let word = innocent::evicted(suspect, reason);
        self.judge("innocent", word.map_err(|w| format!("{member}: {w}")));
    }

    fn suspect(&self, run: RunId, member: MemberId) -> Option<Suspect> {
        let proc = self.oracle.who.get(&(run, member))?;
        let known = self.oracle.known.get(proc)?;
        Some(Suspect {
            host: known.host,
            alive: known.alive && known.member == Some((run, member)),
            leaving: known.leaving,
            edges_trouble: self.oracle.edges_trouble,
            operator: self.oracle.operator,
            other_master: self.oracle.other_master,
            led_astray: self.oracle.led_astray,
            state_trouble: self.oracle.state_trouble,
        })
    }
}
