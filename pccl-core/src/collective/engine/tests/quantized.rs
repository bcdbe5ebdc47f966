//! Quantised data: the same result whatever the network does, and the one that the arithmetic says.

use super::harness::{Net, Rng, config, member};
use super::reduce::check;
use super::reference::numbers;
use crate::collective::engine::EngineConfig;
use crate::ids::CallId;
use crate::kernels::Coding;
use crate::types::{
    DataType, Quantization, QuantizationAlgorithm, QuantizedType, ReduceDescriptor, ReduceOp,
};

const FLOATS: [DataType; 4] = [DataType::F16, DataType::BF16, DataType::F32, DataType::F64];

fn quantized(
    count: u64,
    data_type: DataType,
    op: ReduceOp,
    algorithm: QuantizationAlgorithm,
    to: QuantizedType,
) -> ReduceDescriptor {
    ReduceDescriptor {
        count,
        data_type,
        op,
        quantization: Some(Quantization { algorithm, to }),
        algorithm: None,
    }
}

pub(super) fn min_max(count: u64) -> ReduceDescriptor {
    let (op, algorithm) = (ReduceOp::Avg, QuantizationAlgorithm::MinMax);
    quantized(count, DataType::F32, op, algorithm, QuantizedType::U8)
}

/// Every sensible quantisation of every float, with every operator that it goes with.
pub(super) fn all(count: u64) -> Vec<ReduceDescriptor> {
    let mut all = Vec::new();
    for data_type in FLOATS {
        for op in ReduceOp::ALL {
            for algorithm in [
                QuantizationAlgorithm::MinMax,
                QuantizationAlgorithm::ZeroPointScale,
            ] {
                for to in QuantizedType::ALL {
                    let quantization = Quantization { algorithm, to };
                    if quantization.refusal(data_type, op).is_none() {
                        all.push(quantized(count, data_type, op, algorithm, to));
                    }
                }
            }
        }
    }
    all
}

fn contributions(rng: &mut Rng, n: usize, descriptor: ReduceDescriptor) -> Vec<Vec<u8>> {
    let one = |_| {
        let count = descriptor.count as usize;
        numbers(descriptor.data_type, count, || rng.next())
    };
    (0..n).map(one).collect()
}

/// Starts the operation everywhere; in place everywhere, or nowhere.
fn start(
    net: &mut Net,
    descriptor: ReduceDescriptor,
    contributions: &[Vec<u8>],
    in_place: bool,
) -> Vec<CallId> {
    let at = contributions.iter().enumerate();
    at.map(|(at, own)| net.start(at, 7, descriptor, own.clone(), in_place))
        .collect()
}

#[test]
fn all_forms_are_right_in_rings_of_two_to_five() {
    let mut rng = Rng::new(1);
    let sizes = [8, 300, 1_024, 65_536];
    for count in [0, 3, 1_795] {
        for (i, descriptor) in all(count).into_iter().enumerate() {
            // Every form in one ring, of every size in turn: 2, 3, 4, 5 members.
            let n = 2 + (i + i / 8) % 4;
            let configs: Vec<_> = (0..n).map(|_| config(rng.one_of(&sizes))).collect();
            check(rng.next(), n, descriptor, &configs);
        }
    }
}

/// Several blocks of room, windows that slide, and slices that end within a block.
#[test]
fn larger_operations_than_there_is_room_for_are_right() {
    let mut rng = Rng::new(2);
    for (n, to) in [
        (2, QuantizedType::U16),
        (3, QuantizedType::U16),
        (4, QuantizedType::I8),
    ] {
        let algorithm = QuantizationAlgorithm::ZeroPointScale;
        let count = n as u64 * 150_000 + 3;
        let descriptor = quantized(count, DataType::F32, ReduceOp::Sum, algorithm, to);
        let configs: Vec<_> = (0..n)
            .map(|_| EngineConfig {
                scratch: 0,
                ..config(rng.one_of(&[4 << 10, 1 << 20]))
            })
            .collect();
        check(rng.next(), n, descriptor, &configs);
    }
}

