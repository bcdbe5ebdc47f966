//! The ring: who sends what to whom, in which order, and who finishes it.
//!
//! The tensor is cut into one slice per rank. Slice `s` starts at rank `s`, which sends its own
//! contribution to the next rank; every rank on the way adds its own to what comes, and the last
//! one, rank `s - 1`, owns the slice: it finishes the sum. From there the result goes around the
//! ring once more, verbatim, up to the rank before the owner. (Rule 9)
//!
//! So, seen from one rank, there are 2(n-1) *steps* out and as many in: partials of the slice that
//! started zero, one, two ... ranks before, then results that were finished zero, one, two ...
//! ranks before. Data with the lower step has the longer way to go and is sent first; that way
//! no link of the ring waits at the end for what has yet to go all around it.

use super::{Step, equal_part};
use crate::collective::ranges::Span;

/// Plan of one all-reduce, seen from one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingPlan {
    world: u32,
    rank: u32,
    count: u64,
}

impl RingPlan {
    /// Plan for `count` elements over `world` ranks, seen from `rank`; none if there is no such
    /// rank.
    pub const fn new(world: u32, rank: u32, count: u64) -> Option<Self> {
        if rank < world {
            Some(Self { world, rank, count })
        } else {
            None
        }
    }

    /// Number of ranks, and of slices.
    pub const fn world(&self) -> u32 {
        self.world
    }

    /// Elements of the tensor.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Rank that everything is sent to.
    pub const fn next(&self) -> u32 {
        self.forward(self.rank, 1)
    }

    /// Rank that everything comes from.
    pub const fn previous(&self) -> u32 {
        self.back(self.rank, 1)
    }

    /// Elements of slice `slice`: equal parts, the first ones longer by one where the count does
    /// not divide. Empty for slices that there are not.
    pub const fn slice(&self, slice: u32) -> Span {
        equal_part(self.count, self.world, slice)
    }

    /// Ranks between the start of slice `slice` and this rank; none if there is no such slice.
    pub const fn position(&self, slice: u32) -> Option<u32> {
        if slice < self.world {
            Some(self.back(self.rank, slice))
        } else {
            None
        }
    }

    /// Slice that this rank has at `position`: the inverse of [`Self::position`].
    pub const fn slice_at(&self, position: u32) -> u32 {
        self.back(self.rank, position % self.world)
    }

    /// Whether this rank finishes the slice that it has at `position`.
    pub const fn owns(&self, position: u32) -> bool {
        position + 1 == self.world
    }

    /// Whether partials of the slice at `position` come in here.
    pub const fn receives_partials(&self, position: u32) -> bool {
        position > 0 && position < self.world
    }

    /// Whether partials of the slice at `position` go out here.
    pub const fn sends_partials(&self, position: u32) -> bool {
        position + 1 < self.world
    }

    /// Whether results of the slice at `position` come in here: to everybody but the owner.
    pub const fn receives_results(&self, position: u32) -> bool {
        position + 1 < self.world
    }

    /// Whether results of the slice at `position` go out here: from everybody but the rank before
    /// the owner.
    pub const fn sends_results(&self, position: u32) -> bool {
        self.world > 1 && position + 2 != self.world
    }

    /// Number that orders the outgoing streams of this rank, from zero; lower goes first.
    pub const fn step_number(&self, step: Step) -> usize {
        match step {
            Step::Partial { position } => position as usize,
            // The owner is at the last position, the rank after it at position zero.
            Step::Result { position } => {
                self.world as usize - 1 + ((position + 1) % self.world) as usize
            }
        }
    }

    /// The step of a number: the inverse of [`Self::step_number`].
    pub const fn step(&self, number: usize) -> Option<Step> {
        let last = self.world as usize - 1;
        if number < last {
            Some(Step::Partial {
                position: number as u32,
            })
        } else if number < 2 * last {
            let hops = (number - last) as u32;
            Some(Step::Result {
                position: self.back(hops, 1),
            })
        } else {
            None
        }
    }

    const fn forward(&self, rank: u32, by: u32) -> u32 {
        ((rank as u64 + by as u64) % self.world as u64) as u32
    }

