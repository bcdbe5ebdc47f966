//! Waiting between tries: the first retry at once, then with jitter, up to a second. (Rule 12)

use std::time::Duration;

/// Counts tries and says how long to wait before the next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    retries: u32,
}

impl Backoff {
    /// How long to wait before the next try: `longest` at most.
    pub(super) fn next(&mut self, longest: Duration, random: &mut Random) -> Duration {
        let retry = self.retries;
        self.retries = retry.saturating_add(1);
        if retry == 0 {
            return Duration::ZERO;
        }
        // More doublings than this are beyond the longest wait anyway, and must not overflow.
        let doublings = (retry - 1).min(16);
        random.jitter((SHORTEST * (1 << doublings)).min(longest))
    }

    /// The next retry is a first one again, if what broke had lasted: something that breaks as
    /// soon as it is made must not be made again in a tight loop.
    pub(super) fn broke_after(&mut self, lasted: Duration) {
        if lasted >= LONGEST {
            self.retries = 0;
        }
    }
}

/// A small generator (splitmix64) of the machine's own, so that equal seeds and inputs give equal
/// outputs. Spreads retries; nothing secret comes from it.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A wait between half of `most` and `most`.
    pub(super) fn jitter(&mut self, most: Duration) -> Duration {
        let half = u64::try_from(most.as_nanos() / 2).unwrap_or(u64::MAX / 2);
        Duration::from_nanos(half + self.next() % (half + 1))
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Longest wait between tries: a second is not felt after a loss, and a thousand peers that lost
/// their master load it with a thousand dials a second at most.
pub(super) const LONGEST: Duration = Duration::from_secs(1);

/// Longest wait before the second retry; doubles with each.
const SHORTEST: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_retry_is_at_once_and_waits_stay_within_a_second() {
        let mut random = Random::new(7);
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next(LONGEST, &mut random), Duration::ZERO);
        let mut most = SHORTEST;
        for _ in 0..100 {
            let wait = backoff.next(LONGEST, &mut random);
            assert!(wait >= most / 2 && wait <= most, "{wait:?} of {most:?}");
            most = (most * 2).min(LONGEST);
        }
    }

    #[test]
    fn only_what_lasted_is_retried_at_once_again() {
        let mut random = Random::new(7);
        let mut backoff = Backoff::default();
        backoff.next(LONGEST, &mut random);
        backoff.broke_after(Duration::from_millis(10));
        assert!(backoff.next(LONGEST, &mut random) > Duration::ZERO);
        backoff.broke_after(LONGEST);
        assert_eq!(backoff.next(LONGEST, &mut random), Duration::ZERO);
    }

    #[test]
    fn seeds_spread_the_waits() {
        let wait = |seed| Random::new(seed).jitter(LONGEST);
        assert_ne!(wait(1), wait(2));
        assert_eq!(wait(3), wait(3));
    }
}
