//! Who sends what to whom, in which order, and who finishes it.
//!
//! A tensor is cut into slices. Each has one *owner*, who has the contributions of all in the end,
//! finishes their sum, and whose result all others read. What differs is how contributions get to the
//! owner and the result to the others:
//!
//! - [`ring`]: both go around, through everybody.
//! - [`gather`]: both go straight. With one slice per rank that is the *direct* algorithm; with one
//!   slice, owned by the *hub*, it is the *star*.
//!
//! Seen from one rank, an operation has *positions*, one for each slice that it meets on each way, and
//! *links*, its neighbours; and what it sends are *steps*, numbered so that the lower goes first.

pub mod gather;
pub mod ring;

use std::ops::Range;

use self::gather::GatherPlan;
use self::ring::RingPlan;
use super::ranges::Span;

/// Plan of one all-reduce, seen from one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Around the ring.
    Ring(RingPlan),
    /// Straight to the owners and back: direct, or star.
    Gather(GatherPlan),
}

/// One outgoing stream of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Contributions so far to the slice that this rank has at this position.
    Partial {
        /// Which: see the plan.
        position: u32,
    },
    /// The finished slice that this rank has at this position.
    Result {
        /// Which: see the plan.
        position: u32,
    },
}

impl Plan {
    /// Number of ranks.
    pub const fn world(&self) -> u32 {
        match self {
            Self::Ring(plan) => plan.world(),
            Self::Gather(plan) => plan.world(),
        }
    }

    /// Elements of the tensor.
    pub const fn count(&self) -> u64 {
        match self {
            Self::Ring(plan) => plan.count(),
            Self::Gather(plan) => plan.count(),
        }
    }

    /// Elements of slice `slice`. Empty for slices that there are not.
    pub const fn slice(&self, slice: u32) -> Span {
        match self {
            Self::Ring(plan) => plan.slice(slice),
            Self::Gather(plan) => plan.slice(slice),
        }
    }

    /// Ranks that this one exchanges data with. Around the ring: the next, then the one before, if
    /// that is another. Straight: in the order in which an owner adds their contributions.
    pub fn links(&self) -> Vec<u32> {
        match self {
            Self::Ring(plan) if plan.world() == 1 => Vec::new(),
            Self::Ring(plan) if plan.next() == plan.previous() => vec![plan.next()],
            Self::Ring(plan) => vec![plan.next(), plan.previous()],
            Self::Gather(plan) => (0..plan.links()).map(|link| plan.linked(link)).collect(),
        }
    }

    /// Number of positions.
    pub const fn positions(&self) -> u32 {
        match self {
            Self::Ring(plan) => plan.world(),
            Self::Gather(plan) => plan.positions(),
        }
    }

    /// Slice that this rank has at `position`; one that there is not if nothing is there.
    pub const fn slice_at(&self, position: u32) -> u32 {
        match self {
            Self::Ring(plan) => plan.slice_at(position),
            Self::Gather(plan) => plan.slice_at(position),
        }
    }

    /// Position of slice `slice` as frames on a link speak of it: whether of its partials that come in
    /// there (`partials_in`), or of its results that do and its partials that go out. None if they
    /// cannot.
    pub const fn position(&self, slice: u32, link: u32, partials_in: bool) -> Option<u32> {
        match self {
            Self::Ring(plan) => plan.position(slice),
            Self::Gather(plan) => plan.position(slice, link, partials_in),
        }
    }

    /// Whether the slice at `position` goes out as the own contribution to it, and nothing else.
    pub const fn starts(&self, position: u32) -> bool {
        match self {
            Self::Ring(plan) => position == 0 && plan.sends_partials(0),
            Self::Gather(_) => !GatherPlan::is_own(position),
        }
    }

    /// Whether partials of the slice at `position` come in here.
    pub const fn receives_partials(&self, position: u32) -> bool {
        match self {
            Self::Ring(plan) => plan.receives_partials(position),
            Self::Gather(_) => GatherPlan::is_own(position),
        }
    }

    /// Whether partials of the slice at `position` go out here.
    pub const fn sends_partials(&self, position: u32) -> bool {
        match self {
            Self::Ring(plan) => plan.sends_partials(position),
            Self::Gather(_) => !GatherPlan::is_own(position),
        }
    }

    /// Whether results of the slice at `position` come in here.
    pub const fn receives_results(&self, position: u32) -> bool {
        match self {
            Self::Ring(plan) => plan.receives_results(position),
            Self::Gather(_) => !GatherPlan::is_own(position),
        }
    }

    /// Links that steps go out on: the first so many.
    pub const fn senders(&self) -> u32 {
        match self {
            Self::Ring(plan) if plan.world() > 1 => 1,
            Self::Ring(_) => 0,
            Self::Gather(plan) => plan.links(),
        }
    }

    /// Positions whose steps go out on this link, and whose grants come in on it.
    pub const fn sent_on(&self, link: u32) -> Range<u32> {
        match self {
            Self::Ring(plan) if link == 0 => 0..plan.world(),
            Self::Ring(_) => 0..0,
            Self::Gather(_) => 2 * link..2 * link + 2,
        }
    }

    /// Link that partials of the slice at `position` come in on.
    pub const fn granted_on(&self, position: u32) -> u32 {
        match self {
            Self::Ring(plan) if plan.world() > 2 => 1,
            Self::Ring(_) => 0,
            Self::Gather(_) => position / 2,
        }
    }

    /// Steps that there can be.
    pub const fn steps(&self) -> usize {
        match self {
            Self::Ring(plan) => 2 * (plan.world() as usize - 1),
            Self::Gather(plan) => plan.positions() as usize,
        }
    }

    /// Number that orders the outgoing streams of this rank, from zero; lower goes first. Those of
    /// a link follow one another.
    pub const fn step_number(&self, step: Step) -> usize {
        match self {
            Self::Ring(plan) => plan.step_number(step),
            Self::Gather(_) => match step {
                Step::Partial { position } | Step::Result { position } => position as usize,
            },
        }
    }

    /// The step of a number: the inverse of [`Self::step_number`].
    pub const fn step(&self, number: usize) -> Option<Step> {
        match self {
            Self::Ring(plan) => plan.step(number),
            Self::Gather(plan) => plan.step(number),
        }
    }
}

/// Cuts a range into segments of at most `most` elements, in order. Segment sizes are each
/// sender's own matter.
pub fn segments(span: Span, most: u64) -> impl Iterator<Item = Span> {
    let mut start = span.start;
    std::iter::from_fn(move || {
        let end = span.end.min(start.saturating_add(most.max(1)));
        let segment = Span::new(start, end);
        start = end.max(start);
        (!segment.is_empty()).then_some(segment)
    })
}

/// Part `part` of `parts` equal ones; the first ones are longer by one where the count does not divide.
const fn equal_part(count: u64, parts: u32, part: u32) -> Span {
    if part >= parts {
        return Span::new(0, 0);
    }
    let (parts, part) = (parts as u64, part as u64);
    let (base, longer) = (count / parts, count % parts);
    let start = part * base + if part < longer { part } else { longer };
    let length = base + if part < longer { 1 } else { 0 };
    Span::new(start, start + length)
}
