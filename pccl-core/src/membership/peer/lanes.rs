//! Which lanes to have: dialling, re-dialling, closing, and whom to let in. (Rules 12, 13, 15)
//!
//! The member with the larger number dials: newcomers dial their elders. Who cannot tells the
//! master, which asks the other end. Lanes that no plan needs are closed by who dialled them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::edges::{MOST_LANES, Need};
use super::io::PeerOutput;
use super::{Identity, Peer};
use crate::event::Event;
use crate::ids::{LaneId, MemberId, PublicKey, Time, Token};
use crate::wire::control::{GroupView, MemberInfo, Up};
use crate::wire::lane::PeerRefusal;

impl Peer {
    /// Follows the group's view, if it is newer than the one that is followed.
    pub(super) fn follow(&mut self, group: GroupView, now: Time) {
        if group.epoch > self.known.epoch {
            self.known = group;
            self.outputs.push_back(PeerOutput::Event(Event::Group {
                group: self.settings.group,
                epoch: self.known.epoch,
                ring: self.known.ring.iter().map(|member| member.id).collect(),
            }));
        }
        self.tell_group();
        self.reconcile(now);
        self.start_operations();
    }

    /// The master wants these edges tried.
    pub(super) fn on_dial(&mut self, peers: Vec<MemberInfo>, now: Time) {
        let own = self.own_id();
        for info in peers.into_iter().filter(|info| Some(info.id) != own) {
            self.edges.ask(info, now + self.timing.dial());
        }
        self.reconcile(now);
    }

    /// The master says who may dial although it is not in the group's view.
    pub(super) fn on_expect(&mut self, peers: Vec<MemberInfo>, now: Time) {
        self.edges.expect(peers);
        self.reconcile(now);
    }

    /// A connection opened, in either direction; how long that took if this end dialled.
    pub(super) fn on_lane_open(
        &mut self,
        lane: LaneId,
        peer: MemberId,
        dialled: Option<Duration>,
        wanted: u16,
        now: Time,
    ) {
        let opened = if self.need(peer).is_some() {
            self.edges.opened(lane, peer, dialled, wanted, now)
        } else {
            None
        };
        let Some(first) = opened else {
            self.outputs.push_back(PeerOutput::CloseLane { lane });
            return;
        };
        if first {
            self.send(Up::LanesOpen { peer });
        }
        self.reconcile(now);
    }

    /// A lane closed. The engine says itself which operations that ends.
    pub(super) fn on_lane_closed(&mut self, lane: LaneId, orderly: bool, cause: String, now: Time) {
        let (timing, random) = (&self.timing, &mut self.random);
        let closed = self
            .edges
            .lane_closed(lane, orderly, cause, timing, random, now);
        let Some((peer, dead)) = closed else {
            return;
        };
        if dead
            && self.session.is_open()
            && let Some(message) = self.edges.untold_closed(peer)
        {
            self.send(message);
        }
        self.pursue(peer, now);
    }

    /// A dial failed at all addresses of a member.
    pub(super) fn on_dial_failed(
        &mut self,
        peer: MemberId,
        cause: String,
        refusal: Option<PeerRefusal>,
        now: Time,
    ) {
        let told = self.edges.cannot(peer).is_some();
        let (timing, random) = (&self.timing, &mut self.random);
        self.edges
            .dial_failed(peer, cause, refusal, timing, random, now);
        if !told {
            self.tell_cannot(peer);
        }
        self.pursue(peer, now);
    }

    /// Retries and attempts whose time has come.
    pub(super) fn edges_due(&mut self, now: Time) {
        for peer in self.edges.due(now) {
            self.pursue(peer, now);
        }
        let next = self.edges.next_deadline();
        if next.is_some_and(|at| at <= now) {
            for peer in self.edges.expire(now) {
                self.tell_cannot(peer);
            }
            self.reconcile(now);
        }
    }

    /// Data came from these members: goes into the next heartbeat. (Rule 14)
    pub(super) fn on_data(&mut self, members: Vec<MemberId>) {
        let known = members.into_iter().filter(|id| self.edges.contains(*id));
        self.heard.extend(known);
    }

    /// After a reconnection: proofs and failures that the broken connection may have swallowed.
    pub(super) fn tell_edges(&mut self) {
        for message in self.edges.untold() {
            self.send(message);
        }
    }

    /// Makes lanes and the list of whom to let in match the views.
    pub(super) fn reconcile(&mut self, now: Time) {
        self.tell_admitted();
        let Some(own) = self.own_id() else {
            for lane in self.edges.clear() {
                self.outputs.push_back(PeerOutput::CloseLane { lane });
            }
            return;
        };
        let neighbours = neighbours(&self.known, own);
        let allowed: BTreeSet<MemberId> = self.allowed(own).map(|info| info.id).collect();
        let asked: BTreeSet<MemberId> = self.edges.all_asked().into_iter().collect();
        let close = self.edges.prune(|id| {
            if neighbours.contains(&id) {
                Some(Need::Plan)
            } else if asked.contains(&id) {
                Some(Need::Probe)
            } else {
                allowed.contains(&id).then_some(Need::Allowed)
            }
        });
        for lane in close {
            self.outputs.push_back(PeerOutput::CloseLane { lane });
        }
        let wanted: BTreeSet<MemberId> = neighbours.into_iter().chain(asked).collect();
        for peer in wanted {
            self.pursue(peer, now);
        }
    }

