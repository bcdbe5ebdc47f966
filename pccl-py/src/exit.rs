//! The end of the interpreter.
//!
//! Threads that are still in a wait then (daemon threads) must not come back to it: before
//! Python 3.14, a thread that asks for the lock of an interpreter that ends is unwound, through
//! frames that cannot be. They sleep until the process is gone.

use std::sync::OnceLock;
use std::thread::ThreadId;

use pyo3::prelude::*;

/// The thread that ends the interpreter, once it does.
static ENDING: OnceLock<ThreadId> = OnceLock::new();

/// Called by the package when the interpreter is about to end, on the thread that ends it.
#[pyfunction]
pub(crate) fn ending() {
    ENDING.get_or_init(|| std::thread::current().id());
}

/// Runs `work` without the interpreter's lock.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl Send + FnOnce() -> T) -> T {
    py.detach(|| {
        let result = work();
        if ENDING
            .get()
            .is_some_and(|ending| *ending != std::thread::current().id())
        {
            loop {
                std::thread::park();
            }
        }
        result
    })
}
