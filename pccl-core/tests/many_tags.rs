//! Operations with different tags run together, in whatever order they are begun.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use pccl_core::{BatchStop, CallOptions, ReduceRequest};
use support::{each, group, within_limit};

#[test]
fn members_begin_them_in_different_orders() {
    within_limit(|| {
        let (_master, members) = group(3);
        each(&members, |n, m| {
            let mut tags: Vec<u64> = (0..16).collect();
            tags.rotate_left(n * 5);
            let begun: Vec<_> = tags
                .into_iter()
                .map(|tag| {
                    let buffer = vec![(tag + n as u64) as f32; 20_000];
                    let options = CallOptions::default();
                    (
                        tag,
                        m.all_reduce_async(buffer, ReduceOp::Sum, Tag(tag), options),
                    )
                })
                .collect();
            for (tag, reduce) in begun {
                let (buffer, info) = reduce.wait();
                info.unwrap();
                assert!(
                    buffer.iter().all(|x| *x == (3 * tag + 3) as f32),
                    "tag {tag}"
                );
            }
        });
    });
}

#[test]
fn many_are_carried_out_a_few_at_a_time() {
    within_limit(|| {
        let (_master, members) = group(2);
        each(&members, |n, m| {
            let mut buffers: Vec<_> = (0..40).map(|i| vec![i + n as i32; 1000]).collect();
            let requests = buffers
                .iter_mut()
                .zip(0..)
                .map(|(b, tag)| ReduceRequest::in_place(b, ReduceOp::Max, Tag(tag)))
                .collect();
            let info = m.all_reduce_multiple_with_retry(requests, 4).unwrap();
            assert_eq!(info.world_size, 2);
            for (buffer, i) in buffers.iter().zip(0..) {
                assert!(buffer.iter().all(|x| *x == i + 1));
            }
        });
    });
}

#[test]
fn many_survive_the_departure_of_a_member() {
    within_limit(|| {
        let (_master, mut members) = group(3);
        let leaver = members.pop().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Takes part in the first few, and goes.
                for tag in 0..5 {
                    let mut buffer = [100u64; 500];
                    leaver
                        .all_reduce_in_place(&mut buffer, ReduceOp::Min, Tag(tag))
                        .unwrap();
                }
                drop(leaver);
            });
            each(&members, |n, m| {
                let mut buffers = vec![[n as u64 + 1; 500]; 20];
                let requests = buffers
                    .iter_mut()
                    .zip(0..)
                    .map(|(b, tag)| ReduceRequest::in_place(b, ReduceOp::Min, Tag(tag)))
                    .collect();
                let info = m.all_reduce_multiple_with_retry(requests, 3).unwrap();
                assert_eq!(info.world_size, 2);
                assert!(buffers.iter().all(|b| *b == [1; 500]));
            });
        });
    });
}

#[test]
fn many_end_when_nobody_else_is_left() {
    within_limit(|| {
        let (_master, mut members) = group(2);
        drop(members.pop());
        let mut buffer = [1u8; 3];
        let request = ReduceRequest::in_place(&mut buffer, ReduceOp::Sum, Tag(0));
        let ended = members[0].all_reduce_multiple_with_retry(vec![request], 4);
        assert_eq!(ended, Err(pccl_core::error::Error::TooFewPeers));
        assert_eq!(buffer, [1; 3]);
    });
}

#[test]
fn many_can_be_given_up_and_say_what_was_done() {
    within_limit(|| {
        let (_master, members) = group(2);
        let stop = BatchStop::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Takes part in two of the five, and has the other member give up the rest.
                for tag in 0..2 {
                    let mut buffer = [1i64; 100];
                    members[1]
                        .all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(tag))
                        .unwrap();
                }
                stop.stop();
            });
            let mut buffers = [[1i64; 100]; 5];
            let requests = buffers
                .iter_mut()
                .zip(0..)
                .map(|(b, tag)| ReduceRequest::in_place(b, ReduceOp::Sum, Tag(tag)))
                .collect();
            let options = CallOptions::default();
            let done = members[0].all_reduce_multiple_until(requests, 2, options, &stop);
            assert!(done.ended.is_err(), "{done:?}");
            // Each member has its verdict from the master at a time of its own: with the second
            // still on its way when the batch is given up, it counts all the same.
            assert_eq!(done.committed, [0, 1]);
            assert!(done.info.tx_bytes > 0);
            assert_eq!(buffers.map(|b| b[99]), [2, 2, 1, 1, 1]);
        });
    });
}
