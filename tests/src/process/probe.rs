//! What a process holds, as its system tells. Linux only; elsewhere nothing is known.

use std::fs;

/// Resources of one process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
    /// Resident memory in KiB.
    pub resident_kib: u64,
}

impl Held {
    /// Of process `pid`, if it runs and the system has `/proc`.
    pub fn by(pid: u32) -> Option<Self> {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Some(Self {
            descriptors: descriptors as u64,
            threads: field("Threads:")?,
            resident_kib: field("VmRSS:")?,
        })
    }

    /// The smaller of each.
    pub fn min(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.min(other.descriptors),
            threads: self.threads.min(other.threads),
            resident_kib: self.resident_kib.min(other.resident_kib),
        }
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            descriptors,
            threads,
            resident_kib,
        } = self;
        write!(
            f,
            "{descriptors} descriptors, {threads} threads, {resident_kib} KiB resident"
        )
    }
}
