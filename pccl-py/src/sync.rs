//! Synchronisation of the shared state, for Python.

#![allow(unsafe_code)]

use pccl_core::error::Error;
use pccl_core::state::shared::SharedState;
use pccl_core::types::{DataType, SyncStrategy};
use pccl_core::{CallOptions, Communicator, SyncInfo};
use pyo3::prelude::*;

use crate::buffers::{Memory, View, check_apart};
use crate::errors::{Function, argument_error, exception};
use crate::exit::Inside;
use crate::operation::by_number;
use crate::wait::{beside, finish};

/// A tensor as the Python package hands it over: name, memory, data type, whether it may differ.
pub(crate) type Tensor<'py> = (String, View<'py>, u8, bool);

/// Synchronises; what was moved, and the revision.
pub(crate) fn synchronise(
    py: Python<'_>,
    communicator: &Communicator,
    tensors: Vec<Tensor<'_>>,
    revision: u64,
    strategy: u8,
    options: CallOptions,
) -> PyResult<SyncInfo> {
    let function = Function::Sync;
    let _inside = Inside::enter(py);
    let strategy = by_number(&STRATEGIES, strategy)
        .ok_or_else(|| argument_error(py, function.name(), format!("no strategy {strategy}")))?;
    let mut lent = Vec::with_capacity(tensors.len());
    for (name, view, data_type, may_differ) in tensors {
        let data_type = by_number(&DataType::ALL, data_type).ok_or_else(|| {
            argument_error(
                py,
                function.name(),
                format!("{name}: no data type {data_type}"),
            )
        })?;
        lent.push((name, Memory::of(view), data_type, may_differ));
    }
    let written: Vec<_> = lent
        .iter()
        .map(|(name, memory, ..)| (memory, format!("tensor {name}")))
        .collect();
    check_apart(py, function.name(), &written, &[])?;
    let mut state = SharedState::new(revision);
    for (name, memory, data_type, may_differ) in &lent {
        let bytes: &mut [u8] = if memory.bytes() == 0 {
            // A null pointer is no slice, not even an empty one.
            &mut []
        } else {
            // SAFETY: the memory is kept by its owner, which is referred to until after the call,
            // and is writable, as the package has checked. No two of the slices overlap, as has
            // just been checked. That nobody else touches the tensors during the call is what the
            // documentation asks of the user, as every library that works beside the interpreter
            // must.
            unsafe { std::slice::from_raw_parts_mut(memory.address(), memory.bytes()) }
        };
        state
            .add(name.as_str(), *data_type, bytes, *may_differ)
            .map_err(|error| exception(py, function, &Error::Usage(error)))?;
    }
    let work = move || communicator.sync_shared_state_with(&mut state, strategy, options);
    let give_up = || communicator.cancel_sync();
    let abandon = || communicator.abandon();
    let (result, interrupt) = beside(py, "pccl-sync", work, &give_up, &abandon)?;
    let result = result.map_err(|error| exception(py, function, &error));
    finish(py, result, interrupt)
}

/// In the order of their discriminants.
const STRATEGIES: [SyncStrategy; 3] = [
    SyncStrategy::EnforcePopular,
    SyncStrategy::ReceiveOnly,
    SyncStrategy::SendOnly,
];
