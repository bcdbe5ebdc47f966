//! Synchronisation of the shared state, for Python.

#![allow(unsafe_code)]

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use pccl_core::error::{Error, Result};
use pccl_core::state::shared::SharedState;
use pccl_core::types::{DataType, SyncStrategy};
use pccl_core::{CallOptions, Communicator, SyncInfo};
use pyo3::prelude::*;

use crate::buffers::Memory;
use crate::communicator::by_number;
use crate::errors::{Function, argument_error, exception};
use crate::wait::{Begun, wait};

/// A tensor as the Python package hands it over: name, array, data type, whether it may differ.
pub(crate) type Tensor<'py> = (String, Bound<'py, PyAny>, u8, bool);

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
    let strategy = by_number(&STRATEGIES, strategy)
        .ok_or_else(|| argument_error(py, function.name(), format!("no strategy {strategy}")))?;
    let mut lent = Vec::with_capacity(tensors.len());
    for (name, array, data_type, may_differ) in tensors {
        let memory = Memory::of(function.name(), &name, &array, true)?;
        let data_type = by_number(&DataType::ALL, data_type).ok_or_else(|| {
            argument_error(
                py,
                function.name(),
                format!("{name}: no data type {data_type}"),
            )
        })?;
        lent.push((name, memory, data_type, may_differ));
    }
    check_apart(py, &lent)?;
    let mut state = SharedState::new(revision);
    for (name, memory, data_type, may_differ) in &lent {
        let bytes: &mut [u8] = if memory.bytes() == 0 {
            // A null pointer is no slice, not even an empty one.
            &mut []
        } else {
            // SAFETY: the memory belongs to an array that is referred to until after the call and
            // is writable; numpy does not move it meanwhile. No two of the slices overlap, as has
            // just been checked. That nobody else touches the arrays during the call is what the
            // documentation asks of the user, as every library that works beside the interpreter
            // must.
            unsafe { std::slice::from_raw_parts_mut(memory.address(), memory.bytes()) }
        };
        state
            .add(name.as_str(), *data_type, bytes, *may_differ)
            .map_err(|error| exception(py, function, &Error::Usage(error)))?;
    }
    std::thread::scope(|scope| {
        let (done, result) = sync_channel(1);
        scope.spawn(move || {
            // The receiver is gone only if the waiter has panicked.
            let _ = done.send(communicator.sync_shared_state_with(&mut state, strategy, options));
        });
        let begun = Synchronising {
            communicator,
            result: result.into(),
        };
        let info = wait(py, function, &begun, None)?;
        info.ok_or_else(|| argument_error(py, function.name(), "a wait ended early".into()))
    })
}

/// A synchronisation that another thread is in.
struct Synchronising<'a> {
    communicator: &'a Communicator,
    result: std::sync::Mutex<Receiver<Result<SyncInfo>>>,
}

impl Begun for Synchronising<'_> {
    type Output = SyncInfo;

    fn wait_for(&self, limit: Duration) -> Option<Result<SyncInfo>> {
        let result = self.result.lock().unwrap_or_else(|e| e.into_inner());
        match result.recv_timeout(limit) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(Error::Internal(
                "the synchronising thread panicked".into(),
            ))),
        }
    }

    fn give_up(&self) {
        self.communicator.cancel_sync();
    }

    fn abandon(&self) {
        self.communicator.abandon();
    }
}

/// Two tensors in the same memory could not both be written.
fn check_apart(py: Python<'_>, lent: &[(String, Memory, DataType, bool)]) -> PyResult<()> {
    let mut ranges: Vec<_> = lent
        .iter()
        .filter(|(_, memory, ..)| memory.bytes() > 0)
        .map(|(name, memory, ..)| (memory.address().addr(), memory.bytes(), name))
        .collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        if let [(begin, bytes, first), (next, _, second)] = pair
            && begin + bytes > *next
        {
            let why = format!("the tensors {first} and {second} share memory");
            return Err(argument_error(py, Function::Sync.name(), why));
        }
    }
    Ok(())
}

/// In the order of their discriminants.
const STRATEGIES: [SyncStrategy; 3] = [
    SyncStrategy::EnforcePopular,
    SyncStrategy::ReceiveOnly,
    SyncStrategy::SendOnly,
];
