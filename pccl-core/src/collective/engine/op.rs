//! State of one operation, and what happens to it when data comes in.

use super::backup::Backup;
use super::edge::STANDING_CREDIT;
use super::io::{OpStats, StartReduce};
use super::link::Link;
use super::outgoing::Steps;
use super::scratch::{BlockPool, NoMemory};
use super::slice::Slice;
use super::window::{Lending, Room, SMALL_ROOM};
use crate::collective::buffers::Lent;
use crate::collective::digest::ResultDigest;
use crate::collective::plan::{RingPlan, Step};
use crate::collective::ranges::{RangeRefused, Span};
use crate::ids::{CallId, Digest, Epoch, MemberId, Serial};
use crate::kernels::{Coding, Form, KernelError};
use crate::planted::{Bug, planted};
use crate::types::{DataType, ReduceDescriptor};
use crate::wire::control::OpName;
use crate::wire::lane::{DataHeader, FrameKind, HEADER_BYTES};

/// One all-reduce in flight.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) call: CallId,
    pub(super) name: OpName,
    pub(super) epoch: Epoch,
    pub(super) quoted: Serial,
    pub(super) descriptor: ReduceDescriptor,
    /// How its data is quantised; none if it travels as it is.
    pub(super) coding: Option<Coding>,
    pub(super) forms: Forms,
    pub(super) plan: RingPlan,
    pub(super) lent: Lent,
    /// The next rank, then the previous one if that is another.
    pub(super) links: Vec<Link>,
    pub(super) stats: OpStats,
    /// Whether it has been reported that it cannot go on; it neither sends nor takes data then.
    pub(super) failed: bool,
    /// Whether a neighbour means another operation by its name. The master, which gets both
    /// descriptors, says so to all; until then no data moves.
    pub(super) mismatched: bool,
    /// Whether it has been reported that the result is here.
    pub(super) done: bool,
    /// Whether it has been reported that a segment was sent.
    pub(super) begun: bool,
    /// By position.
    pub(super) slices: Vec<Slice>,
    pub(super) steps: Steps,
    digest: ResultDigest,
    backup: Backup,
    /// Elements of the result that are not here yet.
    missing: u64,
    /// Bytes of each slice's room.
    room: u64,
}

/// How data of an operation lies on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Forms {
    /// Contributions so far.
    pub(super) partial: Form,
    /// Finished data.
    pub(super) result: Form,
}

impl Forms {
    fn of(descriptor: &ReduceDescriptor, coding: Option<Coding>) -> Self {
        let plain = |data_type: DataType| Form::plain(data_type.size() as u64);
        let data_type = descriptor.data_type;
        let coded = coding.map(|coding| coding.form());
        Self {
            partial: coded.unwrap_or_else(|| plain(data_type.partial())),
            result: coded.unwrap_or_else(|| plain(data_type)),
        }
    }

    /// Whether contributions on their way fit the receive buffer.
    pub(super) fn fit_in_place(&self) -> bool {
        self.partial == self.result && self.partial.cell() == 1
    }

    /// Bytes of the longest piece that cannot be cut.
    pub(super) fn longest_cell(&self) -> u64 {
        self.partial.cell_bytes().max(self.result.cell_bytes())
    }
}

/// Who made an operation impossible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    /// The sender of a frame: what is wrong with it.
    Frame(String),
    /// This process.
    Own(String),
}

impl From<NoMemory> for Trouble {
    fn from(error: NoMemory) -> Self {
        Self::Own(error.to_string())
    }
}

impl From<KernelError> for Trouble {
    fn from(error: KernelError) -> Self {
        match error {
            KernelError::Parameters => Self::Frame(error.to_string()),
            _ => Self::Own(error.to_string()),
        }
    }
}

/// Part of a slice that a frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// Of the slice, at the rank that holds the part.
    pub(super) position: u32,
    /// Its elements.
    pub(super) span: Span,
}

