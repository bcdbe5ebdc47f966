//! A newcomer gets the state that the members have.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::SharedState;
use pccl_core::error::{Error, UsageError};
use pccl_core::types::{DataType, SyncStrategy};
use support::{each, group, within_limit};

/// Several chunks.
const BYTES: usize = 5_000_000;

#[test]
fn who_is_out_of_date_fetches_what_the_others_have() {
    within_limit(|| {
        let (_master, members) = group(3);
        let states = each(&members, |n, member| {
            let newcomer = n == 2;
            let mut weights = vec![if newcomer { 0u8 } else { 7 }; BYTES];
            let mut step = vec![if newcomer { 0u8 } else { 3 }; 8];
            let mut state = SharedState::new(if newcomer { 0 } else { 5 });
            state
                .add("weights", DataType::F32, &mut weights, false)
                .unwrap();
            state.add("step", DataType::U64, &mut step, false).unwrap();
            let strategy = SyncStrategy::EnforcePopular;
            let info = member.sync_shared_state(&mut state, strategy).unwrap();
            assert_eq!((info.revision, state.revision), (5, 5));
            if newcomer {
                assert!(info.rx_bytes >= BYTES as u64, "{info:?}");
            } else {
                assert_eq!(info.rx_bytes, 0);
            }
            drop(state);
            (weights, step)
        });
        assert!(states.iter().all(|s| *s == (vec![7; BYTES], vec![3; 8])));
    });
}

#[test]
fn a_lone_member_says_what_the_state_is() {
    within_limit(|| {
        let (_master, members) = group(1);
        let mut bytes = [1u8; 4];
        let mut state = SharedState::new(0);
        state.add("x", DataType::U8, &mut bytes, false).unwrap();
        let strategy = SyncStrategy::EnforcePopular;
        let info = members[0].sync_shared_state(&mut state, strategy).unwrap();
        assert_eq!(info.rx_bytes, 0);
    });
}

#[test]
fn a_second_synchronisation_is_refused_and_does_not_hide_the_first_from_a_cancel() {
    within_limit(|| {
        let (_master, members) = group(2);
        let member = &members[0];
        let synchronise = || {
            let strategy = SyncStrategy::EnforcePopular;
            let result = member.sync_shared_state(&mut SharedState::new(0), strategy);
            let refused = matches!(result, Err(Error::Usage(UsageError::InUse(_))));
            if refused {
                member.cancel_sync();
            }
            (refused, support::is_aborted(&result))
        };
        let mut ends = std::thread::scope(|scope| {
            let threads = [scope.spawn(synchronise), scope.spawn(synchronise)];
            threads.map(|thread| thread.join().unwrap())
        });
        ends.sort();
        assert_eq!(ends, [(false, true), (true, false)]);
    });
}
