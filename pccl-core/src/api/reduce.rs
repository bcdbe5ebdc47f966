//! All-reduces.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::communicator::{Communicator, own_signal};
use super::element::Element;
use super::handle::{AsyncReduce, OpHandle};
use super::loan::{self, LentVec, Pair};
use super::options::{CallOptions, ReduceInfo};
use crate::collective::buffers::Lent;
use crate::error::{Error, Result, UsageError};
use crate::ids::Tag;
use crate::membership::peer::Request;
use crate::runtime::calls::Signal;
use crate::runtime::control::Work;
use crate::types::{ReduceDescriptor, Reduction};

impl Communicator {
    /// Combines the `send` buffers of all members of the group, element by element, into every
    /// member's `recv`. All of them end with the same bits.
    ///
    /// `send` is never changed. If the call fails, it has failed at all members, and what is in
    /// `recv` means nothing. Operations with different tags may run at the same time, and members
    /// may begin them in different orders. Lengths of zero are allowed.
    ///
    /// `op` is a [`ReduceOp`](crate::types::ReduceOp), or one with data that travels
    /// [quantised](crate::types::ReduceOp::quantized).
    pub fn all_reduce<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: impl Into<Reduction>,
        tag: Tag,
    ) -> Result<ReduceInfo> {
        self.all_reduce_with(send, recv, op, tag, CallOptions::default())
    }

    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_with<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: impl Into<Reduction>,
        tag: Tag,
        options: CallOptions,
    ) -> Result<ReduceInfo> {
        let descriptor = descriptor::<T>(send.len(), op);
        self.reduce_pair(Pair::new(send, recv), descriptor, tag, options)
    }

    /// As [`Communicator::all_reduce`], with the result in the place of the contribution. If the
    /// call fails, the buffer is as it was.
    pub fn all_reduce_in_place<T: Element>(
        &self,
        buffer: &mut [T],
        op: impl Into<Reduction>,
        tag: Tag,
    ) -> Result<ReduceInfo> {
        self.all_reduce_in_place_with(buffer, op, tag, CallOptions::default())
    }

    /// As [`Communicator::all_reduce_in_place`].
    pub fn all_reduce_in_place_with<T: Element>(
        &self,
        buffer: &mut [T],
        op: impl Into<Reduction>,
        tag: Tag,
        options: CallOptions,
    ) -> Result<ReduceInfo> {
        let descriptor = descriptor::<T>(buffer.len(), op);
        self.reduce_pair(Pair::in_place(buffer), descriptor, tag, options)
    }

    /// Begins an all-reduce in place on a vector, which comes back from the wait.
    pub fn all_reduce_async<T: Element>(
        &self,
        buffer: Vec<T>,
        op: impl Into<Reduction>,
        tag: Tag,
        options: CallOptions,
    ) -> AsyncReduce<T> {
        let descriptor = descriptor::<T>(buffer.len(), op);
        let (buffer, lent) = LentVec::new(buffer);
        let handle = self.begin_reduce(lent, descriptor, tag, options, own_signal());
        AsyncReduce::new(handle, buffer)
    }

    /// Begins an all-reduce on memory that the caller vouches for: what bindings to other
    /// languages are made from. `send == recv` is an operation in place. Buffers that overlap in
    /// part, or are null although the descriptor has elements, are a [`UsageError`].
    ///
    /// # Safety
    ///
    /// Both buffers have the size that the descriptor says, and hold initialised memory. From the
    /// call until a wait on the handle has returned a result, or the handle has been dropped, they
    /// stay valid, nobody else reads or writes `recv`, and nobody writes to `send`. A handle that
    /// is forgotten (`mem::forget`) lends them for ever.
    pub unsafe fn all_reduce_raw(
        &self,
        send: *const u8,
        recv: *mut u8,
        descriptor: ReduceDescriptor,
        tag: Tag,
        options: CallOptions,
    ) -> Result<OpHandle> {
        let bytes = check_raw(send, recv, &descriptor)?;
        // SAFETY: the caller promises what `Lent::new` asks for; that the buffers are the same or
        // apart, and shorter than `isize::MAX`, has just been checked. The value is dropped by the
        // data thread before the call completes.
        let lent = unsafe { Lent::new(send, recv, bytes) };
        Ok(self.begin_reduce(lent, descriptor, tag, options, own_signal()))
    }

    /// Begins an all-reduce on buffers that are on loan.
    pub(super) fn begin_reduce(
        &self,
        lent: Lent,
        descriptor: ReduceDescriptor,
        tag: Tag,
        options: CallOptions,
        signal: Arc<Signal>,
    ) -> OpHandle {
        let controls = self.control.controls().clone();
        let descriptor = ReduceDescriptor {
            algorithm: descriptor.algorithm.or(self.algorithm),
            ..descriptor
        };
        let request = Request::Reduce { tag, descriptor };
        let work = Work::Reduce(lent);
        let (call, ticket) = controls.submit(request, options.limit, work, signal);
        OpHandle::new(ticket, call, controls)
    }

    fn reduce_pair(
        &self,
        pair: Pair<'_>,
        descriptor: ReduceDescriptor,
        tag: Tag,
        options: CallOptions,
    ) -> Result<ReduceInfo> {
        check_lengths(&pair, &descriptor)?;
        loan::scope(vec![pair], |lender| {
            let Some(lent) = lender.lend(0) else {
                return Err(Error::Internal("a buffer is lent out twice".into()));
            };
            self.begin_reduce(lent, descriptor, tag, options, own_signal())
                .wait()
        })
    }
}

