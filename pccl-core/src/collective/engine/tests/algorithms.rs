//! Star and direct give what they should, whatever the network does, and in as few bytes as they can.

use super::harness::{Net, Rng, config};
use super::quantized;
use super::reduce::check;
use super::reference::{numbers, result};
use crate::collective::engine::{EngineConfig, OpStats};
use crate::ids::CallId;
use crate::types::{Algorithm, DataType, ReduceDescriptor, ReduceOp};
use crate::wire::reason::RequestCause;

const STRAIGHT: [Algorithm; 2] = [Algorithm::Star, Algorithm::Direct];

fn by(algorithm: Algorithm, data_type: DataType, op: ReduceOp, count: u64) -> ReduceDescriptor {
    ReduceDescriptor {
        count,
        data_type,
        op,
        quantization: None,
        algorithm: Some(algorithm),
    }
}

fn contributions(rng: &mut Rng, n: usize, descriptor: ReduceDescriptor) -> Vec<Vec<u8>> {
    let count = descriptor.count as usize;
    let mut one = |_| numbers(descriptor.data_type, count, || rng.next());
    (0..n).map(&mut one).collect()
}

/// Runs an operation in good order; what each member has in the end, and the bytes it moved.
fn run(net: &mut Net, descriptor: ReduceDescriptor, own: &[Vec<u8>]) -> Vec<(Vec<u8>, OpStats)> {
    let calls: Vec<CallId> = own
        .iter()
        .enumerate()
        .map(|(at, own)| net.start(at, 5, descriptor, own.clone(), at % 2 == 0))
        .collect();
    net.settle();
    let end = |(at, call)| {
        let (op, stats) = net.finish(at, call, true);
        assert!(op.done.is_some(), "{descriptor} at {at}: {:?}", op.failed);
        (op.buffers.recv().to_vec(), stats)
    };
    calls.into_iter().enumerate().map(end).collect()
}

#[test]
pub(super) fn sums_in_groups_of_two_to_five_are_right() {
    let mut rng = Rng::new(1);
    for seed in 0..60 {
        let n = 2 + rng.below(4);
        let algorithm = rng.one_of(&STRAIGHT);
        let descriptor = by(
            algorithm,
            DataType::F32,
            ReduceOp::Sum,
            rng.below(200) as u64,
        );
        let configs: Vec<_> = (0..n).map(|_| config(rng.one_of(&[8, 24, 256]))).collect();
        check(seed, n, descriptor, &configs);
    }
}

#[test]
fn all_types_and_operators_are_right_in_groups_of_two_to_nine() {
    let mut rng = Rng::new(2);
    for algorithm in STRAIGHT {
        for data_type in DataType::ALL {
            for op in ReduceOp::ALL {
                for n in 2..=9 {
                    let count = rng.one_of(&[0, 1, 7, 150]);
                    let descriptor = by(algorithm, data_type, op, count);
                    let configs: Vec<_> = (0..n)
                        .map(|_| config(rng.one_of(&[8, 40, 1_024])))
                        .collect();
                    check(rng.next(), n, descriptor, &configs);
                }
            }
        }
    }
}

#[test]
fn all_quantised_forms_are_right_in_groups_of_two_to_nine() {
    let mut rng = Rng::new(3);
    for algorithm in STRAIGHT {
        for (i, descriptor) in quantized::all(1_795).into_iter().enumerate() {
            let descriptor = ReduceDescriptor {
                algorithm: Some(algorithm),
                count: [0, 3, 1_795][i % 3],
                ..descriptor
            };
            let n = 2 + (i + i / 8) % 8;
            let sizes = [8, 300, 1_024, 65_536];
            let configs: Vec<_> = (0..n).map(|_| config(rng.one_of(&sizes))).collect();
            check(rng.next(), n, descriptor, &configs);
        }
    }
}

/// Rooms slide, contributions wait for one another, and nothing is stuck although no room is lent on
/// top of the small one.
#[test]
fn larger_operations_than_there_is_room_for_are_right() {
    let mut rng = Rng::new(4);
    for algorithm in STRAIGHT {
        for (data_type, n) in [(DataType::F32, 2), (DataType::BF16, 3), (DataType::U8, 4)] {
            let slices = if algorithm == Algorithm::Star {
                1
            } else {
                n as u64
            };
            let elements = slices * (300 << 10) / data_type.size() as u64 + 5;
            let descriptor = by(algorithm, data_type, ReduceOp::Avg, elements);
            let configs: Vec<_> = (0..n)
                .map(|_| EngineConfig {
                    scratch: 0,
                    ..config(rng.one_of(&[4 << 10, 64 << 10, 1 << 20]))
                })
                .collect();
            check(rng.next(), n, descriptor, &configs);
        }
        for descriptor in quantized::all(0).into_iter().step_by(11) {
            let descriptor = ReduceDescriptor {
                algorithm: Some(algorithm),
                count: if algorithm == Algorithm::Star { 1 } else { 3 } * 170_000,
                ..descriptor
            };
            let configs = [EngineConfig {
                scratch: 0,
                ..config(200 << 10)
            }; 3];
            check(rng.next(), 3, descriptor, &configs);
        }
    }
}

