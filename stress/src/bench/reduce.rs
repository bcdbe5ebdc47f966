//! Throughput: one tensor after the other, and several at once.

use std::time::Duration;

use serde::Serialize;

use super::figures::{Collected, Figures};
use super::report::{bytes, factor, head, mebibytes, milliseconds, row};
use super::{Bench, Buffers, Side};
use crate::processes::Trouble;
use crate::words::{Go, Work};

/// One row of the table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Reduced {
    /// Members.
    n: u32,
    /// Bytes of one tensor.
    bytes: u64,
    /// Tensors at once.
    tags: u32,
    /// Whether results take the place of contributions.
    in_place: bool,
    /// Operations in a row that make one repetition.
    times: u32,
    /// What the library takes.
    library: Figures,
    /// What the bare loop takes.
    floor: Option<Figures>,
    /// Seconds of cores per 10^9 bytes of tensors, over all members and the master.
    cpu_per_gb: f64,
    /// The same of the bare loop.
    floor_cpu_per_gb: Option<f64>,
    /// Median time over that of the bare loop.
    time_to_floor: Option<f64>,
    /// Time of cores over that of the bare loop.
    cpu_to_floor: Option<f64>,
}

impl Bench<'_> {
    /// One tensor after the other, of all sizes, in groups of all sizes.
    pub(super) fn reduce(&mut self) {
        head("All-reduce, 32-bit floats", &HEAD);
        let layouts: &[bool] = match self.options.buffers {
            Buffers::InPlace => &[true],
            Buffers::Apart => &[false],
            Buffers::Both => &[false, true],
        };
        for n in &self.options.n {
            for size in &self.options.sizes {
                // What more takes the machine's memory, and tells nothing more.
                if *n >= CROWD && *size > CROWD_BYTES {
                    continue;
                }
                for in_place in layouts {
                    self.row(*n, *size, 1, *in_place);
                }
            }
        }
    }

    /// Several tensors at once, in place.
    pub(super) fn tags(&mut self) {
        head("Tensors at once", &HEAD);
        for n in &self.options.n {
            if *n < CROWD {
                self.row(*n, self.options.tag_size, TAGS, true);
            }
        }
    }

    fn row(&mut self, n: u32, size: u64, tags: u32, in_place: bool) {
        let work = Work {
            identity: 0,
            members: n,
            bytes: size,
            tags,
            in_place,
            tolerance: self.tolerance(n),
        };
        match self.reduced(work) {
            Ok(Some(reduced)) => {
                reduced.print();
                self.report.reduced.push(reduced);
            }
            Ok(None) => {}
            Err((side, trouble)) => {
                let size = bytes(size);
                let what = format!("{side:?}: {n} members, {tags} x {size}, in place: {in_place}");
                self.trouble(&what, &trouble);
            }
        }
    }

    fn reduced(&self, work: Work) -> Result<Option<Reduced>, (Side, Trouble)> {
        let all = work.bytes * u64::from(work.tags);
        let times = match all {
            // As many as take a few milliseconds, so that starting together does not count.
            0..=0x4_0000 => 20,
            0x4_0001..=0x40_0000 => 4,
            _ => 1,
        };
        let mut library = Collected::default();
        let mut floor = Collected::default();
        for _ in 0..self.options.rounds.max(1) {
            for side in self.sides() {
                let into = match side {
                    Side::Library => &mut library,
                    Side::Floor => &mut floor,
                };
                let round = self.round(*side, work, times, into);
                round.map_err(|trouble| (*side, trouble))?;
            }
        }
        let gigabytes = all as f64 / 1e9;
        let floor = floor.figures();
        Ok(library.figures().map(|library| Reduced {
            n: work.members,
            bytes: work.bytes,
            tags: work.tags,
            in_place: work.in_place,
            times,
            cpu_per_gb: library.cpu() / gigabytes,
            floor_cpu_per_gb: floor.as_ref().map(|floor| floor.cpu() / gigabytes),
            time_to_floor: floor.as_ref().map(|floor| library.median / floor.median),
            cpu_to_floor: floor.as_ref().map(|floor| library.cpu() / floor.cpu()),
            library,
            floor,
        }))
    }

    fn round(
        &self,
        side: Side,
        work: Work,
        times: u32,
        into: &mut Collected,
    ) -> Result<(), Trouble> {
        let mut group = self.group(side, work.members)?;
        group.prepare(work)?;
        for repetition in 0..=self.share(self.options.reps) {
            self.quiet();
            let warms_up = repetition == 0;
            let go = Go {
                times: if warms_up { 1 } else { times },
                each: false,
                late: 0,
                check: true,
            };
            let done = group.go(go, Duration::ZERO)?;
            into.add(&done, go.times, warms_up);
        }
        if side == Side::Library && work.bytes >= HELD_FROM {
            std::thread::sleep(IDLE);
            into.holds(group.held()?);
        }
        Ok(())
    }
}

impl Reduced {
    fn print(&self) {
        let Self { library, floor, .. } = self;
        let rate = self.bytes as f64 * f64::from(self.tags) / library.median / 1e6;
        let size = match self.tags {
            1 => bytes(self.bytes),
            tags => format!("{tags} x {}", bytes(self.bytes)),
        };
        let time = |figures: &Figures| {
            let (low, high) = (milliseconds(figures.fastest), milliseconds(figures.slowest));
            format!("{} ({low} to {high})", milliseconds(figures.median))
        };
        let two = |number: Option<f64>| factor(number);
        row(&[
            self.n.to_string(),
            size,
            if self.in_place { "in place" } else { "apart" }.to_owned(),
            time(library),
            floor.as_ref().map(time).unwrap_or_default(),
            two(self.time_to_floor),
            format!("{rate:.0}"),
            two(Some(self.cpu_per_gb)),
            two(self.floor_cpu_per_gb),
            two(self.cpu_to_floor),
            mebibytes(library.peak),
            mebibytes(library.held),
            two(library.others),
        ]);
    }
}

const HEAD: [&str; 13] = [
    "n",
    "size",
    "buffers",
    "ms (fastest to slowest)",
    "floor",
    "times floor",
    "MB/s",
    "CPU s/GB",
    "floor",
    "times floor",
    "MiB over buffers",
    "when idle",
    "others' cores",
];

/// Tensors at once.
const TAGS: u32 = 8;

/// From so many members on, large tensors are left out.
const CROWD: u32 = 8;

/// What is large for them.
const CROWD_BYTES: u64 = 64 << 20;

/// From this size on it is of interest what is held afterwards.
const HELD_FROM: u64 = 4 << 20;

/// After so long without operations, memory for restoring should have been given back.
const IDLE: Duration = Duration::from_millis(1500);
