//! Which algorithm goes with which size: a function of what is known of the links. (Rule 10)
//!
//! With `n` members, `d` from one to another, and `B` bytes per second that a member can send, `S`
//! bytes take about
//!
//! - ring: `2(n-1) d + 2(n-1)/n S/B`;
//! - direct: `2d + 2(n-1)/n S/B`, in `n` times as many frames, over edges that all have to exist;
//! - star: `2d + 2(n-1) S/B`, in the fewest frames, but all through one member.
//!
//! So small tensors go by star, larger ones direct where all pairs have an edge, and by ring where they do
//! not, or where the hops do not count beside the transfer.

use std::time::Duration;

use super::ring;
use crate::ids::MemberId;
use crate::types::Choice;

/// Most members of a group that exchanges directly. Each has lanes to all others, and an operation
/// `n (n - 1)` times two messages at least: with more members both outgrow what the fewer hops save.
pub const DIRECT_MEMBERS: usize = 16;

/// Most members of a star: as many as a newcomer tries edges to, so that some member can be known to
/// reach all others.
pub const STAR_MEMBERS: usize = 64;

/// What is known of the links of a group.
pub trait Links {
    /// Whether two members can exchange data, as far as is known.
    fn works(&self, a: MemberId, b: MemberId) -> bool;

    /// Whether two members have had a lane.
    fn proven(&self, a: MemberId, b: MemberId) -> bool;

    /// Round trip between a member and the master, if it is known: how far members are from one
    /// another is not measured, and is taken to be as much.
    fn round_trip(&self, id: MemberId) -> Option<Duration>;
}

/// What a group in this order goes by.
pub fn choose(links: &impl Links, order: &[MemberId]) -> Choice {
    let ring = ring::holds(order, |a, b| links.works(a, b));
    let n = order.len() as u64;
    if n < 2 {
        return Choice::RING;
    }
    let hub = hub(links, order);
    let direct = order.len() <= DIRECT_MEMBERS && all_proven(links, order);
    let offered = Choice {
        ring,
        direct,
        hub,
        ..Choice::RING
    };
    // Two members have one link: all is the same but for who adds what.
    if n == 2 {
        return offered;
    }
    let round_trip = typical(links, order);
    let rate = match round_trip < NEAR {
        true => NEAR_RATE,
        false => FAR_RATE,
    };
    let in_flight = sent_in(round_trip / 2, rate);
    let hub_time = sent_in(HUB_TIME, rate).max(in_flight / HUB_PART);
    // The products fit: `n` is at most `STAR_MEMBERS` where there is a hub, and less with direct.
    let star_below = match hub {
        None => 0,
        Some(_) if direct => EARLY.min(hub_time / (n - 1)),
        Some(_) => (hub_time / (n - 1)).max(in_flight * n * (n - 2) / (n - 1).pow(2)),
    };
    Choice {
        star_below,
        direct_below: match direct {
            true => GAIN * in_flight * n * (n - 2) / (n - 1),
            false => 0,
        },
        // Around the ring, it would be quantised as often as there are members.
        quantized_direct_below: if direct { u64::MAX } else { 0 },
        ..offered
    }
}

/// Who is to add in a star: of those that have an edge to every other member, the nearest to the
/// master, and of equals the first. None if nobody has, or the group is too large.
pub fn hub(links: &impl Links, order: &[MemberId]) -> Option<MemberId> {
    if order.len() > STAR_MEMBERS {
        return None;
    }
    let reaches_all = |id: &MemberId| order.iter().all(|to| id == to || links.proven(*id, *to));
    let distance = |id: &MemberId| links.round_trip(*id).unwrap_or(Duration::MAX);
    order
        .iter()
        .filter(|id| reaches_all(id))
        .min_by_key(|id| distance(id))
        .copied()
}

fn all_proven(links: &impl Links, order: &[MemberId]) -> bool {
    let before = |i: usize| order.iter().take(i);
    let all_before = |(i, a): (usize, &MemberId)| before(i).all(|b| links.proven(*a, *b));
    order.iter().enumerate().all(all_before)
}

/// The median of the round trips that are known; nothing if none is.
fn typical(links: &impl Links, order: &[MemberId]) -> Duration {
    let mut known: Vec<Duration> = order
        .iter()
        .filter_map(|id| links.round_trip(*id))
        .collect();
    known.sort();
    known.get(known.len() / 2).copied().unwrap_or_default()
}

/// Bytes sent in a time, at so many per second. Saturates.
fn sent_in(time: Duration, rate: u64) -> u64 {
    let bytes = time.as_nanos() * u128::from(rate) / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX).min(FAR_TOO_MUCH)
}

/// Members that are nearer than this are on one host or network.
const NEAR: Duration = Duration::from_millis(1);

/// Bytes per second that such members send, as long as nobody has measured it: 10 Gbit/s.
const NEAR_RATE: u64 = 1_250_000_000;

/// The same of others: 1 Gbit/s.
const FAR_RATE: u64 = 125_000_000;

/// Time that a hub may take to send a small tensor to all others in any case: what waking the threads of all
/// members costs within a host, which the fewer frames of a star save.
const HUB_TIME: Duration = Duration::from_micros(100);

/// The part of a hop that it may take otherwise.
const HUB_PART: u64 = 10;