/// What the ring and direct share: with data that travels as it is, the same bits.
#[test]
fn direct_gives_the_bits_of_the_ring() {
    let mut rng = Rng::new(5);
    for data_type in [DataType::F32, DataType::F16] {
        let direct = by(Algorithm::Direct, data_type, ReduceOp::Avg, 1_001);
        let ring = ReduceDescriptor {
            algorithm: None,
            ..direct
        };
        let own = contributions(&mut rng, 5, direct);
        assert_eq!(result(&direct, &own, 0), result(&ring, &own, 0));
    }
}

#[test]
fn every_member_moves_the_bytes_of_its_plan() {
    let mut rng = Rng::new(6);
    let n = 4u64;
    let plain = by(Algorithm::Direct, DataType::F32, ReduceOp::Sum, 4_096);
    // The same by the numbers of plain data, and of 8 bits: 1,024 codes behind four times 8 bytes.
    let quantized = ReduceDescriptor {
        algorithm: plain.algorithm,
        ..quantized::min_max(4_096)
    };
    for (descriptor, slice) in [(plain, 4_096), (quantized, 1_056)] {
        let own = contributions(&mut rng, n as usize, descriptor);
        let mut net = Net::by(descriptor.algorithm, 0, 6, &[config(1_500); 4], &[2; 4]);
        for (_, stats) in run(&mut net, descriptor, &own) {
            let bytes = 2 * (n - 1) * slice;
            assert_eq!(
                (stats.tx_bytes, stats.rx_bytes),
                (bytes, bytes),
                "{descriptor}"
            );
        }
        let star = ReduceDescriptor {
            algorithm: Some(Algorithm::Star),
            ..descriptor
        };
        let mut net = Net::by(star.algorithm, 2, 7, &[config(1_500); 4], &[2; 4]);
        for (at, (_, stats)) in run(&mut net, star, &own).into_iter().enumerate() {
            let times = if at == 2 { n - 1 } else { 1 };
            let bytes = times * n * slice;
            assert_eq!(
                (stats.tx_bytes, stats.rx_bytes),
                (bytes, bytes),
                "{star} at {at}"
            );
        }
    }
}

#[test]
fn an_algorithm_that_there_is_no_plan_for_fails_at_once_and_says_so() {
    for (asked, have) in [
        (Algorithm::Direct, Algorithm::Star),
        (Algorithm::Star, Algorithm::Ring),
        (Algorithm::Ring, Algorithm::Direct),
    ] {
        let descriptor = by(asked, DataType::F32, ReduceOp::Sum, 10);
        let mut net = Net::by(Some(have), 0, 8, &[config(64); 3], &[1; 3]);
        let call = net.start(1, 5, descriptor, vec![1; 40], true);
        let running = net.running.remove(&(1, call)).unwrap();
        let cause = RequestCause::NoPlan { algorithm: asked };
        assert_eq!(running.failed, Some(cause));
        assert_eq!(running.buffers.recv(), [1; 40]);
    }
}

#[test]
fn one_member_alone_needs_no_plan() {
    let descriptor = by(Algorithm::Star, DataType::F32, ReduceOp::Sum, 1);
    let mut net = Net::new(9, &[config(64)], &[]);
    let own = vec![1.5f32.to_le_bytes().to_vec()];
    assert_eq!(run(&mut net, descriptor, &own)[0].0, own[0]);
}

/// Members with different ideas of the algorithm move no data: the master says so to all.
#[test]
fn members_that_go_by_different_algorithms_move_no_data() {
    let descriptor = by(Algorithm::Direct, DataType::F32, ReduceOp::Sum, 100);
    let mut net = Net::by(Some(Algorithm::Direct), 0, 10, &[config(64); 2], &[1; 2]);
    net.group.choice.ring = true;
    let own = vec![7; 400];
    let a = net.start(0, 5, descriptor, own.clone(), true);
    let ring = ReduceDescriptor {
        algorithm: Some(Algorithm::Ring),
        ..descriptor
    };
    let b = net.start(1, 5, ring, own.clone(), true);
    net.settle();
    for (at, call) in [(0, a), (1, b)] {
        let (op, stats) = net.finish(at, call, false);
        assert_eq!((op.done, op.failed), (None, None));
        assert_eq!(op.buffers.recv(), own);
        assert_eq!(stats.rx_bytes, 0);
    }
}

/// An operation of 1 KiB is two hops: no window, and no OPEN, is waited for.
#[test]
fn a_small_star_and_a_small_direct_operation_take_two_hops() {
    for algorithm in STRAIGHT {
        let descriptor = by(algorithm, DataType::F32, ReduceOp::Sum, 256);
        let mut rng = Rng::new(11);
        let own = contributions(&mut rng, 4, descriptor);
        let mut net = Net::by(Some(algorithm), 0, 11, &[config(64 << 10); 4], &[2; 4]);
        net.capacity = 1 << 20;
        for (at, own) in own.iter().enumerate() {
            net.start(at, 5, descriptor, own.clone(), false);
        }
        // All that was sent arrives, then what that has made possible.
        let hops = (0..10).find(|_| {
            let done = net.running.values().all(|op| op.done.is_some());
            if !done {
                net.hop();
            }
            done
        });
        assert_eq!(hops, Some(2), "{algorithm}");
    }
}
