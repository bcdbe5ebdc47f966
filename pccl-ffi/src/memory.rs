//! What happens when the system gives no more memory.
//!
//! Rust ends the process when an ordinary allocation fails. A library must not: so buffers of a size
//! that a user or a peer chooses are asked for in ways that can fail, calls that begin something
//! ask for what they will need first, and everything small falls back to a reserve, which
//! lasts until what is under way has come to its end. Pages of the reserve cost nothing before
//! they are used.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Code, Failure};

/// An error if there is no memory to begin anything with: what is under way needs the rest.
pub(crate) fn enough() -> Result<(), Failure> {
    if !RESERVE.used.load(Ordering::Relaxed) {
        return Ok(());
    }
    room_for(PROBE)?;
    RESERVE.used.store(false, Ordering::Relaxed);
    Ok(())
}

/// An error if `bytes` more are not to be had at this moment.
pub(crate) fn room_for(bytes: usize) -> Result<(), Failure> {
    // The system's word, and not that of the reserve.
    let probe = Layout::from_size_align(bytes.max(1), ALIGN)
        .ok()
        .filter(|layout| {
            // SAFETY: the size is not zero, and what was given is given back as it was asked for.
            unsafe {
                // Or else the compiler, which knows what this asks for and that nobody uses it, would
                // say yes by itself.
                let place = std::hint::black_box(System.alloc(*layout));
                if !place.is_null() {
                    System.dealloc(place, *layout);
                }
                !place.is_null()
            }
        });
    probe.map(drop).ok_or_else(no_memory)
}

/// A copy, unless there is no memory for it.
pub(crate) fn copy<T: Copy>(of: &[T]) -> Result<Vec<T>, Failure> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(of.len()).map_err(|_| no_memory())?;
    copy.extend_from_slice(of);
    Ok(copy)
}

/// The text of a call that fails for want of memory.
pub(crate) fn no_memory() -> Failure {
    Failure::new(
        Code::InternalError,
        "the system has no memory left for this",
    )
}

/// The system's allocator with the reserve behind it.
struct WithReserve;

#[global_allocator]
static ALLOCATOR: WithReserve = WithReserve;

static RESERVE: Reserve = Reserve {
    used: AtomicBool::new(false),
    locked: AtomicBool::new(false),
    taken: UnsafeCell::new([0; WORDS]),
    memory: UnsafeCell::new(Memory([0; SIZE])),
};

// SAFETY: memory comes from the system or from the reserve, each of which gives a piece to one
// owner at a time, of the size and alignment asked for, and takes back its own pieces only.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout.
        let place = unsafe { System.alloc(layout) };
        if place.is_null() {
            return RESERVE.take(layout);
        }
        place
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout.
        let place = unsafe { System.alloc_zeroed(layout) };
        if !place.is_null() {
            return place;
        }
        let place = RESERVE.take(layout);
        if !place.is_null() {
            // SAFETY: a piece of that size, this caller's alone.
            unsafe { place.write_bytes(0, layout.size()) };
        }
        place
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if RESERVE.holds(place) {
            RESERVE.give(place, layout);
        } else {
            // SAFETY: not from the reserve, so from the system, with this layout.
            unsafe { System.dealloc(place, layout) };
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !RESERVE.holds(place) {
            // SAFETY: as in `dealloc`; the caller's promise about the size.
            let grown = unsafe { System.realloc(place, layout, size) };
            if !grown.is_null() {
                return grown;
            }
        }
        // SAFETY: the caller's promise: the size, rounded up, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: as above; `place` holds its old size, and the new piece is another one.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(place, moved, layout.size().min(size));
                self.dealloc(place, layout);
            }
            moved
        }
    }
}

/// Memory for when there is none.
struct Reserve {
    /// Whether a piece was taken since somebody last asked.
    used: AtomicBool,
    /// Held for the few steps of one look at `taken`; nothing in them blocks or allocates.
    locked: AtomicBool,
    /// A bit for every unit.
    taken: UnsafeCell<[u64; WORDS]>,
    memory: UnsafeCell<Memory>,
}