/// Direct is for tensors whose hops around the ring would take at least this part of the transfer:
/// for less, it is not worth that the data of several members meets in the queue before each.
const GAIN: u64 = 3;

/// Bytes that leave before the receiver's OPEN is known, headers and some other small operation aside.
const EARLY: u64 = 48 << 10;

/// More than any tensor, and little enough for the products above.
const FAR_TOO_MUCH: u64 = 1 << 48;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::{Algorithm, DataType, ReduceDescriptor, ReduceOp};

    fn order(n: u64) -> Vec<MemberId> {
        (1..=n).map(MemberId).collect()
    }

    fn choice(n: u64, round_trip: Duration, works: impl Fn(u64, u64) -> bool + Copy) -> Choice {
        let known = Known(works, |_| Some(round_trip));
        choose(&known, &order(n))
    }

    /// Whether the edge of two members, the lower first, works, and how far they are.
    struct Known<E, R>(E, R);

    impl<E: Fn(u64, u64) -> bool, R: Fn(u64) -> Option<Duration>> Links for Known<E, R> {
        fn works(&self, a: MemberId, b: MemberId) -> bool {
            (self.0)(a.0.min(b.0), a.0.max(b.0))
        }

        fn proven(&self, a: MemberId, b: MemberId) -> bool {
            self.works(a, b)
        }

        fn round_trip(&self, id: MemberId) -> Option<Duration> {
            (self.1)(id.0)
        }
    }

    fn by(choice: Choice, bytes: u64) -> Algorithm {
        choice.algorithm(&ReduceDescriptor {
            count: bytes,
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            quantization: None,
            algorithm: None,
        })
    }

    const FAR: Duration = Duration::from_millis(100);
    const HERE: Duration = Duration::from_micros(60);

    #[test]
    fn small_tensors_go_by_star_larger_ones_direct_and_the_largest_around() {
        let far = choice(4, FAR, |_, _| true);
        assert_eq!(far.hub, Some(MemberId(1)));
        assert_eq!(by(far, 1_024), Algorithm::Star);
        assert_eq!(by(far, 1 << 20), Algorithm::Direct);
        assert_eq!(by(far, 1 << 40), Algorithm::Ring);
        let here = choice(4, HERE, |_, _| true);
        assert_eq!(by(here, 1_024), Algorithm::Star);
        assert_eq!(by(here, 64 << 20), Algorithm::Ring);
        assert!(here.direct_below < far.direct_below);
    }

    #[test]
    fn two_members_use_their_link_as_a_ring() {
        let two = choice(2, FAR, |_, _| true);
        assert!(Algorithm::ALL.into_iter().all(|a| two.offers(a)));
        assert_eq!(by(two, 0), Algorithm::Ring);
    }

    #[test]
    fn a_pair_without_an_edge_leaves_ring_and_star() {
        let one_missing = choice(5, FAR, |a, b| (a, b) != (1, 3));
        assert!(one_missing.ring && !one_missing.direct);
        assert_eq!(one_missing.hub, Some(MemberId(2)));
        assert_eq!(by(one_missing, 1 << 20), Algorithm::Star);
        assert_eq!(by(one_missing, 1 << 30), Algorithm::Ring);
    }

    #[test]
    fn where_all_reach_one_member_only_everything_goes_through_it() {
        let star = choice(6, FAR, |a, b| a == 4 || b == 4);
        assert!(!star.ring && !star.direct);
        assert_eq!(star.hub, Some(MemberId(4)));
        assert_eq!(by(star, 1 << 40), Algorithm::Star);
    }

    #[test]
    fn large_groups_keep_to_few_edges() {
        let n = DIRECT_MEMBERS as u64 + 1;
        let large = choice(n, FAR, |_, _| true);
        assert!(large.ring && !large.direct && large.hub.is_some());
        let years = Duration::from_secs(1 << 30);
        for (n, round_trip) in [(STAR_MEMBERS as u64 + 1, FAR), (3_000, years)] {
            let huge = choice(n, round_trip, |_, _| true);
            assert_eq!((huge.ring, huge.direct, huge.hub), (true, false, None));
            assert_eq!(by(huge, 0), Algorithm::Ring);
        }
        assert!(choice(STAR_MEMBERS as u64, years, |a, _| a == 1).star_below > 0);
    }

    #[test]
    fn the_hub_is_the_nearest_of_those_that_reach_all() {
        let round_trip = |id| (id > 1).then(|| Duration::from_millis(10 - id));
        let known = Known(|a, b| b != 4 || a == 3, round_trip);
        assert_eq!(hub(&known, &order(3)), Some(MemberId(3)));
        assert_eq!(hub(&known, &order(4)), Some(MemberId(3)));
    }

    proptest! {
        /// Whatever is chosen for any size has a plan, if anything has.
        #[test]
        fn what_is_chosen_has_a_plan(
            n in 1u64..8, mask in any::<u32>(), micros in 0u64..1_000_000, bytes in any::<u64>(),
        ) {
            let works = move |a: u64, b: u64| mask & (1 << ((a * 7 + b) % 32)) != 0;
            let choice = choice(n, Duration::from_micros(micros), works);
            if Algorithm::ALL.into_iter().any(|a| choice.offers(a)) {
                prop_assert!(choice.offers(by(choice, bytes)));
            }
        }
    }
}
