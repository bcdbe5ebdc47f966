//! The own slice of an operation whose contributions come straight to the owner: they wait in room,
//! one for each link, until all of some elements are there, and are then added in one pass, in the
//! order of the links. (Rule 9)
//!
//! So an early contribution costs room and nothing else, the sum never leaves the cache before it is
//! finished, and an in-place buffer is read and overwritten once. Each link has room of its own, and what
//! is not there yet waits for nothing but its sender: ranks cannot wait for one another in a circle.
//! (Rule 7)

use super::op::{Op, Part, Trouble, outside};
use super::scratch::{BlockPool, grow};
use super::window::Room;
use crate::collective::plan::Plan;
use crate::collective::plan::gather::GatherPlan;
use crate::collective::ranges::Span;
use crate::kernels::{self, Coding};
use crate::planted::{Bug, planted};
use crate::trap::{self, Trap};
use crate::types::{ReduceDescriptor, ReduceOp};

/// How far the own slice is.
#[derive(Debug)]
pub(super) struct Gathered {
    /// Its elements.
    span: Span,
    /// Element up to which it is finished.
    folded: u64,
    /// Where results wait until all links have them, if they travel quantised.
    pub(super) codes: Option<Room>,
    /// The sum of a few elements, where it does not fit the receive buffer.
    sum: Vec<u8>,
    /// A contribution to it that came quantised.
    decoded: Vec<u8>,
}

impl Gathered {
    /// Nothing has come; none if this rank owns no slice.
    pub(super) fn new(plan: GatherPlan, op: &Op) -> Option<Self> {
        if !plan.owns() {
            return None;
        }
        let span = plan.slice(plan.slice_at(1));
        let codes = op.coding.map(|_| Room::new(span, op.forms.result));
        Some(Self {
            span,
            folded: span.start,
            codes,
            sum: Vec::new(),
            decoded: Vec::new(),
        })
    }
}

impl Op {
    /// Has room ready for a contribution that comes, where those wait for one another.
    pub(super) fn prepare_room(&mut self, part: Part, pool: &mut BlockPool) -> Result<(), Trouble> {
        if self.gathered.is_some()
            && let Some(room) = &mut self.slice(part.position)?.room
        {
            room.prepare(part.span, pool)?;
        }
        Ok(())
    }

    /// Where the rest of a contribution goes, `filled` bytes of which are there.
    pub(super) fn room_for(&mut self, part: Part, filled: u64) -> Option<&mut [u8]> {
        let slice = self.slices.get_mut(part.position as usize)?;
        slice.room.as_mut()?.rest(part.span, filled)
    }

    /// Takes over a contribution that came elsewhere than in its room.
    pub(super) fn put_in_room(&mut self, part: Part, payload: &[u8]) -> Result<(), Trouble> {
        let mut rest = payload;
        while !rest.is_empty() {
            let filled = payload.len() - rest.len();
            let to = self.room_for(part, filled as u64).ok_or_else(outside)?;
            let n = to.len().min(rest.len());
            let (Some(to), Some((from, behind))) = (to.get_mut(..n), rest.split_at_checked(n))
            else {
                return Err(outside());
            };
            if n == 0 {
                return Err(outside());
            }
            to.copy_from_slice(from);
            rest = behind;
        }
        Ok(())
    }

