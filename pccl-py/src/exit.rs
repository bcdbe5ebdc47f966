//! The end of the interpreter.
//!
//! Before Python 3.14, a thread that asks for the lock of an interpreter that has ended is unwound
//! where it stands. Frames of Rust cannot be. So no other thread (a daemon thread, then) may come
//! back from a wait here once the interpreter ends: it sleeps until the process is gone. Threads
//! that are here with the lock, or about to get it, first go out. (`_lifetime.py`)

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

use pyo3::prelude::*;

/// The thread that ends the interpreter, once it does.
static ENDING: OnceLock<ThreadId> = OnceLock::new();

/// Threads with frames of this module that have the interpreter's lock, or ask for it.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How often this thread is inside.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Called by the package, on the thread that ends the interpreter, again and again: from the first
/// time on nobody comes in any more. Whether all have gone out.
#[pyfunction]
pub(crate) fn ending() -> bool {
    ENDING.get_or_init(|| std::thread::current().id());
    // A thread that comes back counts itself before it looks whether it may: either it sees that it
    // may not, or it is seen here.
    INSIDE.load(Ordering::SeqCst) == 0
}

/// A thread that is inside: it may call into Python, with frames of Rust below.
pub(crate) struct Inside(());

impl Inside {
    /// Comes in; for ever, if the interpreter ends.
    pub(crate) fn enter(py: Python<'_>) -> Self {
        if is_over() {
            py.detach(sleep);
        }
        if DEPTH.replace(DEPTH.get() + 1) == 0 {
            INSIDE.fetch_add(1, Ordering::SeqCst);
        }
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Runs `work` without the interpreter's lock.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl Send + FnOnce() -> T) -> T {
    let _inside = Inside::enter(py);
    py.detach(|| {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        let result = work();
        INSIDE.fetch_add(1, Ordering::SeqCst);
        if is_over() {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
            sleep();
        }
        result
    })
}

/// Whether another thread ends the interpreter.
fn is_over() -> bool {
    let current = std::thread::current().id();
    ENDING.get().is_some_and(|ending| *ending != current)
}

fn sleep() {
    loop {
        std::thread::park();
    }
}
