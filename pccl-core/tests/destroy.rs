//! Masters, communicators and handles may go in any order.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use pccl_core::CallOptions;
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use support::{group, master, peer, within_limit};

#[test]
fn every_order_of_destruction_is_quick() {
    within_limit(|| {
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let (master, members) = group(2);
            let mut members = members.into_iter();
            let mut things: Vec<Option<Box<dyn std::any::Any>>> = vec![
                Some(Box::new(master)),
                members.next().map(|m| Box::new(m) as _),
                members.next().map(|m| Box::new(m) as _),
            ];
            let begin = Instant::now();
            for thing in order {
                drop(things[thing].take());
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "{order:?}");
        }
    });
}

#[test]
fn a_communicator_that_never_connected_goes_at_once() {
    within_limit(|| drop(peer("192.0.2.1:1")));
}

#[test]
fn an_operation_may_outlive_its_communicator_and_its_master() {
    within_limit(|| {
        let (master, mut members) = group(2);
        let options = CallOptions::default();
        let reduce = members[0].all_reduce_async(vec![1u8; 9], ReduceOp::Sum, Tag(0), options);
        drop(members.remove(0));
        drop(master);
        let (buffer, result) = reduce.wait();
        assert!(result.is_err());
        assert_eq!(buffer, [1; 9]);
    });
}

#[test]
fn a_peer_that_waits_for_admission_can_be_dropped() {
    within_limit(|| {
        let (_master, address) = master();
        let member = peer(&address);
        member.connect(None).unwrap();
        let newcomer = peer(&address);
        let events = newcomer.events();
        let joining = newcomer.begin(pccl_core::Begin::Connect, CallOptions::default());
        assert!(joining.wait_timeout(Duration::from_millis(200)).is_none());
        drop(newcomer);
        assert!(joining.wait().is_err());
        drop(events);
    });
}
