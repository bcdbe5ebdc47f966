//! All-reduce: blocking, asynchronous, many with retry.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::time::Duration;

use pccl_core::ids::Tag;
use pccl_core::types::ReduceDescriptor;
use pccl_core::{CallOptions, ReduceInfo, ReduceRequest};

use crate::arguments::{
    Out, algorithm, data_type, growing, input, inputs, limit, operator, optional_output, output,
};
use crate::communicator::{Comm, Lease, connected};
use crate::entry::run_initialized;
use crate::failure::{Call, Code, Failure};
use crate::layout::{self, AsyncReduceOp, CommHandle, Enum, ReduceCall, ReduceOpDescriptor};
use crate::memory;
use crate::operations::MOST;
use crate::quantization::quantization;

/// One all-reduce, to its end.
///
/// # Safety
///
/// Unless null, `descriptor` holds a value and `reduce_info_out` can be written. The buffers have
/// as many bytes as the descriptor says, and until the call returns nobody else writes to `sendbuf`
/// or touches `recvbuf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAllReduce(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    descriptor: *const layout::ReduceDescriptor,
    communicator: *const CommHandle,
    reduce_info_out: *mut layout::ReduceInfo,
) -> Enum {
    run_initialized("pcclAllReduce", || {
        let comm = connected(communicator)?;
        // SAFETY: the caller's promise.
        let (info, descriptor) = unsafe {
            (
                optional_output(reduce_info_out, "reduce_info_out")?,
                input(descriptor, "descriptor")?,
            )
        };
        let request = Request::new(sendbuf, recvbuf, &descriptor)?;
        let tag = request.tag;
        // SAFETY: the caller's promise about the buffers holds until this returns, and the
        // operation has ended by then.
        unsafe { launch(&comm, &request, comm.limit()) }?;
        let awaited = await_operation(&comm, tag, None)?;
        report(info, awaited);
        Ok(())
    })
}

/// Launches an all-reduce.
///
/// # Safety
///
/// Unless null, `descriptor` holds a value and `reduce_handle_out` can be written. The buffers have
/// as many bytes as the descriptor says; until the operation has been awaited or its communicator
/// destroyed, nobody else writes to `sendbuf` or touches `recvbuf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAllReduceAsync(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    descriptor: *const layout::ReduceDescriptor,
    communicator: *const CommHandle,
    reduce_handle_out: *mut AsyncReduceOp,
) -> Enum {
    run_initialized("pcclAllReduceAsync", || {
        let comm = connected(communicator)?;
        // SAFETY: the caller's promise.
        let (out, descriptor) = unsafe {
            (
                output(reduce_handle_out, "reduce_handle_out")?,
                input(descriptor, "descriptor")?,
            )
        };
        let request = Request::new(sendbuf, recvbuf, &descriptor)?;
        // SAFETY: the caller's promise about the buffers.
        unsafe { launch(&comm, &request, comm.limit()) }?;
        out.set(AsyncReduceOp {
            comm: communicator.cast_mut(),
            tag: request.tag,
        });
        Ok(())
    })
}

/// Launches an all-reduce with settings that PCCL 1.0 did not have.
///
/// # Safety
///
/// Unless null, `call` has as many bytes as it says, and otherwise as [`pcclAllReduceAsync`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAllReduceAsyncEx(
    call: *const ReduceCall,
    communicator: *const CommHandle,
    reduce_handle_out: *mut AsyncReduceOp,
) -> Enum {
    run_initialized("pcclAllReduceAsyncEx", || {
        let comm = connected(communicator)?;
        // SAFETY: the caller's promise.
        let (out, call) = unsafe {
            (
                output(reduce_handle_out, "reduce_handle_out")?,
                growing(call, "call")?,
            )
        };
        let (send, recv) = (host_memory(&call.send)?, host_memory(&call.recv)?);
        let mut request = Request::new(send, recv, &call.descriptor)?;
        request.descriptor.algorithm = algorithm(call.algorithm)?;
        if call.reserved != 0 {
            return Err(Failure::argument("call.reserved is not zero"));
        }
        let limit = limit(call.time_limit_ms).or_else(|| comm.limit());
        // SAFETY: the caller's promise about the buffers.
        unsafe { launch(&comm, &request, limit) }?;
        out.set(AsyncReduceOp {
            comm: communicator.cast_mut(),
            tag: request.tag,
        });
        Ok(())
    })
}

/// Waits for a launched all-reduce.
///
/// # Safety
///
/// Unless null, `reduce_handle` holds a value and `reduce_info_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAwaitAsyncReduce(
    reduce_handle: *const AsyncReduceOp,
    reduce_info_out: *mut layout::ReduceInfo,
) -> Enum {
    run_initialized("pcclAwaitAsyncReduce", || {
        // SAFETY: the caller's promise.
        let (handle, info) = unsafe {
            (
                input(reduce_handle, "reduce_handle")?,
                optional_output(reduce_info_out, "reduce_info_out")?,
            )
        };
        let comm = connected(handle.comm)?;
        let awaited = await_operation(&comm, handle.tag, None)?;
        report(info, awaited);
        Ok(())
    })
}

