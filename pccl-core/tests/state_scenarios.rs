//! The scenarios of the C++ library's tests of the shared state, by number: 1 to 18, on content,
//! revisions and groups.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::mpsc::{Receiver, Sender, channel};

use pccl_core::Communicator;
use support::state::{
    BYTES, State, add, assert_quiet, members, members_of, moved, succeeded, sync, told,
};
use support::within_limit;

const WHOLE: u64 = BYTES as u64;

#[test]
fn scenario_01_of_two_contents_one_is_taken_over() {
    within_limit(|| {
        let (_master, members) = members(2);
        let mut states = [State::simple(7), State::simple(3)];
        let moved = moved(&sync(&members, &mut states));
        // A tie: the longest-standing member's.
        assert_eq!(moved, [(WHOLE, 0), (0, WHOLE)]);
        assert_eq!(states, [State::simple(7), State::simple(7)]);
    });
}

#[test]
fn scenario_02_equal_states_move_nothing() {
    within_limit(|| {
        let (_master, members) = members(2);
        let mut states = [State::simple(1), State::simple(1)];
        assert_quiet(&sync(&members, &mut states));
    });
}

#[test]
fn scenario_03_only_the_tensor_that_differs_is_moved() {
    within_limit(|| {
        let (_master, members) = members(2);
        let state = |second| State::of(&[("key1", 1), ("key2", second)]);
        let mut states = [state(2), state(3)];
        let moved = moved(&sync(&members, &mut states));
        assert_eq!(moved, [(WHOLE, 0), (0, WHOLE)]);
        assert_eq!(states, [state(2), state(2)]);
    });
}

#[test]
fn scenario_04_a_majority_prevails() {
    within_limit(|| {
        let (_master, members) = members(3);
        let mut states = [9, 4, 4].map(State::simple);
        let moved = moved(&sync(&members, &mut states));
        assert_eq!(moved[0], (0, WHOLE));
        assert_eq!(moved[1].0 + moved[2].0, WHOLE);
        assert_eq!(moved[1].1 + moved[2].1, 0);
        assert_eq!(states, [4, 4, 4].map(State::simple));
    });
}

#[test]
fn scenario_05_a_majority_prevails_in_what_differs() {
    within_limit(|| {
        let (_master, members) = members(3);
        let keys: Vec<String> = (0..16).map(|n| format!("key{n}")).collect();
        let state = |dirty: &[u8]| {
            let value = |n: u8| if dirty.contains(&n) { 99 } else { n };
            let tensors: Vec<_> = (0..16).map(|n| (&*keys[n as usize], value(n))).collect();
            State::of(&tensors)
        };
        let mut states = [state(&[1, 4, 9, 15]), state(&[]), state(&[])];
        let moved = moved(&sync(&members, &mut states));
        assert_eq!(moved[0], (0, 4 * WHOLE));
        assert_eq!(moved[1].0 + moved[2].0, 4 * WHOLE);
        assert!(states.iter().all(|s| *s == state(&[])));
    });
}

#[test]
fn scenario_06_groups_synchronise_one_after_the_other() {
    within_limit(|| {
        let (_master, members) = members_of(&[0, 0, 1, 1]);
        let (first, second) = members.split_at(2);
        assert_quiet(&sync(first, &mut [State::simple(1), State::simple(1)]));
        assert_quiet(&sync(second, &mut [State::simple(2), State::simple(2)]));
    });
}

#[test]
fn scenario_07_groups_have_keys_of_their_own() {
    within_limit(|| {
        let (_master, members) = members_of(&[0, 0, 1, 1]);
        let (first, second) = members.split_at(2);
        let (one, two) = (State::of(&[("key1", 1)]), State::of(&[("key2", 2)]));
        assert_quiet(&sync(first, &mut [one.clone(), one]));
        assert_quiet(&sync(second, &mut [two.clone(), two]));
    });
}

#[test]
fn scenario_08_groups_with_keys_of_their_own_synchronise_at_the_same_time() {
    within_limit(|| {
        let (_master, members) = members_of(&[0, 0, 1, 1]);
        let state = |n: u8| State::of(&[(["key1", "key2"][usize::from(n)], n)]);
        assert_quiet(&sync(&members, &mut [0, 0, 1, 1].map(state)));
    });
}

#[test]
fn scenario_09_members_that_advance_together_move_nothing() {
    within_limit(|| {
        let (_master, members) = members(2);
        for step in 0..5 {
            let state = State::simple(step).at(step.into());
            assert_quiet(&sync(&members, &mut [state.clone(), state]));
        }
    });
}

#[test]
fn scenario_10_a_member_that_never_advances_takes_on_the_revision() {
    within_limit(|| {
        let (_master, members) = members(3);
        let mut states = [1, 1, 2].map(State::simple);
        for step in 0..5 {
            (states[0].revision, states[1].revision) = (step, step);
            let moved = moved(&sync(&members, &mut states));
            let expected = if step == 0 { WHOLE } else { 0 };
            assert_eq!(moved[2], (0, expected), "step {step}");
            assert_eq!(moved[0].0 + moved[1].0, expected);
            assert_eq!(moved[0].1 + moved[1].1, 0);
            assert!(states.iter().all(|s| *s == State::simple(1).at(step)));
        }
    });
}

