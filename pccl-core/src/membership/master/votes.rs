//! Unanimous calls: rounds, which change the run, and queries, which do not.
//!
//! A try that fails fails for all: for those that have voted at once, for the others when they
//! vote for it. So tries are numbered, and a vote for a past one is answered with its failure; a
//! vote for a past round, with its result. (Rules 1, 5, 13)

use std::collections::{BTreeMap, VecDeque};

use super::timers::Timer;
use super::{Master, NAMED, few};
use crate::event::Event;
use crate::ids::{MemberId, PeerGroup, Round};
use crate::planted::{Bug, planted};
use crate::types::{Algorithm, UnanimousCall};
use crate::wire::control::{Down, GroupView, Stamp, VoteName};
use crate::wire::reason::{AbortReason, Missing, RequestCause, WaitsIn};

/// Failed tries of which reason and stamps are kept. Who comes with an older one gets those of
/// the oldest kept: it fails all the same, and what it learns of the run is only newer.
const FAILED_KEPT: usize = 64;

/// The two ways in which unanimous calls are counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Sort {
    Round,
    Query,
}

impl Sort {
    pub(super) fn of(call: UnanimousCall) -> Self {
        match call {
            UnanimousCall::UpdateTopology | UnanimousCall::OptimizeTopology => Self::Round,
            UnanimousCall::ArePeersPending => Self::Query,
        }
    }

    fn timer(self) -> Timer {
        match self {
            Self::Round => Timer::Round,
            Self::Query => Timer::Query,
        }
    }
}

/// Votes, and what became of the last ones.
#[derive(Debug, Default)]
pub(super) struct Votes {
    /// Rounds completed.
    pub(super) round: Round,
    tries: u32,
    /// Queries completed since the last round.
    pub(super) queries: Round,
    query_tries: u32,
    /// Of members, one each.
    pub(super) cast: BTreeMap<MemberId, VoteName>,
    /// How many of them are for a round.
    for_round: usize,
    failed: VecDeque<Failure>,
    failed_queries: VecDeque<Failure>,
    /// The round that completed last: what each group was told.
    last: BTreeMap<PeerGroup, (Stamp, GroupView)>,
    last_name: Option<VoteName>,
    /// The same of the last query.
    last_query: BTreeMap<PeerGroup, Stamp>,
}

/// A failed try.
#[derive(Debug)]
struct Failure {
    tries: u32,
    reason: AbortReason,
    stamps: BTreeMap<PeerGroup, Stamp>,
}

impl Votes {
    /// Completed calls and failed tries of a sort.
    fn count(&self, sort: Sort) -> (Round, u32) {
        match sort {
            Sort::Round => (self.round, self.tries),
            Sort::Query => (self.queries, self.query_tries),
        }
    }

    /// Failed tries, of rounds and of queries.
    pub(super) fn failed_tries(&self) -> (u32, u32) {
        (self.tries, self.query_tries)
    }

    fn voters(&self, sort: Sort) -> impl Iterator<Item = (MemberId, VoteName)> + '_ {
        let cast = self
            .cast
            .iter()
            .filter(move |(_, v)| Sort::of(v.call) == sort);
        cast.map(|(id, vote)| (*id, *vote))
    }

    fn failures(&mut self, sort: Sort) -> &mut VecDeque<Failure> {
        match sort {
            Sort::Round => &mut self.failed,
            Sort::Query => &mut self.failed_queries,
        }
    }
}

impl Master {
    /// A member votes.
    pub(super) fn vote(&mut self, id: MemberId, vote: VoteName) {
        let Some(group) = self.group_of(id) else {
            return;
        };
        let sort = Sort::of(vote.call);
        let (completed, tries) = self.votes.count(sort);
        if vote.round < completed {
            return self.answer_again(id, group, vote);
        }
        if vote.tries < tries {
            let kept = self.votes.failures(sort);
            let failure = kept
                .iter()
                .find(|f| f.tries >= vote.tries)
                .or_else(|| kept.back());
            if let Some(failure) = failure {
                let (reason, stamp) = (failure.reason.clone(), failure.stamps.get(&group).copied());
                let stamp = stamp.unwrap_or_else(|| self.stamp(group));
                self.send(
                    id,
                    Down::Failed {
                        vote,
                        reason,
                        stamp,
                    },
                );
            }
            return;
        }
        self.uncast(id);
        self.votes.cast.insert(id, vote);
        if sort == Sort::Round {
            self.votes.for_round += 1;
            if let Some(g) = self.groups.get_mut(&group) {
                g.voters.insert(id);
            }
        }
        if !self.timers.is_set(sort.timer()) {
            let warn = self.now + self.config.timing.warn_after();
            self.timers.set(sort.timer(), warn);
        }
        self.judge();
        self.contradictions(group);
    }

