//! Losses: who is gone, and what that comes to for the others. (Rules 5, 13)

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Master;
use super::groups::Doubt;
use super::timers::Timer;
use super::uses::UseId;
use crate::event::Event;
use crate::ids::{ConnId, MemberId, PeerGroup, Time};
use crate::planted::{Bug, planted};
use crate::topology::ring;
use crate::wire::control::{Down, Loss};
use crate::wire::reason::{AbortReason, EvictReason, LossCause};

/// Round trips that a member has to come back in when another one saw it go.
const ROUND_TRIPS: u32 = 3;

/// Most members of which it is tried whether a plan exists without them, when none does with all.
/// Each try may cost a whole search.
const VICTIMS_TRIED: usize = 16;

/// How somebody goes.
#[derive(Clone, Debug)]
pub(super) enum Departure {
    /// It said goodbye, and was answered.
    Left,
    /// The master lost it.
    Lost(LossCause),
    /// The master puts it out.
    Evicted(EvictReason),
}

impl Departure {
    fn cause(&self) -> LossCause {
        match self {
            Self::Left => LossCause::Left,
            Self::Lost(cause) => *cause,
            Self::Evicted(_) => LossCause::Evicted,
        }
    }

    fn reason(self) -> EvictReason {
        match self {
            Self::Left => EvictReason::Lost(LossCause::Left),
            Self::Lost(cause) => EvictReason::Lost(cause),
            Self::Evicted(reason) => reason,
        }
    }
}

impl Master {
    /// A control connection closed. Its owner may come back.
    pub(super) fn closed(&mut self, conn: ConnId, cause: String) {
        let Some(id) = self.connections.remove(&conn) else {
            return;
        };
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.conn != Some(conn) {
            return;
        }
        node.conn = None;
        node.away = Some(now);
        node.round_trip.restart();
        let (group, accepted) = (node.group, node.accepted);
        self.timers.cancel(Timer::Silence(id));
        self.event(Event::Detached { member: id, cause });
        if planted(Bug::LostAtOnce) {
            return self.lose(vec![(id, Departure::Lost(LossCause::Disconnected))], None);
        }
        self.await_return(id);
        if !accepted {
            self.replan(group);
        }
    }

    /// Somebody leaves in good order. It is answered before its lanes are closed.
    pub(super) fn leave(&mut self, id: MemberId) {
        self.send(id, Down::Goodbye);
        self.lose(vec![(id, Departure::Left)], None);
    }

    /// Puts somebody out.
    pub(super) fn evict(&mut self, id: MemberId, reason: EvictReason) {
        self.lose(vec![(id, Departure::Evicted(reason))], None);
    }

    /// Puts somebody out; what that means for others is the caller's matter.
    pub(super) fn put_out(&mut self, id: MemberId, reason: EvictReason) {
        self.remove(id, Departure::Evicted(reason));
    }

