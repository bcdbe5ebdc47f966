//! Synchronisations from any thread, beside those of other groups and of members that die.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Barrier;

use pccl_core::error::{Error, UsageError};
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use support::state::{State, assert_quiet, members, members_of, moved, sync};
use support::{each, within_limit};

#[test]
fn each_synchronisation_may_come_from_another_thread() {
    within_limit(|| {
        let (_master, members) = members(2);
        for step in 0..4u8 {
            // `sync` starts a thread per call.
            let state = State::simple(step).at(step.into());
            assert_quiet(&sync(&members, &mut [state.clone(), state]));
        }
    });
}

#[test]
fn a_second_synchronisation_of_the_same_member_is_refused() {
    within_limit(|| {
        let (_master, members) = members(2);
        std::thread::scope(|scope| {
            // Whichever comes first waits for the other member; the second is refused.
            let (tell, refusals) = std::sync::mpsc::channel();
            for _ in 0..2 {
                let (tell, member) = (tell.clone(), &members[0]);
                scope.spawn(move || tell.send(State::simple(1).sync(member)).unwrap());
            }
            let refused = refusals.recv().unwrap();
            assert!(
                matches!(refused, Err(Error::Usage(UsageError::InUse(_)))),
                "{refused:?}"
            );
            State::simple(1).sync(&members[1]).unwrap();
            refusals.recv().unwrap().unwrap();
        });
    });
}

#[test]
fn a_group_synchronises_while_another_one_reduces() {
    within_limit(|| {
        let (_master, members) = members_of(&[0, 0, 1, 1]);
        let (syncing, reducing) = members.split_at(2);
        let meet = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for step in 0..10 {
                    meet.wait();
                    let sums = each(reducing, |_, m| {
                        let mut buffer = vec![1.0f32; 100_000];
                        m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(step))
                            .unwrap();
                        buffer[0]
                    });
                    assert_eq!(sums, [2.0, 2.0]);
                }
            });
            for step in 0..10u8 {
                meet.wait();
                let mut states = [step, 99].map(State::simple);
                states[0].revision = step.into();
                states[1].revision = u64::from(step).saturating_sub(1);
                let moved = moved(&sync(syncing, &mut states));
                assert_eq!(moved[1].1, 1024);
            }
        });
    });
}