/// Every slice's length from nothing to beyond two blocks, so that windows, segments and ends meet in
/// all ways.
#[test]
fn all_lengths_around_the_small_room_are_right() {
    let mut rng = Rng::new(3);
    let room = Coding::of(&min_max(1)).unwrap().form().whole(128 << 10);
    for beyond in [0, 24, 121] {
        let n = 3;
        let descriptor = min_max(n * (room + beyond));
        let configs = vec![config(256 << 10); n as usize];
        check(rng.next(), n as usize, descriptor, &configs);
    }
}

#[test]
fn counters_are_bytes_on_the_wire() {
    let descriptor = min_max(4_096);
    let mut rng = Rng::new(4);
    let mut net = Net::new(4, &[config(64 << 10); 4], &[1, 2, 1, 1]);
    let own = contributions(&mut rng, 4, descriptor);
    let calls = start(&mut net, descriptor, &own, false);
    net.settle();
    // Six steps with a quarter of the elements each: 1,024 codes behind four times 8 bytes.
    for (at, call) in calls.into_iter().enumerate() {
        let (_, stats) = net.finish(at, call, true);
        assert_eq!((stats.tx_bytes, stats.rx_bytes), (6 * 1_056, 6 * 1_056));
    }
}

#[test]
fn an_end_at_any_moment_gives_the_buffers_back() {
    let mut rng = Rng::new(5);
    for seed in 0..60 {
        let n = 2 + rng.below(3);
        let descriptor = min_max(3_000 + rng.below(20_000) as u64);
        let mut net = Net::new(seed, &vec![config(2_048); n], &vec![1; n]);
        let own = contributions(&mut rng, n, descriptor);
        let calls = start(&mut net, descriptor, &own, true);
        net.steps(400);
        for (at, call) in calls.into_iter().enumerate() {
            let (op, _) = net.finish(at, call, false);
            assert_eq!(
                op.buffers.recv(),
                op.original,
                "at {at} of {n}, seed {seed}"
            );
            net.steps(40);
        }
        // What was half written is finished, and the lanes are good for the next operation.
        net.settle();
        let calls: Vec<CallId> = own
            .iter()
            .enumerate()
            .map(|(at, own)| net.start(at, 8, descriptor, own.clone(), true))
            .collect();
        net.settle();
        let mut results = calls
            .into_iter()
            .enumerate()
            .map(|(at, call)| net.finish(at, call, true).0);
        let first = results.next().unwrap();
        assert!(first.done.is_some(), "seed {seed}: {:?}", first.failed);
        for other in results {
            assert!(other.buffers.recv() == first.buffers.recv(), "seed {seed}");
        }
    }
}

#[test]
fn descriptors_that_differ_in_quantisation_move_no_data() {
    let plain = ReduceDescriptor {
        quantization: None,
        ..min_max(100)
    };
    let mut net = Net::new(6, &[config(1 << 10); 2], &[1, 1]);
    let mut rng = Rng::new(6);
    let own = contributions(&mut rng, 2, plain);
    let a = net.start(0, 7, plain, own[0].clone(), true);
    let b = net.start(1, 7, min_max(100), own[1].clone(), true);
    net.settle();
    for (at, call) in [(0, a), (1, b)] {
        let (op, _) = net.finish(at, call, false);
        assert_eq!(op.done, None, "{:?}", member(at));
        assert_eq!(op.buffers.recv(), op.original);
    }
}

#[test]
fn one_rank_alone_gets_its_own_contribution_as_it_is() {
    let descriptor = min_max(1_000);
    let mut rng = Rng::new(7);
    let mut net = Net::new(7, &[config(64)], &[]);
    let own: Vec<u8> = (0..1_000).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let call = net.start(0, 1, descriptor, own.clone(), rng.below(2) == 0);
    let (op, _) = net.finish(0, call, true);
    assert_eq!(op.buffers.recv(), own);
}
