//! Limits on how many connections there are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ids::MemberId;

/// Counts connections of one sort, per member and in all.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    per_member: usize,
    total: usize,
    counts: Mutex<BTreeMap<MemberId, usize>>,
}

/// Room for one connection, given back when dropped: it stays with the connection's owner.
#[derive(Debug)]
pub(crate) struct Slot {
    shared: Arc<Shared>,
    member: MemberId,
}

impl Slots {
    /// At most `per_member` connections of one member, and `total` of all.
    pub(crate) fn new(per_member: usize, total: usize) -> Self {
        let counts = Mutex::default();
        Self {
            shared: Arc::new(Shared {
                per_member,
                total,
                counts,
            }),
        }
    }

    /// Room for one more connection of `member`, if there is any.
    pub(crate) fn take(&self, member: MemberId) -> Option<Slot> {
        let shared = &self.shared;
        let mut counts = shared.counts();
        let own = counts.get(&member).copied().unwrap_or(0);
        if own >= shared.per_member || counts.values().sum::<usize>() >= shared.total {
            return None;
        }
        counts.insert(member, own + 1);
        Some(Slot {
            shared: shared.clone(),
            member,
        })
    }
}

impl Shared {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<MemberId, usize>> {
        // The counts are whole at every point where a holder could panic.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.shared.counts();
        if let Some(count) = counts.get_mut(&self.member) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.member);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_limited_per_member_and_in_all_and_comes_back() {
        let slots = Slots::new(2, 3);
        let (a, b) = (MemberId(1), MemberId(2));
        let held = [slots.take(a), slots.take(a), slots.take(b)];
        assert!(held.iter().all(Option::is_some));
        assert!(slots.take(a).is_none() && slots.take(b).is_none());
        drop(held);
        assert!(slots.shared.counts().is_empty());
        assert!(slots.take(a).is_some());
    }
}