/// Waits for a launched all-reduce for a limited time.
///
/// # Safety
///
/// Unless null, `reduce_handle` holds a value, `done_out` and `reduce_info_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAwaitAsyncReduceFor(
    reduce_handle: *const AsyncReduceOp,
    milliseconds: u64,
    done_out: *mut bool,
    reduce_info_out: *mut layout::ReduceInfo,
) -> Enum {
    run_initialized("pcclAwaitAsyncReduceFor", || {
        // SAFETY: the caller's promise.
        let (handle, done, info) = unsafe {
            (
                input(reduce_handle, "reduce_handle")?,
                output(done_out, "done_out")?,
                optional_output(reduce_info_out, "reduce_info_out")?,
            )
        };
        let comm = connected(handle.comm)?;
        let longest = Duration::from_millis(milliseconds);
        let awaited = await_operation(&comm, handle.tag, Some(longest));
        // Also after a failure: the operation has ended then.
        done.set(!matches!(awaited, Ok(None)));
        report(info, awaited?);
        Ok(())
    })
}

/// Whether a launched all-reduce has ended.
///
/// # Safety
///
/// Unless null, `reduce_handle` holds a value and `done_out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclTestAsyncReduce(
    reduce_handle: *const AsyncReduceOp,
    done_out: *mut bool,
) -> Enum {
    run_initialized("pcclTestAsyncReduce", || {
        // SAFETY: the caller's promise.
        let (handle, done) = unsafe {
            (
                input(reduce_handle, "reduce_handle")?,
                output(done_out, "done_out")?,
            )
        };
        let operation = connected(handle.comm)?.operations.look(handle.tag)?;
        done.set(operation.test().is_some());
        Ok(())
    })
}

/// Asks for the end of a launched all-reduce.
///
/// # Safety
///
/// Unless null, `reduce_handle` holds a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclCancelAsyncReduce(reduce_handle: *const AsyncReduceOp) -> Enum {
    run_initialized("pcclCancelAsyncReduce", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { input(reduce_handle, "reduce_handle") }?;
        let operation = connected(handle.comm)?.operations.look(handle.tag)?;
        operation.cancel();
        Ok(())
    })
}

/// Several all-reduces, repeated until all have succeeded.
///
/// # Safety
///
/// Unless null, `descriptors` holds `count` values and `reduce_info_out` can be written; otherwise
/// as [`pcclAllReduce`], for each of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclAllReduceMultipleWithRetry(
    descriptors: *const ReduceOpDescriptor,
    count: usize,
    communicator: *const CommHandle,
    reduce_info_out: *mut layout::ReduceInfo,
    max_in_flight: i32,
) -> Enum {
    run_initialized("pcclAllReduceMultipleWithRetry", || {
        if count == 0 {
            return Err(Failure::argument("count is zero"));
        }
        // SAFETY: the caller's promise.
        let (given, info) = unsafe {
            (
                inputs(descriptors, count, "descriptors")?,
                optional_output(reduce_info_out, "reduce_info_out")?,
            )
        };
        let comm = connected(communicator)?;
        let most = usize::try_from(max_in_flight).unwrap_or(0);
        if most == 0 {
            return Err(Failure::argument(format!(
                "max_in_flight is {max_in_flight}; at least one operation must be in flight"
            )));
        }
        memory::room_for(given.len().saturating_mul(REQUEST_BYTES))?;
        let requests = given
            .iter()
            .map(|op| Request::new(op.sendbuf, op.recvbuf, &op.descriptor))
            .collect::<Result<Vec<_>, _>>()?;
        // SAFETY: the caller's promise about the buffers holds until this returns, and all
        // operations have ended by then.
        unsafe { retry(&comm, &requests, most, info) }
    })
}

/// One all-reduce as asked for, checked.
struct Request {
    send: *const u8,
    recv: *mut u8,
    descriptor: ReduceDescriptor,
    tag: u64,
}

impl Request {
    fn new(
        send: *const c_void,
        recv: *mut c_void,
        asked: &layout::ReduceDescriptor,
    ) -> Result<Self, Failure> {
        let data_type = data_type(asked.src_descriptor.datatype, "datatype")?;
        let op = operator(asked.op)?;
        let quantization = quantization(data_type, op, asked.quantization_options)?;
        if asked.count > 0 && (send.is_null() || recv.is_null()) {
            let which = if send.is_null() { "sendbuf" } else { "recvbuf" };
            return Err(Failure::argument(format!("{which} is null")));
        }
        Ok(Self {
            send: send.cast(),
            recv: recv.cast(),
            descriptor: ReduceDescriptor {
                count: asked.count as u64,
                data_type,
                op,
                quantization,
                algorithm: None,
            },
            tag: asked.tag,
        })
    }
}

