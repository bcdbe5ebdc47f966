//! Waits that release the interpreter's lock and see Ctrl-C.

use std::time::{Duration, Instant};

use pccl_core::error::Result;
use pccl_core::{CallHandle, OpHandle, ReduceInfo};
use pyo3::prelude::*;

use crate::errors::{Function, argument_error, exception};

/// How long a wait lasts before it looks for signals: a person does not notice it, and twenty looks
/// a second cost nothing.
const SLICE: Duration = Duration::from_millis(50);

/// A call that has begun.
pub(crate) trait Begun: Sync {
    /// What it gives.
    type Output: Send;

    /// Blocks until it has ended, at most `limit`.
    fn wait_for(&self, limit: Duration) -> Option<Result<Self::Output>>;
    /// Asks for its end; the verdict still comes.
    fn give_up(&self);
    /// Ends it at once, and the membership with it.
    fn abandon(&self);
}

impl Begun for CallHandle {
    type Output = bool;

    fn wait_for(&self, limit: Duration) -> Option<Result<bool>> {
        self.wait_timeout(limit)
    }

    fn give_up(&self) {
        self.cancel();
    }

    fn abandon(&self) {
        self.abandon();
    }
}

impl Begun for OpHandle {
    type Output = ReduceInfo;

    fn wait_for(&self, limit: Duration) -> Option<Result<ReduceInfo>> {
        self.wait_timeout(limit)
    }

    fn give_up(&self) {
        self.cancel();
    }

    fn abandon(&self) {
        self.abandon();
    }
}

/// Waits until `begun` has ended, at most `limit`; none after that time.
///
/// The first signal whose handler raises (Ctrl-C) asks for an abort and waits on, for the verdict;
/// the second abandons the call. What the handler raised comes out, with the call's own failure as
/// its cause. (Rule 5)
pub(crate) fn wait<B: Begun>(
    py: Python<'_>,
    function: Function,
    begun: &B,
    limit: Option<Duration>,
) -> PyResult<Option<B::Output>> {
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut interrupt: Option<PyErr> = None;
    let result = loop {
        let left = deadline.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()));
        let slice = left.min(SLICE);
        if let Some(result) = py.detach(|| begun.wait_for(slice)) {
            break result;
        }
        if let Err(raised) = py.check_signals() {
            if interrupt.is_some() {
                begun.abandon();
            } else {
                begun.give_up();
            }
            interrupt = Some(raised);
        }
        if interrupt.is_none() && left <= SLICE && deadline.is_some_and(|end| end <= Instant::now())
        {
            return Ok(None);
        }
    };
    let result = result.map_err(|error| exception(py, function, &error));
    let Some(raised) = interrupt else {
        return result.map(Some);
    };
    if let Err(failure) = result {
        raised.set_cause(py, Some(failure));
    }
    Err(raised)
}

/// Seconds as a duration.
///
/// # Errors
/// An `ArgumentError` if they are negative or no number.
pub(crate) fn seconds(
    py: Python<'_>,
    function: Function,
    seconds: Option<f64>,
) -> PyResult<Option<Duration>> {
    seconds
        .map(|s| {
            Duration::try_from_secs_f64(s).map_err(|error| {
                argument_error(py, function.name(), format!("timeout {s}: {error}"))
            })
        })
        .transpose()
}
