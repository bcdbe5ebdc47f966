//! What is known of the edges to other members: lanes, dials, what the master was told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::backoff::{Backoff, Random};
use crate::config::Timing;
use crate::ids::{LaneId, MemberId, Time};
use crate::topology::path;
use crate::wire::control::{GroupView, MemberInfo, Up};
use crate::wire::lane::PeerRefusal;

/// Edges of this peer, and whom it has been told to try or to expect.
#[derive(Clone, Debug, Default)]
pub(super) struct Edges {
    edges: BTreeMap<MemberId, Edge>,
    /// To whom each lane leads.
    lanes: BTreeMap<LaneId, MemberId>,
    asked: BTreeMap<MemberId, Asked>,
    expected: BTreeMap<MemberId, MemberInfo>,
}

/// A member that the master told this peer to dial.
#[derive(Clone, Debug)]
struct Asked {
    info: MemberInfo,
    /// The attempt ends here if it has not succeeded.
    until: Time,
}

/// One edge.
#[derive(Clone, Debug, Default)]
pub(super) struct Edge {
    lanes: BTreeMap<LaneId, Lane>,
    /// Lanes that the other end wants; zero: as many as the path can use.
    wanted: u16,
    /// The least time that a connection of this end took to open.
    round_trip: Option<Duration>,
    /// Dials that have not been answered.
    dialling: u16,
    backoff: Backoff,
    /// Not to be dialled before.
    retry: Option<Time>,
    /// Dials that failed since a lane last opened.
    failures: u32,
    /// Since when there has been no lane although one was dialled.
    trying: Option<Time>,
    /// Whether dialling was asked for although it is the other end's part.
    mine: bool,
    /// Whether the edge has had a lane since it was asked for.
    proven: bool,
    /// No more lanes than there are: the other end has enough, or cannot be dialled from here.
    full: bool,
    /// What the dials said, once the master is to know that they fail.
    cannot: Option<String>,
    /// What the last lane's socket said, while none has come back, and whether the master has
    /// been told on the present connection.
    closed: Option<(String, bool)>,
}

/// One lane.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// Whether this end dialled: it closes the lane when it is not needed any more.
    dialled: bool,
    opened: Time,
}

/// How an edge is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// By the plan: with all its lanes.
    Plan,
    /// To find out whether it works: one lane.
    Probe,
    /// Not by this end; lanes that the other end dials stay.
    Allowed,
}

impl Edges {
    /// Members that may be at the other end of a lane, beside the group.
    pub(super) fn outsiders(&self) -> impl Iterator<Item = &MemberInfo> {
        let asked = self.asked.values().map(|asked| &asked.info);
        asked.chain(self.expected.values())
    }

    /// Where a member that was asked for is dialled.
    pub(super) fn asked(&self, peer: MemberId) -> Option<&MemberInfo> {
        self.asked.get(&peer).map(|asked| &asked.info)
    }

    /// Members that were asked for.
    pub(super) fn all_asked(&self) -> Vec<MemberId> {
        self.asked.keys().copied().collect()
    }

    /// Whether there is an edge to this member.
    pub(super) fn contains(&self, peer: MemberId) -> bool {
        self.edges.contains_key(&peer)
    }

    pub(super) fn ask(&mut self, info: MemberInfo, until: Time) {
        let id = info.id;
        if self.asked.len() < MOST_ASKED || self.asked.contains_key(&id) {
            self.asked.insert(id, Asked { info, until });
            let edge = self.edges.entry(id).or_default();
            edge.mine = true;
            edge.proven = !edge.lanes.is_empty();
            edge.cannot = None;
            edge.failures = 0;
            edge.trying = None;
        }
    }

    pub(super) fn expect(&mut self, peers: Vec<MemberInfo>) {
        let peers = peers.into_iter().take(MOST_EXPECTED);
        self.expected = peers.map(|info| (info.id, info)).collect();
    }

    /// A round is complete: for members of the group only the plan counts from now on.
    pub(super) fn round_completed(&mut self, group: &GroupView) {
        self.asked.retain(|id, _| group.rank(*id).is_none());
    }

    /// Drops edges to members that are not allowed, and lanes that this end dialled and that are
    /// not needed. Returns the lanes to close.
    pub(super) fn prune(&mut self, need: impl Fn(MemberId) -> Option<Need>) -> Vec<LaneId> {
        let mut close = Vec::new();
        self.edges.retain(|id, edge| match need(*id) {
            None => {
                close.extend(edge.lanes.keys());
                false
            }
            Some(Need::Allowed) => {
                edge.retry = None;
                edge.trying = None;
                edge.lanes.retain(|lane, state| {
                    if state.dialled {
                        close.push(*lane);
                    }
                    !state.dialled
                });
                !edge.lanes.is_empty() || edge.dialling > 0
            }
            Some(Need::Plan | Need::Probe) => true,
        });
        for lane in &close {
            self.lanes.remove(lane);
        }
        close
    }

