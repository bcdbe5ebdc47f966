//! State of one operation, and what happens to it when data comes in.

use super::backup::Backup;
use super::edge::STANDING_CREDIT;
use super::gather::Gathered;
use super::io::{OpStats, StartReduce};
use super::link::Link;
use super::outgoing::Steps;
use super::scratch::{BlockPool, NoMemory};
use super::slice::Slice;
use super::window::{Lending, Room, SMALL_ROOM};
use crate::collective::buffers::Lent;
use crate::collective::digest::ResultDigest;
use crate::collective::plan::gather::GatherPlan;
use crate::collective::plan::ring::RingPlan;
use crate::collective::plan::{Plan, Step};
use crate::collective::ranges::{RangeRefused, Span};
use crate::ids::{CallId, Digest, Epoch, MemberId, Serial};
use crate::kernels::{Coding, Form, KernelError};
use crate::planted::{Bug, planted};
use crate::types::{Algorithm, DataType, ReduceDescriptor};
use crate::wire::control::OpName;
use crate::wire::lane::{DataHeader, FrameKind, HEADER_BYTES};
use crate::wire::reason::RequestCause;

/// One all-reduce in flight.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) call: CallId,
    pub(super) name: OpName,
    pub(super) epoch: Epoch,
    pub(super) quoted: Serial,
    pub(super) descriptor: ReduceDescriptor,
    /// What neighbours compare: digest of the descriptor, with the algorithm that is used. (Rule 10)
    pub(super) digest: Digest,
    /// How its data is quantised; none if it travels as it is.
    pub(super) coding: Option<Coding>,
    pub(super) forms: Forms,
    pub(super) plan: Plan,
    pub(super) lent: Lent,
    /// In the order of the plan.
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
    /// The own slice, where contributions come straight to its owner.
    pub(super) gathered: Option<Gathered>,
    hashed: ResultDigest,
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
    /// The operation as it stands before anything has moved. An error is the caller's mistake, or
    /// that of who asked for an algorithm that its group has no plan for.
    pub(super) fn new(start: StartReduce, lent: Lent) -> Result<Self, RequestCause> {
        let internal = |what| RequestCause::Internal { what };
        let descriptor = &start.descriptor;
        let algorithm = start.group.choice.algorithm(descriptor);
        let plan = plan(&start, algorithm)?;
        if descriptor.bytes() != Some(lent.len() as u64) {
            let len = lent.len();
            return Err(internal(format!("{descriptor} in buffers of {len} bytes")));
        }
        let member = |rank: u32| start.group.ring.get(rank as usize).map(|m| m.id);
        let ranks = plan.links().into_iter();
        let links = ranks.filter_map(member).map(Link::new).collect();
        let coding = Coding::of(descriptor);
        let forms = Forms::of(descriptor, coding);
        let wide = !forms.fit_in_place();
        let slices = (0..plan.positions()).map(|position| {
            let index = plan.slice_at(position);
            let span = plan.slice(index);
            let (here, next) = match plan {
                Plan::Ring(plan) => (
                    wide && plan.receives_partials(position) && !plan.owns(position),
                    wide && plan.sends_partials(position) && !plan.owns(position + 1),
                ),
                // Contributions wait at the owner until all are there.
                Plan::Gather(_) => {
                    let own = GatherPlan::is_own(position);
                    (own && !span.is_empty(), !own)
                }
            };
            let mut slice = Slice::new(index, span, forms.partial, here, next);
            if let Plan::Ring(plan) = plan
                && coding.is_some()
                && plan.sends_results(position)
            {
                slice.results = Some(Room::new(span, forms.result));
            }
            slice
        });
        let mut op = Self {
            call: start.call,
            name: start.op,
            epoch: start.group.epoch,
            quoted: start.quoted,
            descriptor: *descriptor,
            digest: ReduceDescriptor {
                algorithm: Some(algorithm),
                ..*descriptor
            }
            .digest(),
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
            gathered: None,
            hashed: ResultDigest::new(lent.len()),
            backup: Backup::default(),
            missing: plan.count(),
            room: SMALL_ROOM,
            lent,
        };
        if let Plan::Gather(plan) = plan {
            op.gathered = Gathered::new(plan, &op);
        }
        for position in 0..plan.positions() {
            if plan.starts(position)
                && let Some(own) = op.slices.get_mut(position as usize)
                && !own.span.is_empty()
            {
                // An empty set takes any range.
                let _ = own.partial_ready.insert(own.span);
                op.steps.set(Step::Partial { position });
            }
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
        self.hashed.finish()
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

    /// Place of a neighbour among the links.
    pub(super) fn link_index(&self, peer: MemberId) -> Option<u32> {
        let at = self.links.iter().position(|link| link.peer == peer)?;
        u32::try_from(at).ok()
    }

    /// Whether data of the operation comes from the neighbour at the other end of a link.
    pub(super) fn receives_on(&self, link: u32) -> bool {
        match self.plan {
            Plan::Ring(_) => link as usize + 1 == self.links.len(),
            Plan::Gather(_) => true,
        }
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
        rooms: &mut BlockPool,
        originals: &mut BlockPool,
    ) -> Result<Part, Trouble> {
        let refuse = |why: &str| {
            Trouble::Frame(format!(
                "{:?} of {} bytes at {} in slice {}: {why}",
                header.kind, header.length, header.offset, header.slice
            ))
        };
        let Some(link) = self.link_index(peer).filter(|at| self.receives_on(*at)) else {
            return Err(refuse("it comes from the wrong neighbour"));
        };
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
        let partial = header.kind == FrameKind::Partial;
        let position = self.plan.position(header.slice, link, partial);
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
        let taken = if partial {
            if !self.plan.receives_partials(position) {
                return Err(refuse("the slice starts here"));
            }
            if let Some(room) = &slice.room
                && span.end > room.granted()
            {
                return Err(refuse("beyond the room that was granted"));
            }
            if planted(Bug::OrderOfArrival)
                && matches!(self.plan, Plan::Ring(_))
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
        let part = Part { position, span };
        if partial {
            self.prepare_room(part, rooms)?;
        } else if self.coding.is_none() {
            // Quantised results overwrite nothing before they have been decoded.
            self.save(span, originals)?;
        }
        Ok(part)
    }

    /// Takes note of a part of the result that is in the receive buffer now.
    pub(super) fn has_result(&mut self, part: Part) {
        let (start, len) = self.bytes(part.span);
        // Both fit: the part lies in the receive buffer.
        let range = start as usize..(start + len) as usize;
        for block in self.hashed.ready(range) {
            let (start, len) = (block.range.start as u64, block.range.len() as u64);
            if let Some(bytes) = self.lent.recv(start, len) {
                self.hashed.absorb(block.index, bytes);
            }
        }
        self.missing = self.missing.saturating_sub(part.span.len());
        match self.plan {
            Plan::Ring(plan) if plan.sends_results(part.position) => self.offer_result(part),
            Plan::Gather(plan) if GatherPlan::is_own(part.position) => {
                for position in (0..plan.positions()).filter(|at| GatherPlan::is_own(*at)) {
                    self.offer_result(Part { position, ..part });
                }
            }
            Plan::Ring(_) | Plan::Gather(_) => {}
        }
    }

    fn offer_result(&mut self, part: Part) {
        let position = part.position;
        if let Some(slice) = self.slices.get_mut(position as usize)
            && slice.result_ready.insert(part.span).is_ok()
        {
            self.steps.set(Step::Result { position });
        }
    }

    /// A neighbour has granted room.
    pub(super) fn grant_came(
        &mut self,
        peer: MemberId,
        slice: u32,
        limit: u64,
    ) -> Result<(), Trouble> {
        match self.link_index(peer).filter(|at| *at < self.plan.senders()) {
            Some(link) => self.granted(link, Some(slice), limit),
            None => Err(Trouble::Frame("room from the wrong neighbour".into())),
        }
    }

    /// Takes note of the room that the neighbour at a link has for a slice, `limit` bytes of partials
    /// from the slice's start on; for all slices that go there if `slice` is none.
    pub(super) fn granted(
        &mut self,
        link: u32,
        slice: Option<u32>,
        limit: u64,
    ) -> Result<(), Trouble> {
        let form = self.forms.partial;
        let positions = match slice.map(|s| self.plan.position(s, link, false)) {
            None => self.plan.sent_on(link),
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

    /// How far partials of any slice may be sent at once, in bytes from its start: what the OPEN to
    /// the neighbour at a link says. Grants what it says.
    pub(super) fn open_grant(&mut self, link: u32) -> u64 {
        let only = match self.plan {
            Plan::Ring(_) => None,
            Plan::Gather(_) => Some(link),
        };
        let mut grant = u64::MAX;
        for (slice, position) in self.slices.iter_mut().zip(0..) {
            let start = slice.span.start;
            if let Some(room) = &mut slice.room
                && only.is_none_or(|link| self.plan.granted_on(position) == link)
            {
                room.grant(start);
                grant = self.room;
            }
        }
        grant
    }

    /// Whether all that it sends on a link before the other end has opened it fits the standing
    /// credit. A larger one would gain little by sending so little early, and keep small ones from it.
    pub(super) fn is_small(&self, link: u32) -> bool {
        let sent = self
            .plan
            .sent_on(link)
            .filter(|at| self.plan.sends_partials(*at));
        let slices = sent.filter_map(|at| self.slices.get(at as usize));
        let all = |sum: u64, slice: &Slice| {
            let bytes = self.forms.partial.bytes(slice.span.len());
            sum.saturating_add(bytes)
                .saturating_add(HEADER_BYTES as u64)
        };
        slices.fold(0, all) <= STANDING_CREDIT
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
        if let Some(codes) = self.gathered.as_mut().and_then(|g| g.codes.as_mut()) {
            codes.clear(rooms);
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

/// The plan of an operation by an algorithm.
fn plan(start: &StartReduce, algorithm: Algorithm) -> Result<Plan, RequestCause> {
    let StartReduce {
        descriptor, group, ..
    } = start;
    let ranks = u32::try_from(group.ring.len())
        .ok()
        .zip(group.rank(start.own));
    let Some((world, rank)) = ranks else {
        let what = format!("{} is not in the group of its operation", start.own);
        return Err(RequestCause::Internal { what });
    };
    let (rank, count) = (rank as u32, descriptor.count);
    // One alone has nobody to choose a way to.
    if world == 1 {
        return RingPlan::new(world, rank, count)
            .map(Plan::Ring)
            .ok_or(RequestCause::NoPlan { algorithm });
    }
    let offered = group.choice.offers(algorithm);
    let hub = group.choice.hub.and_then(|hub| group.rank(hub));
    let plan = match algorithm {
        Algorithm::Ring => RingPlan::new(world, rank, count).map(Plan::Ring),
        Algorithm::Direct => GatherPlan::direct(world, rank, count).map(Plan::Gather),
        Algorithm::Star => {
            hub.and_then(|hub| GatherPlan::star(world, rank, count, hub as u32).map(Plan::Gather))
        }
    };
    plan.filter(|_| offered)
        .ok_or(RequestCause::NoPlan { algorithm })
}

pub(super) fn outside() -> Trouble {
    Trouble::Own("a frame outside of the buffers".into())
}
