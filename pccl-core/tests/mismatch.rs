//! Members that disagree on what an operation is are all told so.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::error::Error;
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use support::{each, group, within_limit};

fn is_mismatch<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Aborted { reason, .. }) if reason.is_mismatch())
}

#[test]
fn different_counts_fail_at_both() {
    within_limit(|| {
        let (_master, members) = group(2);
        each(&members, |n, m| {
            let mut buffer = vec![1f64; 100 + n];
            let failed = m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0));
            assert!(is_mismatch(&failed), "{failed:?}");
            assert!(buffer.iter().all(|x| *x == 1.0));
        });
    });
}

#[test]
fn an_operation_and_a_vote_contradict_one_another() {
    within_limit(|| {
        let (_master, members) = group(2);
        each(&members, |n, m| {
            let failed = match n {
                0 => m.update_topology(),
                _ => m
                    .all_reduce_in_place(&mut [1u8; 4], ReduceOp::Sum, Tag(0))
                    .map(drop),
            };
            assert!(is_mismatch(&failed), "{failed:?}");
        });
    });
}