    /// A contribution is here, whole and unharmed: adds up what all contributions are here of.
    pub(super) fn contributed(
        &mut self,
        part: Part,
        rooms: &mut BlockPool,
        originals: &mut BlockPool,
    ) -> Result<(), Trouble> {
        let slice = self.slice(part.position)?;
        let bytes = slice.room.as_ref().map_or(0, |room| room.bytes(part.span));
        let twice = |_| Trouble::Own("a contribution is here twice".into());
        slice.partial_came.insert(part.span).map_err(twice)?;
        self.stats.rx_bytes += bytes;
        let Some(gathered) = &self.gathered else {
            return Err(outside());
        };
        let (whole, mut at) = (gathered.span, gathered.folded);
        let came = |position: u32| {
            let slice = self.slices.get(position as usize);
            slice.map_or(at, |slice| slice.partial_came.end_from(whole.start))
        };
        let end = self.own_positions().map(came).min().unwrap_or(at);
        let begin = at;
        while at < end {
            let span = self.chunk(Span::new(at, end)).ok_or_else(outside)?;
            let last = planted(Bug::OrderOfArrival).then_some(part.position);
            self.add_up(span, last, rooms, originals)?;
            at = span.end;
            if let Some(gathered) = &mut self.gathered {
                gathered.folded = at;
            }
        }
        if at > begin {
            trap::pass(Trap::Fold);
            self.leave_rooms(Span::new(begin, at), rooms);
        }
        Ok(())
    }

    /// The next position from `from` on of a slice whose room is to be told to who sends it.
    pub(super) fn next_due(&mut self, from: u32) -> Option<u32> {
        self.gathered.as_ref()?;
        let slices = self.slices.iter_mut().zip(0..).skip(from as usize);
        for (slice, position) in slices {
            let gone = slice.gone();
            if slice.room.as_mut().is_some_and(|room| room.is_due(gone)) {
                return Some(position);
            }
        }
        None
    }

    /// Gives memory of codes back that all links have taken.
    pub(super) fn leave_codes(&mut self, rooms: &mut BlockPool) {
        let own = self.own_positions();
        let Some(Gathered {
            span,
            codes: Some(codes),
            ..
        }) = &mut self.gathered
        else {
            return;
        };
        let sent = |position: u32| {
            let slice = self.slices.get(position as usize);
            slice.map_or(span.start, |s| s.result_sent.end_from(span.start))
        };
        codes.release(own.map(sent).min().unwrap_or(span.start), rooms);
    }

    /// Positions of the own slice, one for each link.
    fn own_positions(&self) -> impl Iterator<Item = u32> + use<> {
        let positions = match self.plan {
            Plan::Ring(_) => 0..0,
            Plan::Gather(plan) => 0..plan.positions(),
        };
        positions.filter(|position| GatherPlan::is_own(*position))
    }

    /// What of `span` is added up at once: it lies in one piece in all rooms, and fits the cache.
    fn chunk(&self, span: Span) -> Option<Span> {
        let first = self.slices.get(self.own_positions().next()? as usize)?;
        let mut chunk = first.room.as_ref()?.piece(span);
        if let Some(codes) = &self.gathered.as_ref()?.codes {
            chunk = codes.piece(chunk);
        }
        let cell = self.forms.partial.cell();
        let cells = (CHUNK_ELEMENTS / cell).max(1);
        chunk.end = chunk.end.min(chunk.start + cells * cell);
        Some(chunk)
    }

    /// Adds up `span`, all contributions to which are here, and finishes it.
    fn add_up(
        &mut self,
        span: Span,
        last: Option<u32>,
        rooms: &mut BlockPool,
        originals: &mut BlockPool,
    ) -> Result<(), Trouble> {
        self.save(span, originals)?;
        if self.forms.fit_in_place() {
            self.add_in_place(span, last)?;
        } else {
            self.add_widened(span, last, rooms)?;
        }
        // Any position of the own slice will do.
        self.has_result(Part { position: 1, span });
        Ok(())
    }

    /// Adds up elements whose partials are elements, in the receive buffer.
    fn add_in_place(&mut self, span: Span, last: Option<u32>) -> Result<(), Trouble> {
        let ReduceDescriptor { data_type, op, .. } = self.descriptor;
        let (start, len) = self.bytes(span);
        let world = self.plan.world();
        let in_place = self.lent.in_place();
        let (order, count) = self.order(last);
        for (position, at) in order.zip(1..) {
            let incoming = self.slices.get(position as usize);
            let incoming = incoming.and_then(|slice| slice.room.as_ref()?.get(span));
            let incoming = incoming.ok_or_else(outside)?;
            // The last one divides.
            let (op, n) = match op {
                ReduceOp::Avg if at == count => (op, world),
                _ => (sum_of(op), 1),
            };
            if at == 1 && !in_place {
                let (own, out) = self.lent.both(start, len).ok_or_else(outside)?;
                kernels::fold_finish(data_type, op, n, incoming, own, out)?;
            } else {
                let sum = self.lent.recv_mut(start, len).ok_or_else(outside)?;
                kernels::fold_finish_in_place(data_type, op, n, incoming, sum)?;
            }
        }
        Ok(())
    }

