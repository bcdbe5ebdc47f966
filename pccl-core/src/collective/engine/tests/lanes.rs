//! Lanes that come, go and fall silent.

use std::time::Duration;

use super::harness::{Net, Rng, config, member};
use super::reference::{numbers, reduce};
use crate::collective::engine::edge::LANES_LIMIT;
use crate::collective::engine::timers::IDLE;
use crate::collective::engine::{Engine, EngineEvent, backup};
use crate::ids::{LaneId, Time};
use crate::types::{DataType, ReduceDescriptor, ReduceOp};
use crate::wire::reason::RequestCause;

const SUM: ReduceDescriptor = ReduceDescriptor {
    count: 5000,
    data_type: DataType::F32,
    op: ReduceOp::Sum,
    quantization: None,
    algorithm: None,
};

fn inputs(seed: u64, n: usize) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    (0..n)
        .map(|_| numbers(SUM.data_type, SUM.count as usize, || rng.next()))
        .collect()
}

#[test]
fn a_lane_closed_in_good_order_loses_nothing() {
    for seed in 0..100 {
        let inputs = inputs(seed, 2);
        let mut net = Net::new(seed, &[config(512); 2], &[3; 2]);
        let calls: Vec<_> = (0..2)
            .map(|at| net.start(at, 1, SUM, inputs[at].clone(), false))
            .collect();
        net.steps(400);
        let pipe = net.rng.below(net.pipes.len());
        let lane = net.pipes[pipe].lane;
        net.close(0, lane);
        net.close(1, lane);
        net.settle();
        for at in 0..2 {
            let events: Vec<_> = net.events.iter().filter(|(who, _)| *who == at).collect();
            assert!(
                events.contains(&&(at, EngineEvent::ByeSent { lane })),
                "{events:?}"
            );
            assert!(
                events.contains(&&(at, EngineEvent::LaneBye { lane })),
                "{events:?}"
            );
        }
        net.closed_in_order(lane);
        net.settle();
        let expected = reduce(SUM.data_type, SUM.op, &inputs);
        for (at, call) in calls.into_iter().enumerate() {
            let op = net.finish(at, call, true).0;
            assert!(op.done.is_some(), "seed {seed}: {:?}", op.failed);
            assert!(op.buffers.recv() == expected);
        }
    }
}

#[test]
fn an_operation_waits_for_a_lane() {
    let inputs = inputs(1, 2);
    let mut net = Net::new(1, &[config(512); 2], &[0; 2]);
    let calls: Vec<_> = (0..2)
        .map(|at| net.start(at, 1, SUM, inputs[at].clone(), true))
        .collect();
    net.add_lane(1, 0);
    net.settle();
    for (at, call) in calls.into_iter().enumerate() {
        assert!(net.finish(at, call, true).0.done.is_some());
    }
}

#[test]
fn an_open_that_was_lost_with_its_lane_fails_the_operation() {
    let inputs = inputs(2, 2);
    let mut net = Net::new(2, &[config(512); 2], &[1; 2]);
    let call = net.start(0, 1, SUM, inputs[0].clone(), true);
    net.settle();
    net.cut(LaneId(0));
    let op = net.finish(0, call, false).0;
    let Some(RequestCause::LaneDied { peer, cause }) = op.failed else {
        panic!("{:?}", op.failed);
    };
    assert_eq!((peer, cause.as_str()), (member(1), "cut"));
    // At the other end nothing of it is left.
    assert!(net.engines[1].edges[&member(0)].held.is_empty());
}

#[test]
fn silence_of_an_open_edge_is_a_fault_and_signs_of_life_prevent_it() {
    let inputs = inputs(3, 2);
    let mut net = Net::new(3, &[config(512); 2], &[2; 2]);
    for (at, input) in inputs.into_iter().enumerate() {
        assert_eq!(net.engines[at].next_deadline(), None);
        net.start(at, 1, SUM, input, true);
    }
    net.settle();
    let second = Duration::from_secs(1);
    for _ in 0..20 {
        net.tick(second);
        net.settle();
    }
    let fault = |(_, e): &(usize, EngineEvent)| matches!(e, EngineEvent::LaneFault { .. });
    assert!(!net.events.iter().any(fault));
    // Now nothing gets through any more.
    let mut waited = 0;
    while !net.events.iter().any(fault) {
        net.tick(second);
        waited += 1;
        assert!(waited < 10);
    }
    assert!(waited >= 5, "{waited}");
    let faults = net.events.iter().filter(|e| fault(e)).count();
    assert!(faults >= 2);
    assert!(net.running.values().all(|op| op.failed.is_some()));
}

