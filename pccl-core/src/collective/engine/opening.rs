//! Operations that neighbours open: matched with the own calls, or held until those come.

use super::Engine;
use super::edge::{HELD_LIMIT, Held, STANDING_CREDIT};
use super::receive::early_cost;
use crate::ids::{LaneId, MemberId};
use crate::wire::lane::{DataHeader, HEADER_BYTES, OpenFrame};

impl Engine {
    pub(super) fn open_came(&mut self, id: LaneId, peer: MemberId, from: u64, frame: OpenFrame) {
        if from == 0 {
            return self.fault(id, "an Open frame without a serial".into());
        }
        // The master aborts uses of an epoch that has passed.
        if frame.epoch < self.group.view.epoch {
            return;
        }
        let key = frame.op.key;
        let serial = self.keys.get(&key).copied();
        if let Some(serial) = serial
            && let Some(op) = self.ops.get_mut(&serial)
            && (op.name, op.epoch) == (frame.op, frame.epoch)
            && let Some(link) = op.link(peer)
            && !link.opened
            && link.serial.is_none_or(|known| known == from)
        {
            self.match_open(serial, peer, from, &frame);
            return;
        }
        let edge = self.edges.entry(peer).or_default();
        // Of several, only the newest matters; lanes may deliver them in the wrong order. (Rule 2)
        if edge.held.get(&key).is_some_and(|held| held.from >= from) {
            return;
        }
        if edge.held.len() >= HELD_LIMIT && !edge.held.contains_key(&key) {
            let round = frame.op.round;
            let old = edge.held.iter().find(|(_, h)| h.frame.op.round < round);
            match old.map(|(key, _)| *key) {
                Some(old) => self.drop_held(peer, old),
                None => return self.fault(id, format!("more than {HELD_LIMIT} Open frames wait")),
            }
        }
        self.drop_held(peer, key);
        let edge = self.edges.entry(peer).or_default();
        edge.held_by_serial.insert(from, key);
        edge.held.insert(
            key,
            Held {
                from,
                frame,
                lane: id,
                early: Vec::new(),
            },
        );
        // The sender expects signs of life from here on.
        self.start_clock();
    }

    /// Looks for what `peer` sent before the operation was called here.
    pub(super) fn take_held(&mut self, serial: u64, peer: MemberId) {
        let Some(op) = self.ops.get(&serial) else {
            return;
        };
        let (name, epoch) = (op.name, op.epoch);
        let Some(edge) = self.edges.get_mut(&peer) else {
            return;
        };
        let Some(held) = edge.held.get(&name.key) else {
            return;
        };
        if (held.frame.op, held.frame.epoch) != (name, epoch) {
            // Of an earlier use, which is over; a later one waits for its call.
            let theirs = (held.frame.epoch, held.frame.op.round, held.frame.op.attempt);
            if theirs < (epoch, name.round, name.attempt) {
                self.drop_held(peer, name.key);
            }
            return;
        }
        let Some(held) = edge.held.remove(&name.key) else {
            return;
        };
        edge.held_by_serial.remove(&held.from);
        edge.held_bytes -= held.early.len() as u64;
        self.match_open(serial, peer, held.from, &held.frame);
        let mut rest = held.early.as_slice();
        while let Some((header, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let Ok(header) = DataHeader::decode(header) else {
                break;
            };
            let (payload, behind) = behind.split_at(behind.len().min(header.length as usize));
            self.take_early(serial, peer, &header, payload);
            rest = behind;
        }
        self.repay(held.lane, held.early.len() as u64);
    }

    /// Data that came before the sender knew whether the operation had been called here.
    pub(super) fn early_came(&mut self, id: LaneId, peer: MemberId, header: &DataHeader) {
        let cost = early_cost(header);
        let (Some(lane), Some(edge)) = (self.lanes.get_mut(&id), self.edges.get_mut(&peer)) else {
            return;
        };
        lane.early_in += cost;
        edge.early_in += cost;
        let length = header.length as usize;
        if let Some(key) = edge.held_by_serial.get(&header.from)
            && let Some(held) = edge.held.get_mut(key)
        {
            // Lanes that were closed in good order leave theirs behind, so that there can be more
            // than the lanes that are open account for.
            if edge.held_bytes + cost > 2 * STANDING_CREDIT {
                return self.fault(id, "too much early data waits".into());
            }
            let payload = lane.rx.buffer.get(..length).unwrap_or_default();
            held.early.extend_from_slice(&header.encode());
            held.early.extend_from_slice(payload);
            edge.held_bytes += cost;
            return;
        }
        let serial = edge.open_by_serial.get(&header.from).copied();
        if let Some(serial) = serial {
            let payload = std::mem::take(&mut lane.rx.buffer);
            let part = payload.get(..length).unwrap_or_default();
            self.take_early(serial, peer, header, part);
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.rx.buffer = payload;
            }
        }
        self.repay(id, cost);
    }

