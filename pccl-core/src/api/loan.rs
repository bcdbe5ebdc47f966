//! Lending slices and vectors to the engine, so that they come back.
//!
//! The engine works on another thread than the one whose stack holds the borrow. Every loan here
//! knows when the engine has let go of it, and nothing gives the buffers back to safe code before:
//! not a panic, not a thread that has ended, not an early return.

#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::element::Element;
use crate::collective::buffers::Lent;
use crate::runtime::calls::lock;

/// Counts loans that the engine holds.
#[derive(Default)]
struct Ledger {
    out: Mutex<usize>,
    back: Condvar,
}

impl Ledger {
    fn wait(&self) {
        let mut out = lock(&self.out);
        while *out > 0 {
            out = self.back.wait(out).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One entry of a ledger; dropped together with the [`Lent`] that carries it.
struct Entry(Arc<Ledger>);

impl Entry {
    fn new(ledger: &Arc<Ledger>) -> Self {
        *lock(&ledger.out) += 1;
        Self(ledger.clone())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        *lock(&self.0.out) -= 1;
        self.0.back.notify_all();
    }
}

/// Send and receive buffer of one all-reduce, in bytes.
pub(super) struct Pair<'a> {
    /// None: the contribution is in the receive buffer.
    send: Option<&'a [u8]>,
    recv: &'a mut [u8],
}

impl<'a> Pair<'a> {
    pub(super) fn new<T: Element>(send: &'a [T], recv: &'a mut [T]) -> Self {
        Self {
            send: Some(bytemuck::cast_slice(send)),
            recv: bytemuck::cast_slice_mut(recv),
        }
    }

    pub(super) fn in_place<T: Element>(buffer: &'a mut [T]) -> Self {
        Self {
            send: None,
            recv: bytemuck::cast_slice_mut(buffer),
        }
    }

    /// Buffers that somebody else vouches for; the same one twice is in place.
    ///
    /// # Safety
    ///
    /// For `'a`, both are valid for `len` bytes, which are initialised, and `recv` is nobody
    /// else's. They are the same or apart, and `len` is not above `isize::MAX`.
    pub(super) unsafe fn from_raw(send: *const u8, recv: *mut u8, len: usize) -> Self {
        if len == 0 {
            // A null pointer is no slice, not even an empty one.
            return Self {
                send: None,
                recv: &mut [],
            };
        }
        let in_place = send == recv.cast_const();
        // SAFETY: the caller's promise; in place there is only the one slice.
        unsafe {
            Self {
                send: (!in_place).then(|| std::slice::from_raw_parts(send, len)),
                recv: std::slice::from_raw_parts_mut(recv, len),
            }
        }
    }

    /// Bytes of the send buffer and of the receive buffer.
    pub(super) fn lengths(&self) -> (usize, usize) {
        let recv = self.recv.len();
        (self.send.map_or(recv, <[u8]>::len), recv)
    }
}

/// Lends pairs of buffers, each as often as wanted, one at a time.
pub(super) struct Lender<'a> {
    places: Vec<Place>,
    _pairs: std::marker::PhantomData<&'a mut [u8]>,
}

struct Place {
    send: *const u8,
    recv: *mut u8,
    len: usize,
    ledger: Arc<Ledger>,
}

/// Runs `use_it` with a lender of `pairs`, and comes back when the engine holds none of them.
pub(super) fn scope<R>(pairs: Vec<Pair<'_>>, use_it: impl FnOnce(&Lender<'_>) -> R) -> R {
    let places = pairs.into_iter().map(|pair| {
        let recv = pair.recv.as_mut_ptr();
        Place {
            send: pair.send.map_or_else(|| recv.cast_const(), <[u8]>::as_ptr),
            recv,
            len: pair.recv.len().min(pair.lengths().0),
            ledger: Arc::default(),
        }
    });
    let lender = Lender {
        places: places.collect(),
        _pairs: std::marker::PhantomData,
    };
    // The lender is out of the callee's reach: it is dropped here, and dropping it waits.
    use_it(&lender)
}

impl Lender<'_> {
    /// The buffers of a pair; none if the engine still has them.
    pub(super) fn lend(&self, pair: usize) -> Option<Lent> {
        let place = self.places.get(pair)?;
        if *lock(&place.ledger.out) > 0 {
            return None;
        }
        let entry = Entry::new(&place.ledger);
        // SAFETY: both ranges come from slices that are borrowed for the whole scope, the receive
        // buffer uniquely, and are not touched by anybody else in it. The scope does not end, not
        // even by a panic, before every entry has been dropped, and this one goes with the value.
        Some(unsafe { Lent::new(place.send, place.recv, place.len) }.with_guard(entry))
    }
}

impl Drop for Lender<'_> {
    fn drop(&mut self) {
        for place in &self.places {
            place.ledger.wait();
        }
    }
}

/// A vector that the engine works on, in place.
pub(super) struct LentVec<T: Element> {
    vec: ManuallyDrop<Vec<T>>,
    ledger: Arc<Ledger>,
}

impl<T: Element> LentVec<T> {
    /// Lends a vector's elements.
    pub(super) fn new(vec: Vec<T>) -> (Self, Lent) {
        let mut vec = ManuallyDrop::new(vec);
        let ledger = Arc::<Ledger>::default();
        let entry = Entry::new(&ledger);
        let bytes = vec.as_mut_ptr().cast::<u8>();
        let len = vec.len() * size_of::<T>();
        // SAFETY: the elements stay where they are, untouched, until `take` or `drop` has waited
        // for the entry, which goes with the value; if neither ever runs they are leaked. Any
        // bytes are valid elements.
        let lent = unsafe { Lent::new(bytes, bytes, len) }.with_guard(entry);
        (Self { vec, ledger }, lent)
    }

    /// The vector, once the engine has let go of it.
    pub(super) fn take(mut self) -> Vec<T> {
        self.ledger.wait();
        std::mem::take(&mut *self.vec)
    }
}

impl<T: Element> Drop for LentVec<T> {
    fn drop(&mut self) {
        self.ledger.wait();
        drop(std::mem::take(&mut *self.vec));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_when_the_other_thread_has_let_go() {
        let send = [1u32, 2, 3];
        let mut recv = [0u32; 3];
        let worker = scope(vec![Pair::new(&send, &mut recv)], |lender| {
            let mut lent = lender.lend(0).unwrap();
            assert!(lender.lend(0).is_none());
            std::thread::spawn(move || {
                let (from, to) = lent.both(0, 12).unwrap();
                to.copy_from_slice(from);
            })
        });
        assert_eq!(recv, send);
        worker.join().unwrap();
    }

    #[test]
    fn what_has_come_back_can_be_lent_again() {
        let mut buffer = [7u8; 2];
        scope(vec![Pair::in_place(&mut buffer)], |lender| {
            for _ in 0..2 {
                assert!(lender.lend(0).unwrap().in_place());
            }
        });
    }

    #[test]
    fn a_vector_comes_back_with_what_was_written() {
        let (vec, mut lent) = LentVec::new(vec![1i16, 2]);
        let worker = std::thread::spawn(move || lent.recv_mut(0, 2).unwrap().fill(0));
        assert_eq!(vec.take(), [0, 2]);
        worker.join().unwrap();
    }
}
