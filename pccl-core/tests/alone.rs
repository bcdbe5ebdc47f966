//! A member without others cannot reduce, and mistakes are told apart.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::error::{Error, UsageError};
use pccl_core::ids::Tag;
use pccl_core::types::{DataType, ReduceDescriptor, ReduceOp};
use pccl_core::{CallOptions, ReduceRequest};
use support::{group, peer, within_limit};

#[test]
fn there_is_nobody_to_reduce_with() {
    within_limit(|| {
        let (_master, members) = group(1);
        let alone = members[0].all_reduce_in_place(&mut [1f32], ReduceOp::Sum, Tag(0));
        assert_eq!(alone, Err(Error::TooFewPeers));
        members[0].update_topology().unwrap();
        assert_eq!(members[0].are_peers_pending(), Ok(false));
    });
}

#[test]
fn calls_before_connect_are_mistakes() {
    within_limit(|| {
        let peer = peer("127.0.0.1:1");
        let not_connected = UsageError::NotConnected;
        let reduced = peer.all_reduce_in_place(&mut [1f32], ReduceOp::Sum, Tag(0));
        assert_eq!(reduced, Err(not_connected.clone().into()));
        assert_eq!(peer.update_topology(), Err(not_connected.clone().into()));
        assert_eq!(peer.are_peers_pending(), Err(not_connected.into()));
    });
}

#[test]
fn connecting_twice_is_a_mistake() {
    within_limit(|| {
        let (_master, members) = group(1);
        let again = members[0].connect(None);
        assert_eq!(again, Err(UsageError::AlreadyConnected.into()));
    });
}

#[test]
fn buffers_of_different_lengths_are_a_mistake() {
    within_limit(|| {
        let (_master, members) = group(1);
        let reduced = members[0].all_reduce(&[1u8, 2], &mut [0u8; 3], ReduceOp::Sum, Tag(0));
        let expected = matches!(
            reduced,
            Err(Error::Usage(UsageError::BufferLength {
                which: "receive",
                ..
            }))
        );
        assert!(expected, "{reduced:?}");
    });
}

#[test]
fn raw_buffers_that_overlap_in_part_are_a_mistake() {
    within_limit(|| {
        let (_master, members) = group(1);
        let mut memory = [0u8; 12];
        let send = memory.as_ptr();
        let recv = memory[4..].as_mut_ptr();
        let descriptor = ReduceDescriptor {
            count: 8,
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            quantization: None,
            algorithm: None,
        };
        let options = CallOptions::default();
        // SAFETY: the memory outlives the call, which refuses it.
        #[allow(unsafe_code)]
        let begun = unsafe { members[0].all_reduce_raw(send, recv, descriptor, Tag(0), options) };
        assert_eq!(begun.unwrap_err(), UsageError::PartialOverlap.into());
    });
}

#[test]
fn operations_of_one_batch_need_tags_of_their_own() {
    within_limit(|| {
        let (_master, members) = group(1);
        let (mut a, mut b) = ([0u8; 2], [0u8; 2]);
        let requests = vec![
            ReduceRequest::in_place(&mut a, ReduceOp::Sum, Tag(1)),
            ReduceRequest::in_place(&mut b, ReduceOp::Sum, Tag(1)),
        ];
        let ended = members[0].all_reduce_multiple_with_retry(requests, 2);
        let expected = matches!(
            ended,
            Err(Error::Usage(UsageError::Argument { name: "tag", .. }))
        );
        assert!(expected, "{ended:?}");
    });
}
