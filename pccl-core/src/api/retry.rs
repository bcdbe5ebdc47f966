//! Many all-reduces, repeated until all have succeeded.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::communicator::Communicator;
use super::element::Element;
use super::handle::OpHandle;
use super::loan::{self, Pair};
use super::options::{CallOptions, ReduceInfo};
use super::reduce::{check_lengths, check_raw, descriptor};
use crate::error::{Error, Result, UsageError};
use crate::ids::Tag;
use crate::runtime::calls::Signal;
use crate::types::{ReduceDescriptor, Reduction};

/// One all-reduce of several.
pub struct ReduceRequest<'a> {
    pair: Pair<'a>,
    descriptor: ReduceDescriptor,
    tag: Tag,
}

impl<'a> ReduceRequest<'a> {
    /// From one buffer to another.
    pub fn new<T: Element>(
        send: &'a [T],
        recv: &'a mut [T],
        op: impl Into<Reduction>,
        tag: Tag,
    ) -> Self {
        Self {
            descriptor: descriptor::<T>(send.len(), op),
            pair: Pair::new(send, recv),
            tag,
        }
    }

    /// In place.
    pub fn in_place<T: Element>(buffer: &'a mut [T], op: impl Into<Reduction>, tag: Tag) -> Self {
        Self {
            descriptor: descriptor::<T>(buffer.len(), op),
            pair: Pair::in_place(buffer),
            tag,
        }
    }
}

impl ReduceRequest<'static> {
    /// On memory that the caller vouches for, as [`Communicator::all_reduce_raw`]: what bindings to
    /// other languages are made from.
    ///
    /// # Safety
    ///
    /// Until the request is gone, and the call that it was given to has returned: both buffers are
    /// valid for the bytes that the descriptor says, which are initialised; nobody else reads or
    /// writes `recv`, and nobody writes to `send`.
    pub unsafe fn from_raw(
        send: *const u8,
        recv: *mut u8,
        descriptor: ReduceDescriptor,
        tag: Tag,
    ) -> Result<Self> {
        let bytes = check_raw(send, recv, &descriptor)?;
        // SAFETY: the caller's promise; the same or apart, and the length, have been checked.
        let pair = unsafe { Pair::from_raw(send, recv, bytes) };
        Ok(Self {
            pair,
            descriptor,
            tag,
        })
    }
}

impl Communicator {
    /// Carries out all of the operations, at most `max_in_flight` at a time, and repeats those that
    /// fail since a member was lost or gave up, until every one has succeeded.
    ///
    /// All members of the group call it with the same operations in the same order; each needs a
    /// tag of its own. Operations that have succeeded are not repeated, so different ones may have
    /// been reduced over different numbers of members. Returns early, with the operations that
    /// have not succeeded as they were:
    /// - [`Error::TooFewPeers`] when this member is the only one left in its group;
    /// - the error itself if a repetition would be pointless: a mismatch, the caller's mistake, an
    ///   eviction, a master that is gone.
    ///
    /// In every case no operation is in flight any more. The result counts the bytes of successful
    /// operations, with the world size of the last of them.
    pub fn all_reduce_multiple_with_retry(
        &self,
        requests: Vec<ReduceRequest<'_>>,
        max_in_flight: usize,
    ) -> Result<ReduceInfo> {
        let options = CallOptions::default();
        let (info, ended) = self.all_reduce_multiple_counted(requests, max_in_flight, options);
        ended.map(|()| info)
    }

    /// As [`Communicator::all_reduce_multiple_with_retry`], within a limit for all of them
    /// together; also says what was moved if not all succeeded. When the limit has passed, the
    /// error is the last failure.
    pub fn all_reduce_multiple_counted(
        &self,
        requests: Vec<ReduceRequest<'_>>,
        max_in_flight: usize,
        options: CallOptions,
    ) -> (ReduceInfo, Result<()>) {
        let stop = BatchStop::default();
        let done = self.all_reduce_multiple_until(requests, max_in_flight, options, &stop);
        (done.info, done.ended)
    }