    /// Tells the driver whom to let in, if that has changed.
    pub(super) fn tell_admitted(&mut self) {
        let admitted = match self.identity {
            None => Admitted::default(),
            Some(own) => {
                let allowed = self.allowed(own.id);
                let allowed: BTreeMap<MemberId, &MemberInfo> =
                    allowed.map(|info| (info.id, info)).collect();
                let proof = |(id, info): (&MemberId, &&MemberInfo)| (*id, info.token);
                let key = |(id, info): (&MemberId, &&MemberInfo)| Some((*id, info.key?));
                Admitted {
                    own: Some((own.run, own.id, own.token)),
                    peers: allowed.iter().map(proof).collect(),
                    readers: self.readers(),
                    keys: allowed.iter().filter_map(key).collect(),
                }
            }
        };
        if admitted != self.admitted {
            self.admitted = admitted.clone();
            self.outputs.push_back(PeerOutput::Admit {
                own: admitted.own,
                peers: admitted.peers,
                readers: admitted.readers,
                keys: admitted.keys,
            });
        }
    }

    /// Tells the driver what the group is and what the user was shown of it, if that has changed.
    pub(super) fn tell_group(&mut self) {
        let state = (self.known.epoch, self.shown.epoch());
        if state != self.told_group {
            self.told_group = state;
            self.outputs.push_back(PeerOutput::Group {
                group: self.known.clone(),
                shown: self.shown.epoch(),
            });
        }
    }

    /// Dials what is missing on an edge, as far as it is this end's part.
    fn pursue(&mut self, peer: MemberId, now: Time) {
        let Some(Identity {
            run,
            id: own,
            token,
        }) = self.identity
        else {
            return;
        };
        let need = self.need(peer);
        let part = own > peer || self.edges.is_mine(peer);
        let (Some(need @ (Need::Plan | Need::Probe)), true) = (need, part) else {
            self.edges.stop(peer);
            return;
        };
        let in_group = self.known.ring.iter().find(|info| info.id == peer);
        let Some(info) = in_group.or_else(|| self.edges.asked(peer)).cloned() else {
            return;
        };
        let pool = self.pool();
        let most = most_lanes(&self.known, own, peer);
        for _ in 0..self.edges.dials(peer, need, pool, most, now) {
            self.outputs.push_back(PeerOutput::DialPeer {
                peer: info.clone(),
                run,
                own,
                token,
            });
        }
    }

    fn tell_cannot(&mut self, peer: MemberId) {
        let Some(cause) = self.edges.cannot(peer).map(String::from) else {
            return;
        };
        if let Some(from) = self.own_id() {
            let cause = cause.clone();
            let event = Event::CannotDial {
                from,
                to: peer,
                cause,
            };
            self.outputs.push_back(PeerOutput::Event(event));
        }
        self.send(Up::CannotDial { peer, cause });
    }

    fn need(&self, peer: MemberId) -> Option<Need> {
        let own = self.own_id()?;
        if neighbours(&self.known, own).contains(&peer) {
            Some(Need::Plan)
        } else if self.edges.asked(peer).is_some() {
            Some(Need::Probe)
        } else {
            let mut allowed = self.allowed(own);
            allowed.any(|info| info.id == peer).then_some(Need::Allowed)
        }
    }

    /// Everybody who may be at the other end of a lane.
    fn allowed(&self, own: MemberId) -> impl Iterator<Item = &MemberInfo> {
        let group = self.known.ring.iter();
        // The group's view is the newer word on its members, so it comes last and wins.
        self.edges
            .outsiders()
            .chain(group)
            .filter(move |info| info.id != own)
    }

    /// Lanes that this end wants per edge; zero: as many as the path can use.
    pub(super) fn pool(&self) -> u16 {
        self.settings.pool.min(MOST_LANES)
    }
}

/// Whom the driver lets in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Admitted {
    own: Option<(crate::ids::RunId, MemberId, Token)>,
    peers: Vec<(MemberId, Token)>,
    readers: Vec<(MemberId, Token)>,
    keys: Vec<(MemberId, PublicKey)>,
}

/// Members that `own` exchanges data with, by any of the algorithms that the group can go by.
fn neighbours(group: &GroupView, own: MemberId) -> BTreeSet<MemberId> {
    let (ring, choice) = (&group.ring, &group.choice);
    let Some(rank) = group.rank(own) else {
        return BTreeSet::new();
    };
    let all = choice.direct || choice.hub == Some(own);
    let all = ring.iter().filter(|_| all).map(|info| info.id);
    let beside = beside(group, rank).filter(|_| choice.ring);
    let hub = choice.hub.filter(|hub| group.rank(*hub).is_some());
    let others = all.chain(beside).chain(hub);
    others.filter(|id| *id != own).collect()
}

/// The members before and after a rank in the ring.
fn beside(group: &GroupView, rank: usize) -> impl Iterator<Item = MemberId> {
    let ring = &group.ring;
    let places = [rank + ring.len() - 1, rank + 1];
    let ids = places.map(|at| Some(ring.get(at % ring.len())?.id));
    ids.into_iter().flatten()
}

/// Most lanes on an edge, whatever its ends wish: those that only the direct exchange uses have
/// together as many as the two of the ring may have, since each takes descriptors at both ends.
fn most_lanes(group: &GroupView, own: MemberId, peer: MemberId) -> u16 {
    let in_ring = |rank| group.choice.ring && beside(group, rank).any(|id| id == peer);
    if group.rank(own).is_none_or(in_ring) {
        return MOST_LANES;
    }
    let others = u16::try_from(group.ring.len()).unwrap_or(u16::MAX).max(2) - 1;
    (2 * MOST_LANES / others).clamp(1, MOST_LANES)
}
