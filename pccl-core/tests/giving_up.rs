//! Limits and cancels ask for an end; the verdict is the same for all.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use pccl_core::CallOptions;
use pccl_core::error::Error;
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use pccl_core::wire::reason::{AbortReason, RequestCause};
use support::{each, group, within_limit};

fn cause<T: std::fmt::Debug>(result: Result<T, Error>) -> RequestCause {
    match result {
        Err(Error::Aborted {
            reason: AbortReason::Requested { cause, .. },
            ..
        }) => cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_time_limit_that_passes_fails_the_operation_for_all() {
    within_limit(|| {
        let (_master, members) = group(2);
        let mut buffer = [1u16; 10];
        let options = CallOptions::within(Duration::from_millis(100));
        let alone =
            members[0].all_reduce_in_place_with(&mut buffer, ReduceOp::Sum, Tag(0), options);
        assert_eq!(cause(alone), RequestCause::TimedOut);
        assert_eq!(buffer, [1; 10]);
        // The other member's next call with the tag is that use.
        let other = members[1].all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0));
        assert_eq!(cause(other), RequestCause::TimedOut);
        let sums = each(&members, |_, m| {
            let mut buffer = [1u16; 10];
            m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
                .unwrap();
            buffer[0]
        });
        assert_eq!(sums, [2, 2]);
    });
}

#[test]
fn a_cancel_gives_the_verdict() {
    within_limit(|| {
        let (_master, members) = group(2);
        let options = CallOptions::default();
        let reduce = members[0].all_reduce_async(vec![5i8; 100], ReduceOp::Sum, Tag(7), options);
        assert_eq!(reduce.handle().test(), None);
        reduce.handle().cancel();
        let (buffer, result) = reduce.wait();
        assert_eq!(cause(result), RequestCause::Cancelled);
        assert_eq!(buffer, [5; 100]);
    });
}

#[test]
fn dropping_an_operation_cancels_it() {
    within_limit(|| {
        let (_master, members) = group(2);
        let options = CallOptions::default();
        drop(members[0].all_reduce_async(vec![5i8; 100], ReduceOp::Sum, Tag(7), options));
        let other = members[1].all_reduce_in_place(&mut [5i8; 100], ReduceOp::Sum, Tag(7));
        assert_eq!(cause(other), RequestCause::Cancelled);
    });
}

#[test]
fn a_vote_can_be_taken_back() {
    within_limit(|| {
        let (_master, members) = group(2);
        let options = CallOptions::within(Duration::from_millis(100));
        let alone = members[0].update_topology_with(options);
        let other = members[1].member_id().unwrap();
        let words = format!("{alone:?}");
        assert_eq!(cause(alone), RequestCause::TimedOut);
        assert!(words.contains(&format!("Calls([{other:?}])")), "{words}");
        let other = members[1].update_topology();
        assert_eq!(cause(other), RequestCause::TimedOut);
        each(&members, |_, m| m.update_topology().unwrap());
    });
}