    /// The other end has taken or dropped early data.
    pub(super) fn credit_came(&mut self, id: LaneId, peer: MemberId, credit: u64) {
        let (Some(lane), Some(edge)) = (self.lanes.get_mut(&id), self.edges.get_mut(&peer)) else {
            return;
        };
        if credit > lane.early_out {
            return self.fault(id, "more credit than was used".into());
        }
        lane.early_out -= credit;
        edge.early_out -= credit;
        let lanes: Vec<LaneId> = edge.lanes().collect();
        for id in lanes {
            if self.lanes.get(&id).is_some_and(|l| !l.early.is_empty()) {
                self.wake_lane(id);
            }
        }
    }

    /// A frame shows under which serial `peer` runs the operation.
    pub(super) fn learn(&mut self, serial: u64, peer: MemberId, from: u64) {
        if from != 0
            && let Some(op) = self.ops.get_mut(&serial)
            && let Some(link) = op.link(peer)
            && link.serial.is_none()
        {
            link.serial = Some(from);
            if let Some(edge) = self.edges.get_mut(&peer) {
                edge.open_by_serial.insert(from, serial);
            }
            // Room that came free before could not be told.
            if op.link_index(peer).is_some_and(|at| op.receives_on(at)) {
                for position in op.grants_due() {
                    self.queue_grant(serial, position);
                }
            }
        }
    }

    /// Drops what is held of epochs that have passed.
    pub(super) fn drop_stale_opens(&mut self) {
        let epoch = self.group.view.epoch;
        let mut stale = Vec::new();
        for (peer, edge) in &self.edges {
            let old = edge.held.iter().filter(|(_, h)| h.frame.epoch < epoch);
            stale.extend(old.map(|(key, _)| (*peer, *key)));
        }
        for (peer, key) in stale {
            self.drop_held(peer, key);
        }
    }

    /// Drops what is held for a key; its early data is given back to the sender's credit.
    pub(super) fn drop_held(&mut self, peer: MemberId, key: crate::types::OpKey) {
        if let Some(edge) = self.edges.get_mut(&peer)
            && let Some(held) = edge.held.remove(&key)
        {
            edge.held_by_serial.remove(&held.from);
            edge.held_bytes -= held.early.len() as u64;
            self.repay(held.lane, held.early.len() as u64);
        }
    }

    /// The OPEN of a neighbour belongs to an operation that was called here.
    fn match_open(&mut self, serial: u64, peer: MemberId, from: u64, frame: &OpenFrame) {
        let Some(op) = self.ops.get_mut(&serial) else {
            return;
        };
        let same = op.digest == frame.descriptor;
        op.mismatched |= !same;
        let sender = op.link_index(peer).filter(|at| *at < op.plan.senders());
        if let Some(link) = op.link(peer) {
            link.opened = true;
        }
        // Room for all slices at once cannot be wrong.
        if same
            && let Some(link) = sender
            && op.granted(link, None, frame.grant).is_err()
        {
            return;
        }
        self.learn(serial, peer, from);
        self.progress(serial);
    }

    fn take_early(&mut self, serial: u64, peer: MemberId, header: &DataHeader, payload: &[u8]) {
        let Some(op) = self.ops.get_mut(&serial).filter(|op| op.is_running()) else {
            return;
        };
        let taken = op
            .claim(peer, header, &mut self.rooms, &mut self.originals)
            .and_then(|part| op.fold(part, payload, &mut self.rooms, &mut self.originals));
        match taken {
            Ok(()) => {
                self.tell_room(serial);
                self.progress(serial);
            }
            Err(trouble) => self.fail(serial, trouble, peer),
        }
    }

    /// Early data that came on a lane has been taken or dropped.
    fn repay(&mut self, id: LaneId, cost: u64) {
        if cost == 0 {
            return;
        }
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.credit_due += cost;
            if lane.owes_credit() {
                self.wake_lane(id);
            }
        }
    }
}
