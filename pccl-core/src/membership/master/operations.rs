//! Operations: OPEN, DONE, requests to abort, and the verdict. (Rules 2, 4, 5)

use super::timers::Timer;
use super::uses::{Content, Use, UseId};
use super::{Master, few};
use crate::event::Event;
use crate::ids::{Digest, MemberId, PeerGroup, Serial};
use crate::planted::{Bug, planted};
use crate::types::OpKind;
use crate::wire::control::{AbortRequest, Done, Down, OpBody, OpName, Open, Outcome, Verdict};
use crate::wire::reason::{AbortReason, EvictReason, Missing, RequestCause};

impl Master {
    /// A member begins a use.
    pub(super) fn open(&mut self, id: MemberId, open: Open) {
        self.acknowledged(id, open.quoted);
        let Some(number) = self.group_of(id) else {
            return;
        };
        if open.op.round != self.votes.round {
            return self.protocol(id, "an operation of another round than the present one");
        }
        let fits = match &open.what {
            OpBody::Reduce { .. } => open.op.key.kind == OpKind::Collective,
            OpBody::Sync(_) => open.op.key.kind == OpKind::Sync,
        };
        if !fits {
            return self.protocol(id, "an operation whose content is not of its kind");
        }
        let limit = self.config.limits.uses.saturating_mul(2);
        let now = self.now;
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        let present = group.epoch;
        let found = group.uses.find(open.op, open.quoted);
        // Rule 1: an epoch that is not the group's present one dooms the use for all. One that is
        // brought back is judged as it was the first time.
        let (use_id, stale) = match found {
            Some(use_id) => {
                let Some(entry) = group.uses.get_mut(use_id) else {
                    return;
                };
                let again = entry.opened.insert(id, open.quoted).is_some();
                if entry.verdict.is_some() {
                    return self.deliver(number, use_id, id);
                }
                (use_id, !again && open.epoch != present)
            }
            // Twice the limit: so many open ones, and so many remembered ones. A member cannot know
            // how many are remembered: that depends on what the others have opened since.
            None if group.uses.held() >= limit => {
                let held = group.uses.held() as u32;
                let (op, quoted) = (open.op, open.quoted);
                return self.send(id, Down::TooMany { op, quoted, held });
            }
            None => {
                self.last_use += 1;
                let use_id = UseId(self.last_use);
                let content = match &open.what {
                    OpBody::Reduce { descriptor, digest } => Content::Reduce(*descriptor, *digest),
                    OpBody::Sync(_) => Content::Sync {
                        offers: Default::default(),
                        bytes: 0,
                        plans: None,
                    },
                };
                let mut entry = Use::new(open.op, content, now);
                entry.opened.insert(id, open.quoted);
                group.uses.add(use_id, entry);
                let warn = now + self.config.timing.warn_after();
                self.timers.set(Timer::Use(number, use_id), warn);
                (use_id, open.epoch != present)
            }
        };
        if stale {
            let opened = open.epoch;
            return self.abort(number, use_id, AbortReason::StaleEpoch { opened, present });
        }
        if let Some(versions) = self.differs(number, use_id, id, &open) {
            return self.abort(number, use_id, AbortReason::Mismatch { versions });
        }
        if let OpBody::Sync(offer) = open.what {
            self.offer(number, use_id, id, offer);
        }
        self.contradictions(number);
        self.elect(number, use_id);
    }

    /// Rule 4: all must mean the same. Returns what each means if `id` means something else.
    fn differs(
        &self,
        group: PeerGroup,
        use_id: UseId,
        id: MemberId,
        open: &Open,
    ) -> Option<Vec<(String, Vec<MemberId>)>> {
        let entry = self.groups.get(&group)?.uses.get(use_id)?;
        let OpBody::Reduce { descriptor, digest } = &open.what else {
            return None;
        };
        let Content::Reduce(first, first_digest) = &entry.content else {
            return None;
        };
        let same = first == descriptor && first_digest == digest;
        if same || planted(Bug::DescriptorsNotCompared) {
            return None;
        }
        let others = few(entry.opened.keys().copied().filter(|other| *other != id));
        let version = |d, digest: &Digest| format!("{d}, digest {digest}");
        Some(vec![
            (version(first, first_digest), others),
            (version(descriptor, digest), vec![id]),
        ])
    }

