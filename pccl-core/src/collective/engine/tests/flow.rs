//! Many operations at once, early data, room.

use super::harness::{Net, Rng, config, member, name};
use super::reference::{numbers, reduce};
use crate::collective::buffers::OwnedBuffers;
use crate::collective::engine::edge::STANDING_CREDIT;
use crate::collective::engine::{Engine, EngineConfig, EngineEvent, EngineGroup, StartReduce};
use crate::ids::{CallId, Epoch, Serial, Time};
use crate::types::{DataType, ReduceDescriptor, ReduceOp};
use crate::wire::reason::RequestCause;

fn sum(data_type: DataType, count: u64) -> ReduceDescriptor {
    ReduceDescriptor {
        count,
        data_type,
        op: ReduceOp::Sum,
        quantization: None,
        algorithm: None,
    }
}

fn contributions(rng: &mut Rng, n: usize, descriptor: ReduceDescriptor) -> Vec<Vec<u8>> {
    let count = descriptor.count as usize;
    (0..n)
        .map(|_| numbers(descriptor.data_type, count, || rng.next()))
        .collect()
}

#[test]
fn tags_may_be_opened_in_any_order_at_every_rank() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let n = 2 + rng.below(3);
        let mut net = Net::new(seed, &vec![config(256); n], &vec![2; n]);
        let tags = 12;
        let operations: Vec<_> = (0..tags)
            .map(|_| {
                let data_type = rng.one_of(&DataType::ALL);
                let descriptor = sum(data_type, {
                    let most = rng.one_of(&[9, 300, 20_000]);
                    rng.below(most)
                } as u64);
                (descriptor, contributions(&mut rng, n, descriptor))
            })
            .collect();
        let mut open: Vec<(usize, u64)> = (0..n)
            .flat_map(|at| (0..tags).map(move |tag| (at, tag)))
            .collect();
        let mut calls = Vec::new();
        while !open.is_empty() {
            let (at, tag) = open.swap_remove(rng.below(open.len()));
            let (descriptor, contributions) = &operations[tag as usize];
            let contribution = contributions[at].clone();
            let in_place = rng.below(2) == 0;
            let call = net.start(at, tag, *descriptor, contribution, in_place);
            calls.push((at, tag, call));
            net.steps(40);
        }
        net.settle();
        for (at, tag, call) in calls {
            let (descriptor, contributions) = &operations[tag as usize];
            let op = net.finish(at, call, true).0;
            assert!(
                op.done.is_some(),
                "tag {tag} at {at}, seed {seed}: {:?}",
                op.failed
            );
            let expected = reduce(descriptor.data_type, descriptor.op, contributions);
            assert!(
                op.buffers.recv() == expected,
                "tag {tag} at {at}, seed {seed}"
            );
        }
        for engine in &net.engines {
            assert!(engine.ops.is_empty() && engine.calls.is_empty() && engine.keys.is_empty());
            for edge in engine.edges.values() {
                assert!(edge.held.is_empty() && edge.held_by_serial.is_empty());
                assert!(edge.open_by_serial.is_empty() && edge.held_bytes == 0);
            }
        }
    }
}

/// The same name again and again; each rank calls it as soon as its last use is over.
#[test]
fn the_next_use_of_a_name_is_held_until_the_verdict_on_this_one() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let n = 2 + rng.below(2);
        let mut net = Net::new(seed, &vec![config(64); n], &vec![3; n]);
        let descriptor = sum(DataType::I32, 1 + rng.below(200) as u64);
        let mut calls: Vec<Option<CallId>> = vec![None; n];
        let mut uses = vec![0; n];
        let mut inputs: Vec<Vec<Vec<u8>>> = Vec::new();
        let mut committed = 0;
        while committed < 10 {
            for at in 0..n {
                if calls[at].is_none() && uses[at] < 10 {
                    let number = uses[at];
                    if inputs.len() <= number {
                        inputs.push(contributions(&mut rng, n, descriptor));
                    }
                    let contribution = inputs[number][at].clone();
                    calls[at] = Some(net.start(at, 5, descriptor, contribution, false));
                    uses[at] += 1;
                    net.steps(5);
                }
            }
            net.settle();
            // All are done with this use: the verdict comes to each at another time.
            let expected = reduce(descriptor.data_type, descriptor.op, &inputs[committed]);
            let first = rng.below(n);
            for at in (0..n).map(|i| (first + i) % n) {
                let op = net.finish(at, calls[at].take().unwrap(), true).0;
                assert!(op.done.is_some(), "seed {seed}, use {committed} at {at}");
                assert!(op.buffers.recv() == expected);
                // Some go on at once, while others still wait for the verdict.
                if rng.below(2) == 0 && uses[at] < 10 {
                    let number = uses[at];
                    if inputs.len() <= number {
                        inputs.push(contributions(&mut rng, n, descriptor));
                    }
                    let contribution = inputs[number][at].clone();
                    calls[at] = Some(net.start(at, 5, descriptor, contribution, false));
                    uses[at] += 1;
                    net.steps(50);
                }
            }
            committed += 1;
        }
    }
}

