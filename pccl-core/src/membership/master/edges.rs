//! Which pairs of members can exchange data. (Rules 12, 15)
//!
//! Newcomers try their edges before they are admitted: such an edge works once it is proven. An
//! edge between members works until both ends have failed to dial; only edges in trouble are kept.
//! Which algorithms a group can go by rests on edges that a lane has been made on, though: of these
//! every member has a list.

use std::collections::BTreeMap;
use std::time::Duration;

use super::timers::Timer;
use super::{Master, few};
use crate::event::Event;
use crate::ids::{MemberId, PeerGroup};
use crate::topology::choice::{self, DIRECT_MEMBERS, Links};
use crate::topology::ring;
use crate::types::Choice;
use crate::wire::control::{Down, MemberInfo};
use crate::wire::reason::{AbortReason, shortened};

/// Most edges in trouble that one member's reports may make the master keep. A member with more
/// broken edges than this is no use in any ring; its further reports say nothing new.
const TROUBLED_LIMIT: usize = 1_024;

/// State of one edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EdgeState {
    /// No lane yet, or none any more.
    Trying,
    /// A lane was made.
    Proven,
    /// Neither end can dial the other.
    Broken,
}

/// One edge. By rule the end with the larger number dials; the other is asked when it cannot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) state: EdgeState,
    asked: [bool; 2],
    failed: [bool; 2],
}

/// Edges of newcomers, and edges in trouble.
#[derive(Debug, Default)]
pub(super) struct Edges {
    map: BTreeMap<(MemberId, MemberId), Edge>,
}

/// The two ends, smaller number first.
pub(super) fn pair(a: MemberId, b: MemberId) -> (MemberId, MemberId) {
    (a.min(b), a.max(b))
}

/// Index of an end in a pair.
fn end(of: (MemberId, MemberId), id: MemberId) -> usize {
    usize::from(of.1 == id)
}

impl Edges {
    pub(super) fn state(&self, a: MemberId, b: MemberId) -> Option<EdgeState> {
        self.map.get(&pair(a, b)).map(|edge| edge.state)
    }

    /// Whether two members can exchange data, as far as is known.
    pub(super) fn works(&self, a: MemberId, b: MemberId) -> bool {
        self.state(a, b) != Some(EdgeState::Broken)
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }
}

impl Links for Master {
    fn works(&self, a: MemberId, b: MemberId) -> bool {
        self.edges.works(a, b)
    }

    fn proven(&self, a: MemberId, b: MemberId) -> bool {
        self.is_proven(a, b)
    }

    fn round_trip(&self, id: MemberId) -> Option<Duration> {
        self.nodes.get(&id)?.round_trip.mean()
    }
}

impl Master {
    /// How long one end may take to make a lane: its dial deadline, and the time until the master
    /// would have noticed that it is gone.
    pub(super) fn edge_limit(&self) -> Duration {
        self.config.timing.dial() + self.config.timing.peer_timeout
    }

