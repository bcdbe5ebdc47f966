//! User buffers on loan to the engine.
//!
//! The engine runs on its own thread while the user waits, or does something else, so the borrow
//! checker cannot see the loan. This module is the only one that turns it into slices, each
//! checked against the length; what makes that sound is promised once, by whoever lends.

#![allow(unsafe_code)]

use std::any::Any;
use std::ptr::NonNull;
#[cfg(any(test, feature = "sim"))]
use std::sync::Arc;

/// A send and a receive buffer of the same length; they may be the same memory.
#[derive(Debug)]
pub struct Lent {
    send: NonNull<u8>,
    recv: NonNull<u8>,
    len: usize,
    /// Dropped with the loan, which is how the lender learns of its end.
    guard: Option<Box<dyn Any + Send>>,
}

// SAFETY: `Lent::new` demands that the memory may be used from any thread, by nobody but the
// holder of the value, until the value is dropped.
unsafe impl Send for Lent {}

impl Lent {
    /// Lends `len` bytes at `send` to be read, and `len` bytes at `recv` to be read and written.
    ///
    /// Null pointers are allowed if `len` is zero.
    ///
    /// # Safety
    ///
    /// Until the returned value is dropped: both ranges are valid and initialised, on whatever
    /// thread the value is; nobody writes to `send`; nobody reads or writes `recv`, other than
    /// through the value; the two are the same range or do not overlap; `len` is at most
    /// `isize::MAX`.
    pub unsafe fn new(send: *const u8, recv: *mut u8, len: usize) -> Self {
        let (Some(send), Some(recv), true) = (
            NonNull::new(send.cast_mut()),
            NonNull::new(recv),
            len > 0 && isize::try_from(len).is_ok(),
        ) else {
            return Self {
                send: NonNull::dangling(),
                recv: NonNull::dangling(),
                len: 0,
                guard: None,
            };
        };
        Self {
            send,
            recv,
            len,
            guard: None,
        }
    }

    /// Keeps `guard` for as long as the loan lasts.
    #[must_use]
    pub fn with_guard(mut self, guard: impl Send + 'static) -> Self {
        self.guard = Some(Box::new(guard));
        self
    }

    /// Length of each of the buffers, in bytes. Zero if a null pointer was lent.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in them.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the result replaces the contribution.
    pub fn in_place(&self) -> bool {
        self.send == self.recv
    }

    /// `len` bytes of the send buffer, from `start` on; none if they are not all there.
    pub fn send(&self, start: u64, len: u64) -> Option<&[u8]> {
        let (start, len) = self.check(start, len)?;
        // SAFETY: `check` keeps the range inside the buffer, which is valid while `self` lives.
        // In place, it can only be written through `&mut self`, which the result excludes.
        Some(unsafe { std::slice::from_raw_parts(self.send.as_ptr().add(start), len) })
    }

    /// `len` bytes of the receive buffer, from `start` on; none if they are not all there.
    pub fn recv(&self, start: u64, len: u64) -> Option<&[u8]> {
        let (start, len) = self.check(start, len)?;
        // SAFETY: as in `send`.
        Some(unsafe { std::slice::from_raw_parts(self.recv.as_ptr().add(start), len) })
    }

    /// The same as [`Self::recv`], to be written.
    pub fn recv_mut(&mut self, start: u64, len: u64) -> Option<&mut [u8]> {
        let (start, len) = self.check(start, len)?;
        // SAFETY: as in `send`; nobody else uses the receive buffer, and `&mut self` excludes every
        // other slice that came from here.
        Some(unsafe { std::slice::from_raw_parts_mut(self.recv.as_ptr().add(start), len) })
    }

    /// The same part of both buffers; none if it is not all there, or if they are the same memory.
    pub fn both(&mut self, start: u64, len: u64) -> Option<(&[u8], &mut [u8])> {
        if self.in_place() {
            return None;
        }
        let (start, len) = self.check(start, len)?;
        // SAFETY: as in `recv_mut`; the buffers are not the same, and so they do not overlap.
        Some(unsafe {
            (
                std::slice::from_raw_parts(self.send.as_ptr().add(start), len),
                std::slice::from_raw_parts_mut(self.recv.as_ptr().add(start), len),
            )
        })
    }

    fn check(&self, start: u64, len: u64) -> Option<(usize, usize)> {
        let end = usize::try_from(start.checked_add(len)?).ok()?;
        // Both fit, since neither is greater than their sum.
        (end <= self.len).then_some((start as usize, len as usize))
    }
}

