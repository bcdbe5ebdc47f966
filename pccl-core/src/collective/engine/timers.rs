//! Signs of life, and their absence. (Rules 14 and 17)

use super::Engine;
use super::link::{Link, OpenSent};
use crate::ids::{LaneId, MemberId, Time};
use crate::planted::{Bug, planted};

impl Engine {
    /// When [`Self::tick`] is to be called; nothing to wait for while no operation is open.
    pub fn next_deadline(&self) -> Option<Time> {
        self.next_tick
    }

    /// Time has passed. Before this is called, all that can be read from the lanes has to be.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        let Some(due) = self.next_tick.filter(|due| *due <= now) else {
            return;
        };
        let timing = self.config.timing;
        // Who was stopped or suspended himself cannot tell whether others are silent.
        let stalled = now.since(due) > timing.heartbeat && !planted(Bug::GapIgnored);
        let mut next = now + timing.heartbeat;
        let mut silent = Vec::new();
        for (peer, edge) in &mut self.edges {
            let links = || self.ops.values().filter_map(|op| op.link_to(*peer));
            if !links().any(|link| link.open != OpenSent::Queued) {
                edge.watched = false;
                continue;
            }
            for id in edge.lanes() {
                if let Some(lane) = self.lanes.get_mut(&id)
                    && now.since(lane.last_sent) >= timing.heartbeat
                {
                    lane.alive_due = true;
                }
            }
            if !links().any(is_open) {
                edge.watched = false;
            } else if !edge.watched || stalled {
                edge.watched = true;
                edge.quiet_since = now;
            } else {
                let deadline = edge.quiet_since + timing.peer_timeout;
                if deadline <= now {
                    silent.push(*peer);
                } else {
                    next = next.min(deadline);
                }
            }
        }
        self.next_tick = (!self.ops.is_empty()).then_some(next);
        for peer in silent {
            for id in self.lanes_of(peer) {
                let limit = timing.peer_timeout;
                self.fault(
                    id,
                    format!("no byte for {limit:?} while an operation is open"),
                );
            }
        }
        let due = self.lanes.iter().filter(|(_, lane)| lane.alive_due);
        let due: Vec<LaneId> = due.map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.wake_lane(id));
    }

    /// Sets the clock going when an operation opens.
    pub(super) fn start_clock(&mut self) {
        if self.next_tick.is_none() {
            self.next_tick = Some(self.now + self.config.timing.heartbeat);
        }
    }

    fn lanes_of(&self, peer: MemberId) -> Vec<LaneId> {
        let edge = self.edges.get(&peer);
        edge.map(|edge| edge.lanes().collect()).unwrap_or_default()
    }
}

/// Whether both ends have opened the operation, so that something has to come.
fn is_open(link: &Link) -> bool {
    link.opened && link.open != OpenSent::Queued
}
