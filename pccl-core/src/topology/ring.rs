//! The order of a ring: kept as long as it can be, searched for when it cannot.
//!
//! A ring is a list of members; each sends to the next, and the last to the first. It *holds* when
//! all of these edges work. One member alone has no edge, two have one.

use crate::ids::MemberId;

/// Most edges that [`search`] looks at before it gives up. A ring with few broken edges is found
/// in about as many looks as it has members; this many take some tens of milliseconds, for which
/// the master may stand still once at a broken edge.
pub const SEARCH_LIMIT: usize = 200_000;

/// Whether every edge of the ring works.
pub fn holds(ring: &[MemberId], works: impl Fn(MemberId, MemberId) -> bool) -> bool {
    edges(ring).all(|(a, b)| works(a, b))
}

/// Edges of the ring, each once, in its order.
pub fn edges(ring: &[MemberId]) -> impl Iterator<Item = (MemberId, MemberId)> + '_ {
    let last = match ring {
        [] | [_] | [_, _] => None,
        [first, .., last] => Some((*last, *first)),
    };
    ring.windows(2)
        .filter_map(|pair| match pair {
            [a, b] => Some((*a, *b)),
            _ => None,
        })
        .chain(last)
}

/// Whether `a` and `b` are neighbours in the ring.
pub fn adjacent(ring: &[MemberId], a: MemberId, b: MemberId) -> bool {
    edges(ring).any(|edge| edge == (a, b) || edge == (b, a))
}

/// Puts `new` at the first place where both of its edges work. Returns whether there is one; the
/// order of the others stays.
pub fn insert(
    ring: &mut Vec<MemberId>,
    new: MemberId,
    works: impl Fn(MemberId, MemberId) -> bool,
) -> bool {
    let place = match ring.as_slice() {
        [] => Some(0),
        [only] => works(*only, new).then_some(1),
        [first, ..] => {
            let after = ring.iter().skip(1).chain([first]);
            ring.iter()
                .zip(after)
                .position(|(a, b)| works(*a, new) && works(new, *b))
                .map(|at| at + 1)
        }
    };
    if let Some(at) = place {
        ring.insert(at, new);
    }
    place.is_some()
}

/// The ring itself if it holds; else an order of its members that does, as near to it as a search
/// that tries the present followers first comes across. `None` if there is none, or if
/// [`SEARCH_LIMIT`] edges did not suffice to find one.
pub fn search(
    ring: &[MemberId],
    works: impl Fn(MemberId, MemberId) -> bool,
) -> Option<Vec<MemberId>> {
    if holds(ring, &works) {
        return Some(ring.to_vec());
    }
    let first = *ring.first()?;
    // Who has fewer than two edges has no place in any ring; to find that out by searching could
    // take all there is.
    let placeless = |id: &MemberId| {
        let others = ring.iter().filter(|other| *other != id);
        others.filter(|other| works(*id, **other)).take(2).count() < 2
    };
    if ring.len() < 3 || ring.iter().any(placeless) {
        return None;
    }
    // Depth first, without recursion: the path so far, each place with the number of candidates
    // that were tried before it, and what is not on the path in a list of the present order.
    let mut left = Unused::new(ring.len());
    let mut path = vec![(0usize, 0usize)];
    left.take(0);
    let mut candidate = left.after(0);
    let mut tried = 0;
    let at = |i: usize| ring.get(i).copied();
    for _ in 0..SEARCH_LIMIT {
        let here = at(path.last()?.0)?;
        if path.len() == ring.len() && works(here, first) {
            return path.into_iter().map(|(i, _)| at(i)).collect();
        }
        if tried < left.count {
            let next = candidate;
            if works(here, at(next)?) {
                left.take(next);
                path.push((next, tried));
                tried = 0;
            } else {
                tried += 1;
            }
            candidate = left.after(next);
        } else {
            // A dead end: step back, and go on with the candidate behind the one that failed.
            let (failed, before) = path.pop()?;
            if path.is_empty() {
                return None;
            }
            left.give_back(failed);
            candidate = left.after(failed);
            tried = before + 1;
        }
    }
    None
}

/// Places of a ring that are not on the path, as a circular doubly linked list. Places are given
/// back in the reverse order in which they were taken, so that the links of a taken place stay
/// true until then.
struct Unused {
    next: Vec<usize>,
    previous: Vec<usize>,
    count: usize,
}

impl Unused {
    fn new(count: usize) -> Self {
        Self {
            next: (0..count).map(|i| (i + 1) % count).collect(),
            previous: (0..count).map(|i| (i + count - 1) % count).collect(),
            count,
        }
    }

    /// The unused place behind `at`, which may be one that was just taken.
    fn after(&self, at: usize) -> usize {
        self.next.get(at).copied().unwrap_or(at)
    }

    fn take(&mut self, at: usize) {
        let (before, behind) = self.around(at);
        self.link(before, behind);
        self.count -= 1;
    }

    fn give_back(&mut self, at: usize) {
        let (before, behind) = self.around(at);
        self.link(before, at);
        self.link(at, behind);
        self.count += 1;
    }

    fn around(&self, at: usize) -> (usize, usize) {
        let before = self.previous.get(at).copied().unwrap_or(at);
        (before, self.after(at))
    }

