//! Room for what cannot wait in the receive buffer: partials that are wider than their elements, and
//! all quantised data; and how room for partials is granted. (Rule 7)
//!
//! Such partials wait in room of their own. A rank
//! passes on n-2 slices; each has room by itself, because a slice waits for nobody but the same
//! slice one rank further on, and at its end the owner needs no room: so there is no circle in
//! which ranks could wait for one another.
//!
//! Room is granted like a window that slides over the slice: partials may come up to a capacity
//! beyond the first element that has not gone on yet.
//!
//! Quantised results wait in room without a window until they have been passed on, as others do in
//! the receive buffer: at worst the whole of what an operation gives, which is less than that buffer.

use std::collections::VecDeque;

use super::scratch::{BlockPool, NoMemory};
use crate::collective::ranges::Span;
use crate::kernels::Form;

/// Room of one slice.
#[derive(Debug)]
pub(super) struct Room {
    /// The slice.
    span: Span,
    /// How data lies in it; ranges of it begin and end as cells do.
    form: Form,
    /// Bytes that it may hold.
    capacity: u64,
    /// Element up to which the sender may send.
    granted: u64,
    /// Whether a grant waits to be sent.
    queued: bool,
    /// Place of the first of `blocks` in the slice.
    first: u64,
    /// An empty one holds nothing yet.
    blocks: VecDeque<Vec<u8>>,
}

impl Room {
    /// The small room that an operation owns in any case, for the slice `span`.
    pub(super) fn new(span: Span, form: Form) -> Self {
        Self {
            span,
            form,
            capacity: SMALL_ROOM,
            granted: span.start + form.fitting(SMALL_ROOM, span.len()),
            queued: false,
            first: 0,
            blocks: VecDeque::new(),
        }
    }

    /// Element up to which the sender may send.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    /// Sets the capacity, in bytes; room that has been granted stays granted.
    pub(super) fn set_capacity(&mut self, bytes: u64) {
        self.capacity = self.capacity.max(bytes);
    }

    /// Whether a grant is worth sending, now that everything before `gone` has been passed on.
    /// Says so once, until [`Self::grant`] was asked.
    pub(super) fn is_due(&mut self, gone: u64) -> bool {
        let limit = self.limit(gone);
        let more = limit.saturating_sub(self.granted);
        // Small steps would cost a frame each; the last one is not worth waiting for.
        let due = !self.queued
            && more > 0
            && (limit == self.span.end || more >= self.form.whole(self.capacity) / GRANT_FRACTION);
        self.queued |= due;
        due
    }

    /// Grants what there is; returns the element up to which the sender may send.
    pub(super) fn grant(&mut self, gone: u64) -> u64 {
        self.queued = false;
        self.granted = self.granted.max(self.limit(gone));
        self.granted
    }

    /// Forgets that a grant was to be sent.
    pub(super) fn grant_dropped(&mut self) {
        self.queued = false;
    }

    /// The part of `span` from its start on that lies in one piece of memory.
    pub(super) fn piece(&self, span: Span) -> Span {
        let block = self.block_elements();
        let end = ((span.start - self.span.start) / block + 1) * block + self.span.start;
        Span::new(span.start, span.end.min(end))
    }

    /// Bytes of elements that begin and end as cells do.
    pub(super) fn bytes(&self, span: Span) -> u64 {
        self.form.bytes(span.len())
    }

    /// Memory of a piece.
    pub(super) fn get(&self, piece: Span) -> Option<&[u8]> {
        let (block, range) = self.place(piece)?;
        self.blocks.get(block)?.get(range)
    }

    /// Memory of a piece, to be written.
    pub(super) fn get_mut(
        &mut self,
        piece: Span,
        pool: &mut BlockPool,
    ) -> Result<Option<&mut [u8]>, NoMemory> {
        let Some((block, range)) = self.place(piece) else {
            return Ok(None);
        };
        let useful = self.form.bytes(self.span.end - piece.start) + range.start as u64;
        if self.blocks.len() <= block {
            self.blocks.resize_with(block + 1, Vec::new);
        }
        let Some(block) = self.blocks.get_mut(block) else {
            return Ok(None);
        };
        if block.is_empty() {
            *block = pool.take(useful)?;
        }
        Ok(block.get_mut(range))
    }

    /// Has the memory for `span` ready, so that [`Self::rest`] can give it out.
    pub(super) fn prepare(&mut self, span: Span, pool: &mut BlockPool) -> Result<(), NoMemory> {
        let mut rest = span;
        while !rest.is_empty() {
            let piece = self.piece(rest);
            self.get_mut(piece, pool)?;
            rest.start = piece.end;
        }
        Ok(())
    }

    /// Memory for the bytes of `span` from the one at `filled` on, as far as it lies in one piece;
    /// none if it has not been prepared.
    pub(super) fn rest(&mut self, span: Span, filled: u64) -> Option<&mut [u8]> {
        let block_bytes = self.form.bytes(self.block_elements());
        let start = self.form.bytes(span.start.checked_sub(self.span.start)?);
        let left = self.form.bytes(span.len()).checked_sub(filled)?;
        let at = start + filled;
        let block = (at / block_bytes).checked_sub(self.first)?;
        let inside = at % block_bytes;
        let end = block_bytes.min(inside + left);
        let block = self.blocks.get_mut(usize::try_from(block).ok()?)?;
        block.get_mut(inside as usize..end as usize)
    }

    /// Gives memory before `gone` back.
    pub(super) fn release(&mut self, gone: u64, pool: &mut BlockPool) {
        let keep = gone.saturating_sub(self.span.start) / self.block_elements();
        while self.first < keep {
            if let Some(block) = self.blocks.pop_front() {
                pool.give(block);
            }
            self.first += 1;
        }
    }

