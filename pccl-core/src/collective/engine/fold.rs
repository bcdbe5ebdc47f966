//! What an operation does with data that has come: folds it, finishes it, takes it over.

use super::op::{Op, Part, Trouble, outside};
use super::scratch::{BlockPool, grow};
use crate::collective::plan::{Plan, Step, segments};
use crate::collective::ranges::Span;
use crate::kernels::{self, Coding, Form};
use crate::trap::{self, Trap};
use crate::types::{ReduceDescriptor, ReduceOp};

impl Op {
    /// Adds the own contribution to partials that have come, whole and unharmed.
    pub(super) fn fold(
        &mut self,
        part: Part,
        incoming: &[u8],
        rooms: &mut BlockPool,
        originals: &mut BlockPool,
    ) -> Result<(), Trouble> {
        let Plan::Ring(plan) = self.plan else {
            self.put_in_room(part, incoming)?;
            return self.contributed(part, rooms, originals);
        };
        let ReduceDescriptor { data_type, op, .. } = self.descriptor;
        let Part { position, span } = part;
        let (start, len) = self.bytes(span);
        self.stats.rx_bytes += incoming.len() as u64;
        if plan.owns(position) {
            self.save(span, originals)?;
            if let Some(coding) = self.coding {
                self.finish_quantized(coding, part, incoming, rooms)?;
                self.has_result(part);
                return Ok(());
            }
            let world = self.plan.world();
            if self.lent.in_place() {
                let own = self.lent.recv_mut(start, len).ok_or_else(outside)?;
                kernels::fold_finish_in_place(data_type, op, world, incoming, own)?;
            } else {
                let (own, out) = self.lent.both(start, len).ok_or_else(outside)?;
                kernels::fold_finish(data_type, op, world, incoming, own, out)?;
            }
            trap::pass(Trap::Fold);
            self.has_result(part);
            return Ok(());
        }
        if self.slice(position)?.room.is_some() {
            self.fold_into_room(part, incoming, rooms)?;
        } else if self.lent.in_place() {
            self.save(span, originals)?;
            let own = self.lent.recv_mut(start, len).ok_or_else(outside)?;
            // Dividing is the owner's part.
            let op = if op == ReduceOp::Avg {
                ReduceOp::Sum
            } else {
                op
            };
            kernels::fold_finish_in_place(data_type, op, 1, incoming, own)?;
        } else {
            let (own, out) = self.lent.both(start, len).ok_or_else(outside)?;
            kernels::fold(data_type, op, incoming, own, out)?;
        }
        self.slice(position)?
            .partial_ready
            .insert(span)
            .map_err(|_| Trouble::Own("a partial is ready twice".into()))?;
        self.steps.set(Step::Partial { position });
        Ok(())
    }

    /// Takes over a part of the result that has come quantised, whole and unharmed.
    pub(super) fn take_result(
        &mut self,
        part: Part,
        payload: &[u8],
        rooms: &mut BlockPool,
        originals: &mut BlockPool,
    ) -> Result<(), Trouble> {
        let coding = self.coding.ok_or_else(outside)?;
        let (start, len) = self.bytes(part.span);
        self.stats.rx_bytes += payload.len() as u64;
        self.save(part.span, originals)?;
        let out = self.lent.recv_mut(start, len).ok_or_else(outside)?;
        kernels::decode(coding, payload, out)?;
        let form = self.forms.result;
        if let Some(room) = &mut self.slice(part.position)?.results {
            let mut rest = part.span;
            while !rest.is_empty() {
                let piece = room.piece(rest);
                let from = payload_of(form, part.span, piece, payload)?;
                let to = room.get_mut(piece, rooms)?.ok_or_else(outside)?;
                to.copy_from_slice(from);
                rest.start = piece.end;
            }
        }
        self.has_result(part);
        Ok(())
    }