#[test]
fn early_data_stays_within_the_standing_credit() {
    let mut rng = Rng::new(9);
    let mut net = Net::new(9, &[config(4096); 3], &[2; 3]);
    net.capacity = 1 << 20;
    let descriptor = sum(DataType::F32, 300);
    let tags = 300;
    let inputs: Vec<_> = (0..tags)
        .map(|_| contributions(&mut rng, 3, descriptor))
        .collect();
    let mut calls = Vec::new();
    for tag in 0..tags {
        calls.push((
            0,
            tag,
            net.start(0, tag, descriptor, inputs[tag as usize][0].clone(), false),
        ));
    }
    net.settle();
    let held: u64 = net.engines[1].edges[&member(0)].held_bytes;
    assert!(
        held > STANDING_CREDIT / 2 && held <= STANDING_CREDIT,
        "{held}"
    );
    assert_eq!(net.engines[1].edges[&member(0)].held.len(), tags as usize);
    for at in [2, 1] {
        for tag in (0..tags).rev() {
            let contribution = inputs[tag as usize][at].clone();
            calls.push((at, tag, net.start(at, tag, descriptor, contribution, false)));
            net.steps(3);
        }
    }
    net.settle();
    for (at, tag, call) in calls {
        let op = net.finish(at, call, true).0;
        assert!(op.done.is_some(), "tag {tag} at {at}: {:?}", op.failed);
        let expected = reduce(descriptor.data_type, descriptor.op, &inputs[tag as usize]);
        assert!(op.buffers.recv() == expected);
    }
    // All but what is not worth a frame has been given back.
    for engine in &net.engines {
        for edge in engine.edges.values() {
            assert!(edge.early_out < STANDING_CREDIT / 2, "{}", edge.early_out);
        }
    }
}

#[test]
fn a_small_operation_needs_no_round_trip_to_leave() {
    let mut rng = Rng::new(10);
    let mut net = Net::new(10, &[config(4096); 2], &[1; 2]);
    let descriptor = sum(DataType::F32, 100);
    let inputs = contributions(&mut rng, 2, descriptor);
    let first = net.start(0, 1, descriptor, inputs[0].clone(), false);
    net.settle();
    assert_eq!(net.engines[1].edges[&member(0)].held_bytes, 48 + 200);
    let second = net.start(1, 1, descriptor, inputs[1].clone(), true);
    // What waited is folded in the call itself.
    assert!(
        net.engines[1]
            .ops
            .values()
            .all(|op| op.stats.rx_bytes == 200)
    );
    net.settle();
    for (at, call) in [(0, first), (1, second)] {
        let (op, stats) = net.finish(at, call, true);
        assert!(op.done.is_some());
        assert_eq!((stats.tx_bytes, stats.rx_bytes), (400, 400));
    }
}

#[test]
pub(super) fn wide_partials_get_around_with_the_smallest_room() {
    for (seed, data_type) in [(1, DataType::F16), (2, DataType::BF16), (3, DataType::F16)] {
        let mut rng = Rng::new(seed);
        let n = 4;
        let scratch = rng.one_of(&[0, 300_000]);
        let configs: Vec<EngineConfig> = (0..n)
            .map(|_| EngineConfig {
                scratch,
                ..config(rng.one_of(&[4 << 10, 64 << 10, 1 << 20]))
            })
            .collect();
        let mut net = Net::new(seed, &configs, &vec![2; n]);
        net.capacity = 100_000;
        net.chunk = 60_000;
        let descriptors = [sum(data_type, 180_001), sum(data_type, 140_000)];
        let mut operations = Vec::new();
        for descriptor in descriptors {
            operations.push((descriptor, contributions(&mut rng, n, descriptor)));
        }
        let mut calls = Vec::new();
        for at in 0..n {
            for (tag, (descriptor, contributions)) in operations.iter().enumerate() {
                let contribution = contributions[at].clone();
                let call = net.start(at, tag as u64, *descriptor, contribution, at % 2 == 0);
                calls.push((at, tag, call));
            }
            net.steps(200);
        }
        net.settle();
        for (at, tag, call) in calls {
            let (descriptor, contributions) = &operations[tag];
            let op = net.finish(at, call, true).0;
            assert!(
                op.done.is_some(),
                "tag {tag} at {at}, seed {seed}: {:?}",
                op.failed
            );
            let expected = reduce(descriptor.data_type, descriptor.op, contributions);
            assert!(op.buffers.recv() == expected);
        }
    }
}

