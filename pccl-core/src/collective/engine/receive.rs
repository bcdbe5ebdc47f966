//! Bytes that come in.

use std::collections::BTreeMap;

use super::edge::STANDING_CREDIT;
use super::lane::{Closing, IncomingFrame, Target};
use super::op::Op;
use super::scratch::grow;
use super::{Engine, EngineEvent};
use crate::ids::{LaneId, MemberId, Time};
use crate::planted::{Bug, planted};
use crate::wire::lane::{DataHeader, FrameKind, HEADER_BYTES, OpenFrame};

impl Engine {
    /// Where the next bytes of a lane go: read into this, at most once, then report with
    /// [`Self::received`] before any other call. Empty if nothing more may come on the lane; then
    /// it is not to be read.
    pub fn sink(&mut self, lane: LaneId) -> &mut [u8] {
        let Some(lane) = self.lanes.get_mut(&lane) else {
            return &mut [];
        };
        if lane.rx.bye {
            return &mut [];
        }
        match &lane.rx.frame {
            None => lane.rx.staging.get_mut(lane.rx.staged..).unwrap_or(&mut []),
            Some(frame) => {
                let (scratch, discard) = (&mut lane.rx.buffer, &mut self.discard);
                rest_of(frame, scratch, discard, &mut self.ops)
            }
        }
    }

    /// So many bytes were read into the sink.
    pub fn received(&mut self, id: LaneId, n: usize, now: Time) {
        self.now = now;
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if n == 0 || lane.rx.bye {
            return;
        }
        lane.quiet_since = now;
        if let Some(edge) = self.edges.get_mut(&lane.peer) {
            edge.heard = true;
            edge.quiet_since = now;
        }
        if lane.rx.frame.is_some() {
            self.payload_came(id, n);
        } else {
            lane.rx.staged = lane.rx.staging.len().min(lane.rx.staged + n);
            self.parse(id);
        }
    }

    /// Takes frames out of what has been staged, up to the last one that is not all there.
    fn parse(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let mut staging = std::mem::take(&mut lane.rx.staging);
        let staged = std::mem::take(&mut lane.rx.staged);
        let mut at = 0;
        loop {
            let rest = staging.get(at..staged).unwrap_or_default();
            // A fault or a goodbye ends the lane.
            let Some(lane) = self.lanes.get_mut(&id).filter(|lane| !lane.rx.bye) else {
                return;
            };
            match &lane.rx.frame {
                None => {
                    let Some(header) = rest.first_chunk::<HEADER_BYTES>() else {
                        break;
                    };
                    at += HEADER_BYTES;
                    match DataHeader::decode(header) {
                        Ok(header) => self.header_came(id, header),
                        Err(error) => return self.fault(id, error.to_string()),
                    }
                }
                Some(frame) => {
                    let (scratch, discard) = (&mut lane.rx.buffer, &mut self.discard);
                    let to = rest_of(frame, scratch, discard, &mut self.ops);
                    let n = to.len().min(rest.len());
                    if n == 0 {
                        break;
                    }
                    if let (Some(to), Some(from)) = (to.get_mut(..n), rest.get(..n)) {
                        to.copy_from_slice(from);
                    }
                    at += n;
                    self.payload_came(id, n);
                }
            }
        }
        if let Some(lane) = self.lanes.get_mut(&id) {
            staging.copy_within(at.min(staged)..staged, 0);
            lane.rx.staging = staging;
            lane.rx.staged = staged.saturating_sub(at);
        }
    }

