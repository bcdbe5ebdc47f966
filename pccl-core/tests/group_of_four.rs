//! Four members reduce, out of place and in place, and end with the same bits.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::ids::Tag;
use pccl_core::types::QuantizationAlgorithm::MinMax;
use pccl_core::types::{QuantizedType, ReduceOp};
use support::{each, group, within_limit};

const COUNT: usize = 100_003;

fn contribution(member: usize) -> Vec<f32> {
    (0..COUNT)
        .map(|i| ((i * 7 + member * 13) % 101) as f32 * 0.37 - 11.0)
        .collect()
}

#[test]
fn four_members_end_with_the_same_sums() {
    within_limit(|| {
        let (_master, members) = group(4);
        let results = each(&members, |n, member| {
            let send = contribution(n);
            let mut recv = vec![0f32; COUNT];
            let info = member
                .all_reduce(&send, &mut recv, ReduceOp::Sum, Tag(1))
                .unwrap();
            assert_eq!(info.world_size, 4);
            assert_eq!(send, contribution(n), "the contribution was changed");
            recv
        });
        let contributions: Vec<_> = (0..4).map(contribution).collect();
        for (i, sum) in results[0].iter().enumerate() {
            let exact: f64 = contributions.iter().map(|c| f64::from(c[i])).sum();
            assert!(
                (f64::from(*sum) - exact).abs() < 1e-3,
                "{i}: {sum} is not {exact}"
            );
        }
        for result in &results {
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(result), bits(&results[0]));
        }
    });
}

#[test]
fn four_members_end_with_the_same_quantised_averages() {
    within_limit(|| {
        let (_master, members) = group(4);
        let results = each(&members, |n, member| {
            let mut buffer = contribution(n);
            let average = ReduceOp::Avg.quantized(MinMax, QuantizedType::U8);
            let info = member
                .all_reduce_in_place(&mut buffer, average, Tag(1))
                .unwrap();
            // Six steps with a quarter of the tensor each, which has 98 blocks.
            let slice = COUNT as u64 / 4 + 98 * 8;
            assert!(info.tx_bytes.abs_diff(6 * slice) <= 6, "{}", info.tx_bytes);
            buffer
        });
        let contributions: Vec<_> = (0..4).map(contribution).collect();
        // Steps of three contributions, of which the average takes a quarter each, and of the average.
        let range = 100.0 * 0.37;
        let bound = range / 255.0 / 2.0 * (3.0 / 4.0 + 1.0) + 1e-3;
        for (i, average) in results[0].iter().enumerate() {
            let exact: f64 = contributions.iter().map(|c| f64::from(c[i])).sum::<f64>() / 4.0;
            assert!(
                (f64::from(*average) - exact).abs() <= bound,
                "{i}: {average} is not {exact}"
            );
        }
        for result in &results {
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(result), bits(&results[0]));
        }
    });
}

#[test]
fn four_members_average_in_place_again_and_again() {
    within_limit(|| {
        let (_master, members) = group(4);
        let results = each(&members, |n, member| {
            let mut buffer = vec![n as i64 * 10; 1000];
            for _ in 0..20 {
                let info = member
                    .all_reduce_in_place(&mut buffer, ReduceOp::Avg, Tag(0))
                    .unwrap();
                assert_eq!(info.world_size, 4);
            }
            buffer
        });
        assert!(
            results.iter().all(|r| r.iter().all(|x| *x == 15)),
            "{:?}",
            results[0][0]
        );
    });
}

#[test]
fn an_empty_operation_needs_all_members_all_the_same() {
    within_limit(|| {
        let (_master, members) = group(2);
        let infos = each(&members, |_, member| {
            let mut nothing: [f64; 0] = [];
            member
                .all_reduce_in_place(&mut nothing, ReduceOp::Max, Tag(3))
                .unwrap()
        });
        assert!(
            infos
                .iter()
                .all(|info| info.world_size == 2 && info.tx_bytes == 0)
        );
    });
}

#[test]
fn vectors_are_lent_and_come_back() {
    within_limit(|| {
        let (_master, members) = group(2);
        let results = each(&members, |n, member| {
            let buffer = vec![n as u32 + 1; 50_000];
            let options = pccl_core::CallOptions::default();
            let reduce = member.all_reduce_async(buffer, ReduceOp::Prod, Tag(0), options);
            let (buffer, info) = reduce.wait();
            info.unwrap();
            buffer
        });
        assert!(results.iter().all(|r| r.iter().all(|x| *x == 2)));
    });
}
