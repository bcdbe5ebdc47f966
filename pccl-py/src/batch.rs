//! Several all-reduces with retries, for Python.

#![allow(unsafe_code)]

use pccl_core::ids::Tag;
use pccl_core::types::ReduceDescriptor;
use pccl_core::{BatchDone, BatchStop, CallOptions, Communicator, ReduceRequest};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::buffers::{Memory, View, check_apart};
use crate::errors::{Function, argument_error, exception};
use crate::exit::Inside;
use crate::operation::{What, descriptor};
use crate::wait::{beside, finish};

/// One all-reduce as the Python package hands it over: what is sent, where the result goes,
/// what to do, tag.
pub(crate) type Item<'py> = (View<'py>, View<'py>, What, u64);

/// Carries them all out: members, bytes sent, bytes received. An exception says in `committed`
/// which were done.
pub(crate) fn reduce_all(
    py: Python<'_>,
    communicator: &Communicator,
    items: Vec<Item<'_>>,
    max_in_flight: usize,
    options: CallOptions,
) -> PyResult<(u32, u64, u64)> {
    let function = Function::Reduce(NAME);
    let _inside = Inside::enter(py);
    let mut lent = Vec::with_capacity(items.len());
    for (send, recv, what, tag) in items {
        let (send, recv) = (Memory::of(send), Memory::of(recv));
        let descriptor = descriptor(py, NAME, &send, &recv, what)?;
        lent.push((send, recv, descriptor, tag));
    }
    check(py, &lent)?;
    let mut requests = Vec::with_capacity(lent.len());
    for (send, recv, descriptor, tag) in &lent {
        // SAFETY: both have the bytes that the descriptor says, which has been checked, and are
        // kept by their owners, in `lent`, until after the call, which `beside` does not outlive.
        // No other operation writes to them, as has just been checked; that nobody else touches
        // them meanwhile is what the documentation asks of the user.
        let request = unsafe {
            ReduceRequest::from_raw(send.address(), recv.address(), *descriptor, Tag(*tag))
        };
        requests.push(request.map_err(|error| exception(py, function, &error))?);
    }
    let stop = BatchStop::default();
    let mut done: Option<BatchDone> = None;
    let work = || {
        let batch = communicator.all_reduce_multiple_until(requests, max_in_flight, options, &stop);
        let ended = batch.ended.clone();
        done = Some(batch);
        ended
    };
    let give_up = || stop.stop();
    let abandon = || communicator.abandon();
    let (ended, interrupt) = beside(py, "pccl-batch", work, &give_up, &abandon)?;
    let done = done.as_ref();
    let result = match ended {
        Ok(()) => Ok(done.map_or((0, 0, 0), |done| {
            let info = done.info;
            (info.world_size, info.tx_bytes, info.rx_bytes)
        })),
        Err(error) => {
            let failure = exception(py, function, &error);
            let committed = done.map(|done| done.committed.as_slice());
            let places = PyTuple::new(py, committed.unwrap_or_default())?;
            failure.value(py).setattr("committed", places)?;
            Err(failure)
        }
    };
    finish(py, result, interrupt)
}

type Lent = (Memory, Memory, ReduceDescriptor, u64);

/// No operation may write where another one reads or writes.
fn check(py: Python<'_>, lent: &[Lent]) -> PyResult<()> {
    if lent.is_empty() {
        return Err(argument_error(py, NAME, "there is no descriptor".into()));
    }
    let in_place = |(send, recv, ..): &Lent| send.range() == recv.range();
    let written: Vec<_> = lent
        .iter()
        .map(|(_, recv, _, tag)| (recv, format!("recv of tag {tag}")))
        .collect();
    let read: Vec<_> = lent
        .iter()
        .filter(|one| !in_place(one))
        .map(|(send, _, _, tag)| (send, format!("send of tag {tag}")))
        .collect();
    check_apart(py, NAME, &written, &read)
}

const NAME: &str = "all_reduce_multiple_with_retry";