    /// All lanes between `id` and `peer` are gone, says `id`. Only members are believed.
    pub(super) fn report_closed(&mut self, number: PeerGroup, id: MemberId, peer: MemberId) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.accepted) else {
            return;
        };
        node.reported.insert(peer);
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&peer) else {
            return;
        };
        // What is told again on another connection is no newer for that.
        node.closed_by.entry(id).or_insert(now);
        if node.accepted {
            self.doubt(number, id, peer);
        }
        self.await_return(peer);
    }

    /// A lane between `id` and `peer` is gone, says `id`: from now on a word from `peer` is waited
    /// for, which is asked for one. Not so if both ends speak of it: then the edge is in trouble, and not one of its ends.
    /// Returns what has to wait for that word. (Rule 12)
    pub(super) fn doubt(
        &mut self,
        number: PeerGroup,
        id: MemberId,
        peer: MemberId,
    ) -> Option<&mut Doubt> {
        let (own, other) = (self.nodes.get(&id)?, self.nodes.get(&peer)?);
        if !(other.accepted && other.group == number && id != peer) {
            return None;
        }
        let reported = own.closed_by.contains_key(&peer);
        let gone = other.conn.is_none();
        let group = self.groups.get(&number)?;
        let doubted = |of: &MemberId, by: &MemberId| {
            let doubt = group.suspects.get(of);
            doubt.is_some_and(|doubt| doubt.by.contains(by))
        };
        let mutual = reported || doubted(&id, &peer);
        if mutual {
            self.answered(id);
        }
        if mutual && !gone {
            return None;
        }
        self.ping(peer);
        let now = self.now;
        let group = self.groups.get_mut(&number)?;
        let doubt = group
            .suspects
            .entry(peer)
            .or_insert_with(|| Doubt::new(now));
        doubt.by.insert(id);
        Some(doubt)
    }

    /// `id` has a lane to `peer` again.
    pub(super) fn withdraw_report(&mut self, id: MemberId, peer: MemberId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.reported.remove(&peer);
        }
        let Some(node) = self.nodes.get_mut(&peer) else {
            return;
        };
        if node.closed_by.remove(&id).is_some() && node.closed_by.is_empty() {
            self.answered(peer);
        }
        self.await_return(peer);
    }

    /// Somebody is back: what those said of it that are gone by now is of no use any more.
    pub(super) fn forget_dead_reports(&mut self, id: MemberId) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let reporters = node.closed_by.keys().copied();
        let dead: Vec<MemberId> = reporters.filter(|r| !self.nodes.contains_key(r)).collect();
        if let Some(node) = self.nodes.get_mut(&id) {
            for reporter in dead {
                node.closed_by.remove(&reporter);
            }
        }
    }

    /// Somebody has sent something: an answer, unless it may be a last word from before what was
    /// reported, as of a process that was killed.
    pub(super) fn may_answer(&mut self, id: MemberId) {
        let number = self.group_of(id);
        let group = number.and_then(|number| self.groups.get(&number));
        let Some(doubt) = group.and_then(|group| group.suspects.get(&id)) else {
            return;
        };
        if doubt.since + self.grace(id) <= self.now {
            self.answered(id);
        }
    }

    /// A member has answered: what complains about its lanes is about an edge, and goes ahead.
    pub(super) fn answered(&mut self, id: MemberId) {
        let Some(number) = self.group_of(id) else {
            return;
        };
        let waiting = self
            .groups
            .get_mut(&number)
            .and_then(|g| g.suspects.remove(&id));
        for use_id in waiting.into_iter().flat_map(|doubt| doubt.uses) {
            self.abort_parked(number, use_id);
        }
    }

    /// Sets the deadline until which somebody without a connection must have come back.
    pub(super) fn await_return(&mut self, id: MemberId) {
        if let Some(due) = self.return_due(id) {
            self.timers.set(Timer::Away(id), due);
        }
    }

    /// Until when somebody without a connection must have come back: the peer time-out; or, if a
    /// member saw its lanes close too, a few round trips.
    ///
    /// Word of the lanes may overtake word of the control connection, so a report counts that came
    /// as little before it as it could have come after it. None counts for those that went away
    /// while this process stood still, or soon after: they tried to come back in vain, and wait
    /// before they try again. (Rules 13, 14)
    fn return_due(&self, id: MemberId) -> Option<Time> {
        let timing = &self.config.timing;
        let node = self.nodes.get(&id)?;
        let away = node.away?;
        let patience = away + timing.peer_timeout;
        if self.patient_until.is_some_and(|until| away <= until) {
            return Some(patience);
        }
        let grace = self.grace(id);
        let seen = node
            .closed_by
            .values()
            .filter(|at| **at + grace >= away)
            .min();
        Some(seen.map_or(patience, |at| patience.min(away.max(*at) + grace)))
    }

    /// What a member has to come back in when another one saw it go.
    fn grace(&self, id: MemberId) -> Duration {
        let round_trip = self.nodes.get(&id).map(|node| node.round_trip.bound());
        round_trip.unwrap_or_default() * ROUND_TRIPS + self.config.timing.corroborated_loss()
    }

    /// Somebody should have come back.
    pub(super) fn away_due(&mut self, id: MemberId) {
        let Some(due) = self.return_due(id) else {
            return;
        };
        if due > self.now {
            return self.timers.set(Timer::Away(id), due);
        }
        let early = self
            .nodes
            .get(&id)
            .and_then(|node| node.away)
            .is_some_and(|away| due < away + self.config.timing.peer_timeout);
        let cause = match early {
            true => LossCause::Died,
            false => LossCause::Disconnected,
        };
        self.lose(vec![(id, Departure::Lost(cause))], None);
    }

    /// Takes members and newcomers out, all at once, and draws the consequences. The use `spare`
    /// goes on if it can. (Rules 5, 21)
    pub(super) fn lose(&mut self, gone: Vec<(MemberId, Departure)>, spare: Option<UseId>) {
        let mut groups = BTreeMap::new();
        let mut newcomers = Vec::new();
        for (id, departure) in gone {
            match self.remove(id, departure) {
                Some((group, Some(loss), name)) => {
                    groups.entry(group).or_insert(AbortReason::MemberLost {
                        member: loss.member,
                        name,
                        cause: loss.cause,
                    });
                }
                Some((group, None, _)) => newcomers.push(group),
                None => {}
            }
        }
        for group in newcomers {
            match groups.contains_key(&group) {
                true => {}
                false => self.replan(group),
            }
            self.forget_empty(group);
        }
        if !groups.is_empty() {
            self.regroup(groups, spare);
        }
    }

    /// Groups have changed: gives each an order that works, a new epoch, and verdicts on what was
    /// open, for the reason given; then looks at votes anew. (Rules 1, 12)
    pub(super) fn regroup(
        &mut self,
        groups: BTreeMap<PeerGroup, AbortReason>,
        spare: Option<UseId>,
    ) {
        self.world.view.0 += 1;
        if planted(Bug::VoteDroppedOnViewChange) {
            self.drop_votes();
        }
        for group in groups.keys() {
            self.repair(*group);
            let choice = self.choose(*group);
            if let Some(g) = self.groups.get_mut(group) {
                g.epoch.0 += 1;
                g.choice = choice;
            }
        }
        self.count_world();
        for group in groups.keys() {
            self.replan(*group);
        }
        for (group, reason) in &groups {
            if self.ring(*group).is_empty() {
                self.dissolve(*group);
                continue;
            }
            // The view first: a member that is shown an epoch must know its members.
            self.publish_group(*group);
            self.settle(*group, reason, spare);
        }
        self.judge();
        for group in groups.keys() {
            self.contradictions(*group);
        }
    }

    /// Gives a group an order that avoids broken edges, or a hub that all can reach if there is none,
    /// putting members out until there is one or the other.
    ///
    /// That is whoever has most broken edges, the newest if several have: the first of these
    /// without whom there is an order, or else the first. (Rule 12)
    fn repair(&mut self, number: PeerGroup) {
        let members = self.ring(number).len();
        for _ in 0..members {
            let order = self.ring(number);
            let works = |a, b| self.edges.works(a, b);
            if let Some(found) = ring::search(&order, works) {
                if let Some(group) = self.groups.get_mut(&number) {
                    group.ring = found;
                }
                return;
            }
            if self.has_hub(&order) {
                return;
            }
            let present: BTreeSet<MemberId> = order.iter().copied().collect();
            let broken = |id: MemberId| {
                let others = self.nodes.get(&id).map(|node| node.edges.iter());
                let others = others.into_iter().flatten();
                others
                    .filter(|other| present.contains(*other) && !works(id, **other))
                    .count()
            };
            let mut troubled: Vec<(usize, MemberId)> = order
                .iter()
                .map(|id| (broken(*id), *id))
                .filter(|(n, _)| *n > 0)
                .collect();
            troubled.sort_by(|a, b| b.cmp(a));
            let suffices = |(_, id): &&(usize, MemberId)| {
                let others = order.iter().copied().filter(|other| other != id);
                let others = others.collect::<Vec<_>>();
                ring::search(&others, works).is_some() || self.has_hub(&others)
            };
            let victim = troubled.iter().take(VICTIMS_TRIED).find(suffices);
            let Some((_, victim)) = victim.or_else(|| troubled.first()).copied() else {
                return;
            };
            let from = self.broken_to(victim);
            self.put_out(victim, EvictReason::Unreachable { from });
        }
    }

    /// Takes one out of all tables and tells it. Returns its group, its name, and, if it was a
    /// member, how it was lost.
    fn remove(
        &mut self,
        id: MemberId,
        departure: Departure,
    ) -> Option<(PeerGroup, Option<Loss>, String)> {
        self.uncast(id);
        let others: Vec<MemberId> = self.nodes.get(&id)?.edges.iter().copied().collect();
        for other in others {
            self.drop_edge(id, other);
            self.touched.insert(other);
        }
        let node = self.nodes.remove(&id)?;
        for other in &node.proven {
            if let Some(other) = self.nodes.get_mut(other) {
                other.proven.remove(&id);
            }
        }
        self.touched.remove(&id);
        self.pending.remove(&id);
        self.timers.cancel(Timer::Silence(id));
        self.timers.cancel(Timer::Away(id));
        self.timers.cancel(Timer::Probing(id));
        for peer in &node.reported {
            // What it said of somebody who is away stays true; of others it is of no use.
            if let Some(other) = self.nodes.get_mut(peer)
                && other.away.is_none()
            {
                other.closed_by.remove(&id);
            }
        }
        for reporter in node.closed_by.keys() {
            if let Some(other) = self.nodes.get_mut(reporter) {
                other.reported.remove(&id);
            }
        }
        if let Some(group) = self.groups.get_mut(&node.group) {
            group.ring.retain(|other| *other != id);
            group.newcomers.remove(&id);
            group.suspects.remove(&id);
            group.voters.remove(&id);
        }
        let loss = node.accepted.then_some(Loss {
            member: id,
            cause: departure.cause(),
        });
        let label = node.label();
        match &departure {
            Departure::Evicted(reason) => self.event(Event::Evicted {
                member: id,
                reason: reason.clone(),
            }),
            Departure::Left | Departure::Lost(_) => self.event(Event::Lost {
                member: id,
                name: node.name.clone(),
                cause: departure.cause(),
            }),
        }
        let left = matches!(departure, Departure::Left);
        let reason = departure.reason();
        self.departed.add(id, node.token, reason.clone());
        if let Some(conn) = node.conn {
            self.connections.remove(&conn);
            if !left {
                let message = Down::Evicted(reason);
                self.output(super::MasterOutput::Send { conn, message });
            }
            self.output(super::MasterOutput::Close { conn });
        }
        Some((node.group, loss, label))
    }

    /// Forgets a group that has neither members nor newcomers.
    fn forget_empty(&mut self, number: PeerGroup) {
        let empty = |g: &super::Group| g.ring.is_empty() && g.newcomers.is_empty();
        if self.groups.get(&number).is_some_and(empty) {
            self.dissolve(number);
        }
    }
}