#[test]
fn scenario_11_a_member_that_never_advances_is_dragged_along() {
    within_limit(|| {
        let (_master, members) = members(3);
        let mut states = [0, 0, 99].map(State::simple);
        for step in 0..5u8 {
            let advanced = State::simple(step).at(step.into());
            states[..2].fill(advanced.clone());
            let moved = moved(&sync(&members, &mut states));
            assert_eq!(moved[2], (0, WHOLE), "step {step}");
            assert_eq!(moved[0].0 + moved[1].0, WHOLE);
            assert_eq!(moved[0].1 + moved[1].1, 0);
            assert!(states.iter().all(|s| *s == advanced));
        }
    });
}

#[test]
fn scenario_12_a_revision_that_jumps_fails_and_so_does_who_is_left_behind() {
    within_limit(|| {
        let (_master, members) = members(2);
        let mut states = [State::simple(1), State::simple(1)];
        assert_quiet(&sync(&members, &mut states));
        states[0].revision = 2;
        let results = sync(&members, &mut states);
        assert_eq!(succeeded(&results), [false, false]);
        for result in &results {
            assert!(told(result).contains("revision 2 is above 1"), "{result:?}");
        }
        assert_eq!(states[1], State::simple(1));
    });
}

#[test]
fn scenario_13_the_first_synchronisation_takes_the_highest_revision() {
    within_limit(|| {
        let (_master, members) = members(2);
        let mut states = [State::simple(1).at(13), State::simple(2)];
        let moved = moved(&sync(&members, &mut states));
        assert_eq!(moved, [(WHOLE, 0), (0, WHOLE)]);
        assert_eq!(states[1], State::simple(1).at(13));
    });
}

#[test]
fn scenario_14_another_key_fails_alone_each_time() {
    within_limit(|| {
        let (_master, members) = members(3);
        let odd = State::of(&[("key3", 1)]);
        let mut states = [State::simple(1), State::simple(1), odd];
        let results = sync(&members, &mut states);
        assert_eq!(succeeded(&results), [true, true, false]);
        let what = told(&results[2]);
        assert!(
            what.contains("\"key1\"") && what.contains("m1, m2"),
            "{what}"
        );
        assert!(
            results[..2]
                .iter()
                .all(|r| r.as_ref().unwrap().rx_bytes == 0)
        );
        (states[0].revision, states[1].revision) = (1, 1);
        let results = sync(&members, &mut states);
        assert_eq!(succeeded(&results), [true, true, false]);
    });
}

#[test]
fn scenario_15_groups_advance_at_their_own_pace() {
    within_limit(|| {
        let (_master, members) = members_of(&[0, 0, 1, 1]);
        let (first, second) = members.split_at(2);
        let (to_second, from_first) = channel();
        let (to_first, from_second) = channel();
        let steps = |members: &[Communicator], value: u8, tell: Sender<()>, wait: Receiver<()>| {
            for step in 0..5u8 {
                // One group runs two steps ahead, then the other does three to its one.
                let waits = (value == 0 && step == 3) || (value == 100 && step == 0);
                if waits {
                    wait.recv().unwrap();
                }
                let state = State::simple(value + step).at(step.into());
                assert_quiet(&sync(members, &mut [state.clone(), state]));
                if (value == 0 && step == 1) || (value == 100 && step == 2) {
                    tell.send(()).unwrap();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| steps(first, 0, to_second, from_second));
            steps(second, 100, to_first, from_first);
        });
    });
}

#[test]
fn scenario_16_members_are_dragged_along_in_each_group_at_the_same_time() {
    within_limit(|| {
        let (_master, members) = members_of(&[0, 0, 0, 1, 1, 1]);
        let state = |value| State {
            tensors: vec![("key1".into(), vec![value; 512])],
            ..State::simple(0)
        };
        let mut states: Vec<_> = [0, 0, 99, 0, 0, 99].map(state).into();
        for step in 0..4u8 {
            let advanced = |group: usize| state(10 * group as u8 + step).at(step.into());
            for group in 0..2 {
                states[group * 3..][..2].fill(advanced(group));
            }
            let moved = moved(&sync(&members, &mut states));
            for group in 0..2 {
                let moved = &moved[group * 3..][..3];
                assert_eq!((moved[0].1, moved[1].1), (0, 0));
                assert_eq!(moved[0].0 + moved[1].0, 512);
                assert_eq!(moved[2], (0, 512));
                let states = &states[group * 3..][..3];
                assert!(states.iter().all(|s| *s == advanced(group)));
            }
        }
    });
}

#[test]
fn scenario_17_a_key_may_have_other_content_in_another_group() {
    within_limit(|| {
        let (_master, members) = members_of(&[0, 0, 1, 1]);
        let mut states = [1, 1, 2, 2].map(State::simple);
        assert_quiet(&sync(&members, &mut states));
        assert_eq!(states.map(|s| s.value(0)), [1, 1, 2, 2]);
    });
}

#[test]
fn scenario_18_a_member_joins_between_synchronisations() {
    within_limit(|| {
        let (master, mut members) = members(2);
        for step in 0..3 {
            let state = State::simple(1).at(step);
            assert_quiet(&sync(&members, &mut [state.clone(), state]));
        }
        add(&mut members, &master.local_addr().to_string(), 0);
        assert_eq!(members[2].attributes().group_world_size, 3);
        // And it gets what the others have.
        let state = State::simple(1).at(3);
        let mut states = [state.clone(), state.clone(), State::simple(8)];
        let moved = moved(&sync(&members, &mut states));
        assert_eq!((moved[0].0 + moved[1].0, moved[2]), (WHOLE, (0, WHOLE)));
        assert_eq!(states[2], state);
    });
}
