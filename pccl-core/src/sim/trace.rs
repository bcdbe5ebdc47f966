//! What happened, for people and for the comparison of two runs of one seed.

use std::collections::VecDeque;

use crate::ids::Time;

/// Collects a hash of all that happens, and, if asked to, readable lines.
///
/// Lines cost most of a run's time, so a campaign runs without them, and a failing seed runs again
/// with them: it is the same run.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: u64,
    lines: Option<VecDeque<String>>,
    keep: usize,
}

impl Trace {
    /// A trace that keeps the last `lines` lines; with zero, the hash only.
    pub fn new(lines: usize) -> Self {
        Self {
            hash: FNV_OFFSET,
            lines: (lines > 0).then(VecDeque::new),
            keep: lines,
        }
    }

    /// Whether lines are kept: whoever makes them asks first.
    pub fn wanted(&self) -> bool {
        self.lines.is_some()
    }

    /// Adds a line.
    pub fn line(&mut self, now: Time, line: &str) {
        if let Some(lines) = &mut self.lines {
            if lines.len() >= self.keep {
                lines.pop_front();
            }
            lines.push_back(format!("{:>12.6} {line}", now.0 as f64 / 1e9));
        }
    }

    /// Adds numbers to the hash.
    pub fn mix(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hash = (self.hash ^ number).wrapping_mul(FNV_PRIME).rotate_left(29);
        }
    }

    /// Equal for two runs in which the same things happened at the same times.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The lines kept.
    pub fn into_lines(self) -> Vec<String> {
        self.lines.map(Vec::from).unwrap_or_default()
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