/// Descriptor of a buffer with `count` elements.
pub(super) fn descriptor<T: Element>(
    count: usize,
    reduction: impl Into<Reduction>,
) -> ReduceDescriptor {
    let Reduction {
        op,
        quantization,
        algorithm,
    } = reduction.into();
    ReduceDescriptor {
        count: count as u64,
        data_type: T::DATA_TYPE,
        op,
        quantization,
        algorithm,
    }
}

/// Both buffers must have the size that the descriptor says.
pub(super) fn check_lengths(pair: &Pair<'_>, descriptor: &ReduceDescriptor) -> Result<()> {
    let want = checked_bytes(descriptor)?;
    let (send, recv) = pair.lengths();
    for (which, got) in [("send", send), ("receive", recv)] {
        if got != want {
            return Err(bad_length(which, got, want as u64, descriptor));
        }
    }
    Ok(())
}

/// Bytes of buffers that come as pointers, if the pointers can be what the descriptor says.
pub(super) fn check_raw(
    send: *const u8,
    recv: *mut u8,
    descriptor: &ReduceDescriptor,
) -> Result<usize> {
    let bytes = checked_bytes(descriptor)?;
    check_overlap(send.addr(), recv.addr(), bytes)?;
    if bytes > 0 && (send.is_null() || recv.is_null()) {
        return Err(bad_length("send or receive", 0, bytes as u64, descriptor));
    }
    Ok(bytes)
}

fn bad_length(which: &'static str, got: usize, want: u64, descriptor: &ReduceDescriptor) -> Error {
    UsageError::BufferLength {
        which,
        got,
        want,
        count: descriptor.count,
        data_type: descriptor.data_type,
    }
    .into()
}

/// Bytes of a buffer, if memory can hold them.
fn checked_bytes(descriptor: &ReduceDescriptor) -> Result<usize> {
    let bytes = descriptor.bytes().and_then(|b| isize::try_from(b).ok());
    match bytes {
        Some(bytes) => Ok(bytes.unsigned_abs()),
        None => Err(UsageError::Argument {
            name: "count",
            why: format!("{descriptor} does not fit into memory"),
        }
        .into()),
    }
}

/// The same buffer, or two that have nothing in common.
fn check_overlap(send: usize, recv: usize, bytes: usize) -> Result<()> {
    let apart = send.abs_diff(recv) >= bytes;
    if send == recv || apart {
        return Ok(());
    }
    Err(UsageError::PartialOverlap.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ReduceOp;

    #[test]
    fn buffers_are_the_same_or_apart() {
        assert!(check_overlap(100, 100, 8).is_ok());
        assert!(check_overlap(100, 108, 8).is_ok());
        assert!(check_overlap(108, 100, 8).is_ok());
        let overlap = Err(Error::Usage(UsageError::PartialOverlap));
        assert_eq!(check_overlap(100, 107, 8), overlap);
        assert_eq!(check_overlap(101, 100, 8), overlap);
    }

    #[test]
    fn lengths_must_be_the_descriptors() {
        let send = [1f32; 3];
        let mut recv = [0f32; 2];
        let pair = Pair::new(&send, &mut recv);
        let checked = check_lengths(&pair, &descriptor::<f32>(3, ReduceOp::Sum));
        assert!(matches!(
            checked,
            Err(Error::Usage(UsageError::BufferLength {
                which: "receive",
                got: 8,
                want: 12,
                ..
            }))
        ));
    }

    #[test]
    fn a_count_that_no_memory_holds_is_refused() {
        let huge = ReduceDescriptor {
            count: u64::MAX / 4,
            data_type: crate::types::DataType::F64,
            op: ReduceOp::Sum,
            quantization: None,
            algorithm: None,
        };
        assert!(checked_bytes(&huge).is_err());
    }
}