    /// All lanes, when nothing of the membership is left.
    pub(super) fn clear(&mut self) -> Vec<LaneId> {
        let lanes = self.lanes.keys().copied().collect();
        *self = Self::default();
        lanes
    }

    /// How many dials to start now on an edge that this end dials: for as many lanes as it or the other
    /// end wishes, and at most `most`.
    pub(super) fn dials(
        &mut self,
        peer: MemberId,
        need: Need,
        pool: u16,
        most: u16,
        now: Time,
    ) -> u16 {
        let edge = self.edges.entry(peer).or_default();
        if edge.retry.is_some_and(|at| at > now) {
            return 0;
        }
        edge.retry = None;
        if edge.full {
            return 0;
        }
        let have = edge.lane_count().saturating_add(edge.dialling);
        // The first lane tells what the other end wants.
        let target = match need {
            Need::Plan if !edge.lanes.is_empty() => edge.target(pool).min(most),
            Need::Plan | Need::Probe => 1,
            Need::Allowed => 0,
        };
        let dials = target.saturating_sub(have);
        if dials > 0 {
            edge.dialling = edge.dialling.saturating_add(dials);
            if edge.lanes.is_empty() && edge.trying.is_none() {
                edge.trying = Some(now);
            }
        }
        dials
    }

    /// Whether this end dials although it has the smaller number.
    pub(super) fn is_mine(&self, peer: MemberId) -> bool {
        self.edges.get(&peer).is_some_and(|edge| edge.mine)
    }

    /// A lane opened. Returns whether it is the edge's first, or `None` if there are too many.
    pub(super) fn opened(
        &mut self,
        lane: LaneId,
        peer: MemberId,
        dialled: Option<Duration>,
        wanted: u16,
        now: Time,
    ) -> Option<bool> {
        let edge = self.edges.entry(peer).or_default();
        if let Some(took) = dialled {
            edge.dialling = edge.dialling.saturating_sub(1);
            edge.round_trip = Some(edge.round_trip.map_or(took, |known| known.min(took)));
        }
        if edge.lanes.len() >= usize::from(MOST_LANES) {
            return None;
        }
        let first = edge.lanes.is_empty();
        let opened = now;
        let dialled = dialled.is_some();
        edge.lanes.insert(lane, Lane { dialled, opened });
        self.lanes.insert(lane, peer);
        edge.wanted = wanted;
        edge.failures = 0;
        edge.retry = None;
        edge.trying = None;
        edge.proven = true;
        edge.cannot = None;
        edge.closed = None;
        Some(first)
    }

    /// A lane closed. Returns to whom it led, and whether the edge has lost its last lane without
    /// a goodbye.
    pub(super) fn lane_closed(
        &mut self,
        lane: LaneId,
        orderly: bool,
        cause: String,
        timing: &Timing,
        random: &mut Random,
        now: Time,
    ) -> Option<(MemberId, bool)> {
        let peer = self.lanes.remove(&lane)?;
        let edge = self.edges.get_mut(&peer)?;
        let closed = edge.lanes.remove(&lane)?;
        if edge.lanes.is_empty()
            && let Some(asked) = self.asked.get_mut(&peer)
        {
            // The attempt that was asked for has succeeded; this is another one.
            asked.until = now + timing.dial();
        }
        edge.full = false;
        if orderly {
            // The other end has a newer view or leaves; that news is on its way here.
            edge.retry = Some(now + random.jitter(super::backoff::LONGEST));
        } else {
            edge.backoff.broke_after(now.since(closed.opened));
            edge.postpone(random, now);
        }
        let dead = !orderly && edge.lanes.is_empty();
        if dead {
            edge.closed = Some((cause, false));
        }
        Some((peer, dead))
    }

    /// A dial failed.
    pub(super) fn dial_failed(
        &mut self,
        peer: MemberId,
        cause: String,
        refusal: Option<PeerRefusal>,
        timing: &Timing,
        random: &mut Random,
        now: Time,
    ) {
        let Some(edge) = self.edges.get_mut(&peer) else {
            return;
        };
        edge.dialling = edge.dialling.saturating_sub(1);
        // Who does not know this peer yet has an older view: that passes.
        let lags = refusal == Some(PeerRefusal::Unknown);
        edge.failures = edge.failures.saturating_add(u32::from(!lags));
        edge.postpone(random, now);
        if !edge.lanes.is_empty() {
            edge.full |= refusal == Some(PeerRefusal::TooMany) || edge.failures >= EXTRA_TRIES;
            return;
        }
        let late = edge
            .trying
            .is_some_and(|since| since + timing.dial() <= now);
        if (edge.failures >= TRIES || late) && edge.cannot.is_none() {
            edge.cannot = Some(cause);
        }
    }