#[test]
fn lanes_that_are_closed_at_one_end_only_do_not_hold_an_operation_for_ever() {
    let ends = [None, Some(0), Some(1)];
    for dead in ends.iter().flat_map(|a| ends.map(|b| [*a, b])) {
        let mut net = Net::new(6, &[config(512); 2], &[3; 2]);
        for (lane, end) in dead.into_iter().enumerate() {
            if let Some(end) = end {
                net.cut_at_one_end(LaneId(lane as u64), end);
            }
        }
        for (at, input) in inputs(6, 2).into_iter().enumerate() {
            net.start(at, 1, SUM, input, true);
        }
        for _ in 0..16 {
            net.settle();
            net.tick(Duration::from_secs(1));
        }
        net.settle();
        let failed = net.running.values().any(|op| op.failed.is_some());
        let done = net.running.values().all(|op| op.done.is_some());
        assert!(failed || done, "{dead:?}");
        assert!(dead != [None, None] || !failed);
    }
}

#[test]
fn a_neighbour_that_has_not_called_yet_gives_signs_of_life_on_every_lane() {
    let mut net = Net::new(7, &[config(512); 2], &[3; 2]);
    net.start(0, 1, SUM, inputs(7, 2).remove(0), true);
    for _ in 0..60 {
        net.settle();
        net.tick(Duration::from_secs(1));
    }
    assert!(net.running.values().all(|op| op.failed.is_none()));
}

#[test]
pub(super) fn who_was_stopped_himself_does_not_blame_others() {
    let inputs = inputs(4, 2);
    let mut net = Net::new(4, &[config(512); 2], &[1; 2]);
    for (at, input) in inputs.into_iter().enumerate() {
        net.start(at, 1, SUM, input, true);
    }
    net.settle();
    net.tick(Duration::from_secs(1));
    net.tick(Duration::from_secs(1000));
    assert!(
        !net.events
            .iter()
            .any(|(_, e)| matches!(e, EngineEvent::LaneFault { .. }))
    );
    net.tick(Duration::from_secs(1));
    assert!(net.running.values().all(|op| op.failed.is_none()));
}

#[test]
fn an_edge_has_a_limit_of_lanes() {
    let mut engine = Engine::new(config(64), Time(0));
    for id in 0..LANES_LIMIT as u64 {
        engine.lane_open(LaneId(id), member(1), Time(0));
    }
    assert_eq!(engine.poll_event(), None);
    let lane = LaneId(LANES_LIMIT as u64);
    engine.lane_open(lane, member(1), Time(0));
    assert!(
        matches!(engine.poll_event(), Some(EngineEvent::LaneFault { lane: l, .. }) if l == lane)
    );
    assert!(engine.sink(lane).is_empty() && engine.gather(lane).concat().is_empty());
}

#[test]
fn members_that_something_came_from_are_told_once() {
    let inputs = inputs(5, 3);
    let mut net = Net::new(5, &[config(512); 3], &[1; 3]);
    net.start(0, 1, SUM, inputs[0].clone(), true);
    net.settle();
    assert_eq!(net.engines[1].heard(), [member(0)]);
    assert_eq!(net.engines[1].heard(), []);
}

#[test]
fn memory_for_originals_is_used_again_and_given_back_after_a_second() {
    let bytes = 3 * backup::BLOCK as usize;
    let sum = ReduceDescriptor {
        count: bytes as u64 / 4,
        ..SUM
    };
    let mut net = Net::new(2, &[config(1 << 16); 2], &[1; 2]);
    for tag in 1..=2 {
        let calls = [0, 1].map(|at| net.start(at, tag, sum, vec![1; bytes], true));
        net.settle();
        for (at, call) in calls.into_iter().enumerate() {
            net.finish(at, call, true);
        }
        for engine in &net.engines {
            assert_eq!(engine.originals.free_bytes(), bytes);
        }
        net.tick(IDLE / 2);
    }
    net.tick(IDLE / 2);
    for engine in &net.engines {
        assert_eq!(engine.originals.free_bytes(), 0);
        assert_eq!(engine.release, None);
    }
}
