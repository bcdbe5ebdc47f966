//! Many worlds: their coverage, their violations, and how soon planted bugs are found.

use super::coverage::Coverage;
use super::world::{Outcome, run};
use crate::planted::{Bug, plant};

/// Lines of a failing world's trace that are shown.
pub const LINES: usize = 60;

/// What a number of worlds came to.
#[derive(Clone, Debug, Default)]
pub struct Campaign {
    /// Worlds run.
    pub seeds: u64,
    /// Events in all of them.
    pub events: u64,
    /// Situations in all of them.
    pub coverage: Coverage,
    /// The first worlds in which something broke, without lines.
    pub failed: Vec<Outcome>,
}

impl Campaign {
    /// Runs one more world.
    pub fn add(&mut self, seed: u64) {
        let outcome = run(seed, 0);
        self.seeds += 1;
        self.events += outcome.events;
        self.coverage.add(&outcome.coverage);
        if outcome.violation.is_some() && self.failed.len() < FAILURES_KEPT {
            self.failed.push(outcome);
        }
    }

    /// Adds another campaign's worlds.
    pub fn merge(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.coverage.add(&other.coverage);
        self.failed.extend(other.failed);
        self.failed.sort_by_key(|o| o.seed);
        self.failed.truncate(FAILURES_KEPT);
    }
}

/// A failed world in words: what broke, the end of its trace, and how to see it again. Runs the
/// world again to get at its trace.
pub fn describe(seed: u64) -> String {
    let outcome = run(seed, LINES);
    let mut text = match &outcome.violation {
        None => format!("seed {seed}: nothing broke\n"),
        Some(broken) => format!(
            "seed {seed} broke {} at {:.6} s: {}\n",
            broken.invariant,
            broken.at as f64 / 1e9,
            broken.what
        ),
    };
    for line in &outcome.lines {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str(&format!("replay: pccl-sim --seed {seed} --trace\n"));
    text
}

/// Plants a bug on this thread and runs worlds until one breaks. Gives the number of worlds that
/// it took, and the one that broke.
pub fn find(bug: Bug, start: u64, limit: u64) -> Option<(u64, Outcome)> {
    plant(Some(bug));
    let found = (start..start.saturating_add(limit)).find_map(|seed| {
        let outcome = run(seed, 0);
        let broke = outcome.violation.is_some();
        broke.then_some((seed - start + 1, outcome))
    });
    plant(None);
    found
}

/// Failed worlds that a campaign remembers.
const FAILURES_KEPT: usize = 1000;