/// Buffers that watch over their own loan, for tests and the simulator: using them before the
/// engine has let go of them panics.
#[cfg(any(test, feature = "sim"))]
#[derive(Debug)]
pub struct OwnedBuffers {
    send: Option<Box<[u8]>>,
    /// A box as a pointer, since a box may not be moved while something else points into it.
    recv: *mut [u8],
    loan: Arc<()>,
}

// SAFETY: `recv` owns its memory like a box.
#[cfg(any(test, feature = "sim"))]
unsafe impl Send for OwnedBuffers {}

#[cfg(any(test, feature = "sim"))]
impl OwnedBuffers {
    /// A contribution, and a receive buffer full of other things.
    pub fn new(send: Vec<u8>) -> Self {
        let recv = vec![0xA5; send.len()].into_boxed_slice();
        Self {
            send: Some(send.into_boxed_slice()),
            recv: Box::into_raw(recv),
            loan: Arc::new(()),
        }
    }

    /// A contribution to be replaced by the result.
    pub fn in_place(contribution: Vec<u8>) -> Self {
        Self {
            send: None,
            recv: Box::into_raw(contribution.into_boxed_slice()),
            loan: Arc::new(()),
        }
    }

    /// Lends them; panics if they are lent already.
    pub fn lend(&mut self) -> Lent {
        self.assert_back();
        let recv = self.recv.cast::<u8>();
        let send = self.send.as_ref().map(|s| s.as_ptr()).unwrap_or(recv);
        // SAFETY: both live until `self` is dropped, which panics before that if the loan lasts;
        // meanwhile every access to `recv` is refused, and nothing writes to `send`.
        let lent = unsafe { Lent::new(send, recv, self.recv.len()) };
        lent.with_guard(Arc::clone(&self.loan))
    }

    /// The contribution; panics if it is replaced by the result.
    pub fn send(&self) -> &[u8] {
        match &self.send {
            Some(send) => send,
            None => panic!("the result replaces the contribution"),
        }
    }

    /// The receive buffer; panics while it is lent.
    pub fn recv(&self) -> &[u8] {
        self.assert_back();
        // SAFETY: made from a box in `new` or `in_place`, freed in `drop`, and not lent.
        unsafe { &*self.recv }
    }

    fn assert_back(&self) {
        assert_eq!(Arc::strong_count(&self.loan), 1, "the buffers are lent");
    }
}

#[cfg(any(test, feature = "sim"))]
impl Drop for OwnedBuffers {
    fn drop(&mut self) {
        // While unwinding, or lent after all, leaking is sound and freeing is not.
        if Arc::strong_count(&self.loan) == 1 {
            // SAFETY: made from a box, and nobody uses it any more.
            drop(unsafe { Box::from_raw(self.recv) });
        } else {
            std::mem::forget(self.send.take());
            assert!(std::thread::panicking(), "the buffers are lent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_checked() {
        let send = [1u8, 2, 3, 4];
        let mut recv = vec![0u8; 4];
        // SAFETY: both outlive the loan and are not used meanwhile.
        let mut lent = unsafe { Lent::new(send.as_ptr(), recv.as_mut_ptr(), 4) };
        assert!(!lent.in_place());
        assert_eq!(lent.send(1, 2), Some(&[2u8, 3][..]));
        assert_eq!(lent.send(4, 0), Some(&[][..]));
        assert_eq!(lent.send(3, 2), None);
        assert_eq!(lent.recv(u64::MAX, 2), None);
        assert!(lent.recv_mut(0, 5).is_none());
        let (from, to) = lent.both(2, 2).unwrap();
        to.copy_from_slice(from);
        assert_eq!(lent.recv(0, 4), Some(&[0u8, 0, 3, 4][..]));
    }

    #[test]
    fn the_same_buffer_twice_is_in_place() {
        let mut buffer = vec![5u8; 3];
        let at = buffer.as_mut_ptr();
        // SAFETY: the vector outlives the loan and is not used meanwhile.
        let mut lent = unsafe { Lent::new(at, at, 3) };
        assert!(lent.in_place());
        assert!(lent.both(0, 1).is_none());
        lent.recv_mut(0, 1).unwrap().fill(9);
        assert_eq!(lent.send(0, 3), Some(&[9u8, 5, 5][..]));
    }

    #[test]
    fn nothing_can_be_read_through_null() {
        // SAFETY: null pointers make an empty loan.
        let lent = unsafe { Lent::new(std::ptr::null(), std::ptr::null_mut(), 100) };
        assert!(lent.is_empty());
        assert_eq!(lent.send(0, 0), Some(&[][..]));
        assert_eq!(lent.recv(0, 1), None);
    }
}
