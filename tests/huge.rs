//! Tensors of more than 4 GiB. They take 13 GiB of memory and some minutes, so they are moved only
//! if `PCCL_TEST_HUGE` is set.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pccl_core::config::{MasterConfig, PeerConfig};
use pccl_core::ids::Tag;
use pccl_core::types::{DataType, ReduceOp, SyncStrategy};
use pccl_core::{Communicator, Master, SharedState};

/// More than 32 bits count, and a multiple of nothing.
const COUNT: usize = (1 << 32) + 5;

/// There is memory for one of these tests at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_tensor_of_more_than_four_gib_is_reduced() {
    if std::env::var_os("PCCL_TEST_HUGE").is_none() {
        println!("not run: PCCL_TEST_HUGE is not set");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let master = Master::start("127.0.0.1:0", MasterConfig::default()).unwrap();
    let address = master.local_addr().to_string();
    // Both contribute the same bytes, from the same memory.
    let send: Vec<u8> = (0..COUNT).map(value).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let communicator = Communicator::new(&address, PeerConfig::default()).unwrap();
                communicator.connect(None).unwrap();
                while communicator.attributes().global_world_size < 2 {
                    communicator.update_topology().unwrap();
                }
                let mut recv = vec![0u8; COUNT];
                let begin = Instant::now();
                let info = communicator
                    .all_reduce(&send, &mut recv, ReduceOp::Sum, Tag(0))
                    .unwrap();
                let took = begin.elapsed();
                println!("{COUNT} bytes in {took:.1?}: {info:?}");
                assert_eq!(info.world_size, 2);
                assert!(info.tx_bytes > u64::from(u32::MAX));
                let wrong = (0..COUNT).find(|j| recv[*j] != value(*j).wrapping_mul(2));
                assert_eq!(wrong, None);
            });
        }
    });
    let wrong = (0..COUNT).find(|j| send[*j] != value(*j));
    assert_eq!(wrong, None, "the contribution was changed");
}

#[test]
fn a_tensor_of_more_than_four_gib_is_synchronised() {
    if std::env::var_os("PCCL_TEST_HUGE").is_none() {
        println!("not run: PCCL_TEST_HUGE is not set");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let master = Master::start("127.0.0.1:0", MasterConfig::default()).unwrap();
    let address = master.local_addr().to_string();
    let sync = |has: bool| {
        let communicator = Communicator::new(&address, PeerConfig::default()).unwrap();
        communicator.connect(None).unwrap();
        while communicator.attributes().global_world_size < 2 {
            communicator.update_topology().unwrap();
        }
        let mut bytes = vec![0u8; COUNT];
        if has {
            bytes
                .iter_mut()
                .enumerate()
                .for_each(|(j, b)| *b = value(j));
        }
        let mut state = SharedState::new(if has { 3 } else { 0 });
        state.add("w", DataType::U8, &mut bytes, false).unwrap();
        let begin = Instant::now();
        let info = communicator
            .sync_shared_state(&mut state, SyncStrategy::EnforcePopular)
            .unwrap();
        let took = begin.elapsed();
        println!("{COUNT} bytes in {took:.1?}: {info:?}");
        assert_eq!(info.revision, 3);
        assert_eq!(info.rx_bytes, if has { 0 } else { COUNT as u64 });
        drop(state);
        let wrong = (0..COUNT).find(|j| bytes[*j] != value(*j));
        assert_eq!(wrong, None);
    };
    std::thread::scope(|scope| {
        for has in [true, false] {
            let sync = &sync;
            scope.spawn(move || sync(has));
        }
    });
}

/// Differs between places that are 2^32 apart, and between pages.
fn value(j: usize) -> u8 {
    (j ^ (j >> 12) ^ (j >> 32).wrapping_mul(91)) as u8
}
