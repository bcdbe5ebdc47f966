//! The scenarios of the C++ library's tests, by number, as far as an election decides them.

use super::*;

#[test]
fn scenario_01_of_two_different_contents_that_of_the_longest_standing_wins() {
    let mut group = Group::new([simple(EnforcePopular, 7), simple(EnforcePopular, 3)]);
    let election = group.sync();
    assert_eq!(election.seeders, [A]);
    assert_eq!(fetched(&election, B), ["key1"]);
    assert_eq!(group.content(B), [7]);
}

#[test]
fn scenarios_02_06_07_08_17_equal_contents_move_nothing() {
    // Groups know nothing of one another: each has an election of its own.
    for (key, content) in [("key1", 1), ("key2", 1), ("key1", 2)] {
        let member = offer(EnforcePopular, 0, &[tensor(key, content)]);
        let election = Group::new([member.clone(), member]).sync();
        assert_quiet(&election);
        assert_eq!(election.seeders, [A, B]);
    }
}

#[test]
fn scenario_03_only_the_tensor_that_differs_is_fetched() {
    let member = |second| {
        offer(
            EnforcePopular,
            0,
            &[tensor("key1", 1), tensor("key2", second)],
        )
    };
    let mut group = Group::new([member(2), member(3)]);
    let election = group.sync();
    assert_eq!(fetched(&election, B), ["key2"]);
    group.assert_equal();
}

#[test]
fn scenario_04_a_majority_outvotes_the_longest_standing() {
    let mut group = Group::new([9, 4, 4].map(|content| simple(EnforcePopular, content)));
    let election = group.sync();
    assert_eq!(election.seeders, [B, C]);
    assert_eq!(fetched(&election, A), ["key1"]);
    assert_eq!(group.content(A), [4]);
}

#[test]
fn scenario_05_a_majority_overwrites_only_what_differs() {
    let keys: Vec<String> = (0..16).map(|i| format!("key{i:02}")).collect();
    let member = |dirty: &[usize]| {
        let content = |i| if dirty.contains(&i) { 99 } else { i as u128 };
        let entries: Vec<_> = (0..16).map(|i| tensor(&keys[i], content(i))).collect();
        offer(EnforcePopular, 0, &entries)
    };
    let mut group = Group::new([member(&[1, 4, 9, 15]), member(&[]), member(&[])]);
    let election = group.sync();
    assert_eq!(fetched(&election, A), ["key01", "key04", "key09", "key15"]);
    assert_eq!(election.seeders, [B, C]);
    group.assert_equal();
}

#[test]
fn scenarios_09_15_members_that_advance_together_move_nothing() {
    let mut group = Group::new([0, 0].map(|content| simple(EnforcePopular, content)));
    for step in 0..5 {
        for id in [A, B] {
            let entries = vec![tensor("key1", u128::from(step))];
            group.offers.insert(
                id,
                StateOffer::new(step, EnforcePopular, entries, false).unwrap(),
            );
        }
        let election = group.sync();
        assert_quiet(&election);
        assert_eq!(election.revision, Some(step));
    }
}

#[test]
fn scenario_10_a_member_that_stays_behind_takes_on_the_revision() {
    let mut group = Group::new([1, 1, 2].map(|content| simple(EnforcePopular, content)));
    for step in 0..5 {
        group.step(A, step);
        group.step(B, step);
        let election = group.sync();
        assert_eq!(fetched(&election, C).len(), usize::from(step == 0));
        assert_eq!(election.seeders[..2], [A, B]);
        assert_eq!(group.offers[&C].revision, step);
    }
}

#[test]
fn scenarios_11_16_a_member_that_stays_behind_is_dragged_along() {
    let mut group = Group::new([0, 0, 50].map(|content| simple(EnforcePopular, content)));
    for step in 0..5 {
        for id in [A, B] {
            let entries = [tensor("key1", 1 + u128::from(step))];
            group
                .offers
                .insert(id, offer(EnforcePopular, step, &entries));
        }
        let election = group.sync();
        assert_eq!(fetched(&election, C), ["key1"]);
        assert_eq!(election.seeders, [A, B]);
        assert_eq!(group.offers[&C].revision, step);
        group.assert_equal();
    }
}