    const fn back(&self, rank: u32, by: u32) -> u32 {
        ((rank as u64 + self.world as u64 - by as u64) % self.world as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::collective::plan::segments;

    fn plans(world: u32, count: u64) -> Vec<RingPlan> {
        (0..world)
            .map(|rank| RingPlan::new(world, rank, count).unwrap())
            .collect()
    }

    #[test]
    fn there_is_no_plan_for_a_rank_outside_the_ring() {
        assert_eq!(RingPlan::new(3, 3, 7), None);
        assert_eq!(RingPlan::new(0, 0, 7), None);
    }

    #[test]
    fn two_ranks_exchange_partials_then_results() {
        let plan = RingPlan::new(2, 0, 5).unwrap();
        assert_eq!((plan.next(), plan.previous()), (1, 1));
        assert_eq!(
            (plan.slice(0), plan.slice(1)),
            (Span::new(0, 3), Span::new(3, 5))
        );
        assert_eq!(plan.step(0), Some(Step::Partial { position: 0 }));
        assert_eq!(plan.step(1), Some(Step::Result { position: 1 }));
        assert_eq!(plan.step(2), None);
        assert!(plan.owns(1) && plan.slice_at(1) == 1);
    }

    #[test]
    fn one_rank_moves_nothing() {
        let plan = RingPlan::new(1, 0, 5).unwrap();
        assert_eq!(plan.step(0), None);
        assert!(plan.owns(0) && !plan.sends_results(0) && !plan.receives_results(0));
    }

    #[test]
    fn counts_beyond_4_gib_do_not_overflow() {
        let plan = RingPlan::new(3, 2, u64::MAX).unwrap();
        assert_eq!(plan.slice(2).end, u64::MAX);
        assert_eq!(plan.slice(1).end, plan.slice(2).start);
    }

    proptest! {
        #[test]
        fn slices_tile_the_tensor_in_nearly_equal_parts(
            world in 1u32..300,
            count in prop_oneof![0u64..1000, (1u64 << 32)..(1 << 40), (u64::MAX - 1000)..=u64::MAX],
        ) {
            let plan = RingPlan::new(world, 0, count).unwrap();
            let mut end = 0;
            for s in 0..world {
                let slice = plan.slice(s);
                prop_assert_eq!(slice.start, end);
                end = slice.end;
                let base = count / u64::from(world);
                prop_assert!(slice.len() == base || slice.len() == base + 1);
            }
            prop_assert_eq!(end, count);
            prop_assert!(plan.slice(world).is_empty());
        }

        /// Plays the plan: every rank folds what comes with its own contribution, in segments of
        /// its own size, and passes on what it has.
        #[test]
        fn every_contribution_counts_once_in_ring_order(
            world in 2u32..9,
            count in 0u64..40,
            sizes in proptest::collection::vec(1u64..7, 9),
        ) {
            let plans = plans(world, count);
            for s in 0..world {
                let mut partial: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
                let mut result_at: BTreeMap<u32, u64> = BTreeMap::new();
                let mut rank = s;
                loop {
                    let plan = &plans[rank as usize];
                    let position = plan.position(s).unwrap();
                    prop_assert_eq!(plan.slice_at(position), s);
                    prop_assert_eq!(plan.receives_partials(position), rank != s);
                    for seg in segments(plan.slice(s), sizes[rank as usize]) {
                        for e in seg.start..seg.end {
                            partial.entry(e).or_default().push(rank);
                        }
                    }
                    if !plan.sends_partials(position) {
                        break;
                    }
                    prop_assert_eq!(plans[plan.next() as usize].previous(), rank);
                    rank = plan.next();
                }
                prop_assert!(plans[rank as usize].owns(plans[rank as usize].position(s).unwrap()));
                let order: Vec<u32> = (0..world).map(|i| (s + i) % world).collect();
                prop_assert_eq!(partial.len() as u64, plans[0].slice(s).len());
                prop_assert!(partial.values().all(|got| *got == order));
                // The result goes from the owner to everybody else.
                loop {
                    let plan = &plans[rank as usize];
                    let position = plan.position(s).unwrap();
                    *result_at.entry(rank).or_default() += 1;
                    prop_assert_eq!(plan.receives_results(position), result_at.len() > 1);
                    if !plan.sends_results(position) {
                        break;
                    }
                    rank = plan.next();
                }
                prop_assert_eq!(result_at.len() as u32, world);
                prop_assert!(result_at.values().all(|times| *times == 1));
            }
        }

        #[test]
        fn steps_and_their_numbers_are_inverse(world in 2u32..50, rank in 0u32..50) {
            prop_assume!(rank < world);
            let plan = RingPlan::new(world, rank, 100).unwrap();
            for number in 0..2 * (world as usize - 1) {
                let step = plan.step(number).unwrap();
                prop_assert_eq!(plan.step_number(step), number);
                match step {
                    Step::Partial { position } => prop_assert!(plan.sends_partials(position)),
                    Step::Result { position } => prop_assert!(plan.sends_results(position)),
                }
            }
            prop_assert_eq!(plan.step(2 * (world as usize - 1)), None);
        }
    }
}