impl Op {
    /// The operation as it stands before anything has moved. An error is the caller's mistake.
    pub(super) fn new(start: StartReduce, lent: Lent) -> Result<Self, String> {
        let StartReduce {
            descriptor, group, ..
        } = &start;
        let world = group.ring.len();
        let rank = group.rank(start.own);
        let plan = match (u32::try_from(world), rank) {
            (Ok(world), Some(rank)) => RingPlan::new(world, rank as u32, descriptor.count),
            _ => None,
        };
        let neighbour = |rank: u32| group.ring.get(rank as usize).map(|m| m.id);
        let Some((plan, next, previous)) =
            plan.and_then(|p| Some((p, neighbour(p.next())?, neighbour(p.previous())?)))
        else {
            return Err(format!(
                "{} is not in the group of its operation",
                start.own
            ));
        };
        if descriptor.bytes() != Some(lent.len() as u64) {
            return Err(format!("{descriptor} in buffers of {} bytes", lent.len()));
        }
        let mut links = Vec::with_capacity(2);
        if next != start.own {
            links.push(Link::new(next));
        }
        if previous != next {
            links.push(Link::new(previous));
        }
        let coding = Coding::of(descriptor);
        let forms = Forms::of(descriptor, coding);
        let wide = !forms.fit_in_place();
        let slices = (0..plan.world()).map(|position| {
            let index = plan.slice_at(position);
            let span = plan.slice(index);
            let here = wide && plan.receives_partials(position) && !plan.owns(position);
            let next = wide && plan.sends_partials(position) && !plan.owns(position + 1);
            let mut slice = Slice::new(index, span, forms.partial, here, next);
            if coding.is_some() && plan.sends_results(position) {
                slice.results = Some(Room::new(span, forms.result));
            }
            slice
        });
        let mut op = Self {
            call: start.call,
            name: start.op,
            epoch: start.group.epoch,
            quoted: start.quoted,
            descriptor: start.descriptor,
            coding,
            forms,
            plan,
            links,
            stats: OpStats {
                world: plan.world(),
                ..OpStats::default()
            },
            failed: false,
            mismatched: false,
            done: false,
            begun: false,
            slices: slices.collect(),
            steps: Steps::new(plan),
            digest: ResultDigest::new(lent.len()),
            backup: Backup::default(),
            missing: plan.count(),
            room: SMALL_ROOM,
            lent,
        };
        if plan.sends_partials(0)
            && let Some(own) = op.slices.first_mut()
            && !own.span.is_empty()
        {
            // An empty set takes any range.
            let _ = own.partial_ready.insert(own.span);
            op.steps.set(Step::Partial { position: 0 });
        }
        Ok(op)
    }

    /// Whether data of it may move.
    pub(super) fn is_running(&self) -> bool {
        !self.failed && !self.mismatched
    }

    /// Whether all of the result, and the OPEN of every neighbour, is here.
    pub(super) fn is_complete(&self) -> bool {
        self.missing == 0
            && (planted(Bug::DoneWithoutOpens) || self.links.iter().all(|link| link.opened))
    }

    /// Digest of the result, once it is here.
    pub(super) fn result(&self) -> Option<Digest> {
        self.digest.finish()
    }

    /// Whether `peer` is a neighbour.
    pub(super) fn has_link(&self, peer: MemberId) -> bool {
        self.link_to(peer).is_some()
    }

    /// Link to a neighbour, to be read.
    pub(super) fn link_to(&self, peer: MemberId) -> Option<&Link> {
        self.links.iter().find(|link| link.peer == peer)
    }

