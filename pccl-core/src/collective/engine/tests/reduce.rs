//! The result is the right one, whatever the network does.

use super::harness::{Net, Rng, config};
use super::reference::{numbers, reduce, result};
use crate::collective::engine::EngineConfig;
use crate::ids::CallId;
use crate::types::{DataType, ReduceDescriptor, ReduceOp};

/// Runs one operation with everything else random, and checks all there is to check.
pub(super) fn check(seed: u64, n: usize, descriptor: ReduceDescriptor, configs: &[EngineConfig]) {
    let mut rng = Rng::new(seed);
    let lanes: Vec<usize> = (0..n).map(|_| 1 + rng.below(3)).collect();
    let hub = rng.below(n);
    let mut net = Net::by(descriptor.algorithm, hub, seed, configs, &lanes);
    net.chunk = match descriptor.bytes() {
        Some(200_000..) => 50_000,
        _ => rng.one_of(&[7, 100, 5_000]),
    };
    net.capacity = net.capacity.max(net.chunk);
    let contributions: Vec<Vec<u8>> = (0..n)
        .map(|_| {
            numbers(descriptor.data_type, descriptor.count as usize, || {
                rng.next()
            })
        })
        .collect();
    let mut calls: Vec<(usize, CallId)> = Vec::new();
    for (at, contribution) in contributions.iter().enumerate() {
        let in_place = rng.below(2) == 0;
        calls.push((
            at,
            net.start(at, 7, descriptor, contribution.clone(), in_place),
        ));
        for _ in 0..rng.below(20) {
            net.step();
        }
    }
    net.settle();
    let expected = result(&descriptor, &contributions, hub);
    let mut digests = Vec::new();
    for (at, call) in calls {
        let (op, stats) = net.finish(at, call, true);
        let what = format!(
            "{descriptor} at {at} of {n}, seed {seed}, failed: {:?}",
            op.failed
        );
        digests.push(op.done.unwrap_or_else(|| panic!("not done: {what}")));
        assert!(op.buffers.recv() == expected, "{what}");
        if !op.in_place {
            assert!(
                op.buffers.send() == op.original,
                "send buffer modified: {what}"
            );
        }
        assert_eq!(stats.world as usize, n);
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "{descriptor}, {n}, seed {seed}");
}

fn random_configs(rng: &mut Rng, n: usize) -> Vec<EngineConfig> {
    let sizes = [8, 16, 24, 64, 256, 1024];
    (0..n).map(|_| config(rng.one_of(&sizes))).collect()
}

#[test]
pub(super) fn sums_of_f32_are_right() {
    let mut rng = Rng::new(1);
    for seed in 0..60 {
        let n = 2 + rng.below(4);
        let descriptor = ReduceDescriptor {
            count: rng.below(200) as u64,
            data_type: DataType::F32,
            op: ReduceOp::Sum,
            quantization: None,
            algorithm: None,
        };
        let configs = random_configs(&mut rng, n);
        check(seed, n, descriptor, &configs);
    }
}

#[test]
fn all_types_and_operators_are_right_in_rings_of_two_to_nine() {
    let mut rng = Rng::new(2);
    for n in 2..=9 {
        for data_type in DataType::ALL {
            for op in ReduceOp::ALL {
                for count in [0, 1, 3, 77] {
                    let descriptor = ReduceDescriptor {
                        count,
                        data_type,
                        op,
                        quantization: None,
                        algorithm: None,
                    };
                    let configs = random_configs(&mut rng, n);
                    check(rng.next(), n, descriptor, &configs);
                }
            }
        }
    }
}

#[test]
fn larger_operations_wait_for_the_open_and_are_right() {
    let mut rng = Rng::new(3);
    for data_type in [DataType::F32, DataType::F16, DataType::U8] {
        for n in 2..=4 {
            let descriptor = ReduceDescriptor {
                count: 90_001,
                data_type,
                op: ReduceOp::Avg,
                quantization: None,
                algorithm: None,
            };
            let sizes = [4 << 10, 64 << 10, 1 << 20];
            let configs: Vec<_> = (0..n).map(|_| config(rng.one_of(&sizes))).collect();
            check(rng.next(), n, descriptor, &configs);
        }
    }
}

#[test]
fn one_rank_alone_gets_its_own_contribution() {
    for op in ReduceOp::ALL {
        let descriptor = ReduceDescriptor {
            count: 100_000,
            data_type: DataType::BF16,
            op,
            quantization: None,
            algorithm: None,
        };
        let mut rng = Rng::new(4);
        let mut net = Net::new(4, &[config(64)], &[]);
        let contribution = numbers(DataType::BF16, 100_000, || rng.next());
        let call = net.start(0, 1, descriptor, contribution.clone(), true);
        let (running, _) = net.finish(0, call, true);
        assert!(running.done.is_some());
        assert_eq!(
            running.buffers.recv(),
            reduce(DataType::BF16, op, &[contribution])
        );
    }
}
