//! The subcommand `bench`: figures of all-reduces, beside those of a bare loop that moves and adds
//! the same bytes.
//!
//! `reduce` measures throughput, `latency` small operations, `waiting` what it costs to wait; each
//! knows how its figures are printed. Repetitions of the library and of the loop take turns within a
//! run, each round in new processes, and it is their medians that are compared: the machine's
//! mood changes both.

mod figures;
mod latency;
mod reduce;
mod report;
mod waiting;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use self::report::Report;
use crate::peer::Settings;
use crate::processes::{Group, Place, Trouble};
use crate::usage;

/// What to measure, and where.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Sizes of the group.
    #[arg(long, value_delimiter = ',', default_value = "2,3,4,8")]
    n: Vec<u32>,
    /// Sizes of tensors: bytes, or with K, M or G for KiB, MiB and GiB. Groups of eight and more stop at
    /// 64 MiB.
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "256K,4M,64M,256M")]
    sizes: Vec<u64>,
    /// Size of each of eight tensors at once.
    #[arg(long, value_parser = size, default_value = "8M")]
    tag_size: u64,
    /// What to measure; everything if it is not said.
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<What>,
    /// Timed repetitions of each, over all rounds.
    #[arg(long, default_value_t = 6)]
    reps: u32,
    /// Rounds, each with new processes, between which library and bare loop take turns.
    #[arg(long, default_value_t = 2)]
    rounds: u32,
    /// Whether results go to the place of the contribution.
    #[arg(long, value_enum, default_value_t = Buffers::Both)]
    buffers: Buffers,
    /// Small operations in a row, over all rounds; a sixth of them in crowds.
    #[arg(long, default_value_t = 600)]
    operations: u32,
    /// Sizes of groups for one master with many peers.
    #[arg(long, value_delimiter = ',', default_value = "16,32")]
    crowd: Vec<u32>,
    /// Seconds that one member keeps the others waiting.
    #[arg(long, default_value_t = 5.0)]
    wait: f64,
    /// Before each repetition, wait at most so many seconds for the machine to be idle.
    #[arg(long, default_value_t = 0.0)]
    quiet: f64,
    #[command(flatten)]
    settings: Settings,
    /// Leave the bare loop out.
    #[arg(long)]
    no_floor: bool,
    /// Put before this program to start member `{}`, as in "ssh host{}"; words are split at spaces.
    /// The master runs where member 0 does.
    #[arg(long, default_value = "")]
    launch: String,
    /// Where the master, and members of the bare loop, listen; `{}` stands for the member.
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Also write all figures to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum What {
    /// One tensor after the other.
    Reduce,
    /// Eight tensors at once.
    Tags,
    /// Operations of 1 KiB.
    Latency,
    /// The same with many peers.
    Crowd,
    /// What members use while they wait for another.
    Waiting,
}

/// Where results go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Buffers {
    /// To the place of the contribution.
    InPlace,
    /// To a buffer of their own.
    Apart,
    /// One, then the other.
    Both,
}

/// Measures, prints, and writes.
pub(crate) fn run(options: &Options, log_level: Option<&str>) -> Result<(), String> {
    if options.n.iter().chain(&options.crowd).any(|n| *n < 2) {
        return Err("a group has two members at least".into());
    }
    let mut bench = Bench {
        place: Place {
            launch: options
                .launch
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            host: options.host.clone(),
            log_level: log_level.map(str::to_owned),
        },
        options,
        report: Report::new(),
    };
    let wanted = |what| options.only.is_empty() || options.only.contains(&what);
    if wanted(What::Reduce) {
        bench.reduce();
    }
    if wanted(What::Tags) {
        bench.tags();
    }
    if wanted(What::Latency) {
        bench.latency();
    }
    if wanted(What::Crowd) {
        bench.crowd();
    }
    if wanted(What::Waiting) {
        bench.waiting();
    }
    if let Some(path) = &options.json {
        bench.report.write(path)?;
    }
    bench.report.outcome()
}

struct Bench<'a> {
    place: Place,
    options: &'a Options,
    report: Report,
}

impl Bench<'_> {
    /// What is measured: the library, and the bare loop unless it was left out.
    fn sides(&self) -> &'static [Side] {
        if self.options.no_floor {
            &[Side::Library]
        } else {
            &[Side::Library, Side::Floor]
        }
    }

    /// New processes.
    fn group(&self, side: Side, n: u32) -> Result<Group, Trouble> {
        match side {
            Side::Library => Group::library(&self.place, &self.options.settings.arguments(), n),
            Side::Floor => Group::floor(&self.place, n),
        }
    }

    /// What of `all` is to be done in one round.
    fn share(&self, all: u32) -> u32 {
        all.div_ceil(self.options.rounds.max(1)).max(1)
    }

    /// How far results may be off.
    fn tolerance(&self, members: u32) -> f64 {
        match self.options.settings.quantize {
            None => 1e-5,
            // A step of 8 bits for each time that a member's data is turned into codes.
            Some(_) => f64::from(members) * 0.02,
        }
    }

    /// Waits for the machine to be idle, if that was asked for.
    fn quiet(&self) {
        let end = Instant::now() + Duration::from_secs_f64(self.options.quiet.clamp(0.0, 600.0));
        while Instant::now() < end {
            let Some(before) = usage::busy() else {
                return;
            };
            std::thread::sleep(LOOK);
            let busy = usage::busy().unwrap_or(before) - before;
            if busy / LOOK.as_secs_f64() < IDLE {
                return;
            }
        }
    }

    /// Notes a measurement that came to nothing.
    fn trouble(&mut self, what: &str, trouble: &Trouble) {
        let line = format!("{what}: {trouble}");
        println!("{line}");
        self.report.troubles.push(line);
    }
}

/// Whose figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Library,
    Floor,
}

fn size(text: &str) -> Result<u64, String> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
    let with_unit = |(name, unit)| Some((text.strip_suffix(name)?, unit));
    let (number, unit) = units.into_iter().find_map(with_unit).unwrap_or((text, 1));
    let number: u64 = number.parse().map_err(|e| format!("{text:?}: {e}"))?;
    let bytes = number.checked_mul(unit).filter(|bytes| bytes % 4 == 0);
    bytes.ok_or_else(|| format!("{text:?} is no size of 32-bit floats"))
}

/// Time over which one looks whether the machine is idle.
const LOOK: Duration = Duration::from_millis(150);

/// Busy cores of an idle machine.
const IDLE: f64 = 0.25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("4M"), Ok(4 << 20));
        assert_eq!(size("256K"), Ok(256 << 10));
        assert_eq!(size("1G"), Ok(1 << 30));
        assert_eq!(size("1024"), Ok(1024));
        for wrong in [
            "",
            "M",
            "4m",
            "-4",
            "3",
            "99999999999999999999",
            "99999999999G",
        ] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
