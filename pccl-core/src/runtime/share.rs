//! What is left to operations while the same process serves state.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Counts what operations of a process move, and who serves state in it.
#[derive(Debug)]
pub(crate) struct Share {
    moved: AtomicU64,
    serving: AtomicUsize,
}

/// All communicators of a process have the same processors, and mostly the same link.
pub(crate) static SHARE: Share = Share::new();

/// One that serves a reader.
#[derive(Debug)]
pub(crate) struct Turns<'s> {
    share: &'s Share,
    seen: u64,
    busy_until: Option<Instant>,
}

impl Share {
    pub(crate) const fn new() -> Self {
        Self {
            moved: AtomicU64::new(0),
            serving: AtomicUsize::new(0),
        }
    }

    /// Operations have moved so many bytes, in either direction.
    pub(crate) fn moved(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Somebody serves a reader until this is dropped.
    pub(crate) fn turns(&self) -> Turns<'_> {
        self.serving.fetch_add(1, Ordering::Relaxed);
        Turns {
            share: self,
            seen: self.moved.load(Ordering::Relaxed),
            busy_until: None,
        }
    }
}

impl Turns<'_> {
    /// How long to pause after having sent for so long, until now: not at all while operations are
    /// quiet; else so long that all who serve are at it half of the time together.
    pub(crate) fn pause(&mut self, sent: Duration, now: Instant) -> Duration {
        let moved = self.share.moved.load(Ordering::Relaxed);
        if moved.wrapping_sub(self.seen) >= LITTLE {
            self.seen = moved;
            self.busy_until = now.checked_add(BUSY);
        }
        if self.busy_until.is_none_or(|until| until <= now) {
            return Duration::ZERO;
        }
        let serving = self.share.serving.load(Ordering::Relaxed) as u32;
        let times = serving.saturating_mul(2).saturating_sub(1);
        sent.saturating_mul(times).min(LONGEST)
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        self.share.serving.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes that lanes move without any operation: signs of life.
const LITTLE: u64 = 4 * 1024;

/// Operations count as running for so long after bytes of theirs have moved: they are often quiet
/// for a moment.
const BUSY: Duration = Duration::from_millis(10);

/// Longest pause: a reader that is slow by itself leaves the link to others anyway.
const LONGEST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_serves_pauses_only_while_operations_move_something() {
        let share = Share::new();
        let mut turns = share.turns();
        let begin = Instant::now();
        assert_eq!(turns.pause(MS, begin), Duration::ZERO);
        share.moved(100);
        assert_eq!(turns.pause(MS, begin), Duration::ZERO);
        share.moved(1 << 20);
        assert_eq!(turns.pause(MS, begin), MS);
        assert_eq!(turns.pause(3 * MS, begin + BUSY / 2), 3 * MS);
        assert_eq!(turns.pause(MS, begin + BUSY), Duration::ZERO);
    }

    #[test]
    fn all_who_serve_have_half_of_the_time_together() {
        let share = Share::new();
        let mut all: Vec<_> = (0..4).map(|_| share.turns()).collect();
        let now = Instant::now();
        share.moved(1 << 20);
        let at_it = |pause: Duration| 1.0 / (1.0 + pause.as_secs_f64() / 0.001);
        let sum: f64 = all.iter_mut().map(|t| at_it(t.pause(MS, now))).sum();
        assert!((sum - 0.5).abs() < 1e-9, "{sum}");
        all.truncate(1);
        assert_eq!(all[0].pause(MS, now), MS);
        assert_eq!(all[0].pause(Duration::from_secs(3), now), LONGEST);
    }
}
