//! Bytes that go out.

use super::edge::STANDING_CREDIT;
use super::lane::{Closing, Frame, Sending};
use super::link::OpenSent;
use super::op::Trouble;
use super::outgoing::Outgoing;
use super::receive::early_cost;
use super::scratch::grow;
use super::{Engine, EngineEvent};
use crate::ids::{LaneId, MemberId, Time};
use crate::planted::{Bug, planted};
use crate::wire::lane::{DataHeader, FrameKind, HEADER_BYTES, OpenFrame};

impl Engine {
    /// What to write to a lane next: the rest of a header, and the rest of its payload. Both are
    /// empty if there is nothing; then [`Self::poll_writable`] says when there is again. Report
    /// what was written with [`Self::sent`].
    pub fn gather(&mut self, id: LaneId) -> [&[u8]; 2] {
        if self.lanes.get(&id).is_some_and(|lane| lane.tx.is_none()) && !self.next_frame(id) {
            self.sleep(id);
        }
        let Some(lane) = self.lanes.get(&id) else {
            return [&[], &[]];
        };
        let Some(tx) = &lane.tx else {
            return [&[], &[]];
        };
        let payload = match tx.what {
            Sending::Data(serial, out) if tx.borrowed => {
                self.ops.get(&serial).and_then(|op| op.payload(out))
            }
            _ => lane.tx_buffer.get(..tx.length),
        };
        let header = tx.header.get(tx.at..).unwrap_or_default();
        let payload = payload.and_then(|p| p.get(tx.payload_at()..));
        [header, payload.unwrap_or_default()]
    }

    /// So many bytes of what [`Self::gather`] gave were written.
    pub fn sent(&mut self, id: LaneId, n: usize, now: Time) {
        self.now = now;
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let (bit, peer) = (lane.bit(), lane.peer);
        let Some(tx) = &mut lane.tx else {
            return;
        };
        if n == 0 {
            return;
        }
        lane.last_sent = now;
        let before = tx.payload_at();
        tx.at = (tx.at + n).min(HEADER_BYTES + tx.length);
        let payload = (tx.payload_at() - before) as u64;
        let (what, complete) = (tx.what, tx.is_complete());
        if complete {
            lane.tx = None;
        }
        if let Some(serial) = what.op()
            && let Some(op) = self.ops.get_mut(&serial)
        {
            if matches!(what, Sending::Data(..)) {
                op.stats.tx_bytes += payload;
            }
            if let Some(link) = op.link(peer) {
                link.used |= bit;
            }
        }
        if complete {
            self.frame_sent(id, what);
        }
    }

    /// Lets the lanes know that an operation has something to send.
    pub(super) fn offer(&mut self, serial: u64) {
        let senders = self.ops.get(&serial).map_or(0, |op| op.plan.senders());
        for link in 0..senders {
            self.offer_on(serial, link);
        }
    }

    fn offer_on(&mut self, serial: u64, at: u32) {
        let Some(op) = self.ops.get_mut(&serial) else {
            return;
        };
        if op.steps.is_empty(at) || !op.is_running() {
            return;
        }
        let early = op.steps.has_partials(at) && op.is_small(at);
        let Some(link) = op.links.get_mut(at as usize) else {
            return;
        };
        let Some(edge) = self.edges.get_mut(&link.peer) else {
            return;
        };
        if link.serial.is_some() {
            if !link.queued {
                link.queued = true;
                edge.ready.push_back(serial);
            }
            let peer = link.peer;
            self.wake_edge(peer);
        } else if early
            && !link.queued_early
            && let OpenSent::On(slot) = link.open
            && let Some(id) = edge.lane(slot)
            && let Some(lane) = self.lanes.get_mut(&id)
        {
            link.queued_early = true;
            lane.early.push_back(serial);
            self.wake_lane(id);
        }
    }

    /// Puts a grant into the queue of the edge that the partials come on.
    pub(super) fn queue_grant(&mut self, serial: u64, position: u32) {
        if let Some(op) = self.ops.get_mut(&serial)
            && let Some(link) = op.links.get(op.plan.granted_on(position) as usize)
            && let Some(edge) = self.edges.get_mut(&link.peer)
        {
            edge.grants.push_back((serial, position));
            let peer = link.peer;
            self.wake_edge(peer);
        }
    }

    /// Tells of room that became free as contributions were added up.
    pub(super) fn tell_room(&mut self, serial: u64) {
        let mut from = 0;
        while let Some(op) = self.ops.get_mut(&serial)
            && let Some(position) = op.next_due(from)
        {
            self.queue_grant(serial, position);
            from = position + 1;
        }
    }