    /// Does all of it, in a ring of one. Nothing travels, and so nothing is quantised.
    pub(super) fn reduce_alone(&mut self, originals: &mut BlockPool) -> Result<(), Trouble> {
        let ReduceDescriptor { data_type, op, .. } = self.descriptor;
        let mut scratch = Vec::new();
        for span in segments(Span::new(0, self.plan.count()), ALONE_ELEMENTS) {
            let (start, len) = self.bytes(span);
            let partial = span.len() as usize * data_type.partial().size();
            grow(&mut scratch, partial)?;
            let partial = scratch.get_mut(..partial).ok_or_else(outside)?;
            kernels::start(
                data_type,
                self.lent.send(start, len).ok_or_else(outside)?,
                partial,
            )?;
            self.save(span, originals)?;
            let out = self.lent.recv_mut(start, len).ok_or_else(outside)?;
            kernels::finish(data_type, op, 1, partial, out)?;
            self.has_result(Part { position: 0, span });
        }
        Ok(())
    }

    /// Finishes a slice that ends here, and quantises it once for all: this rank's own result is read
    /// from the very codes that the others get.
    fn finish_quantized(
        &mut self,
        coding: Coding,
        part: Part,
        incoming: &[u8],
        rooms: &mut BlockPool,
    ) -> Result<(), Trouble> {
        let op = self.descriptor.op;
        let (size, form) = (self.descriptor.data_type.size() as u64, self.forms.result);
        let world = self.plan.world();
        let room = self
            .slices
            .get_mut(part.position as usize)
            .and_then(|slice| slice.results.as_mut())
            .ok_or_else(outside)?;
        let mut rest = part.span;
        while !rest.is_empty() {
            let mut piece = room.piece(rest);
            piece.end = piece.end.min(piece.start + CACHED_CELLS * form.cell());
            let incoming = payload_of(form, part.span, piece, incoming)?;
            let codes = room.get_mut(piece, rooms)?.ok_or_else(outside)?;
            let (start, len) = (piece.start * size, piece.len() * size);
            let own = self.lent.send(start, len).ok_or_else(outside)?;
            kernels::fold_finish_quantized(coding, op, world, incoming, own, codes)?;
            let out = self.lent.recv_mut(start, len).ok_or_else(outside)?;
            kernels::decode(coding, codes, out)?;
            rest.start = piece.end;
        }
        Ok(())
    }

    fn fold_into_room(
        &mut self,
        part: Part,
        incoming: &[u8],
        rooms: &mut BlockPool,
    ) -> Result<(), Trouble> {
        let ReduceDescriptor { data_type, op, .. } = self.descriptor;
        let (size, form) = (data_type.size() as u64, self.forms.partial);
        let coding = self.coding;
        let lent = &self.lent;
        let room = self
            .slices
            .get_mut(part.position as usize)
            .and_then(|slice| slice.room.as_mut())
            .ok_or_else(outside)?;
        let mut rest = part.span;
        while !rest.is_empty() {
            let piece = room.piece(rest);
            let incoming = payload_of(form, part.span, piece, incoming)?;
            let own = lent.send(piece.start * size, piece.len() * size);
            let out = room.get_mut(piece, rooms)?;
            let (Some(own), Some(out)) = (own, out) else {
                return Err(outside());
            };
            match coding {
                Some(coding) => kernels::fold_quantized(coding, op, incoming, own, out)?,
                None => kernels::fold(data_type, op, incoming, own, out)?,
            }
            rest.start = piece.end;
        }
        Ok(())
    }
}

/// The part of a payload, which holds `span`, that belongs to `piece`.
fn payload_of(form: Form, span: Span, piece: Span, payload: &[u8]) -> Result<&[u8], Trouble> {
    let start = form.bytes(piece.start - span.start) as usize;
    let end = start + form.bytes(piece.len()) as usize;
    payload.get(start..end).ok_or_else(outside)
}

/// Blocks of quantised data that are finished at once, in two passes: they fit the nearest cache
/// with what they are made of.
const CACHED_CELLS: u64 = 8;

/// Elements that a ring of one does at once: they fit the cache.
const ALONE_ELEMENTS: u64 = 16 * 1024;
