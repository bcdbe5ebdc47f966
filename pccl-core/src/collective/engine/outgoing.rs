//! What happens to an operation when its data goes out.

use super::op::{Op, Trouble};
use super::scratch::{BlockPool, grow};
use crate::collective::plan::{Plan, Step};
use crate::collective::ranges::Span;
use crate::kernels;
use crate::planted::{Bug, planted};
use crate::wire::lane::FrameKind;

/// Data of one outgoing frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Outgoing {
    step: Step,
    /// Its elements.
    span: Span,
}

impl Outgoing {
    /// What the frame is.
    pub(super) fn kind(&self) -> FrameKind {
        match self.step {
            Step::Partial { .. } => FrameKind::Partial,
            Step::Result { .. } => FrameKind::Result,
        }
    }
}

/// Where a frame says that its payload belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) slice: u32,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Op {
    /// Takes the next data to send on a link, at most `most` bytes of payload. The data with the
    /// longest way to go is first; within a slice, the lowest elements.
    pub(super) fn take(&mut self, link: u32, most: u64) -> Option<Outgoing> {
        if !self.is_running() {
            return None;
        }
        while let Some(step) = self.steps.first(link) {
            let taken = match step {
                Step::Partial { position } => {
                    let slice = self.slices.get_mut(position as usize)?;
                    let limit = match planted(Bug::WindowIgnored) {
                        true => u64::MAX,
                        false => slice.send_limit,
                    };
                    let open = |first: &Span| first.start < limit;
                    let Some(first) = slice.partial_ready.first().filter(open) else {
                        self.steps.clear(step);
                        continue;
                    };
                    let room = slice.room.as_ref();
                    let piece = room.map_or(first, |room| room.piece(first));
                    let longest = piece.len().min(limit - first.start);
                    let most = self.forms.partial.fitting(most, longest);
                    let taken = slice.partial_ready.take_first(most)?;
                    if !slice.partial_ready.first().as_ref().is_some_and(open) {
                        self.steps.clear(step);
                    }
                    taken
                }
                Step::Result { position } => {
                    let slice = self.slices.get_mut(position as usize)?;
                    let Some(first) = slice.result_ready.first() else {
                        self.steps.clear(step);
                        continue;
                    };
                    let room = slice.results.as_ref();
                    let room = room.or_else(|| self.gathered.as_ref()?.codes.as_ref());
                    let piece = room.map_or(first, |room| room.piece(first));
                    let most = self.forms.result.fitting(most, piece.len());
                    let taken = slice.result_ready.take_first(most)?;
                    if slice.result_ready.is_empty() {
                        self.steps.clear(step);
                    }
                    taken
                }
            };
            return Some(Outgoing { step, span: taken });
        }
        None
    }

    /// Puts back what was taken and not sent.
    pub(super) fn put_back(&mut self, out: Outgoing) {
        let (Step::Partial { position } | Step::Result { position }) = out.step;
        let Some(slice) = self.slices.get_mut(position as usize) else {
            return;
        };
        let ready = match out.step {
            Step::Partial { .. } => &mut slice.partial_ready,
            Step::Result { .. } => &mut slice.result_ready,
        };
        if ready.insert(out.span).is_ok() {
            self.steps.set(out.step);
        }
    }

    /// Where the receiver shall put it.
    pub(super) fn place(&self, out: Outgoing) -> Place {
        let (position, form) = match out.step {
            Step::Partial { position } => (position, self.forms.partial),
            Step::Result { position } => (position, self.forms.result),
        };
        let slice = self.plan.slice_at(position);
        Place {
            slice,
            offset: form.bytes(out.span.start - self.origin(slice)),
            // At most a segment.
            length: form.bytes(out.span.len()) as u32,
        }
    }

    /// Whether the payload must be computed before it can be sent: contributions that are quantised,
    /// or of a type whose partials are wider.
    pub(super) fn is_computed(&self, out: Outgoing) -> bool {
        let starts = |position| self.plan.starts(position);
        matches!(out.step, Step::Partial { position } if starts(position))
            && !self.forms.fit_in_place()
    }

    /// Computes the payload into the front of `buffer`.
    pub(super) fn compute(&self, out: Outgoing, buffer: &mut Vec<u8>) -> Result<(), Trouble> {
        let length = self.place(out).length as usize;
        grow(buffer, length)?;
        let (start, len) = self.bytes(out.span);
        let (Some(own), Some(to)) = (self.lent.send(start, len), buffer.get_mut(..length)) else {
            return Err(Trouble::Own("a frame outside of the buffers".into()));
        };
        match self.coding {
            Some(coding) => kernels::encode(coding, own, to)?,
            None => kernels::start(self.descriptor.data_type, own, to)?,
        }
        Ok(())
    }

    /// Payload that lies in the user's buffers, or in the room of its slice.
    pub(super) fn payload(&self, out: Outgoing) -> Option<&[u8]> {
        let (start, len) = self.bytes(out.span);
        match out.step {
            Step::Partial { position } if self.plan.starts(position) => self.lent.send(start, len),
            Step::Partial { position } => match &self.slices.get(position as usize)?.room {
                Some(room) => room.get(out.span),
                None => self.lent.recv(start, len),
            },
            Step::Result { position } => {
                let room = self.slices.get(position as usize)?.results.as_ref();
                match room.or_else(|| self.gathered.as_ref()?.codes.as_ref()) {
                    Some(room) => room.get(out.span),
                    None => self.lent.recv(start, len),
                }
            }
        }
    }

    /// Takes note that a socket has taken all of it. Returns the position of the slice for which
    /// the previous rank is to be told of new room, if so.
    pub(super) fn sent(&mut self, out: Outgoing, rooms: &mut BlockPool) -> Option<u32> {
        let (Step::Partial { position } | Step::Result { position }) = out.step;
        let slice = self.slices.get_mut(position as usize)?;
        if let Step::Result { .. } = out.step {
            if self.coding.is_some() {
                let _ = slice.result_sent.insert(out.span);
            }
            match &mut slice.results {
                Some(room) => room.release(slice.result_sent.end_from(slice.span.start), rooms),
                None => self.leave_codes(rooms),
            }
            return None;
        }
        // What was taken once cannot be taken again.
        let _ = slice.partial_sent.insert(out.span);
        let gone = slice.gone();
        let room = slice.room.as_mut()?;
        room.release(gone, rooms);
        room.is_due(gone).then_some(position)
    }

    /// Positions of slices for which who sends their partials is to be told of new room.
    pub(super) fn grants_due(&mut self) -> Vec<u32> {
        let due = self
            .slices
            .iter_mut()
            .zip(0..)
            .filter_map(|(slice, position)| {
                let gone = slice.gone();
                slice.room.as_mut()?.is_due(gone).then_some(position)
            });
        due.collect()
    }

    /// Forgets that a grant was to be sent.
    pub(super) fn grant_dropped(&mut self, position: u32) {
        let slice = self.slices.get_mut(position as usize);
        if let Some(room) = slice.and_then(|slice| slice.room.as_mut()) {
            room.grant_dropped();
        }
    }

    /// Positions of the slices that have room here and whose partials come in on a link.
    pub(super) fn positions_with_room(&self, link: u32) -> Vec<u32> {
        let slices = self.slices.iter().zip(0..);
        let rooms =
            slices.filter(|(slice, at)| slice.room.is_some() && self.plan.granted_on(*at) == link);
        rooms.map(|(_, position)| position).collect()
    }

    /// What to tell the previous rank of the room for a slice: the slice, and the bytes of partials
    /// from its start on that may be sent.
    pub(super) fn grant(&mut self, position: u32) -> Option<(u32, u64)> {
        let form = self.forms.partial;
        let slice = self.slices.get_mut(position as usize)?;
        let gone = slice.gone();
        let granted = slice.room.as_mut()?.grant(gone);
        Some((slice.index, form.bytes(granted - slice.span.start)))
    }
}

