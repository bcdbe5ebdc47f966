//! Small operations, one after the other.

use std::time::Duration;

use serde::Serialize;

use super::figures::{median, quantile};
use super::report::{factor, head, milliseconds, row};
use super::{Bench, Side};
use crate::processes::Trouble;
use crate::words::{Go, Work};

/// One row of the table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Small {
    /// Members.
    n: u32,
    /// Bytes of the tensor.
    bytes: u64,
    /// What the library takes.
    library: Latencies,
    /// What the bare loop takes.
    floor: Option<Latencies>,
}

/// Seconds of operations, each as its slowest member has seen it.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Latencies {
    /// The middle.
    median: f64,
    /// What 99 of 100 do not exceed.
    p99: f64,
    /// The slowest.
    slowest: f64,
    /// How many.
    operations: usize,
    /// Seconds of cores that one takes all members together.
    members_cpu: f64,
    /// Seconds of cores that one takes the master.
    master_cpu: f64,
}

impl Bench<'_> {
    /// In groups of all sizes.
    pub(super) fn latency(&mut self) {
        head("1 KiB, one after the other", &HEAD);
        for n in &self.options.n {
            self.small(*n, self.options.operations);
        }
    }

    /// In large groups, with fewer operations.
    pub(super) fn crowd(&mut self) {
        head("1 KiB, one master with many peers", &HEAD);
        for n in &self.options.crowd {
            self.small(*n, self.options.operations / 6);
        }
    }

    fn small(&mut self, n: u32, operations: u32) {
        let mut library = Operations::default();
        let mut floor = Operations::default();
        for _ in 0..self.options.rounds.max(1) {
            for side in self.sides() {
                let into = match side {
                    Side::Library => &mut library,
                    Side::Floor => &mut floor,
                };
                if let Err(trouble) = self.operations(*side, n, operations, into) {
                    self.trouble(&format!("{side:?}: {n} members, 1 KiB"), &trouble);
                    return;
                }
            }
        }
        if let Some(library) = library.latencies() {
            let small = Small {
                n,
                bytes: BYTES,
                library,
                floor: floor.latencies(),
            };
            small.print();
            self.report.small.push(small);
        }
    }

    /// One round.
    fn operations(
        &self,
        side: Side,
        n: u32,
        operations: u32,
        into: &mut Operations,
    ) -> Result<(), Trouble> {
        let mut group = self.group(side, n)?;
        group.prepare(Work {
            identity: 0,
            members: n,
            bytes: BYTES,
            tags: 1,
            in_place: true,
            tolerance: self.tolerance(n),
        })?;
        self.quiet();
        let mut go = Go {
            times: WARM_UP,
            each: true,
            late: 0,
            check: true,
        };
        group.go(go, Duration::ZERO)?;
        go.times = self.share(operations);
        let repetition = group.go(go, Duration::ZERO)?;
        into.members_cpu += repetition.done.iter().map(|d| d.cpu).sum::<f64>();
        into.master_cpu += repetition.master_cpu;
        into.seconds.extend((0..go.times as usize).map(|at| {
            let each = repetition.done.iter().filter_map(|d| d.each.get(at));
            each.copied().fold(0.0, f64::max)
        }));
        Ok(())
    }
}

/// Operations as they come.
#[derive(Default)]
struct Operations {
    seconds: Vec<f64>,
    members_cpu: f64,
    master_cpu: f64,
}

impl Operations {
    fn latencies(&self) -> Option<Latencies> {
        let operations = self.seconds.len();
        Some(Latencies {
            median: median(&self.seconds)?,
            p99: quantile(&self.seconds, 0.99)?,
            slowest: self.seconds.iter().copied().fold(0.0, f64::max),
            operations,
            members_cpu: self.members_cpu / operations as f64,
            master_cpu: self.master_cpu / operations as f64,
        })
    }
}

impl Small {
    fn print(&self) {
        let Self { library, floor, .. } = self;
        let of_floor = |what: fn(&Latencies) -> f64| {
            let seconds = floor.as_ref().map(what);
            seconds.map(milliseconds).unwrap_or_default()
        };
        row(&[
            self.n.to_string(),
            milliseconds(library.median),
            of_floor(|floor| floor.median),
            factor(floor.as_ref().map(|floor| library.median / floor.median)),
            milliseconds(library.p99),
            of_floor(|floor| floor.p99),
            milliseconds(library.slowest),
            milliseconds(library.members_cpu + library.master_cpu),
            milliseconds(library.master_cpu),
            of_floor(|floor| floor.members_cpu),
            library.operations.to_string(),
        ]);
    }
}

const HEAD: [&str; 11] = [
    "n",
    "median ms",
    "floor",
    "times floor",
    "p99 ms",
    "floor",
    "slowest ms",
    "CPU ms",
    "of it the master",
    "floor",
    "operations",
];

/// Bytes of the tensor.
const BYTES: u64 = 1024;

/// Operations before those that count.
const WARM_UP: u32 = 3;