    /// Gives all memory back.
    pub(super) fn clear(&mut self, pool: &mut BlockPool) {
        self.blocks.drain(..).for_each(|block| pool.give(block));
    }

    fn limit(&self, gone: u64) -> u64 {
        let rest = self.span.end.saturating_sub(gone);
        gone + self.form.fitting(self.capacity, rest)
    }

    fn place(&self, piece: Span) -> Option<(usize, std::ops::Range<usize>)> {
        let at = piece.start.checked_sub(self.span.start)?;
        let block = (at / self.block_elements()).checked_sub(self.first)?;
        let start = self.form.bytes(at % self.block_elements());
        let end = start + self.form.bytes(piece.len());
        Some((block as usize, start as usize..end as usize))
    }

    fn block_elements(&self) -> u64 {
        self.form.whole(SMALL_ROOM).max(1)
    }
}

/// Room that is lent to operations on top of the small one that each owns: oldest first.
#[derive(Debug)]
pub(super) struct Lending {
    total: u64,
    free: u64,
}

impl Lending {
    /// So many bytes to lend.
    pub(super) fn new(total: u64) -> Self {
        Self { total, free: total }
    }

    /// Bytes per room that `rooms` rooms of `present` bytes each may have from now on, if
    /// `useful` bytes is all that each could use. Takes the difference off.
    pub(super) fn lend(&mut self, rooms: u64, present: u64, useful: u64) -> u64 {
        if rooms == 0 {
            return present;
        }
        let fair = present.max(self.total / rooms).min(useful);
        let affordable = present + self.free / rooms;
        let size = fair.min(affordable).max(present);
        self.free -= (size - present) * rooms;
        size
    }

    /// Takes back what `rooms` rooms of `present` bytes each had been lent.
    pub(super) fn repay(&mut self, rooms: u64, present: u64) {
        let lent = present.saturating_sub(SMALL_ROOM).saturating_mul(rooms);
        self.free = self.free.saturating_add(lent).min(self.total);
    }
}

/// Bytes of the small room that every slice of every operation owns; also of a block of room. At
/// least the standing credit: what is sent early must find room. Small enough for an operation in
/// a ring of hundreds, large enough that a frame is worth its system calls.
pub(super) const SMALL_ROOM: u64 = 128 << 10;

/// A grant is sent when at least this part of the capacity has become free.
const GRANT_FRACTION: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span::new(100, 100 + SMALL_ROOM);

    #[test]
    fn grants_slide_with_what_has_gone_on() {
        let mut room = Room::new(SPAN, Form::plain(4));
        let capacity = SMALL_ROOM / 4;
        assert_eq!(room.granted(), 100 + capacity);
        assert!(!room.is_due(100));
        assert!(!room.is_due(101));
        assert!(room.is_due(100 + capacity / 4));
        assert!(!room.is_due(100 + capacity / 2), "asked for already");
        assert_eq!(room.grant(100 + capacity / 2), 100 + capacity * 3 / 2);
        // The last step is granted however small.
        assert_eq!(room.grant(SPAN.end - capacity - 1), SPAN.end - 1);
        assert!(room.is_due(SPAN.end - capacity));
    }

    #[test]
    fn memory_follows_the_window() {
        let mut pool = BlockPool::new(SMALL_ROOM as usize, 1 << 20);
        let mut room = Room::new(SPAN, Form::plain(4));
        let elements = SMALL_ROOM / 4;
        let all = Span::new(100 + elements - 2, 100 + elements + 3);
        let piece = room.piece(all);
        assert_eq!(piece, Span::new(all.start, 100 + elements));
        room.get_mut(piece, &mut pool).unwrap().unwrap().fill(1);
        let rest = Span::new(piece.end, all.end);
        assert_eq!(room.piece(rest), rest);
        room.get_mut(rest, &mut pool).unwrap().unwrap().fill(2);
        room.release(100 + elements, &mut pool);
        assert_eq!(room.get(rest), Some(&[2; 12][..]));
        assert_eq!(room.get(piece), None);
    }

    #[test]
    fn blocks_of_codes_are_never_cut() {
        let mut pool = BlockPool::new(SMALL_ROOM as usize, 1 << 20);
        let form = Form::blocks(256, 8, 1);
        let mut room = Room::new(Span::new(100, 1_000_000), form);
        assert_eq!((room.granted() - 100) % 256, 0);
        let in_one = room.piece(Span::new(100, 1_000_000));
        assert_eq!(in_one.len() % 256, 0);
        assert!(form.bytes(in_one.len()) <= SMALL_ROOM);
        let last = Span::new(in_one.end - 256, in_one.end);
        room.get_mut(last, &mut pool).unwrap().unwrap().fill(3);
        assert_eq!(room.get(last), Some(&[3; 264][..]));
        let next = Span::new(in_one.end, in_one.end + 10);
        assert_eq!(room.get_mut(next, &mut pool).unwrap().unwrap().len(), 18);
    }

    #[test]
    fn the_oldest_borrows_first_and_nothing_is_lost() {
        let mut lending = Lending::new(SMALL_ROOM * 10);
        let first = lending.lend(2, SMALL_ROOM, SMALL_ROOM * 4);
        assert_eq!(first, SMALL_ROOM * 4);
        let second = lending.lend(2, SMALL_ROOM, u64::MAX);
        assert_eq!(second, SMALL_ROOM * 3);
        assert_eq!(lending.lend(2, SMALL_ROOM, u64::MAX), SMALL_ROOM);
        lending.repay(2, first);
        lending.repay(2, second);
        assert_eq!(lending.free, lending.total);
        assert_eq!(lending.lend(0, SMALL_ROOM, u64::MAX), SMALL_ROOM);
    }
}