    /// A member that missed the result of a completed call gets it again. Nobody can have missed
    /// more than one: the next one would have needed its vote.
    fn answer_again(&mut self, id: MemberId, group: PeerGroup, vote: VoteName) {
        let (stamp, view) = match Sort::of(vote.call) {
            Sort::Round => self.votes.last.get(&group).cloned().unzip(),
            Sort::Query => (self.votes.last_query.get(&group).copied(), None),
        };
        self.send(
            id,
            Down::Completed {
                vote,
                stamp: stamp.unwrap_or_else(|| self.stamp(group)),
                group: view.unwrap_or_else(|| self.group_view(group)),
            },
        );
    }

    /// A newcomer that did not hear that it was admitted hears it now: no other round can have
    /// completed since, for want of its vote. (Rule 15)
    pub(super) fn admitted_again(&mut self, id: MemberId) {
        if let (Some(group), Some(vote)) = (self.group_of(id), self.votes.last_name) {
            self.answer_again(id, group, vote);
        }
    }

    /// Epoch that a group had when the last round completed.
    pub(super) fn last_epoch(&self, group: PeerGroup) -> Option<crate::ids::Epoch> {
        self.votes.last.get(&group).map(|(stamp, _)| stamp.epoch)
    }

    /// A member takes its vote back, unless the answer is on its way already.
    pub(super) fn withdraw(&mut self, id: MemberId, vote: VoteName, cause: RequestCause) {
        let sort = Sort::of(vote.call);
        if self.votes.cast.get(&id) == Some(&vote) {
            let cause = cause.shortened();
            let missing = Box::new(match cause {
                RequestCause::TimedOut | RequestCause::Cancelled => {
                    Missing::Calls(self.not_voted())
                }
                _ => Missing::Nobody,
            });
            let by = id;
            self.fail_votes(sort, id, AbortReason::Requested { by, cause, missing });
        }
    }

    /// Completes a call that all members have voted for; fails calls that all members wait in
    /// without meaning the same. Looked at anew at every vote and every loss. (Rules 1, 6)
    pub(super) fn judge(&mut self) {
        let cast = &self.votes.cast;
        if cast.is_empty() || cast.len() < self.world.members {
            return;
        }
        let mut counts = BTreeMap::<UnanimousCall, usize>::new();
        for vote in cast.values() {
            *counts.entry(vote.call).or_default() += 1;
        }
        if let (1, Some(call)) = (counts.len(), counts.keys().next().copied()) {
            match Sort::of(call) {
                Sort::Round => self.complete_round(call),
                Sort::Query => self.complete_query(),
            }
            return;
        }
        let each = (NAMED / counts.len().max(1)).max(1);
        let mut calls = Vec::new();
        for call in counts.keys() {
            let same = cast.iter().filter(|(_, v)| v.call == *call).take(each);
            calls.extend(same.map(|(id, _)| (*id, WaitsIn::Call(*call))));
        }
        let reason = AbortReason::Contradiction { calls };
        for sort in [Sort::Round, Sort::Query] {
            let first = self.votes.voters(sort).next();
            if let Some((voter, _)) = first {
                self.fail_votes(sort, voter, reason.clone());
            }
        }
    }

    /// Fails the present try, for everybody that voted for it and everybody that will.
    pub(super) fn fail_votes(&mut self, sort: Sort, voter: MemberId, reason: AbortReason) {
        let alone = planted(Bug::VoteFailsAlone);
        let failing: Vec<(MemberId, VoteName)> = self
            .votes
            .voters(sort)
            .filter(|(id, _)| !alone || *id == voter)
            .collect();
        let stamps: BTreeMap<PeerGroup, Stamp> =
            self.groups.keys().map(|g| (*g, self.stamp(*g))).collect();
        let (_, tries) = self.votes.count(sort);
        if !alone {
            match sort {
                Sort::Round => self.votes.tries += 1,
                Sort::Query => self.votes.query_tries += 1,
            }
            let kept = self.votes.failures(sort);
            if kept.len() >= FAILED_KEPT {
                kept.pop_front();
            }
            kept.push_back(Failure {
                tries,
                reason: reason.clone(),
                stamps: stamps.clone(),
            });
        }
        if let Some((_, vote)) = failing.first() {
            self.event(Event::VoteFailed {
                vote: *vote,
                reason: reason.clone(),
            });
        }
        for (id, vote) in failing {
            self.uncast(id);
            let stamp = self.group_of(id).and_then(|g| stamps.get(&g).copied());
            let (reason, stamp) = (reason.clone(), stamp.unwrap_or_default());
            self.send(
                id,
                Down::Failed {
                    vote,
                    reason,
                    stamp,
                },
            );
        }
    }

    /// Forgets the vote of a member.
    pub(super) fn uncast(&mut self, id: MemberId) {
        let Some(vote) = self.votes.cast.remove(&id) else {
            return;
        };
        if let Some(g) = self.group_of(id).and_then(|g| self.groups.get_mut(&g)) {
            g.voters.remove(&id);
        }
        let sort = Sort::of(vote.call);
        self.votes.for_round -= usize::from(sort == Sort::Round);
        let left = match sort {
            Sort::Round => self.votes.for_round,
            Sort::Query => self.votes.cast.len() - self.votes.for_round,
        };
        if left == 0 {
            self.timers.cancel(sort.timer());
        }
    }

