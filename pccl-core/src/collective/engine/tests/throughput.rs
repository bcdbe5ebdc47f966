//! How fast one pair of engines is when the network costs nothing but a copy.

use std::sync::OnceLock;
use std::time::Instant;

use super::harness::{config, member, name};
use crate::collective::buffers::OwnedBuffers;
use crate::collective::engine::{Engine, EngineConfig, EngineEvent, StartReduce};
use crate::ids::{CallId, Epoch, LaneId, Serial, Time, Token};
use crate::types::{DataType, ReduceDescriptor, ReduceOp};
use crate::wire::control::{GroupView, MemberInfo};

/// Moves bytes from one engine to the other, as much as a socket would take at once.
fn pump(from: &mut Engine, to: &mut Engine, lane: LaneId) -> bool {
    let [header, payload] = from.gather(lane);
    let mut sent = 0;
    for mut part in [header, payload] {
        part = &part[..part.len().min(SOCKET - sent)];
        while !part.is_empty() {
            let sink = to.sink(lane);
            let n = sink.len().min(part.len());
            sink[..n].copy_from_slice(&part[..n]);
            to.received(lane, n, Time(0));
            part = &part[n..];
            sent += n;
        }
    }
    from.sent(lane, sent, Time(0));
    sent > 0
}

/// Time that this thread has had a processor, where the system tells; otherwise that of the wall.
fn seconds() -> f64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|line| line.split(' ').next()?.parse::<f64>().ok());
    nanos.map_or_else(
        || BEGIN.get_or_init(Instant::now).elapsed().as_secs_f64(),
        |nanos| nanos / 1e9,
    )
}

fn run(config: EngineConfig, data_type: DataType, in_place: bool) -> f64 {
    let ring = (0..2).map(|i| MemberInfo {
        id: member(i),
        name: String::new(),
        addresses: Vec::new(),
        token: Token(0),
    });
    let group = GroupView {
        epoch: Epoch(1),
        ring: ring.collect(),
    };
    let mut engines = [Engine::new(config, Time(0)), Engine::new(config, Time(0))];
    for (at, engine) in engines.iter_mut().enumerate() {
        for lane in 0..2 {
            engine.lane_open(LaneId(lane), member(1 - at), Time(0));
        }
    }
    let descriptor = ReduceDescriptor {
        count: BYTES as u64 / data_type.size() as u64,
        data_type,
        op: ReduceOp::Sum,
    };
    let mut buffers: Vec<OwnedBuffers> = (0..2)
        .map(|at| match in_place {
            true => OwnedBuffers::in_place(vec![at; BYTES]),
            false => OwnedBuffers::new(vec![at; BYTES]),
        })
        .collect();
    let mut best = f64::MAX;
    for round in 0..5 {
        let begin = seconds();
        for (at, engine) in engines.iter_mut().enumerate() {
            let start = StartReduce {
                call: CallId(round),
                op: name(1),
                quoted: Serial::default(),
                descriptor,
                group: group.clone(),
                own: member(at),
            };
            engine.start(start, buffers[at].lend(), Time(0));
        }
        let [a, b] = &mut engines;
        let mut moving = true;
        while moving {
            moving = false;
            for lane in [LaneId(0), LaneId(1)] {
                moving |= pump(a, b, lane) | pump(b, a, lane);
            }
        }
        for engine in &mut engines {
            while engine.poll_writable().is_some() {}
            let done = std::iter::from_fn(|| engine.poll_event());
            assert!(
                done.into_iter()
                    .any(|e| matches!(e, EngineEvent::Done { .. }))
            );
            engine.finish(CallId(round), true);
        }
        best = best.min(seconds() - begin);
    }
    // Each engine sends as many bytes as the tensor has.
    2.0 * BYTES as f64 / best / 1e9
}

#[test]
#[ignore = "prints numbers; to be run optimised, by hand"]
fn bytes_per_second_through_one_pair() {
    for data_type in [DataType::F32, DataType::BF16] {
        for in_place in [false, true] {
            for protected in [false, true] {
                let config = EngineConfig {
                    protected,
                    ..config(256 << 10)
                };
                let speed = run(config, data_type, in_place);
                println!(
                    "{data_type:?} in place {in_place}, protected {protected}: {speed:.2} GB/s"
                );
            }
        }
    }
}

const BYTES: usize = 64 << 20;

/// Bytes that a socket takes at once.
const SOCKET: usize = 256 << 10;
