//! A member that abandons a call is out at once; the others go on.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::CallOptions;
use pccl_core::error::Error;
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use support::{each, group, join_until, within_limit};

#[test]
fn the_buffers_are_free_at_once_and_the_others_go_on() {
    within_limit(|| {
        let (_master, mut members) = group(3);
        let leaver = members.pop().unwrap();
        let options = CallOptions::default();
        let reduce = leaver.all_reduce_async(vec![9u32; 1000], ReduceOp::Sum, Tag(0), options);
        reduce.handle().abandon();
        let (buffer, result) = reduce.wait();
        assert_eq!(result, Err(Error::Abandoned));
        assert_eq!(buffer, [9; 1000]);
        assert_eq!(leaver.member_id(), None);
        assert_eq!(leaver.attributes().global_world_size, 1);
        each(&members, |_, m| {
            let failed = m.all_reduce_in_place(&mut [1u32; 1000], ReduceOp::Sum, Tag(0));
            assert!(support::is_aborted(&failed), "{failed:?}");
            assert_eq!(m.attributes().global_world_size, 2);
        });
        members.push(leaver);
        let sums = each(&members, |n, m| {
            if n == 2 {
                join_until(m, 3);
            } else {
                support::grow_until(m, 3);
            }
            let mut buffer = [1u32];
            m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
                .unwrap();
            buffer[0]
        });
        assert_eq!(sums, [3, 3, 3]);
    });
}
