//! Events in the order of time; of one instant, in the order in which they were scheduled.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::ids::Time;

/// The future of a simulated world.
#[derive(Clone, Debug)]
pub(super) struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    next: u64,
}

impl<E> Queue<E> {
    /// Nothing to come.
    pub(super) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            next: 0,
        }
    }

    /// Puts an event into the future.
    pub(super) fn push(&mut self, at: Time, event: E) {
        let order = self.next;
        self.next += 1;
        self.heap.push(Entry { at, order, event });
    }

    /// The next event, with its time.
    pub(super) fn pop(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

#[derive(Clone, Debug)]
struct Entry<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    // Reversed: the heap gives its largest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_instant_keep_their_order() {
        let mut queue = Queue::new();
        queue.push(Time(5), 'b');
        queue.push(Time(5), 'c');
        queue.push(Time(1), 'a');
        let order: Vec<char> = std::iter::from_fn(|| queue.pop().map(|(_, e)| e)).collect();
        assert_eq!(order, ['a', 'b', 'c']);
    }
}
