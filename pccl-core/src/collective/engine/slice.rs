//! How far one slice of one operation is.

use super::window::{Room, SMALL_ROOM};
use crate::collective::ranges::{RangeSet, Span};
use crate::kernels::Form;

/// One slice as seen from one rank.
#[derive(Debug)]
pub(super) struct Slice {
    /// Rank where it starts.
    pub(super) index: u32,
    /// Its elements.
    pub(super) span: Span,
    /// Partials of which at least the header has come.
    pub(super) partial_in: RangeSet,
    /// Contributions that are here, whole and unharmed; only where they wait for one another.
    pub(super) partial_came: RangeSet,
    /// Partials that hold the own contribution and have not been given to a lane.
    pub(super) partial_ready: RangeSet,
    /// Partials that sockets have taken. Only of these can there be a result. Of contributions that
    /// wait for one another: those that are in the sum.
    pub(super) partial_sent: RangeSet,
    /// Results of which at least the header has come.
    pub(super) result_in: RangeSet,
    /// Results to be passed on that have not been given to a lane.
    pub(super) result_ready: RangeSet,
    /// Quantised results that sockets have taken.
    pub(super) result_sent: RangeSet,
    /// Element up to which the next rank has room for partials.
    pub(super) send_limit: u64,
    /// Where partials wait that do not fit into the receive buffer; none if they do.
    pub(super) room: Option<Room>,
    /// Where results wait to be passed on, if they travel quantised.
    pub(super) results: Option<Room>,
}

impl Slice {
    /// The slice, with the room that each end of an edge has for it in any case: `wide_here` if
    /// partials wait in room at this rank, `wide_next` if at the next one; `form` is that of
    /// partials.
    pub(super) fn new(
        index: u32,
        span: Span,
        form: Form,
        wide_here: bool,
        wide_next: bool,
    ) -> Self {
        let small = span.start + form.fitting(SMALL_ROOM, span.len());
        Self {
            index,
            span,
            partial_in: RangeSet::default(),
            partial_came: RangeSet::default(),
            partial_ready: RangeSet::default(),
            partial_sent: RangeSet::default(),
            result_in: RangeSet::default(),
            result_ready: RangeSet::default(),
            send_limit: if wide_next { small } else { u64::MAX },
            result_sent: RangeSet::default(),
            room: wide_here.then(|| Room::new(span, form)),
            results: None,
        }
    }

    /// First element that has not been passed on as a partial.
    pub(super) fn gone(&self) -> u64 {
        self.partial_sent.end_from(self.span.start)
    }
}
