//! Direct and star: contributions go straight to the owner of their slice, and results straight back.
//!
//! Direct has one slice per rank, owned by it; a star has one slice, owned by its hub. The owner adds
//! in the order of the ranks, from its own on: `((x_o + x_(o+1)) + ...) + x_(o-1)`. With direct that
//! is the order in which the ring adds the same slice, so that both give the same bits. (Rule 9)
//!
//! Every link has two positions: at the even one is the other end's slice, whose partials go out and
//! whose results come in; at the odd one is the own slice, the other way round. In a star, one of the
//! two is empty: a slice that there is not.

use super::{Step, equal_part};
use crate::collective::ranges::Span;

/// Plan of one direct or star all-reduce, seen from one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatherPlan {
    world: u32,
    rank: u32,
    count: u64,
    hub: Option<u32>,
}

impl GatherPlan {
    /// Every rank owns a slice. None if there is no such rank.
    pub const fn direct(world: u32, rank: u32, count: u64) -> Option<Self> {
        if rank < world {
            Some(Self {
                world,
                rank,
                count,
                hub: None,
            })
        } else {
            None
        }
    }

    /// The hub owns everything. None if there is no such rank, or no such hub.
    pub const fn star(world: u32, rank: u32, count: u64, hub: u32) -> Option<Self> {
        if rank < world && hub < world {
            Some(Self {
                world,
                rank,
                count,
                hub: Some(hub),
            })
        } else {
            None
        }
    }

    /// Number of ranks.
    pub const fn world(&self) -> u32 {
        self.world
    }

    /// Elements of the tensor.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Elements of slice `slice`. Empty for slices that there are not.
    pub const fn slice(&self, slice: u32) -> Span {
        equal_part(self.count, self.slices(), slice)
    }

    /// Number of slices.
    const fn slices(&self) -> u32 {
        match self.hub {
            Some(_) => 1,
            None => self.world,
        }
    }

    /// Ranks that this one exchanges data with.
    pub const fn links(&self) -> u32 {
        match self.hub {
            Some(hub) if hub != self.rank => 1,
            _ => self.world - 1,
        }
    }

    /// Rank at the other end of a link.
    pub const fn linked(&self, link: u32) -> u32 {
        match self.hub {
            Some(hub) if hub != self.rank => hub,
            _ => ((self.rank as u64 + 1 + link as u64) % self.world as u64) as u32,
        }
    }

    /// Number of positions: two per link.
    pub const fn positions(&self) -> u32 {
        2 * self.links()
    }

    /// Whether the slice at `position` is the own one.
    pub const fn is_own(position: u32) -> bool {
        position % 2 == 1
    }

    /// Slice at `position`; one that there is not if nothing is there.
    pub const fn slice_at(&self, position: u32) -> u32 {
        let owner = match Self::is_own(position) {
            true => self.rank,
            false => self.linked(position / 2),
        };
        match self.hub {
            None => owner,
            Some(hub) if hub == owner => 0,
            Some(_) => NO_SLICE,
        }
    }

    /// Position of slice `slice` on a link: the odd one (`own`), or the even one. None if another
    /// slice is there, or none.
    pub const fn position(&self, slice: u32, link: u32, own: bool) -> Option<u32> {
        if link >= self.links() || slice == NO_SLICE {
            return None;
        }
        let position = 2 * link + own as u32;
        if self.slice_at(position) == slice {
            Some(position)
        } else {
            None
        }
    }

    /// Whether this rank owns a slice.
    pub const fn owns(&self) -> bool {
        match self.hub {
            None => true,
            Some(hub) => hub == self.rank,
        }
    }

    /// The step of a number.
    pub const fn step(&self, number: usize) -> Option<Step> {
        if number >= self.positions() as usize {
            return None;
        }
        let position = number as u32;
        Some(match Self::is_own(position) {
            true => Step::Result { position },
            false => Step::Partial { position },
        })
    }
}

/// Number of a slice that there is not.
const NO_SLICE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn plan(world: u32, rank: u32, count: u64, hub: Option<u32>) -> GatherPlan {
        match hub {
            None => GatherPlan::direct(world, rank, count).unwrap(),
            Some(hub) => GatherPlan::star(world, rank, count, hub).unwrap(),
        }
    }

    #[test]
    fn there_is_no_plan_for_ranks_that_there_are_not() {
        assert_eq!(GatherPlan::direct(3, 3, 7), None);
        assert_eq!(GatherPlan::star(3, 0, 7, 3), None);
        assert_eq!(GatherPlan::star(0, 0, 7, 0), None);
    }

    #[test]
    fn a_leaf_knows_its_hub_only() {
        let leaf = plan(5, 3, 10, Some(1));
        assert_eq!((leaf.links(), leaf.linked(0)), (1, 1));
        assert_eq!(leaf.slice(leaf.slice_at(0)), Span::new(0, 10));
        assert!(leaf.slice(leaf.slice_at(1)).is_empty() && !leaf.owns());
        let hub = plan(5, 1, 10, Some(1));
        let order: Vec<u32> = (0..hub.links()).map(|link| hub.linked(link)).collect();
        assert_eq!(order, [2, 3, 4, 0]);
        assert!(hub.slice(hub.slice_at(0)).is_empty() && hub.owns());
    }

    proptest! {
        /// Plays the plan: every slice is contributed to by everybody, its owner adds in the order of
        /// ranks from its own on, and the result gets to everybody.
        #[test]
        fn every_contribution_counts_once_in_rank_order_from_the_owner_on(
            world in 1u32..9,
            count in 0u64..40,
            hub in proptest::option::of(0u32..9),
        ) {
            let hub = hub.map(|hub| hub % world);
            let mut owners = BTreeMap::new();
            let mut elements = 0;
            for rank in 0..world {
                let own = plan(world, rank, count, hub);
                let mut got = own.owns().then_some(rank).into_iter().collect::<Vec<u32>>();
                for link in 0..own.links() {
                    let other = plan(world, own.linked(link), count, hub);
                    // Both ends speak of the same slices on the edge.
                    let back = (0..other.links()).find(|l| other.linked(*l) == rank).unwrap();
                    prop_assert_eq!(own.slice_at(2 * link), other.slice_at(2 * back + 1));
                    prop_assert_eq!(own.slice_at(2 * link + 1), other.slice_at(2 * back));
                    if own.owns() {
                        got.push(own.linked(link));
                    }
                }
                if own.owns() {
                    let order: Vec<u32> = (0..world).map(|i| (rank + i) % world).collect();
                    prop_assert_eq!(got, order);
                    let slice = if hub.is_some() { 0 } else { rank };
                    prop_assert_eq!(owners.insert(slice, rank), None);
                    elements += own.slice(slice).len();
                }
            }
            prop_assert_eq!(elements, count);
        }

        #[test]
        fn steps_and_their_numbers_are_inverse(
            world in 1u32..20, rank in 0u32..20, hub in proptest::option::of(0u32..20),
        ) {
            prop_assume!(rank < world);
            let own = super::super::Plan::Gather(plan(world, rank, 9, hub.map(|hub| hub % world)));
            for number in 0..own.steps() {
                let step = own.step(number).unwrap();
                prop_assert_eq!(own.step_number(step), number);
            }
            prop_assert_eq!(own.step(own.steps()), None);
        }
    }
}
