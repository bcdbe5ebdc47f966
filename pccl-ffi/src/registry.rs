//! Names for what C programs hold pointers to.
//!
//! A `pcclComm_t *` is a number that was never given before, in the shape of a pointer; nothing is
//! behind it. So a pointer that was destroyed, made up, or belongs to something else is found to be
//! unknown, instead of being followed into freed memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Everything of one kind that C programs hold.
#[derive(Debug)]
pub struct Registry<T> {
    living: RwLock<BTreeMap<usize, Arc<T>>>,
}

impl<T> Registry<T> {
    /// With nothing in it.
    pub(crate) const fn new() -> Self {
        Self {
            living: RwLock::new(BTreeMap::new()),
        }
    }

    /// Takes a thing in and names it; none once an address space's worth of names is used up.
    pub(crate) fn insert<H>(&self, thing: T) -> Option<*mut H> {
        let step = |last: usize| last.checked_add(STEP);
        let last = NAMES
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step)
            .ok()?;
        let name = last + STEP;
        let mut living = self.living.write().unwrap_or_else(PoisonError::into_inner);
        living.insert(name, Arc::new(thing));
        Some(std::ptr::without_provenance_mut(name))
    }

    /// What a pointer names.
    pub(crate) fn get<H>(&self, pointer: *const H) -> Option<Arc<T>> {
        let living = self.living.read().unwrap_or_else(PoisonError::into_inner);
        living.get(&pointer.addr()).cloned()
    }

    /// Ends a name. Whoever looked it up before keeps the thing until it lets go.
    pub(crate) fn remove<H>(&self, pointer: *const H) -> Option<Arc<T>> {
        let mut living = self.living.write().unwrap_or_else(PoisonError::into_inner);
        living.remove(&pointer.addr())
    }
}

/// The last name given, for all kinds together: a name of one kind is unknown to the others.
static NAMES: AtomicUsize = AtomicUsize::new(FIRST);

/// Far from null and from small numbers, which programs make up by mistake.
const FIRST: usize = 0x5043_0000;

/// Between names, as between things that malloc gives: never a name when one is offset by mistake.
const STEP: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_unknown_before_and_after_its_life_and_to_other_kinds() {
        let (numbers, texts) = (Registry::<u32>::new(), Registry::<&str>::new());
        let first: *mut u8 = numbers.insert(1).unwrap();
        let second: *mut u8 = texts.insert("two").unwrap();
        assert_ne!(first, second);
        assert_eq!(numbers.get(first).as_deref(), Some(&1));
        assert!(numbers.get(second).is_none());
        assert!(texts.get(first).is_none());
        assert_eq!(numbers.remove(first).as_deref(), Some(&1));
        assert!(numbers.remove(first).is_none());
        let third: *mut u8 = numbers.insert(3).unwrap();
        assert_ne!(first, third);
        assert!(numbers.get(first).is_none());
        assert!(numbers.get(std::ptr::null::<u8>()).is_none());
    }
}