    /// As [`Communicator::all_reduce_multiple_counted`], until another thread gives it up; also
    /// says which of the operations have succeeded.
    pub fn all_reduce_multiple_until(
        &self,
        requests: Vec<ReduceRequest<'_>>,
        max_in_flight: usize,
        options: CallOptions,
        stop: &BatchStop,
    ) -> BatchDone {
        if let Err(error) = check_batch(&requests, max_in_flight) {
            return BatchDone {
                info: ReduceInfo::default(),
                committed: Vec::new(),
                ended: Err(error),
            };
        }
        let (pairs, works): (Vec<_>, Vec<_>) = requests
            .into_iter()
            .map(|r| (r.pair, (r.descriptor, r.tag)))
            .unzip();
        loan::scope(pairs, |lender| {
            let launch = |index: usize, limit: Option<Duration>, signal: &Arc<Signal>| {
                let (descriptor, tag) = works.get(index)?;
                let lent = lender.lend(index)?;
                let options = CallOptions { limit };
                Some(self.begin_reduce(lent, *descriptor, *tag, options, signal.clone()))
            };
            Batch::new(works.len(), max_in_flight, options.limit, stop).run(self, launch)
        })
    }
}

/// What became of several operations.
#[derive(Clone, PartialEq, Debug)]
pub struct BatchDone {
    /// Bytes of all that were committed, with the world size of the last of them.
    pub info: ReduceInfo,
    /// Places, in the list of requests, of those that were committed, in ascending order. Their
    /// buffers hold results; all others are as they were.
    pub committed: Vec<usize>,
    /// Success if and only if all were committed.
    pub ended: Result<()>,
}

/// Gives up a call of [`Communicator::all_reduce_multiple_until`] that another thread is in.
#[derive(Clone, Default)]
pub struct BatchStop {
    stopped: Arc<AtomicBool>,
    signal: Arc<Signal>,
}

impl BatchStop {
    /// Asks for the end of what is in flight, for all members, and starts nothing more. Returns at
    /// once; the call returns with the verdicts.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.signal.raise();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for BatchStop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BatchStop").field(&self.stopped).finish()
    }
}

/// What can be wrong with the requests before any of them is started.
fn check_batch(requests: &[ReduceRequest<'_>], max_in_flight: usize) -> Result<()> {
    if max_in_flight == 0 {
        return Err(UsageError::Argument {
            name: "max_in_flight",
            why: "at least one operation must be in flight".into(),
        }
        .into());
    }
    let mut tags = BTreeSet::new();
    for request in requests {
        check_lengths(&request.pair, &request.descriptor)?;
        if !tags.insert(request.tag) {
            return Err(UsageError::Argument {
                name: "tag",
                why: format!("two of the operations have tag {}", request.tag.0),
            }
            .into());
        }
    }
    Ok(())
}

/// Several operations on their way.
///
/// Every member has the first `max_in_flight` operations in flight that have not succeeded yet:
/// all get the same verdicts, so all take the same next steps, and the first that has not
/// succeeded is in flight at all of them.
struct Batch<'a> {
    to_do: BTreeSet<usize>,
    in_flight: Vec<(usize, OpHandle)>,
    committed: BTreeSet<usize>,
    total: usize,
    max_in_flight: usize,
    /// None: as long as it takes.
    deadline: Option<Instant>,
    stop: &'a BatchStop,
    info: ReduceInfo,
}

impl<'a> Batch<'a> {
    fn new(
        total: usize,
        max_in_flight: usize,
        limit: Option<Duration>,
        stop: &'a BatchStop,
    ) -> Self {
        Self {
            to_do: (0..total).collect(),
            in_flight: Vec::new(),
            committed: BTreeSet::new(),
            total,
            max_in_flight,
            deadline: limit.and_then(|limit| Instant::now().checked_add(limit)),
            stop,
            info: ReduceInfo::default(),
        }
    }

