//! How a user's thread waits for its call, and how the control thread ends the wait.
//!
//! Every call has one slot with two ends. The control thread's end fills the slot exactly once: if
//! it is dropped unused, as when that thread ends or panics, the slot is filled with an error. So
//! no waiter is ever left behind.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::collective::engine::OpStats;
use crate::error::{Error, Result};
use crate::wire::control::Stamp;

/// What a call has come to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Reply {
    /// Connected, updated, left.
    Done,
    /// Whether newcomers wait.
    Pending(bool),
    /// An operation was committed; with what it has moved, if it was a collective.
    Committed(OpStats, Stamp),
}

/// Wakes one thread that waits for any of several calls.
#[derive(Default)]
pub(crate) struct Signal {
    changes: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    /// Has those who wait look again.
    pub(crate) fn raise(&self) {
        *lock(&self.changes) += 1;
        self.changed.notify_all();
    }

    /// Blocks until `ready` says something, or `limit` has passed. `ready` is asked again after
    /// every completion of a call with this signal.
    pub(crate) fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let deadline = limit.and_then(|l| Instant::now().checked_add(l));
        let mut changes = lock(&self.changes);
        loop {
            // Whoever fills a slot does so before it raises the signal, which takes this lock: a
            // completion after this look is a wake-up after this point.
            if let Some(value) = ready() {
                return Some(value);
            }
            changes = match deadline {
                None => self
                    .changed
                    .wait(changes)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.changed
                        .wait_timeout(changes, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }
}

struct Slot {
    reply: Mutex<Option<Result<Reply>>>,
    signal: Arc<Signal>,
}

/// The user's end of a call.
#[derive(Clone)]
pub(crate) struct Ticket {
    slot: Arc<Slot>,
}

/// The control thread's end of a call.
pub(crate) struct Completer {
    slot: Option<Arc<Slot>>,
}

/// A call's two ends. `signal` is raised when it completes.
pub(crate) fn call(signal: Arc<Signal>) -> (Ticket, Completer) {
    let slot = Arc::new(Slot {
        reply: Mutex::new(None),
        signal,
    });
    let ticket = Ticket { slot: slot.clone() };
    (ticket, Completer { slot: Some(slot) })
}

impl Ticket {
    /// The result, if there is one.
    pub(crate) fn peek(&self) -> Option<Result<Reply>> {
        lock(&self.slot.reply).clone()
    }

    /// Whether there is a result.
    pub(crate) fn is_complete(&self) -> bool {
        lock(&self.slot.reply).is_some()
    }

    /// Blocks until there is a result, or `limit` has passed. Uses no CPU.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Option<Result<Reply>> {
        self.slot.signal.wait(limit, || self.peek())
    }
}

impl Completer {
    /// Ends the call.
    pub(crate) fn complete(mut self, result: Result<Reply>) {
        self.fill(result);
    }

    fn fill(&mut self, result: Result<Reply>) {
        if let Some(slot) = self.slot.take() {
            *lock(&slot.reply) = Some(result);
            slot.signal.raise();
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        self.fill(Err(Error::Internal(
            "the communicator's thread ended with the call open".into(),
        )));
    }
}

/// A lock that another thread's panic does not take away: what these locks guard is whole at every
/// point where their holders could panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_gets_what_the_other_end_says() {
        let (ticket, completer) = call(Arc::default());
        assert!(!ticket.is_complete());
        let waiter = std::thread::spawn({
            let ticket = ticket.clone();
            move || ticket.wait(None)
        });
        completer.complete(Ok(Reply::Pending(true)));
        assert_eq!(waiter.join().unwrap(), Some(Ok(Reply::Pending(true))));
        assert_eq!(ticket.peek(), Some(Ok(Reply::Pending(true))));
    }

    #[test]
    fn a_dropped_end_is_an_error_for_the_waiter() {
        let (ticket, completer) = call(Arc::default());
        let waiter = std::thread::spawn(move || ticket.wait(None));
        drop(completer);
        assert!(matches!(
            waiter.join().unwrap(),
            Some(Err(Error::Internal(_)))
        ));
    }

    #[test]
    fn a_limited_wait_ends_without_a_result() {
        let (ticket, _completer) = call(Arc::default());
        assert_eq!(ticket.wait(Some(Duration::from_millis(1))), None);
    }

    #[test]
    fn one_signal_serves_several_calls() {
        let signal = Arc::new(Signal::default());
        let calls: Vec<_> = (0..3).map(|_| call(signal.clone())).collect();
        let (tickets, mut completers): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let last = completers.pop().unwrap();
        let helper = std::thread::spawn(move || last.complete(Ok(Reply::Done)));
        let first = signal.wait(None, || tickets.iter().position(Ticket::is_complete));
        assert_eq!(first, Some(2));
        helper.join().unwrap();
    }
}
