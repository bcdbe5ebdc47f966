//! What it costs to wait for a member that is late.

use std::time::Duration;

use serde::Serialize;

use super::report::{head, milliseconds, row};
use super::{Bench, Side};
use crate::processes::Trouble;
use crate::words::{Go, Work};

/// One row of the table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Waited {
    /// Members.
    n: u32,
    /// Operations that wait.
    tags: u32,
    /// Seconds that the first member was late.
    seconds: f64,
    /// Seconds of cores per second of waiting and operation, at the member that used most. What the
    /// operations take when they run at last is in it.
    cpu: f64,
    /// Seconds of cores per second at the master.
    master_cpu: f64,
}

impl Bench<'_> {
    /// In groups of all sizes, with one operation and with several.
    pub(super) fn waiting(&mut self) {
        head("Waiting for a member that is late", &HEAD);
        for n in &self.options.n {
            for tags in [1, 8] {
                match self.waited(*n, tags) {
                    Ok(waited) => {
                        waited.print();
                        self.report.waited.push(waited);
                    }
                    Err(trouble) => self.trouble(&format!("{n} members that wait"), &trouble),
                }
            }
        }
    }

    fn waited(&self, n: u32, tags: u32) -> Result<Waited, Trouble> {
        let mut group = self.group(Side::Library, n)?;
        group.prepare(Work {
            identity: 0,
            members: n,
            bytes: BYTES,
            tags,
            in_place: true,
            tolerance: self.tolerance(n),
        })?;
        let go = Go {
            times: 1,
            each: false,
            late: 0,
            check: true,
        };
        // What only the first operations cost is not what waiting costs.
        group.go(go, Duration::ZERO)?;
        let late = Duration::from_secs_f64(self.options.wait.clamp(0.1, 600.0));
        let repetition = group.go(go, late)?;
        let seconds = late.as_secs_f64();
        let most = repetition.done.iter().map(|d| d.cpu).fold(0.0, f64::max);
        Ok(Waited {
            n,
            tags,
            seconds,
            cpu: most / seconds / f64::from(tags),
            master_cpu: repetition.master_cpu / seconds,
        })
    }
}

impl Waited {
    fn print(&self) {
        row(&[
            self.n.to_string(),
            self.tags.to_string(),
            format!("{:.1}", self.seconds),
            milliseconds(self.cpu),
            milliseconds(self.master_cpu),
        ]);
    }
}

const HEAD: [&str; 5] = [
    "n",
    "operations",
    "seconds",
    "CPU ms per second and operation",
    "master, per second",
];

/// Bytes of each tensor: more than is sent to a member that has not called yet.
const BYTES: u64 = 1 << 20;