    fn link(&mut self, a: usize, b: usize) {
        if let Some(next) = self.next.get_mut(a) {
            *next = b;
        }
        if let Some(previous) = self.previous.get_mut(b) {
            *previous = a;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ids(n: u64) -> Vec<MemberId> {
        (0..n).map(MemberId).collect()
    }

    fn broken(pairs: &[(u64, u64)]) -> impl Fn(MemberId, MemberId) -> bool + use<> {
        let pairs: BTreeSet<(u64, u64)> = pairs.iter().flat_map(|p| [*p, (p.1, p.0)]).collect();
        move |a: MemberId, b: MemberId| !pairs.contains(&(a.0, b.0))
    }

    fn permutations(of: &[MemberId]) -> Vec<Vec<MemberId>> {
        match of {
            [] => vec![vec![]],
            _ => (0..of.len())
                .flat_map(|i| {
                    let mut rest = of.to_vec();
                    let head = rest.remove(i);
                    permutations(&rest).into_iter().map(move |mut tail| {
                        tail.insert(0, head);
                        tail
                    })
                })
                .collect(),
        }
    }

    #[test]
    fn a_ring_that_holds_keeps_its_order() {
        let ring: Vec<MemberId> = [3, 1, 2].map(MemberId).to_vec();
        assert_eq!(search(&ring, broken(&[])), Some(ring));
    }

    #[test]
    fn two_members_have_one_edge_and_one_has_none() {
        assert_eq!(edges(&ids(2)).count(), 1);
        assert_eq!(edges(&ids(1)).count(), 0);
        assert_eq!(edges(&ids(3)).count(), 3);
        assert!(search(&ids(2), broken(&[(0, 1)])).is_none());
        assert_eq!(search(&ids(1), broken(&[])), Some(ids(1)));
        assert_eq!(search(&[], broken(&[])), Some(vec![]));
    }

    #[test]
    fn a_newcomer_goes_to_the_first_place_where_both_edges_work() {
        let mut ring = ids(4);
        assert!(!insert(&mut ring, MemberId(9), broken(&[(9, 0), (9, 2)])));
        assert_eq!(ring, ids(4));
        assert!(insert(&mut ring, MemberId(9), broken(&[(9, 0)])));
        assert_eq!(ring, [0, 1, 9, 2, 3].map(MemberId).to_vec());
        assert!(insert(
            &mut ring,
            MemberId(8),
            broken(&[(8, 1), (8, 9), (8, 2)])
        ));
        assert_eq!(ring, [0, 1, 9, 2, 3, 8].map(MemberId).to_vec());
    }

    #[test]
    fn a_large_ring_with_a_few_broken_edges_is_found() {
        let ring = ids(2_000);
        for pairs in [
            vec![(10, 11)],
            vec![(1_999, 0)],
            vec![(0, 1)],
            vec![(5, 6), (700, 701), (1_998, 1_999)],
        ] {
            let works = broken(&pairs);
            let found = search(&ring, &works).unwrap();
            assert!(holds(&found, &works));
        }
    }

    #[test]
    fn a_search_without_a_solution_ends() {
        // Member 0 reaches nobody.
        let pairs: Vec<(u64, u64)> = (1..200).map(|i| (0, i)).collect();
        assert!(search(&ids(200), broken(&pairs)).is_none());
    }

    proptest! {
        #[test]
        fn the_search_finds_an_order_whenever_there_is_one(
            n in 0u64..=6, mask in any::<u16>(), turn in 0usize..6,
        ) {
            let mut pairs = Vec::new();
            let all: Vec<(u64, u64)> = (0..n).flat_map(|a| (0..a).map(move |b| (b, a))).collect();
            for (i, pair) in all.into_iter().enumerate() {
                if mask & (1 << i) != 0 {
                    pairs.push(pair);
                }
            }
            let works = broken(&pairs);
            let mut ring = ids(n);
            if n > 0 {
                ring.rotate_left(turn % n as usize);
            }
            let exists = permutations(&ring).iter().any(|p| holds(p, &works));
            let found = search(&ring, &works);
            prop_assert_eq!(found.is_some(), exists);
            if let Some(found) = found {
                prop_assert!(holds(&found, &works));
                let (mut a, mut b) = (found, ring.clone());
                a.sort();
                b.sort();
                prop_assert_eq!(a, b);
            }
        }

        #[test]
        fn an_insertion_keeps_the_order_of_the_others_and_the_ring_holding(
            n in 0u64..=6, mask in any::<u8>(),
        ) {
            let pairs: Vec<(u64, u64)> =
                (0..n).filter(|i| mask & (1 << i) != 0).map(|i| (i, 99)).collect();
            let works = broken(&pairs);
            let mut ring = ids(n);
            let done = insert(&mut ring, MemberId(99), &works);
            let possible = (0..=n as usize).any(|at| {
                let mut ring = ids(n);
                ring.insert(at, MemberId(99));
                holds(&ring, &works)
            });
            prop_assert_eq!(done, possible);
            prop_assert!(holds(&ring, &works));
            ring.retain(|id| *id != MemberId(99));
            prop_assert_eq!(ring, ids(n));
        }
    }
}
