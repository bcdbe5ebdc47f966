//! A member that leaves in good order fails what is open, and the rest goes on.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::error::Error;
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use support::{each, group, is_aborted, within_limit};

#[test]
fn the_others_fail_once_and_go_on_without_it() {
    within_limit(|| {
        let (_master, mut members) = group(3);
        let leaver = members.pop().unwrap();
        leaver.leave().unwrap();
        assert_eq!(leaver.member_id(), None);
        let results = each(&members, |n, m| {
            let mut buffer = [n as i32 + 1; 100];
            let first = m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0));
            assert!(is_aborted(&first), "{first:?}");
            assert_eq!(buffer, [n as i32 + 1; 100]);
            assert_eq!(m.attributes().group_world_size, 2);
            let info = m
                .all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
                .unwrap();
            (info.world_size, buffer[0])
        });
        assert_eq!(results, [(2, 3), (2, 3)]);
    });
}

#[test]
fn who_has_left_can_join_again() {
    within_limit(|| {
        let (_master, members) = group(2);
        members[1].leave().unwrap();
        let sums = each(&members, |n, m| {
            if n == 1 {
                support::join_until(m, 2);
            } else {
                // The size that counts is the one after the departure has been shown.
                let shown = m.all_reduce_in_place(&mut [0u8], ReduceOp::Sum, Tag(9));
                assert!(matches!(shown, Err(Error::Aborted { .. })), "{shown:?}");
                support::grow_until(m, 2);
            }
            let mut buffer = [n as u8 + 1];
            m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
                .unwrap();
            buffer[0]
        });
        assert_eq!(sums, [3, 3]);
    });
}
