//! What synchronisations have done and are doing, beyond what PCCL 1.0 told.

use std::time::Duration;

use crate::arguments::{Out, output};
use crate::communicator::{Comm, connected};
use crate::entry::run_initialized;
use crate::failure::Failure;
use crate::layout::{CommHandle, Divergence, Enum, SyncProgress, SyncSource};
use crate::members::cut;

/// How far the synchronisation is that another thread is in.
///
/// # Safety
///
/// Unless null, `progress_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetSyncProgress(
    communicator: *const CommHandle,
    progress_out: *mut SyncProgress,
) -> Enum {
    run_initialized("pcclGetSyncProgress", || {
        let comm = connected(communicator)?;
        // SAFETY: the caller's promise.
        let out = unsafe { output(progress_out, "progress_out") }?;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let progress = comm.lease()?.sync_progress();
        out.set(
            progress.map_or_else(SyncProgress::default, |progress| SyncProgress {
                total_bytes: progress.total,
                fetched_bytes: progress.fetched,
                elapsed_ms: millis(progress.elapsed),
                bytes_per_second: progress.rate() as u64,
                left_ms: progress.time_left().map_or(u64::MAX, millis),
            }),
        );
        Ok(())
    })
}

/// Who gave how much in the last synchronisation.
///
/// # Safety
///
/// Unless null, `sources` has `capacity` places, and `count_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetSyncSources(
    communicator: *const CommHandle,
    sources: *mut SyncSource,
    capacity: usize,
    count_out: *mut usize,
) -> Enum {
    run_initialized("pcclGetSyncSources", || {
        let comm = connected(communicator)?;
        // SAFETY: the caller's promise.
        let list = unsafe { List::new(sources, "sources", capacity, count_out) }?;
        let known = comm.last_sync();
        let sources = known.sources.iter();
        list.fill(sources.map(|(member, bytes)| SyncSource {
            member: member.0,
            bytes: *bytes,
        }));
        Ok(())
    })
}

/// What differed in the last synchronisation and should not have.
///
/// # Safety
///
/// Unless null, `divergences` has `capacity` places, and `count_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetDivergences(
    communicator: *const CommHandle,
    divergences: *mut Divergence,
    capacity: usize,
    count_out: *mut usize,
) -> Enum {
    run_initialized("pcclGetDivergences", || {
        let comm = connected(communicator)?;
        // SAFETY: the caller's promise.
        let list = unsafe { List::new(divergences, "divergences", capacity, count_out) }?;
        let known = comm.last_sync();
        list.fill(known.divergences.iter().map(|divergence| Divergence {
            tensor: cut(&divergence.key),
            begin: divergence.bytes.start,
            end: divergence.bytes.end,
            since: divergence.since.unwrap_or_default(),
            has_since: divergence.since.is_some(),
            holder: divergence.holders.first().map_or(0, |holder| holder.0),
            holders: divergence.holders.len() as u64,
        }));
        Ok(())
    })
}

/// A list that the caller has made room for.
struct List<T> {
    places: *mut T,
    capacity: usize,
    count: Out<usize>,
}

impl<T: Copy> List<T> {
    /// # Safety
    ///
    /// Unless null, there are `capacity` places, and `count` can be written, until the list is
    /// filled.
    unsafe fn new(
        places: *mut T,
        name: &'static str,
        capacity: usize,
        count: *mut usize,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let count = unsafe { output(count, "count_out") }?;
        if capacity > 0 {
            // SAFETY: no value is read: this checks the pointer.
            unsafe { output(places, name) }?;
        }
        Ok(Self {
            places,
            capacity,
            count,
        })
    }

    fn fill(self, values: impl ExactSizeIterator<Item = T>) {
        let count = values.len();
        for (place, value) in values.take(self.capacity).enumerate() {
            // SAFETY: `place` is below the capacity that was promised.
            unsafe { self.places.add(place).write(value) };
        }
        self.count.set(count);
    }
}

impl Comm {
    /// What the last synchronisation that succeeded did.
    fn last_sync(&self) -> pccl_core::SyncInfo {
        self.last_sync
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }
}
