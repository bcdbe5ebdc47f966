//! Deadlines, at most one per purpose.

use std::collections::{BTreeMap, BTreeSet};

use super::uses::UseId;
use crate::ids::{MemberId, PeerGroup, Time};

/// What a deadline is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// Heartbeats are due.
    Beat,
    /// Somebody with a connection may have been silent for too long. Set lazily: when it is due,
    /// the last sign of life decides.
    Silence(MemberId),
    /// Somebody without a connection should have come back.
    Away(MemberId),
    /// An edge, smaller number first, should have a lane by now.
    Edge(MemberId, MemberId),
    /// A newcomer has had the time to try edges that its plan does not need.
    Probing(MemberId),
    /// A use waits for so long that people are told.
    Use(PeerGroup, UseId),
    /// A round waits for so long that people are told.
    Round,
    /// A query waits for so long that people are told.
    Query,
}

/// The deadlines of the master. As many as there are members, troubled edges and open uses.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeSet<(Time, Timer)>,
    at: BTreeMap<Timer, Time>,
}

impl Timers {
    /// Sets a deadline, in place of an earlier one for the same purpose.
    pub(super) fn set(&mut self, timer: Timer, time: Time) {
        self.cancel(timer);
        self.due.insert((time, timer));
        self.at.insert(timer, time);
    }

    /// Has a deadline that has passed be due at `time`.
    pub(super) fn not_before(&mut self, timer: Timer, time: Time) {
        if self.at.get(&timer).is_some_and(|due| *due < time) {
            self.set(timer, time);
        }
    }

    /// Forgets a deadline.
    pub(super) fn cancel(&mut self, timer: Timer) {
        if let Some(time) = self.at.remove(&timer) {
            self.due.remove(&(time, timer));
        }
    }

    /// Whether there is a deadline for this purpose.
    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.at.contains_key(&timer)
    }

    /// The next one.
    pub(super) fn next(&self) -> Option<Time> {
        self.due.first().map(|(time, _)| *time)
    }

    /// Takes one that is due.
    pub(super) fn pop(&mut self, now: Time) -> Option<Timer> {
        let (time, timer) = *self.due.first()?;
        if time > now {
            return None;
        }
        self.cancel(timer);
        Some(timer)
    }

    /// All purposes that have a deadline.
    pub(super) fn all(&self) -> impl Iterator<Item = Timer> + '_ {
        self.at.keys().copied()
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }
}