    /// Wakes one lane of an edge, if one sleeps. It wakes the next if it leaves work.
    pub(super) fn wake_edge(&mut self, peer: MemberId) {
        if let Some(edge) = self.edges.get_mut(&peer)
            && let Some(id) = edge.wake_one()
            && let Some(lane) = self.lanes.get_mut(&id)
        {
            lane.asleep = false;
            self.writable.push_back(id);
        }
    }

    /// Wakes one lane of an edge if there is something for it: whenever the lane that was woken
    /// for it has taken something else, or can take nothing any more.
    pub(super) fn wake_for_work(&mut self, peer: MemberId) {
        if self.edges.get(&peer).is_some_and(|edge| edge.has_work()) {
            self.wake_edge(peer);
        }
    }

    /// Wakes a lane, if it sleeps.
    pub(super) fn wake_lane(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && lane.asleep
        {
            lane.asleep = false;
            if let Some(edge) = self.edges.get_mut(&lane.peer) {
                edge.set_idle(lane.slot, false);
            }
            self.writable.push_back(id);
        }
    }

    /// Takes the frame of a lane back, of which nothing has been written.
    pub(super) fn take_back(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let peer = lane.peer;
        let Some(tx) = lane.tx.take() else {
            return;
        };
        match tx.what {
            Sending::Open(serial) => {
                if let Some(op) = self.ops.get_mut(&serial)
                    && let Some(link) = op.link(peer)
                    && let Some(edge) = self.edges.get_mut(&peer)
                {
                    link.open = OpenSent::Queued;
                    edge.opens.push_front(serial);
                    self.wake_edge(peer);
                }
            }
            Sending::Data(serial, out) => {
                if tx.early
                    && let Some(edge) = self.edges.get_mut(&peer)
                {
                    let cost = (HEADER_BYTES + tx.length) as u64;
                    lane.early_out = lane.early_out.saturating_sub(cost);
                    edge.early_out = edge.early_out.saturating_sub(cost);
                }
                if let Some(op) = self.ops.get_mut(&serial) {
                    op.put_back(out);
                }
                self.offer(serial);
            }
            Sending::Grant(serial) => {
                // Grants only grow: telling all of them again does no harm.
                if let Some(op) = self.ops.get_mut(&serial)
                    && let Some(link) = op.link_index(peer)
                {
                    for position in op.positions_with_room(link) {
                        self.queue_grant(serial, position);
                    }
                }
            }
            Sending::Credit | Sending::Bye | Sending::Alive => {}
        }
    }

    /// Copies what is left of frames of an operation to the lanes that are in the middle of
    /// them. (Rule 8)
    pub(super) fn keep_half_written(&mut self, serial: u64) {
        let Some(op) = self.ops.get(&serial) else {
            return;
        };
        let mut out_of_memory = Vec::new();
        let mut unused = Vec::new();
        let edges = op
            .links
            .iter()
            .filter_map(|link| self.edges.get(&link.peer));
        for id in edges.flat_map(|edge| edge.lanes()) {
            let Some(lane) = self.lanes.get_mut(&id) else {
                continue;
            };
            let Some(tx) = lane.tx.as_mut().filter(|tx| tx.what.op() == Some(serial)) else {
                continue;
            };
            if tx.at == 0 {
                if tx.early {
                    let cost = (HEADER_BYTES + tx.length) as u64;
                    lane.early_out = lane.early_out.saturating_sub(cost);
                    unused.push((lane.peer, cost));
                }
                lane.tx = None;
                continue;
            }
            let Sending::Data(_, out) = tx.what else {
                continue;
            };
            if !tx.borrowed {
                continue;
            }
            let rest = tx.payload_at()..tx.length;
            let from = op.payload(out).and_then(|p| p.get(rest.clone()));
            let grown = grow(&mut lane.tx_buffer, tx.length);
            if let (Some(from), Some(to), Ok(())) = (from, lane.tx_buffer.get_mut(rest), grown) {
                to.copy_from_slice(from);
                tx.borrowed = false;
            } else {
                out_of_memory.push(id);
            }
        }
        for (peer, cost) in unused {
            if let Some(edge) = self.edges.get_mut(&peer) {
                edge.early_out = edge.early_out.saturating_sub(cost);
            }
        }
        // Without the rest of its frame a lane carries nothing any more.
        for id in out_of_memory {
            self.fault(id, "no memory for the rest of a frame".into());
        }
    }

