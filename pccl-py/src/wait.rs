//! Waits that release the interpreter's lock and see Ctrl-C.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use pccl_core::error::{Error, Result};
use pccl_core::{CallHandle, OpHandle, ReduceInfo};
use pyo3::intern;
use pyo3::prelude::*;

use crate::errors::{Function, argument_error, exception};
use crate::exit::{Inside, detached};

/// How long a wait of the main thread lasts before it looks for signals: a person does not notice
/// it, and twenty looks a second cost nothing.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// How long the wait of any other thread lasts before it begins again, where there is no limit.
/// Python shows signals to the main thread only, so there is nothing to look for.
const LONG: Duration = Duration::from_secs(3600);

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
    let _inside = Inside::enter(py);
    match wait_raw(py, begun, limit)? {
        (None, Some(raised)) => Err(raised),
        (None, None) => Ok(None),
        (Some(result), raised) => {
            let result = result.map_err(|error| exception(py, function, &error));
            finish(py, result, raised).map(Some)
        }
    }
}

/// What the user gets from a call that has ended, and may have been interrupted.
pub(crate) fn finish<T>(
    py: Python<'_>,
    result: PyResult<T>,
    interrupt: Option<PyErr>,
) -> PyResult<T> {
    let Some(raised) = interrupt else {
        return result;
    };
    if let Err(failure) = result {
        raised.set_cause(py, Some(failure));
    }
    Err(raised)
}

/// As [`wait`], with the call's own result, and what the handler of a signal raised meanwhile.
#[expect(clippy::type_complexity)]
pub(crate) fn wait_raw<B: Begun>(
    py: Python<'_>,
    begun: &B,
    limit: Option<Duration>,
) -> PyResult<(Option<Result<B::Output>>, Option<PyErr>)> {
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    // A thread of which that cannot be told looks for signals, to no avail.
    let longest = if is_main_thread(py).unwrap_or(true) {
        SLICE
    } else {
        LONG
    };
    let mut interrupt: Option<PyErr> = None;
    loop {
        let left = deadline.map_or(longest, |end| end.saturating_duration_since(Instant::now()));
        let slice = left.min(longest);
        if let Some(result) = detached(py, || begun.wait_for(slice)) {
            return Ok((Some(result), interrupt));
        }
        if let Err(raised) = py.check_signals() {
            if interrupt.is_some() {
                begun.abandon();
            } else {
                begun.give_up();
            }
            interrupt = Some(raised);
        }
        let late = deadline.is_some_and(|end| end <= Instant::now());
        if interrupt.is_none() && late {
            return Ok((None, None));
        }
    }
}

/// Whether this is the thread to which Python shows signals.
pub(crate) fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import(intern!(py, "threading"))?;
    let main = threading.call_method0(intern!(py, "main_thread"))?;
    let own = threading.call_method0(intern!(py, "get_ident"))?;
    main.getattr(intern!(py, "ident"))?.eq(own)
}

/// A call of the library that blocks, made by a thread beside the one that waits for it.
pub(crate) struct Beside<'a, T> {
    result: Mutex<Receiver<Result<T>>>,
    give_up: &'a (dyn Fn() + Sync),
    abandon: &'a (dyn Fn() + Sync),
}

impl<T: Send> Begun for Beside<'_, T> {
    type Output = T;

    fn wait_for(&self, limit: Duration) -> Option<Result<T>> {
        let result = self.result.lock().unwrap_or_else(|e| e.into_inner());
        match result.recv_timeout(limit) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(Error::Internal("the calling thread panicked".into())))
            }
        }
    }

    fn give_up(&self) {
        (self.give_up)();
    }

    fn abandon(&self) {
        (self.abandon)();
    }
}

/// Makes a blocking call on a thread of its own, called `name`, and waits for it as [`wait_raw`]
/// does. What `work` borrows is free when this returns.
pub(crate) fn beside<T: Send>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce() -> Result<T> + Send,
    give_up: &(dyn Fn() + Sync),
    abandon: &(dyn Fn() + Sync),
) -> PyResult<(Result<T>, Option<PyErr>)> {
    std::thread::scope(|scope| {
        let (done, result) = sync_channel(1);
        let builder = std::thread::Builder::new().name(name.into());
        let spawned = builder.spawn_scoped(scope, move || {
            // The receiver is gone only if the waiter has panicked.
            let _ = done.send(work());
        });
        if let Err(error) = spawned {
            let refused = format!("the system gives no thread: {error}");
            return Ok((Err(Error::Internal(refused)), None));
        }
        let begun = Beside {
            result: result.into(),
            give_up,
            abandon,
        };
        let (result, interrupt) = wait_raw(py, &begun, None)?;
        let ended = || Err(Error::Internal("a wait without limit ended".into()));
        Ok((result.unwrap_or_else(ended), interrupt))
    })
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
