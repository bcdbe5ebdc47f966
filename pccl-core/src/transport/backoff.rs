//! Waiting after failures.

use std::time::Duration;

/// How long to wait after a failed accept: longer each time, up to a limit.
#[derive(Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// After a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// After a failure.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = FIRST_WAIT * 2u32.saturating_pow(self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        wait.min(LONGEST_WAIT)
    }
}

/// Wait after the first failed accept.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// A freed descriptor is noticed within this time.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit() {
        let mut backoff = Backoff::default();
        let first = backoff.next();
        assert!(backoff.next() > first);
        for _ in 0..100 {
            assert!(backoff.next() <= LONGEST_WAIT);
        }
        backoff.reset();
        assert_eq!(backoff.next(), first);
    }
}