#[repr(align(4096))]
struct Memory(#[allow(dead_code)] [u8; SIZE]);

// SAFETY: `taken` is touched under the lock only; `memory` only through pieces that have one owner.
unsafe impl Sync for Reserve {}

impl Reserve {
    fn start(&self) -> *mut u8 {
        self.memory.get().cast()
    }

    fn holds(&self, place: *const u8) -> bool {
        place.addr().wrapping_sub(self.start().addr()) < SIZE
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        if layout.size() > LARGEST || layout.align() > UNIT {
            return std::ptr::null_mut();
        }
        self.used.store(true, Ordering::Relaxed);
        let units = layout.size().div_ceil(UNIT).max(1);
        let found = self.with_taken(|taken| {
            let mut run = 0;
            for unit in 0..WORDS * 64 {
                run = if is_taken(taken, unit) { 0 } else { run + 1 };
                if run == units {
                    let first = unit + 1 - units;
                    (first..=unit).for_each(|unit| flip(taken, unit));
                    return Some(first);
                }
            }
            None
        });
        found.map_or(std::ptr::null_mut(), |first| {
            self.start().wrapping_add(first * UNIT)
        })
    }

    fn give(&self, place: *mut u8, layout: Layout) {
        let first = place.addr().wrapping_sub(self.start().addr()) / UNIT;
        let units = layout.size().div_ceil(UNIT).max(1);
        self.with_taken(|taken| (first..first + units).for_each(|unit| flip(taken, unit)));
    }

    fn with_taken<R>(&self, look: impl FnOnce(&mut [u64; WORDS]) -> R) -> R {
        while self.locked.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: the lock is held.
        let result = look(unsafe { &mut *self.taken.get() });
        self.locked.store(false, Ordering::Release);
        result
    }
}

fn is_taken(taken: &[u64; WORDS], unit: usize) -> bool {
    taken
        .get(unit / 64)
        .is_none_or(|word| word >> (unit % 64) & 1 == 1)
}

fn flip(taken: &mut [u64; WORDS], unit: usize) {
    if let Some(word) = taken.get_mut(unit / 64) {
        *word ^= 1 << (unit % 64);
    }
}

/// Bytes of the reserve: messages, queues and words of failures of several communicators.
const SIZE: usize = 2 << 20;

/// Granularity, and the largest alignment: two cache lines, which some locks are given.
const UNIT: usize = 128;

const WORDS: usize = SIZE / UNIT / 64;

/// More at once is none of the small things that the reserve is for.
const LARGEST: usize = 128 << 10;

/// What must be there again before anything new begins after the reserve was needed.
const PROBE: usize = 1 << 20;

const ALIGN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Apart from the one that the other tests may come to need.
    static OWN: Reserve = Reserve {
        used: AtomicBool::new(false),
        locked: AtomicBool::new(false),
        taken: UnsafeCell::new([0; WORDS]),
        memory: UnsafeCell::new(Memory([0; SIZE])),
    };

    #[test]
    fn pieces_are_apart_and_come_back() {
        let reserve = &OWN;
        let layout = |size| Layout::from_size_align(size, 16).unwrap();
        let sizes = [1, 64, 65, LARGEST, 0];
        let pieces: Vec<_> = sizes.iter().map(|s| reserve.take(layout(*s))).collect();
        let mut ends: Vec<_> = pieces
            .iter()
            .zip(sizes)
            .map(|(p, s)| (p.addr(), s))
            .collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
        assert!(
            pieces
                .iter()
                .all(|p| reserve.holds(*p) && p.addr() % UNIT == 0)
        );
        assert!(reserve.take(layout(LARGEST + 1)).is_null());
        for (piece, size) in pieces.into_iter().zip(sizes) {
            reserve.give(piece, layout(size));
        }
        let all: Vec<_> = (0..SIZE / LARGEST)
            .map(|_| reserve.take(layout(LARGEST)))
            .collect();
        assert!(all.iter().all(|p| !p.is_null()));
        assert!(reserve.take(layout(1)).is_null());
    }

    #[test]
    fn what_no_memory_holds_is_refused() {
        assert!(room_for(isize::MAX.unsigned_abs() - 64).is_err());
        assert!(room_for(1000).is_ok());
        // A number that is known when this is compiled, as most are: optimised code, too, must ask.
        assert!(room_for(1 << 60).is_err());
        assert_eq!(copy(&[1, 2, 3]).unwrap(), [1, 2, 3]);
    }
}
