//! How far a fetch is, for whoever asks while it runs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::ids::MemberId;

/// How far a synchronisation is with what it has to fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncProgress {
    /// Bytes to fetch; becomes less when tensors turn out to differ in part only.
    pub total: u64,
    /// Bytes that came, were right, and are in their place.
    pub fetched: u64,
    /// Time since it is known what to fetch.
    pub elapsed: Duration,
}

impl SyncProgress {
    /// Bytes per second, on average.
    pub fn rate(&self) -> f64 {
        self.fetched as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Time that the rest takes at that rate; none before anything has come.
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.total.saturating_sub(self.fetched) as f64;
        let seconds = left / self.rate();
        Duration::try_from_secs_f64(seconds).ok()
    }
}

/// What the fetching threads write, and others read meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    begun: OnceLock<Instant>,
    total: AtomicU64,
    fetched: AtomicU64,
    came: Mutex<Came>,
}

/// What has come.
#[derive(Debug, Default)]
struct Came {
    from: BTreeMap<MemberId, u64>,
    /// By tensor, in the order of the fetch: from the first to behind the last byte that differed.
    differing: BTreeMap<usize, Range<u64>>,
}

impl Watch {
    /// It is known what to fetch.
    pub(super) fn begin(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        let _ = self.begun.set(Instant::now());
    }

    /// So many of the bytes turned out to be right already.
    pub(super) fn right(&self, bytes: u64) {
        let less = |total: u64| Some(total.saturating_sub(bytes));
        let _ = self
            .total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// A chunk is in its place. `differed` says where in the tensor it was another.
    pub(super) fn stored(
        &self,
        seeder: MemberId,
        bytes: u64,
        tensor: usize,
        differed: Option<Range<u64>>,
    ) {
        self.fetched.fetch_add(bytes, Ordering::Relaxed);
        let mut came = self.came();
        *came.from.entry(seeder).or_default() += bytes;
        if let Some(range) = differed {
            let all = came
                .differing
                .entry(tensor)
                .or_insert_with(|| range.clone());
            *all = all.start.min(range.start)..all.end.max(range.end);
        }
    }

    pub(super) fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// Bytes by who gave them.
    pub(super) fn sources(&self) -> Vec<(MemberId, u64)> {
        self.came().from.iter().map(|(id, n)| (*id, *n)).collect()
    }

    /// Where tensors differed, by their place in the fetch.
    pub(super) fn differing(&self) -> BTreeMap<usize, Range<u64>> {
        self.came().differing.clone()
    }

    /// How far it is; none before it is known what to fetch.
    pub(crate) fn progress(&self) -> Option<SyncProgress> {
        let begun = self.begun.get()?;
        Some(SyncProgress {
            total: self.total.load(Ordering::Relaxed),
            fetched: self.fetched(),
            elapsed: begun.elapsed(),
        })
    }

    fn came(&self) -> MutexGuard<'_, Came> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_rate_and_time_left() {
        let half = SyncProgress {
            total: 300,
            fetched: 100,
            elapsed: Duration::from_secs(2),
        };
        assert_eq!(half.rate(), 50.0);
        assert_eq!(half.time_left(), Some(Duration::from_secs(4)));
        let begun = SyncProgress { fetched: 0, ..half };
        assert_eq!(begun.time_left(), None);
    }

    #[test]
    fn what_came_is_counted_by_member_and_tensor() {
        let watch = Watch::default();
        assert_eq!(watch.progress(), None);
        watch.begin(100);
        watch.right(60);
        watch.stored(MemberId(2), 10, 1, Some(7..8));
        watch.stored(MemberId(3), 10, 1, Some(3..5));
        watch.stored(MemberId(2), 5, 0, None);
        let progress = watch.progress().unwrap();
        assert_eq!((progress.total, progress.fetched), (40, 25));
        assert_eq!(watch.sources(), [(MemberId(2), 15), (MemberId(3), 10)]);
        assert_eq!(watch.differing(), BTreeMap::from([(1, 3..8)]));
    }
}
