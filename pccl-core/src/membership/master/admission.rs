//! Newcomers, from registration to admission. (Rule 15)
//!
//! A newcomer tries its edges at once. It counts as pending when it has a place in the ring of its
//! group, on edges that are proven, beside the newcomers before it; or, if no ring has one, when one
//! of them all reaches it and them, as the hub of a star. When it has tried all of its edges and there
//! is neither, it is turned down. In a small group it is given a moment to try edges that a plan does not
//! need: if all work, members can exchange directly. (Rule 10)

use std::collections::BTreeSet;

use super::edges::EdgeState;
use super::timers::Timer;
use super::{Master, few};
use crate::event::Event;
use crate::ids::{MemberId, PeerGroup, Round};
use crate::planted::{Bug, planted};
use crate::topology::choice::DIRECT_MEMBERS;
use crate::topology::ring;
use crate::wire::reason::{EvictReason, RefuseReason};

/// Most edges that a newcomer tries. Two that work and are neighbours suffice.
const PROBES: usize = 64;

/// Of these, how many lead to the first members of the ring when there are enough other newcomers
/// to try. A newcomer gets the first place there is, so the front of the ring, and the newcomers
/// just before it, are where its neighbours will be.
const PROBES_TO_RING: usize = 32;

impl Master {
    /// Chooses edges for a newcomer to try, beside those it tries already, and has them tried.
    pub(super) fn probe(&mut self, id: MemberId) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let Some(group) = self.groups.get(&node.group) else {
            return;
        };
        // Edges of later newcomers to this one are theirs to try.
        let own = |other: &MemberId| *other < id || !group.newcomers.contains(other);
        let mut left = PROBES.saturating_sub(node.edges.iter().filter(|o| own(o)).count());
        let mut chosen = Vec::new();
        let front = group.ring.iter().take(PROBES_TO_RING);
        let before = group.newcomers.range(..id).rev();
        let behind = group.ring.iter().skip(PROBES_TO_RING).take(PROBES);
        for other in front.chain(before).chain(behind) {
            if left == 0 {
                break;
            }
            if !node.edges.contains(other) {
                chosen.push(*other);
                left -= 1;
            }
        }
        if chosen.is_empty() {
            return;
        }
        for other in &chosen {
            self.try_edge(id, *other);
        }
        // Who is dialled must know of it before the dialler does.
        for other in &chosen {
            self.expect(*other);
        }
        self.expect(id);
        let (smaller, larger): (Vec<MemberId>, Vec<MemberId>) =
            chosen.into_iter().partition(|other| *other < id);
        self.dial(id, &smaller);
        for other in larger {
            self.dial(other, &[id]);
        }
    }

    /// Gives a newcomer the moment in which it counts as pending only when it has tried its edges.
    pub(super) fn begin_probing(&mut self, id: MemberId) {
        let until = self.now + self.config.timing.heartbeat;
        if let Some(node) = self.nodes.get_mut(&id) {
            node.probing_until = until;
        }
        self.timers.set(Timer::Probing(id), until);
    }

    /// That moment is over.
    pub(super) fn probing_due(&mut self, id: MemberId) {
        if let Some(number) = self.group_of(id) {
            self.consider(number, [id].into());
        }
    }

    /// Finds places for all newcomers of a group anew. Called when the ring, or who is there, has
    /// changed.
    pub(super) fn replan(&mut self, number: PeerGroup) {
        let Some(group) = self.groups.get_mut(&number) else {
            return;
        };
        group.planned = group.ring.clone();
        let newcomers = group.newcomers.clone();
        for id in &newcomers {
            self.pending.remove(id);
        }
        self.consider(number, newcomers);
    }

    /// Finds places for these newcomers if there are any now, and turns those down for which
    /// there can be none. Called when an edge of a newcomer has changed for the better, or has
    /// been tried in vain: what was placed before stays.
    pub(super) fn consider(&mut self, number: PeerGroup, newcomers: BTreeSet<MemberId>) {
        let mut left = newcomers;
        let mut seen = BTreeSet::new();
        // A newcomer is looked at again only after another one was placed or turned down, which
        // happens once to each, or when one that it may wait for is looked at first.
        while let Some(id) = left.pop_first() {
            if !self.is_unplaced(id) {
                continue;
            }
            let first = seen.insert(id);
            if self.place(number, id) {
                left.extend(self.depending(id));
                continue;
            }
            self.probe(id);
            let depending = self.depending(id);
            if self.is_hopeless(id) {
                self.refuse(id);
                left.extend(depending);
            } else if first && self.has_tried(id) {
                left.extend(depending);
            }
        }
    }

    /// Admits the newcomers that have a place. Only groups that gain somebody get a new epoch.
    /// (Rule 1)
    pub(super) fn admit(&mut self, round: Round) {
        let admitted: Vec<MemberId> = std::mem::take(&mut self.pending).into_iter().collect();
        let numbers: BTreeSet<PeerGroup> = admitted
            .iter()
            .filter_map(|id| self.group_of(*id))
            .collect();
        for id in &admitted {
            self.timers.cancel(Timer::Probing(*id));
            if let Some(node) = self.nodes.get_mut(id) {
                node.accepted = true;
            }
            self.event(Event::Admitted { member: *id, round });
        }
        for number in &numbers {
            if let Some(group) = self.groups.get_mut(number) {
                group.ring = group.planned.clone();
                group.epoch.0 += 1;
                for id in &admitted {
                    group.newcomers.remove(id);
                }
            }
        }
        for id in &admitted {
            let others = self
                .nodes
                .get(id)
                .map_or_else(Vec::new, |node| node.edges.iter().copied().collect());
            for other in others {
                let members = self
                    .same_group(*id, other)
                    .is_some_and(|(_, members)| members);
                if members && self.edges.works(*id, other) {
                    self.drop_edge(*id, other);
                    self.touched.insert(other);
                }
            }
            self.touched.insert(*id);
        }
        if !admitted.is_empty() {
            self.world.view.0 += 1;
            self.count_world();
        }
        for number in numbers {
            let choice = self.choose(number);
            if let Some(group) = self.groups.get_mut(&number) {
                group.choice = choice;
            }
            self.replan(number);
            self.group_event(number);
        }
    }

    /// Tells those that had edges to newcomers whom they still have to expect.
    pub(super) fn expect_touched(&mut self) {
        for id in std::mem::take(&mut self.touched) {
            self.expect(id);
        }
    }

    /// Gives a newcomer the first place there is; if there is none and it has tried all it can, a
    /// place in another order of those that have one.
    fn place(&mut self, number: PeerGroup, id: MemberId) -> bool {
        let Some(group) = self.groups.get(&number) else {
            return false;
        };
        let member = |id: MemberId| self.nodes.get(&id).is_some_and(|node| node.accepted);
        let works = |a, b| match member(a) && member(b) {
            true => self.edges.works(a, b),
            false => self.edges.state(a, b) == Some(EdgeState::Proven),
        };
        let mut planned = group.planned.clone();
        if self.may_prove_more(id, &planned) {
            return false;
        }
        let needed = planned.len().min(2);
        let proven = self.nodes.get(&id).map_or(0, |node| {
            node.edges
                .iter()
                .filter(|other| works(id, **other))
                .take(needed)
                .count()
        });
        // Where there is no ring without it, an insertion gives none.
        let ring = ring::holds(&planned, works);
        let mut fits = ring && proven >= needed && ring::insert(&mut planned, id, works);
        if !fits && self.has_tried(id) {
            planned.push(id);
            let order = match proven >= needed {
                true => ring::search(&planned, works),
                false => None,
            };
            // A star is for who has no other hope.
            let star = || self.is_hopeless(id) && self.has_hub(&planned);
            fits = order.is_some() || star();
            match order {
                Some(order) => planned = order,
                None if fits => {}
                None => planned.truncate(planned.len() - 1),
            }
        }
        if !fits && planted(Bug::AdmittedUnreachable) {
            planned.push(id);
            fits = true;
        }
        if fits {
            self.pending.insert(id);
            if let Some(group) = self.groups.get_mut(&number) {
                group.planned = planned;
            }
        }
        fits
    }

    /// Whether a newcomer still has a moment to try edges to all others of a small group.
    fn may_prove_more(&self, id: MemberId, planned: &[MemberId]) -> bool {
        let trying = |other: &MemberId| self.edges.state(id, *other) == Some(EdgeState::Trying);
        let node = self.nodes.get(&id);
        planned.len() < DIRECT_MEMBERS
            && node.is_some_and(|node| self.now < node.probing_until)
            && planned.iter().any(trying)
    }

    /// Whether this is a newcomer that is here and has no place yet. One that is away gets none:
    /// it may be dead.
    fn is_unplaced(&self, id: MemberId) -> bool {
        let here = |id| {
            self.nodes
                .get(id)
                .is_some_and(|n| !n.accepted && n.conn.is_some())
        };
        here(&id) && !self.pending.contains(&id)
    }

    /// Newcomers without a place that may get one beside this one.
    fn depending(&self, id: MemberId) -> Vec<MemberId> {
        let others = self.nodes.get(&id).map(|node| node.edges.iter().copied());
        let proven = |other: &MemberId| self.edges.state(id, *other) == Some(EdgeState::Proven);
        let others = others.into_iter().flatten();
        others
            .filter(|other| proven(other) && self.is_unplaced(*other))
            .collect()
    }

    /// Whether all edges that a newcomer can try have been tried.
    fn has_tried(&self, id: MemberId) -> bool {
        let trying = |other: &MemberId| self.edges.state(id, *other) == Some(EdgeState::Trying);
        self.nodes
            .get(&id)
            .is_some_and(|node| !node.edges.iter().any(trying))
    }

    /// Whether a newcomer without a place can get none: all of its edges are tried, and none leads
    /// to another newcomer that may still get one.
    fn is_hopeless(&self, id: MemberId) -> bool {
        self.has_tried(id)
            && !self
                .depending(id)
                .iter()
                .any(|other| !self.has_tried(*other))
    }

    fn refuse(&mut self, id: MemberId) {
        let from = self.broken_to(id);
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let (name, from) = (node.name.clone(), few(from));
        self.event(Event::Refused {
            name,
            reason: RefuseReason::Unreachable { from: from.clone() },
        });
        self.put_out(id, EvictReason::Unreachable { from });
    }
}
