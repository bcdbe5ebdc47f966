//! Aborts, cut lanes and changed bytes: buffers come back as they were, and nothing wrong counts
//! as a result.

use super::harness::{Net, Rng, config};
use super::quantized;
use super::reference::{numbers, result};
use crate::collective::engine::{EngineConfig, EngineEvent};
use crate::ids::CallId;
use crate::types::{Algorithm, DataType, ReduceDescriptor, ReduceOp};
use crate::wire::reason::RequestCause;

struct Case {
    net: Net,
    descriptor: ReduceDescriptor,
    contributions: Vec<Vec<u8>>,
    calls: Vec<(usize, CallId)>,
    hub: usize,
}

impl Case {
    fn expected(&self) -> Vec<u8> {
        result(&self.descriptor, &self.contributions, self.hub)
    }
}

/// An operation that has been called everywhere, at a random moment of its life.
fn midway(seed: u64) -> Case {
    let mut rng = Rng::new(seed);
    let n = 2 + rng.below(4);
    let configs: Vec<EngineConfig> = (0..n)
        .map(|_| config(rng.one_of(&[8, 64, 512, 4096])))
        .collect();
    let lanes: Vec<usize> = (0..n).map(|_| 2 + rng.below(2)).collect();
    let algorithm = Some(rng.one_of(&Algorithm::ALL));
    let hub = rng.below(n);
    let mut net = Net::by(algorithm, hub, seed, &configs, &lanes);
    let most = rng.one_of(&[20, 500, 9000]);
    let count = 1 + rng.below(most) as u64;
    let quantized = quantized::all(count);
    let descriptor = match rng.below(4) {
        0 => quantized[rng.below(quantized.len())],
        _ => ReduceDescriptor {
            count,
            data_type: rng.one_of(&DataType::ALL),
            op: rng.one_of(&ReduceOp::ALL),
            quantization: None,
            algorithm: None,
        },
    };
    let descriptor = ReduceDescriptor {
        algorithm,
        ..descriptor
    };
    let mut case = Case {
        contributions: contributions(&mut rng, n, descriptor),
        calls: Vec::new(),
        descriptor,
        hub,
        net: Net::new(0, &[], &[]),
    };
    for at in 0..n {
        let in_place = rng.below(4) > 0;
        let contribution = case.contributions[at].clone();
        let call = net.start(at, 1, descriptor, contribution, in_place);
        case.calls.push((at, call));
        net.steps(30);
    }
    net.steps(rng.one_of(&[30, 300, 3000]));
    case.net = net;
    case
}

fn contributions(rng: &mut Rng, n: usize, descriptor: ReduceDescriptor) -> Vec<Vec<u8>> {
    let count = descriptor.count as usize;
    (0..n)
        .map(|_| numbers(descriptor.data_type, count, || rng.next()))
        .collect()
}

/// Aborts everywhere, with traffic in between; checks that all buffers are as they were, and stay
/// so.
fn abort_everywhere(case: &mut Case) {
    let mut over = Vec::new();
    while !case.calls.is_empty() {
        let next = case.net.rng.below(case.calls.len());
        let (at, call) = case.calls.swap_remove(next);
        over.push((at, case.net.finish(at, call, false).0));
        case.net.steps(20);
    }
    case.net.settle();
    for (at, op) in over {
        let what = format!("{} at {at}", case.descriptor);
        if op.in_place {
            assert!(op.buffers.recv() == op.original, "not restored: {what}");
        } else {
            assert!(op.buffers.send() == op.original, "modified: {what}");
        }
    }
}

/// Runs another operation over the same lanes.
fn another_one_works(case: &mut Case) {
    let expected = case.expected();
    let net = &mut case.net;
    let n = net.engines.len();
    let mut calls = Vec::new();
    for at in 0..n {
        let contribution = case.contributions[at].clone();
        calls.push((at, net.start(at, 2, case.descriptor, contribution, false)));
        net.steps(10);
    }
    net.settle();
    for (at, call) in calls {
        let op = net.finish(at, call, true).0;
        assert!(
            op.done.is_some(),
            "{} at {at}: {:?}",
            case.descriptor,
            op.failed
        );
        assert!(op.buffers.recv() == expected);
    }
}

#[test]
pub(super) fn an_abort_at_any_moment_restores_the_buffers_and_leaves_the_lanes_usable() {
    for seed in 0..300 {
        let mut case = midway(seed);
        abort_everywhere(&mut case);
        assert!(
            !case
                .net
                .events
                .iter()
                .any(|(_, e)| matches!(e, EngineEvent::LaneFault { .. })),
            "seed {seed}"
        );
        another_one_works(&mut case);
    }
}

#[test]
pub(super) fn a_cut_lane_fails_what_it_carried_and_the_rest_goes_on() {
    let mut failed = 0;
    for seed in 0..200 {
        let mut case = midway(seed);
        let pipe = case.net.rng.below(case.net.pipes.len());
        let lane = case.net.pipes[pipe].lane;
        case.net.cut(lane);
        case.net.settle();
        let expected = case.expected();
        let running = &case.net.running;
        let stuck = case
            .calls
            .iter()
            .filter(|key| running[*key].done.is_none())
            .count();
        let harmed = case
            .calls
            .iter()
            .filter(|key| running[*key].failed.is_some())
            .count();
        // Whatever was lost, somebody knows.
        assert!(stuck == 0 || harmed > 0, "seed {seed}");
        failed += usize::from(harmed > 0);
        for key in &case.calls {
            if let Some(RequestCause::LaneDied { cause, .. }) = &running[key].failed {
                assert_eq!(cause, "cut");
            }
        }
        if stuck == 0 {
            for (at, call) in std::mem::take(&mut case.calls) {
                let (op, _) = case.net.finish(at, call, true);
                assert!(op.buffers.recv() == expected, "seed {seed}");
            }
        }
        abort_everywhere(&mut case);
        another_one_works(&mut case);
    }
    assert!(failed > 50, "{failed}");
}

#[test]
pub(super) fn a_changed_byte_never_makes_a_wrong_result() {
    let mut faults = 0;
    for seed in 0..300 {
        let mut case = midway(seed);
        let mut full: Vec<usize> = (0..case.net.pipes.len()).collect();
        full.retain(|i| !case.net.pipes[*i].bytes.is_empty());
        if full.is_empty() {
            continue;
        }
        let index = full[case.net.rng.below(full.len())];
        let at = case.net.rng.below(case.net.pipes[index].bytes.len());
        let bit = case.net.rng.below(8);
        case.net.pipes[index].bytes[at] ^= 1 << bit;
        case.net.settle();
        let fault = |(_, e): &(usize, EngineEvent)| matches!(e, EngineEvent::LaneFault { .. });
        faults += usize::from(case.net.events.iter().any(fault));
        let expected = case.expected();
        let done = |key: &(usize, CallId)| case.net.running[key].done.is_some();
        if case.calls.iter().all(done) {
            for (at, call) in std::mem::take(&mut case.calls) {
                let (op, _) = case.net.finish(at, call, true);
                assert!(op.buffers.recv() == expected, "seed {seed}");
            }
        }
        abort_everywhere(&mut case);
    }
    assert!(faults > 100, "{faults}");
}