    /// Adds up elements whose partials are wider, or come quantised, beside the buffers.
    fn add_widened(
        &mut self,
        span: Span,
        last: Option<u32>,
        rooms: &mut BlockPool,
    ) -> Result<(), Trouble> {
        let ReduceDescriptor { data_type, op, .. } = self.descriptor;
        let wide = data_type.partial();
        let (start, len) = self.bytes(span);
        let world = self.plan.world();
        let (order, _) = self.order(last);
        let coding = self.coding;
        let gathered = self.gathered.as_mut().ok_or_else(outside)?;
        let bytes = span.len() as usize * wide.size();
        grow(&mut gathered.sum, bytes)?;
        let sum = gathered.sum.get_mut(..bytes).ok_or_else(outside)?;
        let own = self.lent.send(start, len).ok_or_else(outside)?;
        kernels::start(data_type, own, sum)?;
        for position in order {
            let incoming = self.slices.get(position as usize);
            let incoming = incoming.and_then(|slice| slice.room.as_ref()?.get(span));
            let mut incoming = incoming.ok_or_else(outside)?;
            if let Some(coding) = coding {
                grow(&mut gathered.decoded, bytes)?;
                let decoded = gathered.decoded.get_mut(..bytes).ok_or_else(outside)?;
                kernels::decode(coding.widened(), incoming, decoded)?;
                incoming = decoded;
            }
            kernels::fold_finish_in_place(wide, sum_of(op), 1, incoming, sum)?;
        }
        let out = self.lent.recv_mut(start, len).ok_or_else(outside)?;
        kernels::finish(data_type, op, world, sum, out)?;
        if let (Some(coding), Some(codes)) = (coding, &mut gathered.codes) {
            let codes = codes.get_mut(span, rooms)?.ok_or_else(outside)?;
            quantize_once(coding, out, codes)?;
        }
        Ok(())
    }

    /// Positions in the order in which their contributions are added, and how many there are; with
    /// the planted bug, what came last goes first.
    fn order(&self, last: Option<u32>) -> (impl Iterator<Item = u32> + use<>, u32) {
        let count = self.own_positions().count() as u32;
        let rest = self.own_positions().filter(move |at| Some(*at) != last);
        (last.into_iter().chain(rest), count)
    }

    /// What has been added up makes room for more.
    fn leave_rooms(&mut self, span: Span, rooms: &mut BlockPool) {
        for position in self.own_positions() {
            if let Some(slice) = self.slices.get_mut(position as usize) {
                // Elements are added up in ascending order, each once.
                let _ = slice.partial_sent.insert(span);
                let gone = slice.gone();
                if let Some(room) = &mut slice.room {
                    room.release(gone, rooms);
                }
            }
        }
    }
}

/// Makes the codes of finished elements, and reads the elements back from them: the owner has the very
/// numbers that the others get.
fn quantize_once(coding: Coding, out: &mut [u8], codes: &mut [u8]) -> Result<(), Trouble> {
    kernels::encode(coding, out, codes)?;
    kernels::decode(coding, codes, out)?;
    Ok(())
}

/// The operator of all folds but the last: only that one divides.
fn sum_of(op: ReduceOp) -> ReduceOp {
    match op {
        ReduceOp::Avg => ReduceOp::Sum,
        other => other,
    }
}

/// Elements that are added up at once: with the contributions to them they fit the cache.
const CHUNK_ELEMENTS: u64 = 4 * 1024;