    fn frame_sent(&mut self, id: LaneId, what: Sending) {
        match what {
            Sending::Data(serial, out) => {
                let Some(op) = self.ops.get_mut(&serial) else {
                    return;
                };
                if !op.begun {
                    op.begun = true;
                    self.events.push_back(EngineEvent::FirstSegmentSent {
                        op: op.name,
                        call: op.call,
                    });
                }
                if let Some(position) = op.sent(out, &mut self.rooms) {
                    self.queue_grant(serial, position);
                }
            }
            Sending::Bye => self.events.push_back(EngineEvent::ByeSent { lane: id }),
            Sending::Open(_) | Sending::Grant(_) | Sending::Credit | Sending::Alive => {}
        }
    }

    /// A lane has nothing to send.
    fn sleep(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            lane.asleep = true;
            let idle = lane.takes_frames();
            if let Some(edge) = self.edges.get_mut(&lane.peer) {
                edge.set_idle(lane.slot, idle);
            }
        }
    }

    /// Gives a lane its next frame; says whether there was one.
    fn next_frame(&mut self, id: LaneId) -> bool {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return false;
        };
        let peer = lane.peer;
        if lane.closing == Closing::Wanted {
            lane.closing = Closing::Said;
            return self.put_control(id, FrameKind::Bye, 0, Sending::Bye);
        }
        if !lane.takes_frames() {
            return false;
        }
        if lane.owes_credit() {
            let credit = std::mem::take(&mut lane.credit_due);
            lane.early_in = lane.early_in.saturating_sub(credit);
            if let Some(edge) = self.edges.get_mut(&peer) {
                edge.early_in = edge.early_in.saturating_sub(credit);
            }
            return self.put_control(id, FrameKind::Credit, credit, Sending::Credit);
        }
        let found = self.next_open(id, peer)
            || self.next_grant(id, peer)
            || self.next_early(id, peer)
            || self.next_data(id, peer);
        if found {
            // Others help with what is left.
            self.wake_for_work(peer);
            return true;
        }
        let Some(lane) = self.lanes.get_mut(&id) else {
            return false;
        };
        std::mem::take(&mut lane.alive_due)
            && self.put_control(id, FrameKind::Alive, 0, Sending::Alive)
    }

    fn next_open(&mut self, id: LaneId, peer: MemberId) -> bool {
        while let Some(edge) = self.edges.get_mut(&peer)
            && let Some(serial) = edge.opens.pop_front()
        {
            let (Some(op), Some(lane)) = (self.ops.get_mut(&serial), self.lanes.get_mut(&id))
            else {
                continue;
            };
            let Some(link) = op.link_index(peer).filter(|_| !op.failed) else {
                continue;
            };
            let frame = OpenFrame {
                op: op.name,
                epoch: op.epoch,
                quoted: op.quoted,
                descriptor: op.digest,
                grant: op.open_grant(link),
            };
            lane.tx_buffer.clear();
            if let Err(error) = frame.encode(&mut lane.tx_buffer) {
                self.fail(serial, Trouble::Own(error.to_string()), peer);
                continue;
            }
            let length = lane.tx_buffer.len() as u32;
            let header = header(FrameKind::Open, length, serial);
            let slot = lane.slot;
            let to = op.link(peer).and_then(|link| {
                link.open = OpenSent::On(slot);
                link.serial
            });
            let header = DataHeader {
                to: to.unwrap_or(0),
                ..header
            };
            self.put(id, header, Sending::Open(serial));
            // Behind the OPEN, on the same lane, a small operation can go at once.
            self.offer(serial);
            return true;
        }
        false
    }

    fn next_grant(&mut self, id: LaneId, peer: MemberId) -> bool {
        while let Some(edge) = self.edges.get_mut(&peer)
            && let Some((serial, position)) = edge.grants.pop_front()
        {
            let Some(op) = self.ops.get_mut(&serial).filter(|op| op.is_running()) else {
                continue;
            };
            // Without its serial there is no way to tell the other end; once it is known, what is
            // due is looked for again.
            let Some(to) = op.link(peer).and_then(|link| link.serial) else {
                op.grant_dropped(position);
                continue;
            };
            let Some((slice, offset)) = op.grant(position) else {
                continue;
            };
            let header = DataHeader {
                to,
                offset,
                slice,
                ..header(FrameKind::Grant, 0, serial)
            };
            self.put(id, header, Sending::Grant(serial));
            return true;
        }
        false
    }

    fn next_early(&mut self, id: LaneId, peer: MemberId) -> bool {
        while let Some(lane) = self.lanes.get_mut(&id)
            && let Some(serial) = lane.early.pop_front()
        {
            let Some(op) = self.ops.get_mut(&serial) else {
                continue;
            };
            let at = op.link_index(peer);
            let (Some(at), Some(link)) = (at, op.link(peer)) else {
                continue;
            };
            link.queued_early = false;
            // Meanwhile the other end has opened it: then any lane will do.
            if link.serial.is_some() || !op.steps.has_partials(at) || !op.is_running() {
                continue;
            }
            let (used, lanes) = self
                .edges
                .get(&peer)
                .map_or((0, 1), |edge| (edge.early_out, edge.lanes().count()));
            let room = match planted(Bug::WindowIgnored) {
                true => u64::MAX,
                false => STANDING_CREDIT.saturating_sub(used + HEADER_BYTES as u64),
            };
            let segment = self.config.segment_on(lanes).max(op.forms.longest_cell());
            let taken = op.take(at, room.min(segment));
            if op.steps.has_partials(at)
                && let Some(link) = op.link(peer)
            {
                link.queued_early = true;
                lane.early.push_front(serial);
            }
            let Some(out) = taken else {
                return false;
            };
            return self.put_data(id, peer, serial, out);
        }
        false
    }

    fn next_data(&mut self, id: LaneId, peer: MemberId) -> bool {
        while let Some(edge) = self.edges.get_mut(&peer)
            && let Some(serial) = edge.ready.pop_front()
        {
            let Some(op) = self.ops.get_mut(&serial) else {
                continue;
            };
            let Some(at) = op.link_index(peer) else {
                continue;
            };
            // A segment too small for one block of codes would carry nothing.
            let segment = self.config.segment_on(edge.lanes().count());
            let taken = op.take(at, segment.max(op.forms.longest_cell()));
            let more = !op.steps.is_empty(at) && op.is_running();
            if let Some(link) = op.link(peer) {
                link.queued = more;
                if more {
                    // Each in its turn.
                    edge.ready.push_back(serial);
                }
            }
            if let Some(out) = taken
                && self.put_data(id, peer, serial, out)
            {
                return true;
            }
        }
        false
    }

    fn put_data(&mut self, id: LaneId, peer: MemberId, serial: u64, out: Outgoing) -> bool {
        let (Some(op), Some(lane)) = (self.ops.get_mut(&serial), self.lanes.get_mut(&id)) else {
            return false;
        };
        let computed = op.is_computed(out);
        if computed && let Err(trouble) = op.compute(out, &mut lane.tx_buffer) {
            self.fail(serial, trouble, peer);
            return false;
        }
        let place = op.place(out);
        let to = op.link(peer).and_then(|link| link.serial).unwrap_or(0);
        let header = DataHeader {
            to,
            offset: place.offset,
            slice: place.slice,
            ..header(out.kind(), place.length, serial)
        };
        if to == 0
            && let Some(edge) = self.edges.get_mut(&peer)
        {
            let cost = early_cost(&header);
            lane.early_out += cost;
            edge.early_out += cost;
        }
        self.put(id, header, Sending::Data(serial, out))
    }

    fn put_control(&mut self, id: LaneId, kind: FrameKind, offset: u64, what: Sending) -> bool {
        let header = DataHeader {
            offset,
            ..header(kind, 0, 0)
        };
        self.put(id, header, what)
    }

    /// Makes a frame the lane's next one: computes its checksum.
    fn put(&mut self, id: LaneId, mut header: DataHeader, what: Sending) -> bool {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return false;
        };
        let length = header.length as usize;
        let op = match what {
            Sending::Data(serial, out) => self.ops.get(&serial).map(|op| (op, out)),
            _ => None,
        };
        let borrowed = op.is_some_and(|(op, out)| !op.is_computed(out));
        if !self.config.protected {
            let payload = match op {
                Some((op, out)) if borrowed => op.payload(out),
                _ => lane.tx_buffer.get(..length),
            };
            let mut checksum = header.checksum();
            checksum.update(payload.unwrap_or_default());
            header.crc = checksum.finalize();
        }
        lane.alive_due = false;
        lane.tx = Some(Frame {
            header: header.encode(),
            length,
            at: 0,
            what,
            early: header.kind == FrameKind::Partial && header.to == 0,
            borrowed,
        });
        true
    }
}

fn header(kind: FrameKind, length: u32, from: u64) -> DataHeader {
    DataHeader {
        kind,
        length,
        from,
        to: 0,
        offset: 0,
        slice: 0,
        crc: 0,
    }
}