    /// A member holds the result.
    pub(super) fn done(&mut self, id: MemberId, done: Done) {
        let Some((number, use_id)) = self.find_open(id, done.op, done.quoted) else {
            return;
        };
        if let Some(entry) = self.use_mut(number, use_id) {
            entry.done.insert(id, done.result);
        }
        self.finish_if_done(number, use_id);
    }

    /// Commits a use that all surviving members are done with, if their results are the same.
    /// Returns whether all are done.
    pub(super) fn finish_if_done(&mut self, group: PeerGroup, use_id: UseId) -> bool {
        let Some(g) = self.groups.get(&group) else {
            return false;
        };
        let Some(entry) = g.uses.get(use_id) else {
            return false;
        };
        if entry.verdict.is_some() || g.ring.is_empty() || entry.done.len() < g.ring.len() {
            return false;
        }
        let outcome = match odd_ones(entry) {
            Some(odd) if !planted(Bug::ResultsNotCompared) => {
                Outcome::Abort(AbortReason::Diverged { odd })
            }
            _ => Outcome::Commit,
        };
        if outcome == Outcome::Commit {
            self.synchronised(group, use_id);
        }
        self.decide(group, use_id, outcome);
        true
    }

    /// A member wants a use to end.
    pub(super) fn abort_request(&mut self, id: MemberId, request: AbortRequest) {
        let Some((number, use_id)) = self.find_open(id, request.op, request.quoted) else {
            return;
        };
        match request.cause.shortened() {
            // Rule 21: who cannot fetch fails alone.
            RequestCause::FetchFailed { what } if self.is_planned(number, use_id) => {
                self.fail_alone(use_id, vec![(id, EvictReason::State { what })]);
            }
            // Rule 12: wait for a word from the other end, so that a dead member is named as
            // lost, with the world sizes after it, and not its lane first.
            RequestCause::LaneDied { peer, cause } => {
                let cause = RequestCause::LaneDied { peer, cause };
                match self.doubt(number, id, peer) {
                    Some(doubt) => {
                        doubt.uses.insert(use_id);
                        if let Some(entry) = self.use_mut(number, use_id) {
                            entry.parked.get_or_insert((id, cause));
                        }
                    }
                    None => self.abort_requested(number, use_id, id, cause),
                }
            }
            cause => self.abort_requested(number, use_id, id, cause),
        }
    }

    /// Aborts a use since a member asked for it.
    fn abort_requested(
        &mut self,
        group: PeerGroup,
        use_id: UseId,
        by: MemberId,
        cause: RequestCause,
    ) {
        let missing = Box::new(match cause {
            RequestCause::TimedOut | RequestCause::Cancelled => self.missing(group, use_id),
            _ => Missing::Nobody,
        });
        self.abort(group, use_id, AbortReason::Requested { by, cause, missing });
    }

    /// Without whom a use cannot end.
    fn missing(&self, group: PeerGroup, use_id: UseId) -> Missing {
        let group = self.groups.get(&group);
        let Some((g, entry)) = group.and_then(|g| Some((g, g.uses.get(use_id)?))) else {
            return Missing::Nobody;
        };
        let ring = || g.ring.iter().copied();
        let not_opened = few(ring().filter(|id| !entry.opened.contains_key(id)));
        if !not_opened.is_empty() {
            return Missing::Calls(not_opened);
        }
        Missing::Results(few(ring().filter(|id| !entry.done.contains_key(id))))
    }

    /// Carries out an abort request that waited, if the use is still open.
    pub(super) fn abort_parked(&mut self, group: PeerGroup, use_id: UseId) {
        if let Some((by, cause)) = self.use_mut(group, use_id).and_then(|e| e.parked.take()) {
            self.abort_requested(group, use_id, by, cause);
        }
    }

