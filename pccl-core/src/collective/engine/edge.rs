//! One neighbour: its lanes, and what waits to be sent to it or to be called here.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{LaneId, Time};
use crate::types::OpKey;
use crate::wire::lane::OpenFrame;

/// All lanes to one member.
#[derive(Debug, Default)]
pub(super) struct Edge {
    /// Lanes by slot.
    slots: Vec<Option<LaneId>>,
    /// Slots of lanes that have nothing to send and can take a frame.
    idle: u64,
    /// Slots are woken in turn.
    turn: u32,
    /// Operations (serials) whose OPEN is to be sent.
    pub(super) opens: VecDeque<u64>,
    /// Operations and positions of slices whose room is to be told.
    pub(super) grants: VecDeque<(u64, u32)>,
    /// Operations with data to send, each in its turn.
    pub(super) ready: VecDeque<u64>,
    /// OPENs of uses not called here yet, the newest of each key.
    pub(super) held: BTreeMap<OpKey, Held>,
    /// Keys of `held` by the sender's serial.
    pub(super) held_by_serial: BTreeMap<u64, OpKey>,
    /// Operations open here (serials) by the neighbour's serial, as far as it is known.
    pub(super) open_by_serial: BTreeMap<u64, u64>,
    /// Bytes of early frames in `held`.
    pub(super) held_bytes: u64,
    /// Standing credit in use, sum over the lanes.
    pub(super) early_out: u64,
    /// Standing credit in use by the other end, sum over the lanes.
    pub(super) early_in: u64,
    /// Whether something came since the driver last asked.
    pub(super) heard: bool,
    /// When something last came, or was first expected.
    pub(super) quiet_since: Time,
    /// Whether something is expected.
    pub(super) watched: bool,
}

/// An OPEN that came before the own call, with what came behind it.
#[derive(Debug)]
pub(super) struct Held {
    /// Serial of the operation at the sender.
    pub(super) from: u64,
    pub(super) frame: OpenFrame,
    /// On which it came, and on which its early data comes.
    pub(super) lane: LaneId,
    /// Early frames, header and payload each.
    pub(super) early: Vec<u8>,
}

impl Edge {
    /// Gives a lane a slot; none if all are taken.
    pub(super) fn add(&mut self, lane: LaneId) -> Option<u8> {
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.slots.len());
        if slot >= LANES_LIMIT {
            return None;
        }
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        *self.slots.get_mut(slot)? = Some(lane);
        self.idle |= 1 << slot;
        Some(slot as u8)
    }

    /// Takes a lane out.
    pub(super) fn remove(&mut self, slot: u8) {
        if let Some(lane) = self.slots.get_mut(usize::from(slot)) {
            *lane = None;
        }
        self.idle &= !(1 << slot);
    }

    /// Its lanes.
    pub(super) fn lanes(&self) -> impl Iterator<Item = LaneId> + '_ {
        self.slots.iter().copied().flatten()
    }

    /// The lane in a slot.
    pub(super) fn lane(&self, slot: u8) -> Option<LaneId> {
        self.slots.get(usize::from(slot)).copied().flatten()
    }

    /// Notes that a lane has nothing to send, and whether it can take new frames.
    pub(super) fn set_idle(&mut self, slot: u8, idle: bool) {
        let bit = 1 << slot;
        if idle {
            self.idle |= bit;
        } else {
            self.idle &= !bit;
        }
    }

    /// The next lane that has nothing to send; it counts as busy from here on.
    pub(super) fn wake_one(&mut self) -> Option<LaneId> {
        if self.idle == 0 {
            return None;
        }
        let turned = self.idle.rotate_right(self.turn);
        let slot = (turned.trailing_zeros() + self.turn) % 64;
        self.turn = (slot + 1) % 64;
        self.idle &= !(1 << slot);
        self.lane(slot as u8)
    }

    /// Whether something waits that any lane could carry.
    pub(super) fn has_work(&self) -> bool {
        !self.opens.is_empty() || !self.grants.is_empty() || !self.ready.is_empty()
    }

    /// Whether it can be forgotten.
    pub(super) fn is_unused(&self) -> bool {
        self.lanes().next().is_none() && !self.has_work() && self.held.is_empty() && !self.heard
    }

    /// Forgets what waits to be sent for an operation.
    pub(super) fn forget(&mut self, op: u64) {
        self.opens.retain(|o| *o != op);
        self.grants.retain(|(o, _)| *o != op);
        self.ready.retain(|o| *o != op);
        self.open_by_serial.retain(|_, o| *o != op);
    }
}

/// Most lanes of an edge: they are counted in the bits of a word, and no link needs more.
pub(super) const LANES_LIMIT: usize = 64;

/// Bytes of early frames, headers included, that a sender may have on its way or waiting at the
/// receiver: enough for small operations to go at once, little enough to hold for every
/// neighbour. (Rule 7)
pub(super) const STANDING_CREDIT: u64 = 64 << 10;

/// Most OPENs held for an edge. A peer has at most 1,024 operations in flight, and as many failed
/// ones whose OPENs stay until the next completed unanimous call.
pub(super) const HELD_LIMIT: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_woken_in_turn() {
        let mut edge = Edge::default();
        for id in 0..3 {
            assert_eq!(edge.add(LaneId(id)), Some(id as u8));
        }
        assert_eq!(edge.wake_one(), Some(LaneId(0)));
        assert_eq!(edge.wake_one(), Some(LaneId(1)));
        edge.set_idle(0, true);
        assert_eq!(edge.wake_one(), Some(LaneId(2)));
        assert_eq!(edge.wake_one(), Some(LaneId(0)));
        assert_eq!(edge.wake_one(), None);
    }

    #[test]
    fn slots_are_used_again_and_limited() {
        let mut edge = Edge::default();
        for id in 0..LANES_LIMIT as u64 {
            assert!(edge.add(LaneId(id)).is_some());
        }
        assert_eq!(edge.add(LaneId(100)), None);
        edge.remove(7);
        assert_eq!(edge.add(LaneId(101)), Some(7));
        assert_eq!(edge.lane(7), Some(LaneId(101)));
    }
}