/// Starts an operation and keeps its handle for the await.
///
/// # Safety
///
/// The buffers have the length that the descriptor says, and are the operation's until it has
/// been awaited or the communicator destroyed.
unsafe fn launch(comm: &Comm, request: &Request, limit: Option<Duration>) -> Result<(), Failure> {
    memory::enough()?;
    let lease = comm.lease()?;
    enough_peers(&lease)?;
    let reserved = comm.operations.reserve_launch(request.tag)?;
    let options = CallOptions { limit };
    let (descriptor, tag) = (request.descriptor, Tag(request.tag));
    // SAFETY: the caller's promise; the handle is dropped, or has completed, before it ends.
    let handle =
        unsafe { lease.all_reduce_raw(request.send, request.recv, descriptor, tag, options) };
    reserved.launched(handle.map_err(|error| Call::Reduce.failure(&error))?);
    Ok(())
}

/// Waits for an operation; none if `longest` has passed first.
fn await_operation(
    comm: &Comm,
    tag: u64,
    longest: Option<Duration>,
) -> Result<Option<ReduceInfo>, Failure> {
    let awaited = comm.operations.take(tag)?;
    let ended = match longest {
        None => Some(awaited.handle().wait()),
        Some(longest) => awaited.handle().wait_timeout(longest),
    };
    let Some(ended) = ended else {
        return Ok(None);
    };
    awaited.done();
    ended
        .map(Some)
        .map_err(|error| Call::Reduce.failure(&error))
}

/// Carries out all of the operations.
///
/// # Safety
///
/// The buffers have the lengths that the descriptors say, and are the operations' until this has
/// returned.
unsafe fn retry(
    comm: &Comm,
    requests: &[Request],
    max_in_flight: usize,
    info: Option<Out<layout::ReduceInfo>>,
) -> Result<(), Failure> {
    memory::enough()?;
    memory::room_for(requests.len().saturating_mul(REQUEST_BYTES))?;
    let mut tags = BTreeSet::new();
    if let Some(twice) = requests.iter().find(|request| !tags.insert(request.tag)) {
        let tag = twice.tag;
        return Err(Failure::argument(format!(
            "two of the operations have tag {tag}"
        )));
    }
    check_apart(requests)?;
    let lease = comm.lease()?;
    // The tags are in use until this returns: a launch of one elsewhere is refused, and so is a
    // unanimous call.
    let reserved = requests
        .iter()
        .map(|request| comm.operations.reserve(request.tag))
        .collect::<Result<Vec<_>, _>>()?;
    let lent = requests
        .iter()
        // SAFETY: the caller's promise.
        .map(|r| unsafe { ReduceRequest::from_raw(r.send, r.recv, r.descriptor, Tag(r.tag)) })
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Call::Reduce.failure(&error))?;
    let options = CallOptions {
        limit: comm.limit(),
    };
    let (done, ended) = lease.all_reduce_multiple_counted(lent, max_in_flight.min(MOST), options);
    drop(reserved);
    let seen = lease.attributes().group_world_size;
    let world_size = if ended.is_ok() { done.world_size } else { seen };
    report(info, Some(ReduceInfo { world_size, ..done }));
    ended.map_err(|error| {
        let failure = Call::Reduce.failure(&error);
        // Whoever was evicted, or whose master is gone, is alone: loops that repeat while there are
        // others must end.
        if seen < 2 && failure.code == Code::RankConnectionLost {
            return Failure::new(Code::TooFewPeers, failure.text);
        }
        failure
    })
}

/// Two operations at once must not write to the same place.
fn check_apart(requests: &[Request]) -> Result<(), Failure> {
    let length = |r: &Request| r.descriptor.bytes().and_then(|b| usize::try_from(b).ok());
    let mut places: Vec<(usize, usize, u64)> = requests
        .iter()
        .map(|r| (r.recv.addr(), length(r).unwrap_or(usize::MAX), r.tag))
        .filter(|(_, length, _)| *length > 0)
        .collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        if let [(first, length, one), (second, _, other)] = pair
            && second - first < *length
        {
            return Err(Failure::argument(format!(
                "the operations with tags {one} and {other} have receive buffers that overlap"
            )));
        }
    }
    Ok(())
}

fn enough_peers(lease: &Lease<'_>) -> Result<(), Failure> {
    if lease.attributes().group_world_size < 2 {
        let error = pccl_core::error::Error::TooFewPeers;
        return Err(Call::Reduce.failure(&error));
    }
    Ok(())
}

fn report(out: Option<Out<layout::ReduceInfo>>, info: Option<ReduceInfo>) {
    if let (Some(out), Some(info)) = (out, info) {
        out.set(layout::ReduceInfo {
            local_world_size: info.world_size,
            tx_bytes: info.tx_bytes,
            rx_bytes: info.rx_bytes,
        });
    }
}

/// Memory that this version can work on.
fn host_memory(buffer: &layout::Buffer) -> Result<*mut c_void, Failure> {
    match buffer.device_type {
        0 if buffer.device_index == 0 && buffer.stream.is_null() => Ok(buffer.data),
        0 => Err(Failure::argument(
            "host memory has device_index 0 and no stream",
        )),
        1 => Err(Failure::argument("this build takes no CUDA memory")),
        other => Err(Failure::argument(format!(
            "device_type is {other}, which is no pcclDeviceType_t"
        ))),
    }
}

/// Memory that one of many operations takes before any of them is in flight, amply.
const REQUEST_BYTES: usize = 1024;
