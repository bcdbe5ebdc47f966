//! A peer or a master, driven over standard input and output by the tests across processes.
//!
//! `master MILLISECONDS` starts a master with that peer time-out and says `listens ADDRESS`.
//! Commands: `stop`.
//!
//! `peer ADDRESS IDENTITY POOL SEGMENT NAME` starts a peer. Its commands are carried out in order:
//!
//! | command | says |
//! |---|---|
//! | `connect` | `joined`, own member number, world size; or `failed`, why |
//! | `join N` | connects, then as `grow N` |
//! | `grow N` | updates the topology until the run has N members: `grown`, number, size |
//! | `topology` | updates the topology once: `topology`, world size; or `failed`, why |
//! | `reduce STEP JOBS` | reduces these at the same time, each until it is committed: `reduced STEP` |
//! | `once STEP JOBS` | the same, without trying again |
//! | `addresses` | `addresses`, where the members of the group listen |
//! | `leave` | `left` |
//!
//! Each call of a reduce says `call STEP TAG` and `commit SET CHECKSUM WORLD`, `abort REASON` or
//! `failed ERROR`. `PCCL_TEST_LOG` is a filter such as `debug` for the log on standard error. Between all this stand the communicator's events: `first` (data of an operation
//! is under way), `verdict`, `evicted`. `harm` tells of a buffer that is not what was promised.
#![allow(missing_docs)]

use std::io::BufRead;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use pccl_core::config::{MasterConfig, PeerConfig, Security, TicketConfig, Timing};
use pccl_core::error::Error;
use pccl_core::event::Event;
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use pccl_core::wire::control::Outcome;
use pccl_core::{Communicator, EventStream, Master, ReduceInfo};
use pccl_tests::process::tensor::checksum;
use pccl_tests::process::{Contribution, Job};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    if let Ok(filter) = std::env::var("PCCL_TEST_LOG") {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::try_new(filter)?)
            .with_writer(std::io::stderr)
            .init();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["master", milliseconds] => master(milliseconds.parse()?, Security::Off),
        ["master", milliseconds, "ticket"] => {
            let security = Security::Ticket(TicketConfig::default());
            master(milliseconds.parse()?, security)
        }
        ["peer", address, identity, pool, segment, name] => {
            let config = PeerConfig {
                name: name.to_owned(),
                pool: pool.parse()?,
                segment: segment.parse()?,
                ..PeerConfig::default()
            };
            peer(address, config, identity.parse()?)
        }
        _ => Err("see the source for how to use this".into()),
    }
}

fn master(milliseconds: u64, security: Security) -> Result<(), Failure> {
    let config = MasterConfig {
        timing: Timing::from_peer_timeout(Duration::from_millis(milliseconds)),
        security,
        ..MasterConfig::default()
    };
    let mut master = Master::start("127.0.0.1:0", config)?;
    let address = master.local_addr();
    let join = master.ticket().unwrap_or_else(|| address.to_string());
    println!("listens {address} {join}");
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "stop" => {
                master.stop();
                println!("stopped {}", master.join()?);
            }
            other => return Err(format!("{other:?} is no command of a master").into()),
        }
    }
    Ok(())
}

fn peer(address: &str, config: PeerConfig, identity: u32) -> Result<(), Failure> {
    let communicator = Arc::new(Communicator::new(address, config)?);
    let events = communicator.events();
    let told = Arc::new(Told::default());
    std::thread::spawn({
        let told = told.clone();
        move || report(&events, &told)
    });
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["connect"] => say(communicator.connect(None), "joined", &communicator),
            ["join", size] => {
                let size = size.parse()?;
                let joined = communicator.connect(None);
                say(
                    joined.and_then(|()| grow(&communicator, size)),
                    "grown",
                    &communicator,
                );
            }
            ["grow", size] => {
                let size = size.parse()?;
                say(grow(&communicator, size), "grown", &communicator);
            }
            ["topology"] => say(communicator.update_topology(), "topology", &communicator),
            ["addresses"] => println!("addresses {}", addresses(&communicator).join(" ")),
            ["leave"] => say(communicator.leave(), "left", &communicator),
            [how @ ("reduce" | "once"), step, ref jobs @ ..] => {
                let step = step.parse()?;
                let jobs = jobs.iter().map(|job| job.parse());
                let jobs: Vec<Job> = jobs.collect::<Result<_, _>>()?;
                std::thread::scope(|scope| {
                    for job in jobs {
                        let contribution = Contribution {
                            identity,
                            step,
                            job,
                        };
                        let communicator = &communicator;
                        scope.spawn(move || {
                            reduce(communicator, &contribution, how == "reduce");
                        });
                    }
                });
                told.catch_up();
                println!("reduced {step}");
            }
            _ => return Err(format!("{line:?} is no command of a peer").into()),
        }
    }
    Ok(())
}

