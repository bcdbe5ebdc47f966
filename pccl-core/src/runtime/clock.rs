//! The clock that the machines are handed.

use std::time::Instant;

use crate::ids::Time;

/// Monotone time since the start of the thread that owns it. Time while the system was suspended
/// may or may not be counted; the machines look for gaps themselves. (Rule 14)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now, at zero.
    pub(crate) fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// The present.
    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// What the operating system calls this point in time.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        // A deadline beyond what an `Instant` can hold is one that never comes.
        const FAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);
        let wanted = std::time::Duration::from_nanos(time.0);
        self.origin + wanted.min(self.origin.elapsed() + FAR)
    }
}