/// Which of the outgoing steps of a rank have data that can go.
#[derive(Debug)]
pub(super) struct Steps {
    plan: Plan,
    /// One bit per step.
    words: Vec<u64>,
}

impl Steps {
    /// No step has anything.
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            plan,
            words: vec![0; plan.steps().div_ceil(64)],
        }
    }

    /// Notes that a step has data.
    pub(super) fn set(&mut self, step: Step) {
        let number = self.plan.step_number(step);
        if let Some(word) = self.words.get_mut(number / 64) {
            *word |= 1 << (number % 64);
        }
    }

    /// Notes that a step has none, or may not send it.
    fn clear(&mut self, step: Step) {
        let number = self.plan.step_number(step);
        if let Some(word) = self.words.get_mut(number / 64) {
            *word &= !(1 << (number % 64));
        }
    }

    /// Whether no step of a link has data.
    pub(super) fn is_empty(&self, link: u32) -> bool {
        self.first(link).is_none()
    }

    /// Whether there are partials for a link. Only these can go before the other end's OPEN is here.
    pub(super) fn has_partials(&self, link: u32) -> bool {
        matches!(self.first(link), Some(Step::Partial { .. }))
    }

    fn first(&self, link: u32) -> Option<Step> {
        let number = match self.plan {
            Plan::Ring(_) => {
                let mut words = self.words.iter().enumerate();
                let (index, word) = words.find(|(_, word)| **word != 0)?;
                index * 64 + word.trailing_zeros() as usize
            }
            Plan::Gather(_) => {
                let has = |number: &usize| {
                    let word = self.words.get(number / 64);
                    word.is_some_and(|word| word & (1 << (number % 64)) != 0)
                };
                let mut steps = self.plan.sent_on(link).map(|position| position as usize);
                steps.find(has)?
            }
        };
        self.plan.step(number)
    }
}
