//! An all-reduce on its way, for Python.

#![allow(unsafe_code)]

use std::time::Duration;

use pccl_core::ids::Tag;
use pccl_core::types::ReduceDescriptor;
use pccl_core::{CallOptions, Communicator, OpHandle};
use pyo3::prelude::*;

use crate::buffers::Memory;
use crate::errors::{Function, exception};
use crate::wait::{seconds, wait};

/// An all-reduce on its way. Destroying it before it has ended cancels it.
#[pyclass(frozen, module = "pccl._native")]
pub(crate) struct Operation {
    // Always there until the drop, which must not hold the interpreter's lock.
    handle: Option<OpHandle>,
    function: Function,
    // Declared after the handle, and so dropped after it.
    _arrays: [Memory; 2],
}

impl Operation {
    #[expect(clippy::too_many_arguments)]
    pub(crate) fn start(
        py: Python<'_>,
        function: Function,
        communicator: &Communicator,
        send: Memory,
        recv: Memory,
        descriptor: ReduceDescriptor,
        tag: Tag,
        options: CallOptions,
    ) -> PyResult<Self> {
        // SAFETY: both arrays hold as many bytes as the descriptor says, which the caller has
        // checked. References to them are held beside the handle, and numpy does not move the
        // memory of an array that is referred to. Both are dropped after the handle, whose drop
        // waits until the library has let go. That nobody else touches the arrays meanwhile is
        // what the documentation asks of the user, as every library that works beside the
        // interpreter must: to break it gives wrong numbers, not a dangling pointer.
        let handle = unsafe {
            communicator.all_reduce_raw(send.address(), recv.address(), descriptor, tag, options)
        };
        Ok(Self {
            handle: Some(handle.map_err(|error| exception(py, function, &error))?),
            function,
            _arrays: [send, recv],
        })
    }

    fn handle(&self) -> PyResult<&OpHandle> {
        // The handle is taken by the drop only.
        self.handle
            .as_ref()
            .ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err("destroyed"))
    }
}

#[pymethods]
impl Operation {
    /// Waits for the verdict, at most `limit` seconds: (members, bytes sent, bytes received).
    fn wait(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<Option<(u32, u64, u64)>> {
        let limit = seconds(py, self.function, limit)?;
        let info = wait(py, self.function, self.handle()?, limit)?;
        Ok(info.map(|info| (info.world_size, info.tx_bytes, info.rx_bytes)))
    }

    fn is_done(&self) -> PyResult<bool> {
        Ok(self.handle()?.test().is_some())
    }

    fn cancel(&self) -> PyResult<()> {
        self.handle()?.cancel();
        Ok(())
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let handle = self.handle.take();
        if handle
            .as_ref()
            .is_some_and(|handle| handle.wait_timeout(Duration::ZERO).is_none())
        {
            Python::attach(|py| py.detach(|| drop(handle)));
        }
    }
}