    /// What the dials of an edge said, if the master is to know that they fail.
    pub(super) fn cannot(&self, peer: MemberId) -> Option<&str> {
        self.edges.get(&peer)?.cannot.as_deref()
    }

    /// Ends attempts whose time has passed; returns those that never succeeded and of which the
    /// master has not heard.
    pub(super) fn expire(&mut self, now: Time) -> Vec<MemberId> {
        let edges = &mut self.edges;
        let mut failed = Vec::new();
        self.asked.retain(|id, asked| {
            let edge = edges.entry(*id).or_default();
            let over = asked.until <= now && edge.lanes.is_empty();
            if over && !edge.proven && edge.cannot.is_none() {
                edge.cannot = Some("no dial was answered in time".into());
                failed.push(*id);
            }
            !over
        });
        failed
    }

    /// Edges whose next dial is due.
    pub(super) fn due(&self, now: Time) -> BTreeSet<MemberId> {
        let edges = self.edges.iter();
        edges
            .filter(|(_, edge)| edge.retry.is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect()
    }

    /// A dial that was due is not to be made.
    pub(super) fn stop(&mut self, peer: MemberId) {
        if let Some(edge) = self.edges.get_mut(&peer) {
            edge.retry = None;
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let retries = self.edges.values().filter_map(|edge| edge.retry);
        let asked = self.asked.iter();
        let asked = asked.filter(|(id, _)| self.edges.get(id).is_none_or(|e| e.lanes.is_empty()));
        retries.chain(asked.map(|(_, asked)| asked.until)).min()
    }

    /// The own loop stood still: attempts start their time anew. (Rule 14)
    pub(super) fn restart(&mut self, timing: &Timing, now: Time) {
        for asked in self.asked.values_mut() {
            asked.until = now + timing.dial();
        }
        for edge in self.edges.values_mut() {
            edge.trying = edge.trying.map(|_| now);
        }
    }

    /// Members whose lanes closed and have not come back; from now on the master has been told.
    pub(super) fn report_closed(&mut self) -> Vec<MemberId> {
        let mut closed = Vec::new();
        for (id, edge) in &mut self.edges {
            if let Some((_, told)) = &mut edge.closed {
                *told = true;
                closed.push(*id);
            }
        }
        closed
    }

    /// What the master has to know of the edge's lanes having closed, unless it has been told.
    pub(super) fn untold_closed(&mut self, peer: MemberId) -> Option<Up> {
        let (cause, told) = self.edges.get_mut(&peer)?.closed.as_mut()?;
        let untold = !std::mem::replace(told, true);
        let cause = cause.clone();
        untold.then_some(Up::LanesClosed { peer, cause })
    }

    /// What the master has to know after a reconnection, beyond the report.
    pub(super) fn untold(&mut self) -> Vec<Up> {
        let mut messages = Vec::new();
        for (&peer, edge) in &mut self.edges {
            if !edge.lanes.is_empty() {
                messages.push(Up::LanesOpen { peer });
            } else if let Some(cause) = edge.cannot.clone() {
                messages.push(Up::CannotDial { peer, cause });
            }
            if let Some((cause, told)) = &mut edge.closed
                && !std::mem::replace(told, true)
            {
                let cause = cause.clone();
                messages.push(Up::LanesClosed { peer, cause });
            }
        }
        messages
    }
}

impl Edge {
    fn lane_count(&self) -> u16 {
        u16::try_from(self.lanes.len()).unwrap_or(u16::MAX)
    }

    /// Lanes that the edge is to have: the larger of both ends' wishes, if either has any.
    fn target(&self, pool: u16) -> u16 {
        match pool.max(self.wanted) {
            0 => self.round_trip.map_or(1, path::connections),
            wanted => wanted.min(MOST_LANES),
        }
    }

    /// The next dial waits its turn. Dials that fail together count once.
    fn postpone(&mut self, random: &mut Random, now: Time) {
        if self.retry.is_none_or(|at| at <= now) {
            self.retry = Some(now + self.backoff.next(super::backoff::LONGEST, random));
        }
    }
}

/// Connections per edge, whatever either end wishes: each costs a descriptor at both.
pub(super) const MOST_LANES: u16 = 64;

/// Members that the master may have this peer dial at a time: the 64 that a newcomer probes, and
/// those that could not dial this one.
const MOST_ASKED: usize = 1_024;

/// Members that the master may announce as diallers: as many as a run has.
const MOST_EXPECTED: usize = 16_384;

/// Failed dials of an edge without lanes after which the master is told.
const TRIES: u32 = 2;

/// Failed dials of an edge with lanes after which it stays with those it has.
const EXTRA_TRIES: u32 = 3;