    fn header_came(&mut self, id: LaneId, header: DataHeader) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let peer = lane.peer;
        let target = match header.kind {
            FrameKind::Open => Target::Open,
            FrameKind::Partial if header.to == 0 => Target::Early,
            FrameKind::Result if header.to == 0 => {
                return self.fault(id, "a result of an operation not opened here".into());
            }
            FrameKind::Partial | FrameKind::Result => self.claim(peer, &header),
            FrameKind::Grant | FrameKind::Credit | FrameKind::Bye | FrameKind::Alive => {
                Target::Discard
            }
        };
        if target == Target::Early {
            let cost = early_cost(&header);
            let in_use = self.edges.get(&peer).map_or(0, |edge| edge.early_in);
            if in_use + cost > STANDING_CREDIT && !planted(Bug::WindowIgnored) {
                let what = "more early data than the standing credit allows";
                return self.fault(id, what.into());
            }
        }
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if matches!(
            target,
            Target::Open | Target::Early | Target::Partial { .. } | Target::Coded { .. }
        ) && let Err(error) = grow(&mut lane.rx.buffer, header.length as usize)
        {
            return self.fault(id, error.to_string());
        }
        let checked = !self.config.protected && !planted(Bug::CrcIgnored);
        lane.rx.frame = Some(IncomingFrame {
            header,
            filled: 0,
            checksum: checked.then(|| header.checksum()),
            target,
        });
        if header.length == 0 {
            self.frame_came(id);
        }
    }

    /// Finds the place of a data frame in its operation.
    fn claim(&mut self, peer: MemberId, header: &DataHeader) -> Target {
        // Frames of finished operations are dropped. (Rule 2)
        let Some(op) = self.ops.get_mut(&header.to).filter(|op| op.is_running()) else {
            return Target::Discard;
        };
        let serial = header.to;
        match op.claim(peer, header, &mut self.rooms, &mut self.originals) {
            Ok(part) if header.kind == FrameKind::Partial && op.gathered.is_some() => {
                Target::Waiting { op: serial, part }
            }
            Ok(part) if header.kind == FrameKind::Partial => Target::Partial { op: serial, part },
            Ok(part) if op.coding.is_some() => Target::Coded { op: serial, part },
            Ok(part) => Target::Result { op: serial, part },
            Err(trouble) => Target::Refused {
                op: serial,
                trouble,
            },
        }
    }

    /// The first `n` bytes of what the frame still lacked are in their place.
    fn payload_came(&mut self, id: LaneId, n: usize) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let (scratch, discard) = (&mut lane.rx.buffer, &mut self.discard);
        let Some(frame) = lane.rx.frame.as_mut() else {
            return;
        };
        let came = rest_of(frame, scratch, discard, &mut self.ops);
        let came = came.get(..n).unwrap_or_default();
        let n = came.len();
        // While it is in the cache.
        if let Some(checksum) = &mut frame.checksum {
            checksum.update(came);
        }
        frame.filled += n;
        if frame.filled >= frame.header.length as usize {
            self.frame_came(id);
        }
    }

    fn frame_came(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let peer = lane.peer;
        let Some(frame) = lane.rx.frame.take() else {
            return;
        };
        let header = frame.header;
        if frame
            .checksum
            .is_some_and(|sum| sum.finalize() != header.crc)
        {
            // The operation of the frame has garbage where it wanted the payload.
            lane.rx.frame = Some(IncomingFrame {
                checksum: None,
                ..frame
            });
            return self.fault(id, "a frame with a wrong checksum".into());
        }
        match frame.target {
            Target::Discard => self.control_came(id, peer, &header),
            Target::Open => {
                let payload = lane.rx.buffer.get(..header.length as usize);
                match OpenFrame::decode(payload.unwrap_or_default()) {
                    Ok(frame) => self.open_came(id, peer, header.from, frame),
                    Err(error) => self.fault(id, error.to_string()),
                }
            }
            Target::Early => self.early_came(id, peer, &header),
            Target::Partial { op: serial, part } | Target::Coded { op: serial, part } => {
                let payload = lane.rx.buffer.get(..header.length as usize);
                let Some(op) = self.ops.get_mut(&serial).filter(|op| op.is_running()) else {
                    return;
                };
                let payload = payload.unwrap_or_default();
                let (rooms, originals) = (&mut self.rooms, &mut self.originals);
                let taken = match header.kind {
                    FrameKind::Partial => op.fold(part, payload, rooms, originals),
                    _ => op.take_result(part, payload, rooms, originals),
                };
                self.learn(serial, peer, header.from);
                match taken {
                    Ok(()) => self.progress(serial),
                    Err(trouble) => self.fail(serial, trouble, peer),
                }
            }
            Target::Waiting { op: serial, part } => {
                let Some(op) = self.ops.get_mut(&serial).filter(|op| op.is_running()) else {
                    return;
                };
                let taken = op.contributed(part, &mut self.rooms, &mut self.originals);
                self.learn(serial, peer, header.from);
                match taken {
                    Ok(()) => {
                        self.tell_room(serial);
                        self.progress(serial);
                    }
                    Err(trouble) => self.fail(serial, trouble, peer),
                }
            }
            Target::Result { op: serial, part } => {
                if let Some(op) = self.ops.get_mut(&serial).filter(|op| op.is_running()) {
                    op.stats.rx_bytes += u64::from(header.length);
                    op.has_result(part);
                    self.progress(serial);
                }
            }
            Target::Refused { op, trouble } => self.fail(op, trouble, peer),
        }
    }

    fn control_came(&mut self, id: LaneId, peer: MemberId, header: &DataHeader) {
        match header.kind {
            FrameKind::Grant => {
                let Some(op) = self.ops.get_mut(&header.to).filter(|op| op.is_running()) else {
                    return;
                };
                match op.grant_came(peer, header.slice, header.offset) {
                    Ok(()) => self.progress(header.to),
                    Err(trouble) => self.fail(header.to, trouble, peer),
                }
            }
            FrameKind::Credit => self.credit_came(id, peer, header.offset),
            FrameKind::Bye => {
                let Some(lane) = self.lanes.get_mut(&id) else {
                    return;
                };
                lane.rx.bye = true;
                let slot = lane.slot;
                // What has not begun goes another way; the other end does not read any more.
                if lane.tx.as_ref().is_some_and(|tx| tx.at == 0) && lane.closing == Closing::No {
                    self.take_back(id);
                }
                if let Some(edge) = self.edges.get_mut(&peer) {
                    edge.set_idle(slot, false);
                }
                self.events.push_back(EngineEvent::LaneBye { lane: id });
                self.wake_for_work(peer);
            }
            // Payloads of finished operations, and signs of life, mean nothing more.
            FrameKind::Open | FrameKind::Partial | FrameKind::Result | FrameKind::Alive => {}
        }
    }
}

