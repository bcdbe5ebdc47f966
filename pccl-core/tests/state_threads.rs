//! Synchronisations from any thread, beside those of other groups and of members that die.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

#[test]
fn serving_a_large_state_stops_no_reduction_of_the_same_process() {
    within_limit(|| {
        let (_master, members) = members_of(&[0, 0, 1, 1]);
        let (syncing, reducing) = members.split_at(2);
        let large = |value| State {
            tensors: vec![("w".into(), vec![value; 48 << 20])],
            ..State::simple(0)
        };
        let over = AtomicBool::new(false);
        // Reductions that began after the joiner had some of the state, and ended before it had all.
        let during = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for member in reducing {
                let (over, during, joiner) = (&over, &during, &syncing[1]);
                scope.spawn(move || {
                    let mut buffer = vec![1.0f32; 250_000];
                    let left = || {
                        let progress = joiner.sync_progress()?;
                        Some(progress.total - progress.fetched).filter(|_| progress.fetched > 0)
                    };
                    // Both stop at the same step: the minimum of what they want.
                    let mut go_on = [1u8];
                    while go_on[0] == 1 {
                        let begun = left().is_some();
                        member
                            .all_reduce_in_place(&mut buffer, ReduceOp::Max, Tag(0))
                            .unwrap();
                        let within = begun && left().is_some_and(|left| left > 0);
                        during.fetch_add(usize::from(within), Ordering::Relaxed);
                        go_on = [u8::from(!over.load(Ordering::Relaxed))];
                        member
                            .all_reduce_in_place(&mut go_on, ReduceOp::Min, Tag(1))
                            .unwrap();
                    }
                });
            }
            let results = sync(syncing, &mut [large(1).at(7), large(0)]);
            over.store(true, Ordering::Relaxed);
            assert_eq!(moved(&results)[1].1, 48 << 20);
        });
        let during = during.into_inner();
        assert!(during >= 4, "{during} reductions while 48 MiB were served");
    });
}
