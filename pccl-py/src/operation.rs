//! An all-reduce on its way, for Python.

#![allow(unsafe_code)]

use std::time::Duration;

use pccl_core::ids::Tag;
use pccl_core::types::{
    Algorithm, DataType, Quantization, QuantizationAlgorithm, ReduceDescriptor, ReduceOp,
};
use pccl_core::{CallOptions, Communicator, OpHandle};
use pyo3::prelude::*;

use crate::buffers::Memory;
use crate::errors::{Function, argument_error, exception};
use crate::exit::detached;
use crate::home::Home;
use crate::wait::{seconds, wait};

/// What an all-reduce does, as the Python package says it: numbers of data type, operator,
/// quantisation algorithm (zero for none), the type that it quantises to, and by which algorithm
/// data moves (zero for the library's choice).
pub(crate) type What = (u8, u8, u8, u8, u8);

/// An all-reduce on its way. Destroying it before it has ended cancels it.
#[pyclass(frozen, module = "pccl._native")]
pub(crate) struct Operation {
    // Always there until the drop, which must not hold the interpreter's lock.
    handle: Option<OpHandle>,
    function: Function,
    home: Home,
    // Declared after the handle, and so dropped after it.
    _tensors: [Memory; 2],
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
        // SAFETY: both tensors hold as many bytes as the descriptor says, which the caller has
        // checked. References to what keeps them are held beside the handle. Both are dropped
        // after the handle, whose drop waits until the library has let go. That nobody else
        // touches the tensors meanwhile is what the documentation asks of the user, as every
        // library that works beside the interpreter must: to break it gives wrong numbers, not a
        // dangling pointer.
        let handle = unsafe {
            communicator.all_reduce_raw(send.address(), recv.address(), descriptor, tag, options)
        };
        Ok(Self {
            handle: Some(handle.map_err(|error| exception(py, function, &error))?),
            function,
            home: Home::here(),
            _tensors: [send, recv],
        })
    }

    fn handle(&self, py: Python<'_>) -> PyResult<&OpHandle> {
        self.home.check(py, self.function)?;
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
        let info = wait(py, self.function, self.handle(py)?, limit)?;
        Ok(info.map(|info| (info.world_size, info.tx_bytes, info.rx_bytes)))
    }

    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.handle(py)?.test().is_some())
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.handle(py)?.cancel();
        Ok(())
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let handle = self.handle.take();
        if !self.home.is_here() {
            std::mem::forget(handle);
            return;
        }
        if handle
            .as_ref()
            .is_some_and(|handle| handle.wait_timeout(Duration::ZERO).is_none())
        {
            Python::attach(|py| detached(py, || drop(handle)));
        }
    }
}

/// What one all-reduce does.
///
/// # Errors
/// An `ArgumentError` of `function` if the tensors differ in length, or a number means nothing.
pub(crate) fn descriptor(
    py: Python<'_>,
    function: &str,
    send: &Memory,
    recv: &Memory,
    (data_type, op, algorithm, quantized, way): What,
) -> PyResult<ReduceDescriptor> {
    let data_type = by_number(&DataType::ALL, data_type)
        .ok_or_else(|| argument_error(py, function, format!("no data type {data_type}")))?;
    let op = by_number(&ReduceOp::ALL, op)
        .ok_or_else(|| argument_error(py, function, format!("no operator {op}")))?;
    if send.bytes() != recv.bytes() {
        let (send, recv) = (send.bytes(), recv.bytes());
        let why = format!("send has {send} bytes, recv {recv}");
        return Err(argument_error(py, function, why));
    }
    let asked = by_number(&DataType::ALL, quantized)
        .ok_or_else(|| argument_error(py, function, format!("no data type {quantized}")))?;
    let quantization = match algorithm {
        0 => Ok(None),
        1 => Quantization::requested(QuantizationAlgorithm::MinMax, asked, data_type, op),
        2 => Quantization::requested(QuantizationAlgorithm::ZeroPointScale, asked, data_type, op),
        other => Err(format!("no quantisation algorithm {other}")),
    };
    Ok(ReduceDescriptor {
        count: (send.bytes() / data_type.size()) as u64,
        data_type,
        op,
        quantization: quantization.map_err(|why| argument_error(py, function, why))?,
        algorithm: Algorithm::from_number(u32::from(way)),
    })
}

/// The value whose discriminant is `number`; enumerations list theirs in order.
pub(crate) fn by_number<T: Copy>(all: &[T], number: u8) -> Option<T> {
    all.get(usize::from(number)).copied()
}
