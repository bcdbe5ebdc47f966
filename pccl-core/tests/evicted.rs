//! An evicted member learns why, and joins again on the same communicator.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::error::Error;
use pccl_core::event::Event;
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use pccl_core::wire::reason::EvictReason;
use support::{each, group, grow_until, is_aborted, within_limit};

#[test]
fn update_topology_joins_again() {
    within_limit(|| {
        let (master, members) = group(2);
        let events = members[1].events();
        let before = members[1].member_id().unwrap();
        master.evict(before);
        let limit = std::time::Duration::from_secs(20);
        let told = std::iter::from_fn(|| events.next_within(limit))
            .any(|event| matches!(event, Event::Evicted { .. }));
        assert!(told, "no event told of the eviction");
        let failed = members[1].all_reduce_in_place(&mut [1u8], ReduceOp::Sum, Tag(0));
        assert_eq!(failed, Err(Error::Evicted(EvictReason::Operator)));
        assert_eq!(members[1].attributes().global_world_size, 1);
        let sums = each(&members, |n, m| {
            if n == 0 {
                let shown = m.all_reduce_in_place(&mut [1u8], ReduceOp::Sum, Tag(0));
                assert!(is_aborted(&shown), "{shown:?}");
            }
            grow_until(m, 2);
            let mut buffer = [1u8];
            m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
                .unwrap();
            buffer[0]
        });
        assert_eq!(sums, [2, 2]);
        assert!(members[1].member_id().unwrap() > before);
    });
}
