//! The scenarios of the C++ library's tests of the shared state, by number: 19 to 26, on
//! strategies.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::SyncInfo;
use pccl_core::error::Result;
use pccl_core::types::SyncStrategy::{self, EnforcePopular, ReceiveOnly, SendOnly};
use support::state::{State, assert_quiet, members, members_of, moved, succeeded, sync, told};
use support::within_limit;

/// Members of one group, each with a strategy and a content, synchronise.
fn strategies(all: &[(SyncStrategy, u8)]) -> Vec<Result<SyncInfo>> {
    let (_master, members) = members(all.len());
    let states = all.iter().map(|(s, value)| State::simple(*value).with(*s));
    sync(&members, &mut states.collect::<Vec<_>>())
}

/// The first member succeeds without having moved anything, and the others hear why they fail.
fn assert_first_enforces(results: &[Result<SyncInfo>]) {
    assert_quiet(&results[..1]);
    for result in &results[1..] {
        let what = told(result);
        assert!(
            what.contains("EnforcePopular, the strategy of m1"),
            "{what}"
        );
    }
}

#[test]
fn scenario_19_of_two_senders_with_different_content_one_fails() {
    within_limit(|| {
        let results = strategies(&[(SendOnly, 1), (SendOnly, 2)]);
        assert_eq!(succeeded(&results), [true, false]);
        assert_quiet(&results[..1]);
        let what = told(&results[1]);
        assert!(what.contains("\"key1\"") && what.contains("m1"), "{what}");
    });
}

#[test]
fn scenario_20_receivers_with_different_content_fail() {
    within_limit(|| {
        let results = strategies(&[(ReceiveOnly, 1), (ReceiveOnly, 2)]);
        assert_eq!(succeeded(&results), [false, false]);
        assert!(told(&results[1]).contains("m1 only receives"));
    });
}

#[test]
fn scenario_21_receivers_with_the_same_content_fail() {
    within_limit(|| {
        let results = strategies(&[(ReceiveOnly, 1), (ReceiveOnly, 1)]);
        assert_eq!(succeeded(&results), [false, false]);
        assert!(told(&results[0]).contains("m2 only receives"));
    });
}

#[test]
fn scenario_22_a_receiver_beside_one_that_enforces_fails() {
    within_limit(|| assert_first_enforces(&strategies(&[(EnforcePopular, 1), (ReceiveOnly, 1)])));
}

#[test]
fn scenario_23_a_sender_beside_one_that_enforces_fails() {
    within_limit(|| assert_first_enforces(&strategies(&[(EnforcePopular, 1), (SendOnly, 1)])));
}

#[test]
fn scenario_24_two_senders_beside_one_that_enforces_fail() {
    within_limit(|| {
        let all = [(EnforcePopular, 1), (SendOnly, 1), (SendOnly, 1)];
        assert_first_enforces(&strategies(&all));
    });
}

#[test]
fn scenario_25_a_sender_and_a_receiver_beside_one_that_enforces_fail() {
    within_limit(|| {
        let all = [(EnforcePopular, 1), (SendOnly, 1), (ReceiveOnly, 1)];
        assert_first_enforces(&strategies(&all));
    });
}

#[test]
fn scenario_26_what_one_group_mixes_does_not_touch_another() {
    within_limit(|| {
        let (_master, members) = members_of(&[0, 0, 1, 1]);
        let strategies = [EnforcePopular, SendOnly, SendOnly, SendOnly];
        let mut states = strategies.map(|s| State::simple(1).with(s));
        let results = sync(&members, &mut states);
        assert_eq!(succeeded(&results), [true, false, true, true]);
        assert_quiet(&results[2..]);
    });
}

#[test]
fn a_receiver_gets_the_senders_content_and_never_sends() {
    within_limit(|| {
        let (_master, members) = members(4);
        // One receiver already has the content; the other one must not get it from there.
        let all = [
            (SendOnly, 1),
            (ReceiveOnly, 1),
            (ReceiveOnly, 2),
            (SendOnly, 1),
        ];
        let mut states = all.map(|(s, value)| State::simple(value).with(s));
        let moved = moved(&sync(&members, &mut states));
        assert_eq!(moved[0].0 + moved[3].0, 1024);
        assert_eq!((moved[0].1, moved[3].1), (0, 0));
        assert_eq!((moved[1], moved[2]), ((0, 0), (0, 1024)));
        assert_eq!(states[2].value(0), 1);
    });
}