/// Where the rest of a frame's payload goes.
fn rest_of<'a>(
    frame: &IncomingFrame,
    scratch: &'a mut [u8],
    discard: &'a mut [u8],
    ops: &'a mut BTreeMap<u64, Op>,
) -> &'a mut [u8] {
    let length = frame.header.length as usize;
    let rest = length.saturating_sub(frame.filled);
    match &frame.target {
        Target::Open | Target::Early | Target::Partial { .. } | Target::Coded { .. } => {
            return scratch.get_mut(frame.filled..length).unwrap_or(&mut []);
        }
        Target::Result { op, part } => {
            // A finished operation does not own its buffers any more. (Rule 8)
            if let Some(op) = ops.get_mut(op) {
                let (start, _) = op.bytes(part.span);
                let at = start + frame.filled as u64;
                return op.lent.recv_mut(at, rest as u64).unwrap_or(&mut []);
            }
        }
        Target::Waiting { op, part } => {
            // Room goes with its operation.
            if let Some(op) = ops.get_mut(op) {
                return op.room_for(*part, frame.filled as u64).unwrap_or(&mut []);
            }
        }
        Target::Discard | Target::Refused { .. } => {}
    }
    let n = rest.min(discard.len());
    discard.get_mut(..n).unwrap_or(&mut [])
}

/// What a frame takes from the standing credit.
pub(super) fn early_cost(header: &DataHeader) -> u64 {
    HEADER_BYTES as u64 + u64::from(header.length)
}
