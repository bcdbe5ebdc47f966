//! Forked processes: the child has the parent's objects, but none of the threads behind them.

use pyo3::prelude::*;

use crate::errors::{Function, invalid_usage};

/// The process that made an object.
#[derive(Clone, Copy)]
pub(crate) struct Home(u32);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// Whether this is the process. In another one nothing may be called, locked or dropped: the
    /// fork may have caught a lock held, and ends that are waited for never come.
    pub(crate) fn is_here(self) -> bool {
        self.0 == std::process::id()
    }

    /// An error in any other process.
    pub(crate) fn check(self, py: Python<'_>, function: Function) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        let why = format!(
            "this object belongs to process {}, of which this one, {}, is a fork; make one of its \
             own after the fork",
            self.0,
            std::process::id()
        );
        Err(invalid_usage(py, function, &why))
    }
}
