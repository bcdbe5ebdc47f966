//! Many all-reduces, repeated until all have succeeded.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::communicator::Communicator;
use super::element::Element;
use super::handle::OpHandle;
use super::loan::{self, Pair};
use super::options::{CallOptions, ReduceInfo};
use super::reduce::{check_lengths, descriptor};
use crate::error::{Error, Result, UsageError};
use crate::ids::Tag;
use crate::runtime::calls::Signal;
use crate::types::{ReduceDescriptor, ReduceOp};

/// One all-reduce of several.
pub struct ReduceRequest<'a> {
    pair: Pair<'a>,
    descriptor: ReduceDescriptor,
    tag: Tag,
}

impl<'a> ReduceRequest<'a> {
    /// From one buffer to another.
    pub fn new<T: Element>(send: &'a [T], recv: &'a mut [T], op: ReduceOp, tag: Tag) -> Self {
        Self {
            descriptor: descriptor::<T>(send.len(), op),
            pair: Pair::new(send, recv),
            tag,
        }
    }

    /// In place.
    pub fn in_place<T: Element>(buffer: &'a mut [T], op: ReduceOp, tag: Tag) -> Self {
        Self {
            descriptor: descriptor::<T>(buffer.len(), op),
            pair: Pair::in_place(buffer),
            tag,
        }
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
        if max_in_flight == 0 {
            return Err(UsageError::Argument {
                name: "max_in_flight",
                why: "at least one operation must be in flight".into(),
            }
            .into());
        }
        let mut tags = BTreeSet::new();
        for request in &requests {
            check_lengths(&request.pair, &request.descriptor)?;
            if !tags.insert(request.tag) {
                return Err(UsageError::Argument {
                    name: "tag",
                    why: format!("two of the operations have tag {}", request.tag.0),
                }
                .into());
            }
        }
        let (pairs, works): (Vec<_>, Vec<_>) = requests
            .into_iter()
            .map(|r| (r.pair, (r.descriptor, r.tag)))
            .unzip();
        loan::scope(pairs, |lender| {
            let launch = |index: usize, signal: &Arc<Signal>| {
                let (descriptor, tag) = works.get(index)?;
                let lent = lender.lend(index)?;
                let options = CallOptions::default();
                Some(self.begin_reduce(lent, *descriptor, *tag, options, signal.clone()))
            };
            Batch::new(works.len(), max_in_flight).run(self, launch)
        })
    }
}

/// Several operations on their way.
///
/// Every member has the first `max_in_flight` operations in flight that have not succeeded yet:
/// all get the same verdicts, so all take the same next steps, and the first that has not
/// succeeded is in flight at all of them.
struct Batch {
    to_do: BTreeSet<usize>,
    in_flight: Vec<(usize, OpHandle)>,
    max_in_flight: usize,
    signal: Arc<Signal>,
    info: ReduceInfo,
}

impl Batch {
    fn new(count: usize, max_in_flight: usize) -> Self {
        Self {
            to_do: (0..count).collect(),
            in_flight: Vec::new(),
            max_in_flight,
            signal: Arc::default(),
            info: ReduceInfo::default(),
        }
    }

    fn run(
        mut self,
        communicator: &Communicator,
        launch: impl Fn(usize, &Arc<Signal>) -> Option<OpHandle>,
    ) -> Result<ReduceInfo> {
        let ended = loop {
            if self.to_do.is_empty() && self.in_flight.is_empty() {
                break Ok(());
            }
            if communicator.attributes().group_world_size < 2 {
                break Err(Error::TooFewPeers);
            }
            if let Err(error) = self.fill(&launch) {
                break Err(error);
            }
            if let Err(error) = self.take_one() {
                break Err(error);
            }
        };
        // What is still in flight belongs to a batch that has failed: every member ends it.
        for (_, handle) in &self.in_flight {
            handle.cancel();
        }
        for (_, handle) in self.in_flight.drain(..) {
            let _ = handle.wait();
        }
        ended.map(|()| self.info)
    }

    fn fill(&mut self, launch: &impl Fn(usize, &Arc<Signal>) -> Option<OpHandle>) -> Result<()> {
        while self.in_flight.len() < self.max_in_flight
            && let Some(index) = self.to_do.pop_first()
        {
            let handle = launch(index, &self.signal)
                .ok_or_else(|| Error::Internal("a buffer is lent out twice".into()))?;
            self.in_flight.push((index, handle));
        }
        Ok(())
    }

    /// Waits until one of the operations in flight has ended, whichever it is.
    fn take_one(&mut self) -> Result<()> {
        let in_flight = &self.in_flight;
        let place = self.signal.wait(None, || {
            in_flight
                .iter()
                .position(|(_, handle)| handle.is_complete())
        });
        let Some(place) = place else {
            return Err(Error::Internal("a wait without limit ended".into()));
        };
        let (index, handle) = self.in_flight.swap_remove(place);
        match handle.wait() {
            Ok(info) => {
                self.info.world_size = info.world_size;
                self.info.newcomers_pending = info.newcomers_pending;
                self.info.tx_bytes += info.tx_bytes;
                self.info.rx_bytes += info.rx_bytes;
                Ok(())
            }
            Err(Error::Aborted { reason, .. }) if !reason.is_mismatch() => {
                self.to_do.insert(index);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