    /// Begins to try an edge; the end with the larger number dials, and is told so by the caller.
    pub(super) fn try_edge(&mut self, a: MemberId, b: MemberId) {
        let key = pair(a, b);
        let edge = Edge {
            state: EdgeState::Trying,
            asked: [false, true],
            failed: [false, false],
        };
        self.edges.map.insert(key, edge);
        for (id, other) in [(a, b), (b, a)] {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.edges.insert(other);
            }
        }
        let due = self.now + self.edge_limit();
        self.timers.set(Timer::Edge(key.0, key.1), due);
    }

    /// Forgets what is known of an edge.
    pub(super) fn drop_edge(&mut self, a: MemberId, b: MemberId) {
        let key = pair(a, b);
        self.edges.map.remove(&key);
        self.timers.cancel(Timer::Edge(key.0, key.1));
        for (id, other) in [(a, b), (b, a)] {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.edges.remove(&other);
            }
        }
    }

    /// A lane was made: the edge works, and whoever said otherwise takes it back.
    pub(super) fn lanes_open(&mut self, id: MemberId, peer: MemberId) {
        let Some((number, both_members)) = self.same_group(id, peer) else {
            return;
        };
        self.withdraw_report(id, peer);
        self.set_proven(id, peer, true);
        let key = pair(id, peer);
        if both_members {
            self.drop_edge(id, peer);
        } else if let Some(edge) = self.edges.map.get_mut(&key)
            && edge.state != EdgeState::Proven
        {
            edge.state = EdgeState::Proven;
            self.timers.cancel(Timer::Edge(key.0, key.1));
            self.consider(number, [id, peer].into());
        }
    }

    /// All lanes of an edge are gone, as one end says.
    pub(super) fn lanes_closed(&mut self, id: MemberId, peer: MemberId) {
        let Some((number, both_members)) = self.same_group(id, peer) else {
            return;
        };
        self.report_closed(number, id, peer);
        let state = self.edges.state(id, peer);
        if both_members {
            // The ends dial again by themselves. Only an edge that is needed has a deadline.
            if state.is_none() && self.is_needed(number, id, peer) && self.may_report(id) {
                self.try_edge(id, peer);
            }
        } else if state == Some(EdgeState::Proven) {
            self.try_edge(id, peer);
            let (low, high) = pair(id, peer);
            self.dial(high, &[low]);
            self.replan(number);
        }
    }

    /// An end cannot dial: the other one is asked, unless it has failed too.
    pub(super) fn cannot_dial(&mut self, id: MemberId, peer: MemberId, cause: String) {
        if self.same_group(id, peer).is_none() {
            return;
        }
        self.event(Event::CannotDial {
            from: id,
            to: peer,
            cause: shortened(cause),
        });
        match self.edges.state(id, peer) {
            Some(EdgeState::Broken) => return,
            None if !self.may_report(id) => return,
            None | Some(EdgeState::Proven) => self.try_edge(id, peer),
            Some(EdgeState::Trying) => {}
        }
        self.edge_failed(id, peer);
    }

    /// An edge has had its time.
    pub(super) fn edge_due(&mut self, a: MemberId, b: MemberId) {
        let away = |id: &MemberId| self.nodes.get(id).is_some_and(|node| node.conn.is_none());
        let Some(edge) = self.edges.map.get(&(a, b)).copied() else {
            return;
        };
        if edge.state != EdgeState::Trying {
            return;
        }
        if away(&a) || away(&b) {
            // It will come back or be lost; until then it cannot be asked.
            let due = self.now + self.edge_limit();
            return self.timers.set(Timer::Edge(a, b), due);
        }
        let slow: Vec<MemberId> = [a, b]
            .into_iter()
            .filter(|id| {
                let at = end((a, b), *id);
                edge.asked.get(at) == Some(&true) && edge.failed.get(at) == Some(&false)
            })
            .collect();
        for id in slow {
            self.edge_failed(id, if id == a { b } else { a });
        }
    }

    /// Tells somebody to dial; whom, it is told with what proves them.
    pub(super) fn dial(&mut self, id: MemberId, peers: &[MemberId]) {
        let peers = self.infos(peers.iter().copied());
        if !peers.is_empty() {
            self.send(id, Down::Dial { peers });
        }
    }

    /// Tells somebody whom to expect, if that has changed.
    pub(super) fn expect(&mut self, id: MemberId) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let mine = |other: &MemberId| {
            let newcomer = !node.accepted || self.nodes.get(other).is_some_and(|o| !o.accepted);
            newcomer && self.edges.works(id, *other)
        };
        let expected: std::collections::BTreeSet<MemberId> =
            node.edges.iter().copied().filter(mine).collect();
        if expected == node.expected {
            return;
        }
        let peers = self.infos(expected.iter().copied());
        if let Some(node) = self.nodes.get_mut(&id) {
            node.expected = expected;
        }
        self.send(id, Down::Expect { peers });
    }

    /// Tells who came back what it is to do about edges: whom to expect, and whom to dial.
    pub(super) fn edges_again(&mut self, id: MemberId) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.expected.clear();
        let accepted = node.accepted;
        let others: Vec<MemberId> = node.edges.iter().copied().collect();
        self.expect(id);
        let asked = |other: &MemberId| {
            let key = pair(id, *other);
            let edge = self.edges.map.get(&key)?;
            let at = end(key, id);
            // Between members, the larger end dials unasked.
            let told = !accepted || at == 0 || !self.nodes.get(other)?.accepted;
            let wanted = edge.state == EdgeState::Trying
                && edge.asked.get(at) == Some(&true)
                && edge.failed.get(at) == Some(&false);
            (told && wanted).then_some(*other)
        };
        let dial: Vec<MemberId> = others.iter().filter_map(asked).collect();
        self.dial(id, &dial);
    }

    /// One end has failed to dial the other.
    fn edge_failed(&mut self, id: MemberId, peer: MemberId) {
        let key = pair(id, peer);
        let (mine, other) = (end(key, id), end(key, peer));
        let due = self.now + self.edge_limit();
        let Some(edge) = self.edges.map.get_mut(&key) else {
            return;
        };
        let get = |flags: &[bool; 2], at: usize| flags.get(at).copied().unwrap_or(false);
        if let Some(failed) = edge.failed.get_mut(mine) {
            *failed = true;
        }
        if get(&edge.failed, other) {
            edge.state = EdgeState::Broken;
            self.set_proven(id, peer, false);
            self.timers.cancel(Timer::Edge(key.0, key.1));
            return self.edge_broken(id, peer);
        }
        self.timers.set(Timer::Edge(key.0, key.1), due);
        if !get(&edge.asked, other) {
            if let Some(asked) = edge.asked.get_mut(other) {
                *asked = true;
            }
            self.dial(peer, &[id]);
        }
    }

    /// Neither end can dial the other: the order, or the plans of newcomers, must do without.
    fn edge_broken(&mut self, a: MemberId, b: MemberId) {
        self.event(Event::EdgeBroken { a, b });
        let Some((number, both_members)) = self.same_group(a, b) else {
            return;
        };
        if !both_members {
            self.touched.extend([a, b]);
            return self.consider(number, [a, b].into());
        }
        if self.is_needed(number, a, b) {
            self.regroup([(number, AbortReason::EdgeBroken { a, b })].into(), None);
        } else {
            // The places of newcomers may rest on it.
            self.replan(number);
        }
    }

    /// Whether an algorithm that the group was told of uses the edge.
    fn is_needed(&self, number: PeerGroup, a: MemberId, b: MemberId) -> bool {
        self.groups.get(&number).is_some_and(|group| {
            let choice = &group.choice;
            let neighbours = choice.ring && ring::adjacent(&group.ring, a, b);
            neighbours || choice.direct || [Some(a), Some(b)].contains(&choice.hub)
        })
    }

    /// Notes whether two members have an edge for certain.
    fn set_proven(&mut self, a: MemberId, b: MemberId, proven: bool) {
        for (id, other) in [(a, b), (b, a)] {
            if let Some(node) = self.nodes.get_mut(&id) {
                match proven {
                    true => node.proven.insert(other),
                    false => node.proven.remove(&other),
                };
            }
        }
    }

    /// Has edges between members tried of which nothing is known, where all of a group would make
    /// other algorithms possible. (Rule 10)
    pub(super) fn prove(&mut self, number: PeerGroup) {
        let ring = self.ring(number);
        if ring.len() > DIRECT_MEMBERS {
            return;
        }
        for (i, a) in ring.iter().enumerate() {
            for b in ring.iter().take(i) {
                if self.is_proven(*a, *b) || self.edges.state(*a, *b).is_some() {
                    continue;
                }
                let (low, high) = pair(*a, *b);
                self.try_edge(low, high);
                self.dial(high, &[low]);
            }
        }
    }

    /// Whether two members or newcomers have an edge for certain.
    pub(super) fn is_proven(&self, a: MemberId, b: MemberId) -> bool {
        let node = self.nodes.get(&a);
        node.is_some_and(|node| node.proven.contains(&b)) && self.edges.works(a, b)
    }

    /// What the group goes by in the order that it has. (Rule 10)
    pub(super) fn choose(&self, number: PeerGroup) -> Choice {
        choice::choose(self, &self.ring(number))
    }

    /// Whether members have a plan without a ring: one that all the others can reach.
    pub(super) fn has_hub(&self, members: &[MemberId]) -> bool {
        choice::hub(self, members).is_some()
    }

    /// Whether the master keeps one more edge in trouble of this member.
    fn may_report(&self, id: MemberId) -> bool {
        self.nodes
            .get(&id)
            .is_some_and(|node| node.edges.len() < TROUBLED_LIMIT)
    }

    /// The group of two, if it is the same, and whether both are members.
    pub(super) fn same_group(&self, a: MemberId, b: MemberId) -> Option<(PeerGroup, bool)> {
        let (first, second) = (self.nodes.get(&a)?, self.nodes.get(&b)?);
        let same = a != b && first.group == second.group;
        same.then_some((first.group, first.accepted && second.accepted))
    }

    pub(super) fn infos(&self, ids: impl Iterator<Item = MemberId>) -> Vec<MemberInfo> {
        ids.filter_map(|id| Some(self.nodes.get(&id)?.info(id)))
            .collect()
    }

    /// Those that somebody cannot exchange data with.
    pub(super) fn broken_to(&self, id: MemberId) -> Vec<MemberId> {
        let others = self.nodes.get(&id).map(|node| node.edges.iter().copied());
        few(others
            .into_iter()
            .flatten()
            .filter(|other| !self.edges.works(id, *other)))
    }
}