    /// Link to a neighbour.
    pub(super) fn link(&mut self, peer: MemberId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.peer == peer)
    }

    /// Link to the next rank; none in a ring of one.
    pub(super) fn next(&mut self) -> Option<&mut Link> {
        self.links.first_mut()
    }

    /// Whether data of the operation comes from `peer`.
    pub(super) fn receives_from(&self, peer: MemberId) -> bool {
        self.links.last().is_some_and(|link| link.peer == peer)
    }

    /// Takes a place for what a frame announces. From here on no other frame can have it.
    ///
    /// Refuses what overlaps other frames, what does not belong to a slice that is on its way
    /// here, and a result of something that has not even left: it would overwrite contributions
    /// that are still needed.
    pub(super) fn claim(
        &mut self,
        peer: MemberId,
        header: &DataHeader,
        pool: &mut BlockPool,
    ) -> Result<Part, Trouble> {
        let refuse = |why: &str| {
            Trouble::Frame(format!(
                "{:?} of {} bytes at {} in slice {}: {why}",
                header.kind, header.length, header.offset, header.slice
            ))
        };
        if !self.receives_from(peer) {
            return Err(refuse("it comes from the wrong neighbour"));
        }
        let form = match header.kind {
            FrameKind::Partial => self.forms.partial,
            _ => self.forms.result,
        };
        let (at, length) = (header.offset, u64::from(header.length));
        if at.checked_add(length).is_none() {
            return Err(refuse("overflow"));
        }
        let (Some(first), Some(elements), 1..) = (form.elements(at), form.elements(length), length)
        else {
            return Err(refuse("it cuts elements"));
        };
        let origin = self.origin(header.slice);
        let position = self.plan.position(header.slice);
        let (Some(position), Some(slice)) = (
            position,
            position.and_then(|p| self.slices.get_mut(p as usize)),
        ) else {
            return Err(refuse("there is no such slice"));
        };
        let start = origin.saturating_add(first);
        let mut span = Span::new(start, start.saturating_add(elements));
        if !slice.span.contains(span) {
            return Err(refuse("outside the slice"));
        }
        let ends_cell = elements.is_multiple_of(form.cell()) || span.end == slice.span.end;
        if !first.is_multiple_of(form.cell()) || !ends_cell {
            return Err(refuse("it cuts blocks"));
        }
        let taken = if header.kind == FrameKind::Partial {
            if !self.plan.receives_partials(position) {
                return Err(refuse("the slice starts here"));
            }
            if let Some(room) = &slice.room
                && span.end > room.granted()
            {
                return Err(refuse("beyond the room that was granted"));
            }
            if planted(Bug::OrderOfArrival)
                && let Some(gap) = slice.partial_in.first_gap(slice.span)
                && gap.len() >= span.len()
            {
                span = Span::new(gap.start, gap.start + span.len());
            }
            slice.partial_in.insert(span)
        } else {
            if !self.plan.receives_results(position) {
                return Err(refuse("the slice is finished here"));
            }
            if !slice.partial_sent.contains(span) {
                return Err(refuse("its partial has not left yet"));
            }
            slice.result_in.insert(span)
        };
        taken.map_err(|why| match why {
            RangeRefused::Overlap => refuse("it overlaps another frame"),
            RangeRefused::TooMany => refuse("too many pieces"),
        })?;
        // Quantised results overwrite nothing before they have been decoded.
        if header.kind == FrameKind::Result && self.coding.is_none() {
            self.save(span, pool)?;
        }
        Ok(Part { position, span })
    }

    /// Takes note of a part of the result that is in the receive buffer now.
    pub(super) fn has_result(&mut self, part: Part) {
        let (start, len) = self.bytes(part.span);
        // Both fit: the part lies in the receive buffer.
        let range = start as usize..(start + len) as usize;
        for block in self.digest.ready(range) {
            let (start, len) = (block.range.start as u64, block.range.len() as u64);
            if let Some(bytes) = self.lent.recv(start, len) {
                self.digest.absorb(block.index, bytes);
            }
        }
        self.missing = self.missing.saturating_sub(part.span.len());
        if self.plan.sends_results(part.position)
            && let Some(slice) = self.slices.get_mut(part.position as usize)
            && slice.result_ready.insert(part.span).is_ok()
        {
            self.steps.set(Step::Result {
                position: part.position,
            });
        }
    }

    /// The next rank has granted room.
    pub(super) fn grant_came(
        &mut self,
        peer: MemberId,
        slice: u32,
        limit: u64,
    ) -> Result<(), Trouble> {
        if self.next().is_none_or(|link| link.peer != peer) {
            return Err(Trouble::Frame("room from the wrong neighbour".into()));
        }
        self.granted(Some(slice), limit)
    }

    /// Takes note of the room that the next rank has for a slice, `limit` bytes of partials from
    /// the slice's start on; for all slices if `slice` is none.
    pub(super) fn granted(&mut self, slice: Option<u32>, limit: u64) -> Result<(), Trouble> {
        let form = self.forms.partial;
        let positions = match slice.map(|s| self.plan.position(s)) {
            None => 0..self.plan.world(),
            Some(Some(position)) if self.plan.sends_partials(position) => position..position + 1,
            _ => return Err(Trouble::Frame("room for a slice that does not come".into())),
        };
        for position in positions {
            let Some(slice) = self.slices.get_mut(position as usize) else {
                continue;
            };
            let limit = slice.span.start + form.fitting(limit, slice.span.len());
            if limit > slice.send_limit {
                slice.send_limit = limit;
                if !slice.partial_ready.is_empty() {
                    self.steps.set(Step::Partial { position });
                }
            }
        }
        Ok(())
    }

    /// Borrows as much room as there is and as is of use; says whether that is more than before.
    pub(super) fn borrow_room(&mut self, lending: &mut Lending) -> bool {
        let before = self.room;
        let longest = self.slices.iter().map(|s| s.span.len()).max().unwrap_or(0);
        let useful = self.forms.partial.bytes(longest);
        self.room = lending.lend(self.rooms(), self.room, useful);
        for room in self.slices.iter_mut().filter_map(|s| s.room.as_mut()) {
            room.set_capacity(self.room);
        }
        self.room > before
    }

    /// How far partials of any slice may be sent at once, in bytes from its start: what the OPEN
    /// says. Grants what it says.
    pub(super) fn open_grant(&mut self) -> u64 {
        let mut rooms = self.slices.iter_mut().filter_map(|s| {
            let start = s.span.start;
            s.room.as_mut().map(|room| (start, room))
        });
        let mut grant = u64::MAX;
        for (start, room) in &mut rooms {
            room.grant(start);
            grant = self.room;
        }
        grant
    }

    /// Whether all that it sends before the next rank has opened it fits the standing credit. A
    /// larger one would gain little by sending so little early, and keep small ones from it.
    pub(super) fn is_small(&self) -> bool {
        let headers = u64::from(self.plan.world()) * HEADER_BYTES as u64;
        let bytes = |slice: &Slice| self.forms.partial.bytes(slice.span.len());
        let all = |sum: u64, slice: &Slice| sum.saturating_add(bytes(slice));
        self.slices.iter().fold(headers, all) <= STANDING_CREDIT
    }

    /// Gives the receive buffer back as it was, and nothing else.
    pub(super) fn restore(mut self) {
        self.backup.restore(&mut self.lent);
    }

    /// Ends the operation: gives back what it borrowed, and the receive buffer as it was unless
    /// the result stands. (Rule 8)
    pub(super) fn finish(
        mut self,
        commit: bool,
        lending: &mut Lending,
        rooms: &mut BlockPool,
        originals: &mut BlockPool,
    ) -> OpStats {
        if !commit && !planted(Bug::NotRestored) {
            self.backup.restore(&mut self.lent);
        }
        for room in self.slices.iter_mut().filter_map(|s| s.room.as_mut()) {
            room.clear(rooms);
        }
        for room in self.slices.iter_mut().filter_map(|s| s.results.as_mut()) {
            room.clear(rooms);
        }
        lending.repay(self.rooms(), self.room);
        self.backup.release(originals);
        self.stats
    }

    /// Place of elements in the buffers: first byte, and number of bytes.
    pub(super) fn bytes(&self, span: Span) -> (u64, u64) {
        let size = self.descriptor.data_type.size() as u64;
        // A span lies in the tensor, whose bytes were counted without overflow.
        (span.start * size, span.len() * size)
    }

    /// Element that offsets in frames of a slice count from: quantised data has no place in the
    /// tensor, only one in its slice.
    pub(super) fn origin(&self, slice: u32) -> u64 {
        match self.coding {
            Some(_) => self.plan.slice(slice).start,
            None => 0,
        }
    }

    pub(super) fn save(&mut self, span: Span, pool: &mut BlockPool) -> Result<(), Trouble> {
        if self.lent.in_place() {
            let (start, len) = self.bytes(span);
            let bytes = Span::new(start, start + len);
            self.backup.save(&self.lent, bytes, pool)?;
        }
        Ok(())
    }

    pub(super) fn slice(&mut self, position: u32) -> Result<&mut Slice, Trouble> {
        self.slices.get_mut(position as usize).ok_or_else(outside)
    }

    /// Slices that have room here.
    fn rooms(&self) -> u64 {
        self.slices.iter().filter(|s| s.room.is_some()).count() as u64
    }
}

pub(super) fn outside() -> Trouble {
    Trouble::Own("a frame outside of the buffers".into())
}