    /// Completes a round. An update admits the newcomers that have a plan; without members, it
    /// needs no vote. Nobody waits in an operation, so all are forgotten. (Rules 2, 15)
    pub(super) fn complete_round(&mut self, call: UnanimousCall) {
        let vote = VoteName {
            call,
            round: self.votes.round,
            tries: self.votes.tries,
        };
        let voters = std::mem::take(&mut self.votes.cast);
        self.votes.for_round = 0;
        self.timers.cancel(Timer::Round);
        self.timers.cancel(Timer::Query);
        self.votes.round.0 += 1;
        self.votes.queries = Round(0);
        (self.votes.tries, self.votes.query_tries) = (0, 0);
        self.votes.failed.clear();
        self.votes.failed_queries.clear();
        self.votes.last_query.clear();
        let groups: Vec<PeerGroup> = self.groups.keys().copied().collect();
        for group in &groups {
            self.clear_uses(*group);
            if let Some(g) = self.groups.get_mut(group) {
                g.voters.clear();
            }
        }
        if call == UnanimousCall::UpdateTopology {
            self.admit(vote.round);
        }
        self.choose_anew(&groups);
        let results = groups
            .iter()
            .map(|g| (*g, (self.stamp(*g), self.group_view(*g))));
        self.votes.last = results.collect();
        self.votes.last_name = Some(vote);
        self.event(Event::Completed { vote });
        for group in &groups {
            let Some((stamp, view)) = self.votes.last.get(group).cloned() else {
                continue;
            };
            for id in self.ring(*group) {
                let vote = voters.get(&id).copied().unwrap_or(vote);
                let group = view.clone();
                self.send(id, Down::Completed { vote, stamp, group });
            }
        }
        for group in groups {
            self.prove(group);
        }
    }

    /// Gives groups that can go by more algorithms than they were told a new epoch: no operation is
    /// open that it could end. (Rule 10)
    fn choose_anew(&mut self, groups: &[PeerGroup]) {
        let mut changed = false;
        for group in groups {
            let choice = self.choose(*group);
            let Some(g) = self.groups.get_mut(group).filter(|g| !g.ring.is_empty()) else {
                continue;
            };
            let more =
                |algorithm: &Algorithm| choice.offers(*algorithm) && !g.choice.offers(*algorithm);
            if Algorithm::ALL.iter().any(more) {
                g.choice = choice;
                g.epoch.0 += 1;
                changed = true;
                self.group_event(*group);
            }
        }
        if changed {
            self.world.view.0 += 1;
        }
    }

    fn complete_query(&mut self) {
        let voters = std::mem::take(&mut self.votes.cast);
        self.timers.cancel(Timer::Query);
        let vote = VoteName {
            call: UnanimousCall::ArePeersPending,
            round: self.votes.queries,
            tries: self.votes.query_tries,
        };
        self.votes.queries.0 += 1;
        self.votes.query_tries = 0;
        self.votes.failed_queries.clear();
        let stamps = self.groups.keys().map(|g| (*g, self.stamp(*g)));
        self.votes.last_query = stamps.collect();
        self.event(Event::Completed { vote });
        for (id, vote) in voters {
            if let Some(group) = self.group_of(id) {
                self.answer_again(id, group, vote);
            }
        }
    }

    /// A call waits for long: says who is missing. (Rule 17)
    pub(super) fn votes_wait(&mut self, timer: Timer) {
        let sort = match timer {
            Timer::Query => Sort::Query,
            _ => Sort::Round,
        };
        let waiting: Vec<(MemberId, VoteName)> = self.votes.voters(sort).collect();
        let Some((_, first)) = waiting.first().copied() else {
            return;
        };
        let missing = self.not_voted();
        let waits = format!("{} members in {}", waiting.len(), first.call);
        self.event(Event::Waiting {
            waits,
            missing: missing.clone(),
        });
        for (id, vote) in waiting {
            let missing = missing.clone();
            self.send(id, Down::WaitingForVotes { vote, missing });
        }
        let next = self.now + super::heartbeat::WARN_AGAIN;
        self.timers.set(timer, next);
    }

    /// The first few members that wait in no unanimous call.
    fn not_voted(&self) -> Vec<MemberId> {
        let lacks = |id: &MemberId| !self.votes.cast.contains_key(id);
        let members = self.nodes.iter().filter(|(_, node)| node.accepted);
        few(members.map(|(id, _)| *id).filter(lacks))
    }

    /// Planted bug of rule 1: votes do not survive a change of the view.
    pub(super) fn drop_votes(&mut self) {
        self.votes.cast.clear();
        self.votes.for_round = 0;
        for group in self.groups.values_mut() {
            group.voters.clear();
        }
    }
}
