//! Lanes that come and go. (Rule 12)

use super::edge::LANES_LIMIT;
use super::lane::{Closing, Lane, Target};
use super::link::OpenSent;
use super::{Engine, EngineEvent};
use crate::ids::{LaneId, MemberId, Time};
use crate::planted::{Bug, planted};
use crate::wire::reason::RequestCause;

impl Engine {
    /// A lane to `peer` is open: it carries what waits for one.
    pub fn lane_open(&mut self, id: LaneId, peer: MemberId, now: Time) {
        self.now = now;
        if self.lanes.contains_key(&id) {
            return;
        }
        let edge = self.edges.entry(peer).or_default();
        edge.quiet_since = now;
        let Some(slot) = edge.add(id) else {
            let what = format!("more than {LANES_LIMIT} lanes");
            self.events.push_back(EngineEvent::LaneFault {
                lane: id,
                peer,
                what,
            });
            return;
        };
        self.lanes.insert(id, Lane::new(peer, slot, now));
        self.wake_for_work(peer);
    }

    /// A lane closed; `cause` is what the socket said. Unless both ends wanted that (`orderly`),
    /// operations that have anything undecided on it fail.
    pub fn lane_closed(&mut self, id: LaneId, orderly: bool, cause: &str, now: Time) {
        self.now = now;
        self.remove_lane(id, orderly, cause);
    }

    /// Ends a lane in good order: says goodbye after the frame that is half written, if there is
    /// one. [`EngineEvent::ByeSent`] tells when that is done.
    pub fn close_lane(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if lane.closing != Closing::No {
            return;
        }
        lane.closing = Closing::Wanted;
        let slot = lane.slot;
        let begun = lane.tx.as_ref().is_none_or(|tx| tx.at > 0);
        if let Some(edge) = self.edges.get_mut(&lane.peer) {
            edge.set_idle(slot, false);
        }
        let peer = lane.peer;
        if !begun {
            self.take_back(id);
        }
        self.wake_lane(id);
        self.wake_for_work(peer);
    }

    /// The lane carried what no correct member sends, or is of no use any more.
    pub(super) fn fault(&mut self, id: LaneId, what: String) {
        let Some(lane) = self.lanes.get(&id) else {
            return;
        };
        let peer = lane.peer;
        self.events.push_back(EngineEvent::LaneFault {
            lane: id,
            peer,
            what: what.clone(),
        });
        self.remove_lane(id, false, &what);
    }

    fn remove_lane(&mut self, id: LaneId, orderly: bool, cause: &str) {
        // What has not begun goes another way.
        if self
            .lanes
            .get(&id)
            .is_some_and(|lane| lane.tx.as_ref().is_some_and(|tx| tx.at == 0))
        {
            self.take_back(id);
        }
        let Some(lane) = self.lanes.remove(&id) else {
            return;
        };
        self.writable.retain(|writable| *writable != id);
        let peer = lane.peer;
        if let Some(edge) = self.edges.get_mut(&peer) {
            edge.remove(lane.slot);
            edge.early_out = edge.early_out.saturating_sub(lane.early_out);
            edge.early_in = edge.early_in.saturating_sub(lane.early_in);
        }
        let half_sent = lane.tx.as_ref().and_then(|tx| tx.what.op());
        let half_received = match lane.rx.frame.map(|frame| frame.target) {
            Some(
                Target::Partial { op, .. }
                | Target::Waiting { op, .. }
                | Target::Coded { op, .. }
                | Target::Result { op, .. },
            ) => Some(op),
            _ => None,
        };
        let bit = 1u64 << lane.slot;
        let mut harmed = Vec::new();
        for (serial, op) in &mut self.ops {
            let Some(link) = op.link(peer) else {
                continue;
            };
            let used = link.used & bit != 0 && !orderly;
            if used || [half_sent, half_received].contains(&Some(*serial)) {
                harmed.push(*serial);
            }
            link.used &= !bit;
            if link.open == OpenSent::On(lane.slot) {
                link.open = OpenSent::Gone;
                link.queued_early = false;
            }
        }
        if !planted(Bug::DeadLaneIgnored) {
            for serial in harmed {
                let cause = cause.to_owned();
                self.fail_with(serial, RequestCause::LaneDied { peer, cause });
            }
        }
        // The sender of what came on it has to count it as lost, so its operations end.
        if !orderly && let Some(edge) = self.edges.get(&peer) {
            let of_lane = edge.held.iter().filter(|(_, held)| held.lane == id);
            let keys: Vec<_> = of_lane.map(|(key, _)| *key).collect();
            keys.into_iter().for_each(|key| self.drop_held(peer, key));
        }
        self.wake_for_work(peer);
    }
}