#[test]
fn scenario_12_a_revision_that_jumps_fails_and_leaves_nobody_to_elect() {
    let mut group = Group::new([1, 1].map(|content| simple(EnforcePopular, content)));
    assert_quiet(&group.sync());
    group.step(A, 2);
    let election = group.sync();
    assert_eq!(failed(&election), [A, B]);
    assert!(reason(&election, A).contains("revision 2 is above 1"));
    assert!(reason(&election, B).contains("m2 is at revision 0, expected is 1"));
    assert_eq!((election.revision, election.next_expected), (None, Some(1)));
}

#[test]
fn scenario_13_the_first_synchronisation_goes_on_from_the_highest_revision() {
    for newcomer_first in [false, true] {
        let old = offer(EnforcePopular, 13, &[tensor("key1", 1)]);
        let new = simple(EnforcePopular, 2);
        let offers = if newcomer_first {
            [new, old]
        } else {
            [old, new]
        };
        let (old, new) = if newcomer_first { (B, A) } else { (A, B) };
        let mut group = Group::new(offers);
        let election = group.sync();
        assert_eq!(election.seeders, [old]);
        assert_eq!(fetched(&election, new), ["key1"]);
        assert_eq!(group.offers[&new].revision, 13);
        assert_eq!(election.next_expected, Some(14));
    }
}

#[test]
fn scenario_14_a_member_with_another_key_fails_alone_each_time() {
    let odd = |revision| offer(EnforcePopular, revision, &[tensor("key3", 1)]);
    let mut group = Group::new([simple(EnforcePopular, 1), simple(EnforcePopular, 1), odd(0)]);
    for revision in 0..2 {
        group.step(A, revision);
        group.step(B, revision);
        group.offers.insert(C, odd(revision));
        let election = group.sync();
        assert_eq!(failed(&election), [C]);
        let what = reason(&election, C);
        assert!(
            what.contains("\"key1\"") && what.contains("m1, m2"),
            "{what}"
        );
    }
}

#[test]
fn scenario_18_a_group_that_grew_in_between_goes_on() {
    let mut group = Group::new([1, 1].map(|content| simple(EnforcePopular, content)));
    for step in 0..3 {
        group.step(A, step);
        group.step(B, step);
        assert_quiet(&group.sync());
    }
    group.offers.insert(C, simple(EnforcePopular, 8));
    group.step(A, 3);
    group.step(B, 3);
    assert_eq!(fetched(&group.sync(), C), ["key1"]);
}

#[test]
fn scenario_19_of_two_senders_with_different_content_one_fails() {
    let election = Group::new([simple(SendOnly, 1), simple(SendOnly, 2)]).sync();
    assert_eq!(failed(&election), [B]);
    assert_eq!(election.seeders, [A]);
    let what = reason(&election, B);
    assert!(what.contains("\"key1\"") && what.contains("m1"), "{what}");
}

#[test]
fn scenarios_20_21_receivers_alone_all_fail() {
    for content in [1, 2] {
        let election = Group::new([simple(ReceiveOnly, 1), simple(ReceiveOnly, content)]).sync();
        assert_eq!(failed(&election), [A, B]);
        assert!(reason(&election, B).contains("m1 only receives"));
        assert_eq!((election.revision, election.next_expected), (None, None));
    }
}

#[test]
fn scenarios_22_to_25_beside_one_that_enforces_all_others_fail() {
    let mixtures: [&[SyncStrategy]; 4] = [
        &[EnforcePopular, ReceiveOnly],
        &[EnforcePopular, SendOnly],
        &[EnforcePopular, SendOnly, SendOnly],
        &[EnforcePopular, SendOnly, ReceiveOnly],
    ];
    for mixture in mixtures {
        let election = Group::new(mixture.iter().map(|strategy| simple(*strategy, 1))).sync();
        assert_eq!(failed(&election).len(), mixture.len() - 1, "{mixture:?}");
        assert_eq!(
            election.verdicts[&A],
            SyncVerdict::UpToDate { may_seed: true }
        );
        let what = reason(&election, B);
        assert!(
            what.contains("EnforcePopular, the strategy of m1"),
            "{what}"
        );
    }
}

#[test]
fn scenario_26_a_group_is_not_touched_by_what_another_mixes() {
    let election = Group::new([simple(EnforcePopular, 1), simple(SendOnly, 1)]).sync();
    assert_eq!(failed(&election), [B]);
    let election = Group::new([simple(SendOnly, 1), simple(SendOnly, 1)]).sync();
    assert_quiet(&election);
}
