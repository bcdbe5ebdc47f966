//! When faults strike: at random times, and at the moments at which they do most harm.

use std::time::Duration;

use super::core::{Core, Event, HostId, ProcId};
use super::scenario::{Kind, Moment};
use crate::ids::Time;

/// A fault on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    /// What strikes.
    pub(super) kind: Kind,
    /// Whom; somebody drawn when it strikes, if none.
    pub(super) target: Option<ProcId>,
}

/// What is left of a world's faults, and what the struck ones excuse.
#[derive(Debug)]
pub(super) struct Faults {
    left: u32,
    over: bool,
    /// Per host of a peer: spans in which its process, or its path to the master, did not work.
    excuses: Vec<Vec<(Time, Time)>>,
    /// Per host: spans around breaks of its lanes, or of paths to other peers.
    lane_excuses: Vec<Vec<(Time, Time)>>,
}

impl Faults {
    /// The faults of a world with `hosts` hosts.
    pub(super) fn new(budget: u32, hosts: usize) -> Self {
        Self {
            left: budget,
            over: false,
            excuses: vec![Vec::new(); hosts],
            lane_excuses: vec![Vec::new(); hosts],
        }
    }

    /// Whether faults may still strike.
    pub(super) fn active(&self) -> bool {
        !self.over
    }

    /// No more faults.
    pub(super) fn stop(&mut self) {
        self.over = true;
        self.left = 0;
    }

    /// A host's process or its path to the master does not work in this span.
    pub(super) fn excuse(&mut self, host: HostId, from: Time, to: Time) {
        if let Some(spans) = self.excuses.get_mut(host.0) {
            spans.push((from, to));
        }
    }

    /// A host's lanes broke, or its paths to other peers did not work, in this span.
    pub(super) fn excuse_lanes(&mut self, host: HostId, from: Time, to: Time) {
        if let Some(spans) = self.lane_excuses.get_mut(host.0) {
            spans.push((from, to));
        }
    }

    /// How much of the span from `from` to `to` a host has an excuse for.
    pub(super) fn excused(&self, host: HostId, from: Time, to: Time) -> Duration {
        self.excuses
            .get(host.0)
            .map_or(Duration::ZERO, |spans| overlap(spans, from, to))
    }

    /// Whether a host's lanes have an excuse within the span.
    pub(super) fn lanes_excused(&self, host: HostId, from: Time, to: Time) -> bool {
        self.lane_excuses
            .get(host.0)
            .is_some_and(|spans| spans.iter().any(|s| s.0 <= to && s.1 >= from))
    }
}

impl Core {
    /// A process is at a moment at which a fault may strike.
    pub(super) fn moment(&mut self, moment: Moment, proc: ProcId) {
        if self.faults.left == 0 {
            return;
        }
        let chance = self.scenario.mix.moments[moment as usize];
        if !self.rng.chance(chance) {
            return;
        }
        let target = self.rng.chance(700).then_some(proc);
        self.strike(target);
    }

    /// Draws a fault and lets it strike now or very soon.
    pub(super) fn strike(&mut self, target: Option<ProcId>) {
        let kinds = &self.scenario.mix.kinds;
        let total: u32 = kinds.iter().map(|k| k.1).sum();
        if total == 0 || self.faults.left == 0 {
            return;
        }
        let mut at = self.rng.below(u64::from(total)) as u32;
        let mut kind = None;
        for (candidate, weight) in &self.scenario.mix.kinds {
            if at < *weight {
                kind = Some(*candidate);
                break;
            }
            at -= weight;
        }
        let Some(kind) = kind else { return };
        self.faults.left -= 1;
        let delay = match self.rng.below(4) {
            0 | 1 => Duration::ZERO,
            2 => self
                .rng
                .duration(Duration::ZERO, self.scenario.thread_delay),
            _ => {
                let wide = self
                    .scenario
                    .latency
                    .iter()
                    .max()
                    .copied()
                    .unwrap_or_default();
                self.rng.duration(Duration::ZERO, wide * 3)
            }
        };
        self.after(delay, Event::Fault(Fault { kind, target }));
    }

    /// How long a passing fault lasts: mostly short of what counts as lost, sometimes beyond.
    pub(super) fn draw_span(&mut self) -> Duration {
        let timing = self.scenario.timing;
        let (low, high) = match self.rng.below(10) {
            0..=2 => (Duration::from_micros(100), timing.heartbeat),
            3..=5 => (timing.heartbeat, timing.peer_timeout),
            6..=8 => (timing.peer_timeout, timing.peer_timeout * 3),
            _ => (timing.peer_timeout * 3, timing.master_limit * 2),
        };
        self.rng.duration(low, high)
    }
}

fn overlap(spans: &[(Time, Time)], from: Time, to: Time) -> Duration {
    let mut cut: Vec<(Time, Time)> = spans
        .iter()
        .map(|s| (s.0.max(from), s.1.min(to)))
        .filter(|s| s.0 < s.1)
        .collect();
    cut.sort_unstable();
    let mut sum = Duration::ZERO;
    let mut end = from;
    for (low, high) in cut {
        let low = low.max(end);
        sum += high.since(low);
        end = end.max(high);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_spans_count_once() {
        let spans = [
            (Time(5), Time(10)),
            (Time(8), Time(12)),
            (Time(20), Time(30)),
        ];
        assert_eq!(overlap(&spans, Time(0), Time(25)), Duration::from_nanos(12));
        assert_eq!(overlap(&spans, Time(9), Time(11)), Duration::from_nanos(2));
    }
}
