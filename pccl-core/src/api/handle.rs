//! Calls that have begun and not yet returned.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::element::Element;
use super::loan::LentVec;
use super::options::ReduceInfo;
use crate::error::{Error, Result};
use crate::ids::CallId;
use crate::runtime::calls::{Reply, Ticket};
use crate::runtime::control::Controls;

/// An operation in flight.
///
/// The buffers that it was started with belong to the library until a wait has returned a result,
/// success or failure. Dropping the handle before that cancels the operation and blocks until the
/// buffers are free: for one round trip to the master, or the master limit at most if the master
/// does not answer. A handle may outlive its communicator, whose end completes it.
#[must_use = "an operation that nobody waits for is cancelled"]
pub struct OpHandle {
    ticket: Ticket,
    call: CallId,
    controls: Controls,
    /// Whether the result has been returned to the user.
    shown: AtomicBool,
}

impl OpHandle {
    pub(super) fn new(ticket: Ticket, call: CallId, controls: Controls) -> Self {
        Self {
            ticket,
            call,
            controls,
            shown: AtomicBool::new(false),
        }
    }

    /// Blocks until the operation has ended, for all members alike. May be called again; the
    /// result stays.
    pub fn wait(&self) -> Result<ReduceInfo> {
        match self.ticket.wait(None) {
            Some(result) => self.returned(result),
            None => Err(Error::Internal("a wait without limit ended".into())),
        }
    }

    /// Blocks until the operation has ended, at most `limit`. `None` after that time: the
    /// operation goes on, and the buffers stay with the library.
    pub fn wait_timeout(&self, limit: Duration) -> Option<Result<ReduceInfo>> {
        let result = self.ticket.wait(Some(limit))?;
        Some(self.returned(result))
    }

    /// The result, if the operation has ended.
    pub fn test(&self) -> Option<Result<ReduceInfo>> {
        let result = self.ticket.peek()?;
        Some(self.returned(result))
    }

    /// Asks for the end of the operation, for all members. Returns at once; a wait gives what the
    /// master decided, which may still be success.
    pub fn cancel(&self) {
        if !self.ticket.is_complete() {
            self.controls.cancel(self.call);
        }
    }

    /// Leaves the run at once, without waiting for anybody: the way out for a user who interrupts
    /// a second time. Every open call of the communicator ends with [`Error::Abandoned`] and its
    /// buffers are free, restored where the operation was in place. The other members see this
    /// peer lost. `connect` or `update_topology` joins again.
    pub fn abandon(&self) {
        if !self.ticket.is_complete() {
            self.controls.abandon();
        }
    }

    /// What the user gets, who is shown the world sizes after a failure with it, once.
    fn returned(&self, result: Result<Reply>) -> Result<ReduceInfo> {
        if let Err(Error::Aborted { stamp, .. }) = &result
            && !self.shown.load(Ordering::Acquire)
        {
            self.controls.shown(self.call, *stamp);
            self.shown.store(true, Ordering::Release);
        }
        reduced(result)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.ticket.is_complete()
    }
}

impl Drop for OpHandle {
    fn drop(&mut self) {
        if !self.ticket.is_complete() {
            self.controls.cancel(self.call);
            let _ = self.ticket.wait(None);
        }
    }
}

impl std::fmt::Debug for OpHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpHandle")
            .field("call", &self.call)
            .field("result", &self.ticket.peek())
            .finish()
    }
}

/// An all-reduce in flight that owns its buffer. Dropping it cancels the operation, see
/// [`OpHandle`].
#[must_use = "an operation that nobody waits for is cancelled"]
pub struct AsyncReduce<T: Element> {
    // In this order: the handle's drop cancels, the buffer's drop waits.
    handle: OpHandle,
    buffer: LentVec<T>,
}

impl<T: Element> AsyncReduce<T> {
    pub(super) fn new(handle: OpHandle, buffer: LentVec<T>) -> Self {
        Self { handle, buffer }
    }

    /// Blocks until the operation has ended, and gives the buffer back: with the result, or as it
    /// was if the operation failed.
    pub fn wait(self) -> (Vec<T>, Result<ReduceInfo>) {
        let result = self.handle.wait();
        (self.buffer.take(), result)
    }

    /// The operation itself: to test it, wait for it for a while, or cancel it.
    pub fn handle(&self) -> &OpHandle {
        &self.handle
    }
}

impl<T: Element> std::fmt::Debug for AsyncReduce<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.handle.fmt(f)
    }
}

/// What a completed all-reduce means to its user.
pub(super) fn reduced(result: Result<Reply>) -> Result<ReduceInfo> {
    match result? {
        Reply::Committed(stats, stamp) => Ok(ReduceInfo {
            world_size: stats.world,
            tx_bytes: stats.tx_bytes,
            rx_bytes: stats.rx_bytes,
            newcomers_pending: stamp.pending,
        }),
        other => Err(Error::Internal(format!(
            "an all-reduce ended with {other:?}"
        ))),
    }
}
