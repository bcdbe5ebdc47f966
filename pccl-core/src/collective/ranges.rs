//! Ranges of elements, and sets of them: which part of a slice has come, is ready, has gone.

/// Elements from `start` to before `end`, counted from the start of the tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// First element.
    pub start: u64,
    /// One past the last element.
    pub end: u64,
}

impl Span {
    /// Elements from `start` to before `end`; empty if they are the wrong way round.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// Number of elements.
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is no element in it.
    pub const fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Whether all of `other` lies in it.
    pub const fn contains(&self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// Disjoint ranges in ascending order; neighbours that touch are one range.
///
/// A few dozen at most in practice: lanes deliver what they carry in order, so there are about as
/// many gaps as lanes have segments on their way.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeSet {
    spans: Vec<Span>,
}

/// Why a range was not added to a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeRefused {
    /// Part of it is there already.
    Overlap,
    /// There would be more than [`RANGES_LIMIT`] ranges.
    TooMany,
}

impl RangeSet {
    /// Adds a range of which nothing is there yet. An empty one changes nothing.
    pub fn insert(&mut self, span: Span) -> Result<(), RangeRefused> {
        if span.is_empty() {
            return Ok(());
        }
        // The common case first: what comes continues what came last.
        let at = match self.spans.last() {
            Some(last) if last.start < span.start => self.spans.len(),
            _ => self.spans.partition_point(|s| s.start < span.start),
        };
        let before = at.checked_sub(1).and_then(|i| self.spans.get(i)).copied();
        let after = self.spans.get(at).copied();
        if before.is_some_and(|b| b.end > span.start) || after.is_some_and(|a| a.start < span.end) {
            return Err(RangeRefused::Overlap);
        }
        let joins_before = before.is_some_and(|b| b.end == span.start);
        let joins_after = after.is_some_and(|a| a.start == span.end);
        match (joins_before, joins_after) {
            (true, true) => {
                let end = self.spans.remove(at).end;
                self.set_end(at - 1, end);
            }
            (true, false) => self.set_end(at - 1, span.end),
            (false, true) => {
                if let Some(after) = self.spans.get_mut(at) {
                    after.start = span.start;
                }
            }
            (false, false) => {
                if self.spans.len() >= RANGES_LIMIT {
                    return Err(RangeRefused::TooMany);
                }
                self.spans.insert(at, span);
            }
        }
        Ok(())
    }

    /// Whether all of `span` is there.
    pub fn contains(&self, span: Span) -> bool {
        if span.is_empty() {
            return true;
        }
        let at = self.spans.partition_point(|s| s.start <= span.start);
        at.checked_sub(1)
            .and_then(|i| self.spans.get(i))
            .is_some_and(|s| s.contains(span))
    }

    /// First part of `span` that is not there.
    pub fn first_gap(&self, span: Span) -> Option<Span> {
        let mut start = span.start;
        let mut at = self.spans.partition_point(|s| s.end <= start);
        while let Some(next) = self.spans.get(at).filter(|s| s.start <= start) {
            start = next.end;
            at += 1;
        }
        let end = self
            .spans
            .get(at)
            .map_or(span.end, |next| next.start.min(span.end));
        (start < end).then_some(Span::new(start, end))
    }

    /// The range with the lowest elements.
    pub fn first(&self) -> Option<Span> {
        self.spans.first().copied()
    }

    /// Takes at most `most` elements off the first range.
    pub fn take_first(&mut self, most: u64) -> Option<Span> {
        let first = self.spans.first_mut()?;
        let taken = Span::new(first.start, first.end.min(first.start.saturating_add(most)));
        if taken.is_empty() {
            return None;
        }
        if taken.end == first.end {
            self.spans.remove(0);
        } else {
            first.start = taken.end;
        }
        Some(taken)
    }

    /// End of what is there without a gap from `start` on.
    pub fn end_from(&self, start: u64) -> u64 {
        match self.first() {
            Some(first) if first.start <= start => first.end.max(start),
            _ => start,
        }
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.spans.iter().copied()
    }

    fn set_end(&mut self, at: usize, end: u64) {
        if let Some(span) = self.spans.get_mut(at) {
            span.end = end;
        }
    }
}

/// Most ranges in a set: 1 MiB of them. An honest sender makes as many gaps as it has segments on
/// their way, at most 64 lanes with some hundred each; one that makes more wants our memory.
pub const RANGES_LIMIT: usize = 65_536;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_join_and_overlaps_are_refused() {
        let mut set = RangeSet::default();
        set.insert(Span::new(10, 20)).unwrap();
        set.insert(Span::new(30, 40)).unwrap();
        assert_eq!(set.insert(Span::new(19, 21)), Err(RangeRefused::Overlap));
        assert_eq!(set.insert(Span::new(0, 50)), Err(RangeRefused::Overlap));
        set.insert(Span::new(20, 30)).unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [Span::new(10, 40)]);
        assert_eq!(set.end_from(10), 40);
        assert_eq!(set.end_from(5), 5);
        assert_eq!(set.take_first(4), Some(Span::new(10, 14)));
        assert_eq!(set.take_first(100), Some(Span::new(14, 40)));
        assert_eq!(set.take_first(1), None);
    }

    #[test]
    fn the_number_of_ranges_is_limited() {
        let mut set = RangeSet::default();
        for i in 0..RANGES_LIMIT as u64 {
            set.insert(Span::new(2 * i, 2 * i + 1)).unwrap();
        }
        let more = Span::new(4 * RANGES_LIMIT as u64, 4 * RANGES_LIMIT as u64 + 1);
        assert_eq!(set.insert(more), Err(RangeRefused::TooMany));
    }

    proptest! {
        #[test]
        fn behaves_like_a_set_of_elements(
            ranges in proptest::collection::vec((0u64..64, 0u64..8), 0..40),
            probe in (0u64..64, 0u64..8),
        ) {
            let mut set = RangeSet::default();
            let mut model = std::collections::BTreeSet::new();
            for (start, len) in ranges {
                let span = Span::new(start, start + len);
                let overlaps = (span.start..span.end).any(|e| model.contains(&e));
                prop_assert_eq!(set.insert(span).is_err(), overlaps);
                if !overlaps {
                    model.extend(span.start..span.end);
                }
            }
            let listed: Vec<u64> = set.iter().flat_map(|s| s.start..s.end).collect();
            prop_assert!(listed.iter().eq(model.iter()));
            let probe = Span::new(probe.0, probe.0 + probe.1);
            let missing = (probe.start..probe.end).find(|e| !model.contains(e));
            prop_assert_eq!(set.contains(probe), missing.is_none());
            prop_assert_eq!(set.first_gap(probe).map(|g| g.start), missing);
            if let Some(gap) = set.first_gap(probe) {
                prop_assert!((gap.start..gap.end).all(|e| !model.contains(&e)));
                prop_assert!(gap.end == probe.end || model.contains(&gap.end));
            }
        }
    }
}