#[test]
fn different_descriptors_move_no_data_and_wait_for_the_master() {
    for count in [1000, 100_000] {
        let mut net = Net::new(11, &[config(4096); 2], &[2; 2]);
        let bytes = 4 * count as usize;
        let first = net.start(0, 1, sum(DataType::F32, count), vec![1; bytes], true);
        let second = net.start(1, 1, sum(DataType::I32, count), vec![2; bytes], true);
        net.settle();
        for (at, call) in [(0, first), (1, second)] {
            let (op, stats) = net.finish(at, call, false);
            assert_eq!((op.done, op.failed), (None, None));
            // What a small operation sends early is not taken.
            assert_eq!(stats.rx_bytes, 0);
            assert!(stats.tx_bytes == 0 || count == 1000);
            assert!(op.buffers.recv() == op.original);
        }
    }
}

#[test]
fn opens_of_a_passed_epoch_are_dropped_and_those_of_a_later_one_wait() {
    let mut rng = Rng::new(12);
    let mut net = Net::new(12, &[config(64); 2], &[1; 2]);
    let descriptor = sum(DataType::F32, 10);
    let inputs = contributions(&mut rng, 2, descriptor);
    let old = net.start(0, 1, descriptor, inputs[0].clone(), false);
    net.settle();
    assert_eq!(net.engines[1].edges[&member(0)].held.len(), 1);
    net.group.epoch = Epoch(2);
    let group = EngineGroup {
        view: net.group.clone(),
        shown: Epoch(2),
    };
    net.engines[1].set_group(group.clone(), net.now);
    net.drain(1);
    assert!(net.engines[1].edges[&member(0)].held.is_empty());
    net.finish(0, old, false);
    // This one opens under the new epoch although the other engine has not heard of it... yet.
    let early = net.start(1, 1, descriptor, inputs[1].clone(), false);
    net.settle();
    assert_eq!(net.engines[0].edges[&member(1)].held.len(), 1);
    net.engines[0].set_group(group, net.now);
    net.drain(0);
    let late = net.start(0, 1, descriptor, inputs[0].clone(), false);
    net.settle();
    for (at, call) in [(0, late), (1, early)] {
        assert!(net.finish(at, call, true).0.done.is_some());
    }
}

#[test]
fn a_start_that_makes_no_sense_fails_and_lets_go_of_the_buffers() {
    let net = Net::new(13, &[config(64); 2], &[1; 2]);
    let mut engine = Engine::new(config(64), Time(0));
    let good = StartReduce {
        call: CallId(1),
        op: name(1),
        quoted: Serial::default(),
        descriptor: sum(DataType::F32, 10),
        group: net.group.clone(),
        own: member(0),
    };
    let mut buffers = OwnedBuffers::in_place(vec![0; 40]);
    let bad = [
        StartReduce {
            own: member(7),
            ..good.clone()
        },
        StartReduce {
            descriptor: sum(DataType::F64, 10),
            ..good.clone()
        },
    ];
    for start in bad {
        engine.start(start, buffers.lend(), Time(0));
        let event = engine.poll_event().unwrap();
        let EngineEvent::Failed { cause, .. } = event else {
            panic!("{event:?}");
        };
        assert!(matches!(cause, RequestCause::Internal { .. }));
        assert_eq!(buffers.recv().len(), 40);
    }
    engine.start(good.clone(), buffers.lend(), Time(0));
    assert_eq!(engine.poll_event(), None);
    let mut others = OwnedBuffers::in_place(vec![0; 40]);
    let again = StartReduce {
        call: CallId(2),
        ..good
    };
    engine.start(again, others.lend(), Time(0));
    assert!(matches!(
        engine.poll_event(),
        Some(EngineEvent::Failed { .. })
    ));
    assert_eq!(engine.finish(CallId(2), false).world, 0);
    assert_eq!(engine.finish(CallId(1), false).world, 2);
    assert_eq!(buffers.recv().len(), 40);
}