    /// Aborts a use for all of its group.
    pub(super) fn abort(&mut self, group: PeerGroup, use_id: UseId, reason: AbortReason) {
        self.decide(group, use_id, Outcome::Abort(reason));
    }

    /// Gives the verdict on a use, stamps it once, and tells everybody that waits for it.
    fn decide(&mut self, number: PeerGroup, use_id: UseId, outcome: Outcome) {
        let stamp = self.stamp(number);
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        let Some(entry) = group.uses.get_mut(use_id) else {
            return;
        };
        if entry.verdict.is_some() {
            return;
        }
        self.last_verdict += 1;
        let serial = Serial {
            incarnation: self.incarnation,
            counter: self.last_verdict,
        };
        let op = entry.name;
        let verdict = Verdict {
            op,
            serial,
            outcome: outcome.clone(),
            stamp,
        };
        let told: Vec<MemberId> = entry.opened.keys().copied().collect();
        entry.unacked = told.iter().copied().collect();
        group.uses.decide(use_id, verdict.clone());
        self.timers.cancel(Timer::Use(number, use_id));
        self.event(Event::Verdict {
            op,
            group: number,
            serial,
            outcome,
            stamp,
        });
        for id in told {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.unacked.insert((serial, use_id));
            }
            self.send(id, Down::Verdict(verdict.clone()));
        }
        if planted(Bug::VerdictForgotten) {
            self.forget(number, use_id);
        }
    }

    /// Sends a verdict that was given before the member opened the use, or that it may have
    /// missed.
    ///
    /// It may quote later verdicts already, so that quoting this one proves nothing: only one
    /// that is given after this, and comes behind it on the connection, does.
    pub(super) fn deliver(&mut self, group: PeerGroup, use_id: UseId, id: MemberId) {
        let needed = self.serial(self.last_verdict + 1);
        let Some(entry) = self.use_mut(group, use_id) else {
            return;
        };
        let Some(verdict) = entry.verdict.clone() else {
            return;
        };
        entry.unacked.insert(id);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.unacked.retain(|(_, other)| *other != use_id);
            node.unacked.insert((needed, use_id));
        }
        self.send(id, Down::Verdict(verdict));
    }

    /// A member has all verdicts up to `quoted`.
    pub(super) fn acknowledged(&mut self, id: MemberId, quoted: Serial) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let number = node.group;
        let mut over = Vec::new();
        while let Some((needed, use_id)) = node.unacked.first().copied() {
            if needed > quoted {
                break;
            }
            node.unacked.remove(&(needed, use_id));
            over.push(use_id);
        }
        for use_id in over {
            self.has_verdict(number, use_id, id);
        }
    }

    /// A member is known to have the verdict on a use.
    pub(super) fn has_verdict(&mut self, group: PeerGroup, use_id: UseId, id: MemberId) {
        let Some(g) = self.groups.get_mut(&group) else {
            return;
        };
        if let Some(entry) = g.uses.get_mut(use_id) {
            entry.unacked.remove(&id);
        }
        // Rule 2: an abort stays until everybody has opened the use.
        let members = if planted(Bug::AbortForgotten) {
            0
        } else {
            g.ring.len()
        };
        g.uses.settle(use_id, members);
    }

    /// Forgets a use at once, verdict or not.
    pub(super) fn forget(&mut self, group: PeerGroup, use_id: UseId) {
        self.timers.cancel(Timer::Use(group, use_id));
        let Some(g) = self.groups.get_mut(&group) else {
            return;
        };
        if let Some(entry) = g.uses.get(use_id) {
            for id in &entry.unacked {
                if let Some(node) = self.nodes.get_mut(id) {
                    node.unacked.retain(|(_, other)| *other != use_id);
                }
            }
        }
        g.uses.forget(use_id);
    }

    /// Forgets all uses of a group: a round has completed, so that nobody waits in any.
    pub(super) fn clear_uses(&mut self, group: PeerGroup) {
        let ids = self
            .groups
            .get(&group)
            .map_or_else(Vec::new, |g| g.uses.ids());
        for use_id in ids {
            self.forget(group, use_id);
        }
    }

    /// What the uses of a group come to after it changed: a commit if all that are left are done,
    /// else an abort; nothing for `spare`, which goes on if it can. (Rules 1, 5)
    pub(super) fn settle(&mut self, group: PeerGroup, reason: &AbortReason, spare: Option<UseId>) {
        let ids = self
            .groups
            .get(&group)
            .map_or_else(Vec::new, |g| g.uses.ids());
        let members: std::collections::BTreeSet<MemberId> = self.ring(group).into_iter().collect();
        for use_id in ids {
            let Some(entry) = self.use_mut(group, use_id) else {
                continue;
            };
            entry.opened.retain(|id, _| members.contains(id));
            entry.done.retain(|id, _| members.contains(id));
            entry.unacked.retain(|id| members.contains(id));
            if let Some((by, _)) = &entry.parked
                && !members.contains(by)
            {
                entry.parked = None;
            }
            if entry.verdict.is_some() {
                if let Some(g) = self.groups.get_mut(&group) {
                    g.uses.settle(use_id, members.len());
                }
            } else if !self.finish_if_done(group, use_id)
                && spare != Some(use_id)
                && !self.goes_on(group, use_id, reason)
            {
                self.abort(group, use_id, reason.clone());
            }
        }
    }

    /// A use is open for long: says who is missing. (Rule 17)
    pub(super) fn use_waits(&mut self, number: PeerGroup, use_id: UseId) {
        let Some(group) = self.groups.get(&number) else {
            return;
        };
        let Some(entry) = group.uses.get(use_id) else {
            return;
        };
        let ring = || group.ring.iter().copied();
        let not_opened = few(ring().filter(|id| !entry.opened.contains_key(id)));
        let not_done =
            few(ring().filter(|id| entry.opened.contains_key(id) && !entry.done.contains_key(id)));
        let (op, opened) = (entry.name, entry.opened.len());
        let waiting: Vec<MemberId> = entry.opened.keys().copied().collect();
        let missing = match not_opened.is_empty() {
            true => not_done.clone(),
            false => not_opened.clone(),
        };
        let seconds = self.now.since(entry.since).as_secs();
        let key = op.key;
        let waits = format!("{opened} members of {number} wait for {seconds} s in {key}");
        self.event(Event::Waiting { waits, missing });
        for id in waiting {
            self.send(
                id,
                Down::Waiting {
                    op,
                    not_opened: not_opened.clone(),
                    not_done: not_done.clone(),
                },
            );
        }
        let next = self.now + super::heartbeat::WARN_AGAIN;
        self.timers.set(Timer::Use(number, use_id), next);
    }

    pub(super) fn use_mut(&mut self, group: PeerGroup, use_id: UseId) -> Option<&mut Use> {
        self.groups.get_mut(&group)?.uses.get_mut(use_id)
    }

    /// The undecided use that a member means, if the member has opened it.
    fn find_open(&self, id: MemberId, op: OpName, quoted: Serial) -> Option<(PeerGroup, UseId)> {
        let number = self.group_of(id)?;
        let uses = &self.groups.get(&number)?.uses;
        let use_id = uses.find(op, quoted)?;
        let entry = uses.get(use_id)?;
        let open = entry.verdict.is_none() && entry.opened.contains_key(&id);
        open.then_some((number, use_id))
    }
}

/// Members whose result is not the most frequent one; all, if several are equally frequent; none,
/// if there is one result only.
fn odd_ones(entry: &Use) -> Option<Vec<MemberId>> {
    let mut counts = std::collections::BTreeMap::<Digest, usize>::new();
    for digest in entry.done.values() {
        *counts.entry(*digest).or_default() += 1;
    }
    if counts.len() < 2 {
        return None;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    let mut popular = counts.iter().filter(|(_, n)| **n == most).map(|(d, _)| *d);
    let popular = match (popular.next(), popular.next()) {
        (Some(one), None) => Some(one),
        _ => None,
    };
    let odd = entry.done.iter().filter(|(_, d)| Some(**d) != popular);
    Some(few(odd.map(|(id, _)| *id)))
}