    fn run(
        mut self,
        communicator: &Communicator,
        launch: impl Fn(usize, Option<Duration>, &Arc<Signal>) -> Option<OpHandle>,
    ) -> BatchDone {
        // An error, or none if it was given up.
        let failure = loop {
            if self.stop.is_stopped() || (self.to_do.is_empty() && self.in_flight.is_empty()) {
                break None;
            }
            if communicator.attributes().group_world_size < 2 {
                break Some(Error::TooFewPeers);
            }
            if let Err(error) = self.fill(&launch) {
                break Some(error);
            }
            if let Err(error) = self.take_one() {
                break Some(error);
            }
        };
        // What is still in flight belongs to a batch that has failed: every member ends it. What
        // the master commits all the same counts.
        for (_, handle) in &self.in_flight {
            handle.cancel();
        }
        let mut last = None;
        for (index, handle) in std::mem::take(&mut self.in_flight) {
            match handle.wait() {
                Ok(info) => self.commit(index, info),
                Err(error) => last = Some(error),
            }
        }
        let (committed, total) = (self.committed.len(), self.total);
        let ended = if committed == total {
            Ok(())
        } else {
            Err(failure
                .or(last)
                .unwrap_or(Error::GivenUp { committed, total }))
        };
        BatchDone {
            info: self.info,
            committed: self.committed.into_iter().collect(),
            ended,
        }
    }

    fn fill(
        &mut self,
        launch: &impl Fn(usize, Option<Duration>, &Arc<Signal>) -> Option<OpHandle>,
    ) -> Result<()> {
        let limit = self.remaining();
        while self.in_flight.len() < self.max_in_flight
            && let Some(index) = self.to_do.pop_first()
        {
            let handle = launch(index, limit, &self.stop.signal)
                .ok_or_else(|| Error::Internal("a buffer is lent out twice".into()))?;
            self.in_flight.push((index, handle));
        }
        Ok(())
    }

    /// Time that is left.
    fn remaining(&self) -> Option<Duration> {
        self.deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Waits until one of the operations in flight has ended, whichever it is, or all are given up.
    fn take_one(&mut self) -> Result<()> {
        let (in_flight, stop) = (&self.in_flight, self.stop);
        let place = stop.signal.wait(None, || {
            let ended = in_flight
                .iter()
                .position(|(_, handle)| handle.is_complete());
            ended
                .map(Some)
                .or_else(|| stop.is_stopped().then_some(None))
        });
        let Some(place) = place else {
            return Err(Error::Internal("a wait without limit ended".into()));
        };
        let Some(place) = place else {
            return Ok(());
        };
        let (index, handle) = self.in_flight.swap_remove(place);
        match handle.wait() {
            Ok(info) => {
                self.commit(index, info);
                Ok(())
            }
            Err(Error::Aborted { reason, .. })
                if !reason.is_mismatch()
                    && !self.stop.is_stopped()
                    && !self.remaining().is_some_and(|r| r.is_zero()) =>
            {
                self.to_do.insert(index);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn commit(&mut self, index: usize, info: ReduceInfo) {
        self.committed.insert(index);
        self.info.world_size = info.world_size;
        self.info.newcomers_pending = info.newcomers_pending;
        self.info.tx_bytes += info.tx_bytes;
        self.info.rx_bytes += info.rx_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DataType;
    use crate::types::ReduceOp;

    fn raw(send: *const u8, recv: *mut u8, count: u64) -> Result<ReduceRequest<'static>> {
        let descriptor = ReduceDescriptor {
            count,
            data_type: DataType::U16,
            op: ReduceOp::Sum,
            quantization: None,
            algorithm: None,
        };
        // SAFETY: what is not refused is empty, or lies in the arrays of the test.
        unsafe { ReduceRequest::from_raw(send, recv, descriptor, Tag(1)) }
    }

    #[test]
    fn raw_buffers_are_the_same_or_apart_and_null_only_when_empty() {
        let mut buffer = [0u8; 8];
        let place = buffer.as_mut_ptr();
        assert!(raw(std::ptr::null(), std::ptr::null_mut(), 0).is_ok());
        assert!(raw(std::ptr::null(), place, 1).is_err());
        assert!(raw(place, place, 4).is_ok());
        assert!(raw(place, place.wrapping_add(4), 2).is_ok());
        assert!(raw(place, place.wrapping_add(2), 2).is_err());
    }

    #[test]
    fn a_batch_has_each_tag_once() {
        let (mut a, mut b) = ([1f32], [2f32]);
        fn request(buffer: &mut [f32]) -> ReduceRequest<'_> {
            ReduceRequest::in_place(buffer, ReduceOp::Sum, Tag(7))
        }
        assert!(check_batch(&[request(&mut a)], 1).is_ok());
        assert!(check_batch(&[request(&mut a)], 0).is_err());
        assert!(check_batch(&[request(&mut a), request(&mut b)], 1).is_err());
    }
}
