//! Runs simulated worlds: many at once, one with its trace, or with planted bugs.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use pccl_core::sim::campaign::{Campaign, describe, find};
use pccl_core::sim::coverage::{Cover, Coverage};
use pccl_core::sim::{Bug, run};

/// Runs PCCL's machines in simulated worlds full of faults, and checks what they promise.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// Number of worlds.
    #[arg(long, default_value_t = 20_000)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Worlds at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Run this world only.
    #[arg(long)]
    seed: Option<u64>,
    /// Print all that happens in the world.
    #[arg(long)]
    trace: bool,
    /// Plant each bug (or the one named) and count the worlds until it is found.
    #[arg(long, num_args = 0..=1, default_missing_value = "")]
    planted: Option<String>,
    /// Worlds that a planted bug may hide in.
    #[arg(long, default_value_t = 20_000)]
    limit: u64,
    /// Print how often each situation came about.
    #[arg(long)]
    coverage: bool,
    /// Fail unless each situation came about this often.
    #[arg(long, default_value_t = 0)]
    least: u64,
    /// Failing worlds to describe.
    #[arg(long, default_value_t = 3)]
    show: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        return one(seed, args.trace);
    }
    if let Some(name) = &args.planted {
        return planted(&args, name);
    }
    many(&args)
}

fn one(seed: u64, trace: bool) -> ExitCode {
    let outcome = run(seed, if trace { usize::MAX } else { 0 });
    for line in &outcome.lines {
        println!("{line}");
    }
    println!(
        "seed {seed}: {} events, trace {:016x}",
        outcome.events, outcome.hash
    );
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(broken) => {
            println!("broke {}: {}", broken.invariant, broken.what);
            ExitCode::FAILURE
        }
    }
}

fn many(args: &Args) -> ExitCode {
    let begin = Instant::now();
    let campaign = in_parallel(args, |seed, campaign: &mut Campaign| campaign.add(seed));
    println!(
        "{} worlds, {} events, {:.1} s, {} broke",
        campaign.seeds,
        campaign.events,
        begin.elapsed().as_secs_f64(),
        campaign.failed.len()
    );
    let rare = report(&campaign.coverage, args);
    for failed in campaign.failed.iter().take(args.show) {
        println!("\n{}", describe(failed.seed));
    }
    for failed in campaign.failed.iter().take(LISTED) {
        if let Some(broken) = &failed.violation {
            let what: String = broken.what.chars().take(150).collect();
            println!("  seed {}: {}: {what}", failed.seed, broken.invariant);
        }
    }
    if campaign.failed.is_empty() && !rare {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints coverage if asked to; whether something was too rare.
fn report(coverage: &Coverage, args: &Args) -> bool {
    let mut rare = false;
    for &what in Cover::ALL {
        let count = coverage.of(what);
        let too_rare = count < args.least;
        rare |= too_rare;
        if args.coverage || too_rare {
            let mark = if too_rare { "  <-- too rare" } else { "" };
            println!("{count:>10}  {}{mark}", what.words());
        }
    }
    rare
}

fn in_parallel(args: &Args, work: impl Fn(u64, &mut Campaign) + Sync) -> Campaign {
    let jobs = args.jobs.max(1);
    let work = &work;
    let mut sum = Campaign::default();
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..jobs)
            .map(|job| {
                scope.spawn(move || {
                    let mut part = Campaign::default();
                    let mut seed = args.start + job;
                    while seed < args.start + args.seeds {
                        work(seed, &mut part);
                        seed += jobs;
                    }
                    part
                })
            })
            .collect();
        for part in parts {
            match part.join() {
                Ok(part) => sum.merge(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    sum
}

fn planted(args: &Args, name: &str) -> ExitCode {
    let mut missed = 0;
    for &bug in Bug::ALL {
        let called = format!("{bug:?}");
        if !name.is_empty() && name != called {
            continue;
        }
        let begin = Instant::now();
        match find(bug, args.start, args.limit) {
            Some((worlds, outcome)) => {
                let invariant = outcome.violation.map_or("", |v| v.invariant);
                println!(
                    "{called:<24} found after {worlds:>6} worlds, {:>6.1} s: {invariant} (seed {})",
                    begin.elapsed().as_secs_f64(),
                    outcome.seed
                );
            }
            None => {
                missed += 1;
                println!("{called:<24} NOT FOUND in {} worlds", args.limit);
            }
        }
    }
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Failing worlds that are listed in a line each.
const LISTED: usize = 40;