fn say(done: Result<(), Error>, what: &str, communicator: &Communicator) {
    let id = communicator.member_id().map_or(0, |id| id.0);
    let world = communicator.attributes().global_world_size;
    match done {
        Ok(()) => println!("{what} {id} {world}"),
        Err(error) => println!("failed {error:?}"),
    }
}

/// Updates the topology until the run has `size` members. A try that failed for all is made again.
fn grow(communicator: &Communicator, size: u32) -> Result<(), Error> {
    while communicator.attributes().global_world_size < size {
        match communicator.update_topology() {
            Ok(()) | Err(Error::Aborted { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn addresses(communicator: &Communicator) -> Vec<String> {
    let members = communicator.members().into_iter();
    let first = members.filter_map(|member| member.addresses.first().copied());
    first
        .map(|address: SocketAddr| address.to_string())
        .collect()
}

/// Reduces one tensor, again and again until it is committed or the run is over for this peer.
fn reduce(communicator: &Communicator, contribution: &Contribution, again: bool) {
    let Contribution { step, job, .. } = *contribution;
    let tag = Tag(job.tag);
    let mut send = contribution.tensor();
    let mut recv = vec![0f32; if job.in_place { 0 } else { job.count }];
    loop {
        println!("begin {step} {}", job.tag);
        let result = if job.in_place {
            communicator.all_reduce_in_place(&mut send, ReduceOp::Sum, tag)
        } else {
            communicator.all_reduce(&send, &mut recv, ReduceOp::Sum, tag)
        };
        let overwritten = job.in_place && result.is_ok();
        if !overwritten && !contribution.is_unharmed(&send) {
            println!("harm {step} {job}: the contribution was changed; {result:?}");
        }
        let sum = if job.in_place { &send } else { &recv };
        match result {
            Ok(info) => println!(
                "call {step} {} {}",
                job.tag,
                committed(contribution, sum, info)
            ),
            Err(Error::Aborted { reason, .. }) => {
                println!("call {step} {} abort {reason:?}", job.tag);
                if again {
                    continue;
                }
            }
            Err(error) => println!("call {step} {} failed {error:?}", job.tag),
        }
        return;
    }
}

fn committed(contribution: &Contribution, sum: &[f32], info: ReduceInfo) -> String {
    let set = match contribution.contributors(sum) {
        Ok(set) => set,
        Err(what) => {
            let job = contribution.job;
            println!("harm {} {job}: wrong result: {what}", contribution.step);
            0
        }
    };
    if set.count_ones() != info.world_size {
        println!(
            "harm {set:b} contributed, but the world has {}",
            info.world_size
        );
    }
    format!("commit {set} {:x} {}", checksum(sum), info.world_size)
}

/// Says what the communicator tells, until it is gone.
fn report(events: &EventStream, told: &Told) {
    let mut last = None;
    loop {
        let asked = *told.asked.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = last.take().or_else(|| events.try_next()) {
            tell(&event);
        }
        if events.dropped() > 0 {
            println!("harm events were dropped");
        }
        *told.answered.lock().unwrap_or_else(PoisonError::into_inner) = asked;
        told.changed.notify_all();
        last = events.next_within(Duration::from_millis(5));
    }
}

fn tell(event: &Event) {
    match event {
        Event::FirstSegmentSent { op } => {
            println!("first {} {} {}", op.key.tag.0, op.round.0, op.attempt);
        }
        Event::Verdict {
            op,
            serial,
            outcome,
            ..
        } => {
            let outcome = match outcome {
                Outcome::Commit => "commit".to_owned(),
                Outcome::Abort(reason) => format!("abort {reason:?}"),
            };
            println!(
                "verdict {} {} {} {serial} {outcome}",
                op.key.tag.0, op.round.0, op.attempt
            );
        }
        Event::Evicted { reason, .. } => println!("evicted {reason:?}"),
        _ => {}
    }
}

/// Lets one thread wait until the other has told all events that there were.
#[derive(Default)]
struct Told {
    asked: Mutex<u64>,
    answered: Mutex<u64>,
    changed: Condvar,
}

impl Told {
    fn catch_up(&self) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        *asked += 1;
        let wanted = *asked;
        drop(asked);
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        while *answered < wanted {
            let waited = self.changed.wait(answered);
            answered = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
