//! Figures for people and for programs.

use std::path::Path;

use serde::Serialize;

use super::latency::Small;
use super::reduce::Reduced;
use super::waiting::Waited;
use crate::usage;

/// All that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: &'static str,
    machine: Machine,
    /// Throughput.
    pub(super) reduced: Vec<Reduced>,
    /// Small operations.
    pub(super) small: Vec<Small>,
    /// Waiting.
    pub(super) waited: Vec<Waited>,
    /// Measurements that came to nothing, and why.
    pub(super) troubles: Vec<String>,
}

/// Where it was measured.
#[derive(Debug, Serialize)]
struct Machine {
    system: &'static str,
    processor: &'static str,
    cores: usize,
    /// The system's default.
    congestion_control: Option<String>,
    /// Whether the compiler optimised.
    optimised: bool,
}

impl Report {
    /// Says what the machine is.
    pub(super) fn new() -> Self {
        let machine = Machine {
            system: std::env::consts::OS,
            processor: std::env::consts::ARCH,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            congestion_control: usage::congestion_control(),
            optimised: !cfg!(debug_assertions),
        };
        let congestion_control = machine.congestion_control.as_deref();
        println!(
            "PCCL {}, {} cores, {} {}, congestion control: {}",
            env!("CARGO_PKG_VERSION"),
            machine.cores,
            machine.system,
            machine.processor,
            congestion_control.unwrap_or("unknown"),
        );
        if !machine.optimised {
            println!("not optimised: build with --release");
        }
        Self {
            version: env!("CARGO_PKG_VERSION"),
            machine,
            reduced: Vec::new(),
            small: Vec::new(),
            waited: Vec::new(),
            troubles: Vec::new(),
        }
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|e| e.to_string())?;
        std::fs::write(path, text + "\n").map_err(|e| format!("{}: {e}", path.display()))
    }

    /// An error if anything went wrong.
    pub(super) fn outcome(&self) -> Result<(), String> {
        match self.troubles.len() {
            0 => Ok(()),
            count => Err(format!("{count} measurements came to nothing")),
        }
    }
}

/// Begins a table.
pub(super) fn head(title: &str, cells: &[&str]) {
    println!("\n### {title}\n");
    println!("| {} |", cells.join(" | "));
    println!("|{}", "---|".repeat(cells.len()));
}

/// A row of a table.
pub(super) fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

pub(super) fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    match ms {
        100.0.. => format!("{ms:.0}"),
        10.0..100.0 => format!("{ms:.1}"),
        1.0..10.0 => format!("{ms:.2}"),
        _ => format!("{ms:.3}"),
    }
}

pub(super) fn mebibytes(bytes: Option<u64>) -> String {
    let mebibytes = bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
    mebibytes.map(|m| format!("{m:.1}")).unwrap_or_default()
}

pub(super) fn factor(factor: Option<f64>) -> String {
    factor.map(|f| format!("{f:.2}")).unwrap_or_default()
}

pub(super) fn bytes(count: u64) -> String {
    let whole = |unit: u32| count >= 1 << unit && count.is_multiple_of(1 << unit);
    match count {
        n if whole(20) => format!("{} MiB", n >> 20),
        n if whole(10) => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}
