//! Signs of life, and their absence. (Rules 12, 14 and 17)
//!
//! Whoever has sent OPEN on an edge expects to hear from each of its lanes until the verdict; whoever
//! has sent or received one gives signs of life on all of them. That does not depend on whether the
//! neighbour's user has called: it may take its time, but its lanes are to work meanwhile.

use std::time::Duration;

use super::Engine;
use super::link::OpenSent;
use crate::ids::{LaneId, Time};
use crate::planted::{Bug, planted};

impl Engine {
    /// When [`Self::tick`] is to be called; nothing to wait for once no operation has been open for a
    /// while, here or at a neighbour.
    pub fn next_deadline(&self) -> Option<Time> {
        self.next_tick.into_iter().chain(self.release).min()
    }

    /// Time has passed. Before this is called, all that can be read from the lanes has to be.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        if self.release.take_if(|at| *at <= now).is_some() {
            self.rooms.clear();
            self.originals.clear();
        }
        let Some(due) = self.next_tick.filter(|due| *due <= now) else {
            return;
        };
        let timing = self.config.timing;
        // Who was stopped or suspended himself cannot tell whether others are silent.
        let stalled = now.since(due) > timing.heartbeat && !planted(Bug::GapIgnored);
        let mut next = now + timing.heartbeat;
        let mut silent = Vec::new();
        let mut expecting = false;
        for (peer, edge) in &mut self.edges {
            let mut links = self.ops.values().filter_map(|op| op.link_to(*peer));
            let opened = links.any(|link| link.open != OpenSent::Queued);
            let answering = opened || !edge.held.is_empty();
            expecting |= answering;
            let begin = opened && (!edge.watched || stalled);
            edge.watched = opened;
            if begin {
                edge.quiet_since = now;
            }
            for id in edge.lanes() {
                let Some(lane) = self.lanes.get_mut(&id) else {
                    continue;
                };
                lane.alive_due |= answering && now.since(lane.last_sent) >= timing.heartbeat;
                if begin {
                    lane.quiet_since = now;
                }
                let edge_due = edge.quiet_since + timing.peer_timeout;
                let lane_due = lane.quiet_since + timing.peer_timeout * LANE_PATIENCE;
                let deadline = edge_due.min(lane_due);
                if opened && deadline <= now {
                    silent.push((id, now.since(lane.quiet_since)));
                } else if opened {
                    next = next.min(deadline);
                }
            }
        }
        self.next_tick = (expecting || !self.ops.is_empty()).then_some(next);
        for (id, quiet) in silent {
            self.fault(
                id,
                format!("no byte for {quiet:?} while an operation is open"),
            );
        }
        let due = self.lanes.iter().filter(|(_, lane)| lane.alive_due);
        let due: Vec<LaneId> = due.map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.wake_lane(id));
    }

    /// Sets the clock going when an operation opens, here or at a neighbour.
    pub(super) fn start_clock(&mut self) {
        if self.next_tick.is_none() {
            self.next_tick = Some(self.now + self.config.timing.heartbeat);
        }
    }
}

/// A lane may be silent this many times as long as its edge: while others of the edge carry data, one
/// that lost a packet may have to wait for several of its retransmissions. A lane that one end
/// counts as closed and the other does not, though, ends by this. (Rules 12 and 17)
const LANE_PATIENCE: u32 = 3;

/// Memory of finished operations is kept for so long: who reduces again and again gets it back without a
/// call to the system and a fault for each of its pages, and who does not leaves it to others.
pub(super) const IDLE: Duration = Duration::from_secs(1);
