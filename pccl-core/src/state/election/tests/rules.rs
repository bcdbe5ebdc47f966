//! What the numbered scenarios do not reach.

use super::*;

#[test]
fn keys_are_compared_by_name_not_by_place() {
    let a = offer(EnforcePopular, 0, &[tensor("x", 1), tensor("y", 2)]);
    let b = offer(EnforcePopular, 0, &[tensor("y", 2), tensor("x", 1)]);
    assert_quiet(&Group::new([a, b]).sync());
}

#[test]
fn type_count_flag_and_key_set_must_be_equal() {
    let whole = [tensor("x", 1), tensor("y", 2)];
    let vary = |change: fn(&mut StateEntry)| {
        let mut entries = whole.clone();
        change(&mut entries[1]);
        entries.to_vec()
    };
    let odd_ones = [
        (vary(|e| e.data_type = DataType::I8), "1024 x I8"),
        (vary(|e| e.count = 1023), "1023 x U8"),
        (
            vary(|e| e.allow_content_inequality = true),
            "content may differ",
        ),
        (whole[..1].to_vec(), "lacks the tensor \"y\""),
        (vec![], "lacks the tensor \"x\""),
        (
            [&whole[..], &[tensor("z", 3)]].concat(),
            "has the tensor \"z\"",
        ),
    ];
    for (entries, expected) in odd_ones {
        let good = offer(EnforcePopular, 0, &whole);
        let odd = offer(EnforcePopular, 0, &entries);
        let election = Group::new([good.clone(), good, odd]).sync();
        assert_eq!(failed(&election), [C]);
        let what = reason(&election, C);
        assert!(what.contains(expected) && what.contains("m1, m2"), "{what}");
    }
}

#[test]
fn a_list_that_is_not_canonical_fails_alone() {
    let mut odd = simple(EnforcePopular, 1);
    Arc::make_mut(&mut odd.entries).push(tensor("key1", 1));
    let election = Group::new([odd, simple(EnforcePopular, 1)]).sync();
    assert_eq!(failed(&election), [A]);
}

#[test]
fn empty_states_are_never_elected() {
    let empty = || offer(EnforcePopular, 0, &[]);
    let election = Group::new([empty(), empty()]).sync();
    assert_eq!(failed(&election), [A, B]);
    assert!(reason(&election, A).contains("m1 has an empty state"));
    let election = Group::new([empty(), empty(), simple(EnforcePopular, 1)]).sync();
    assert_eq!(failed(&election), [A, B]);
    assert_eq!(election.seeders, [C]);
}

#[test]
fn a_receiver_neither_votes_nor_seeds_nor_passes_on() {
    let offers = [
        simple(ReceiveOnly, 2),
        simple(ReceiveOnly, 2),
        simple(SendOnly, 1),
    ];
    let mut group = Group::new(offers);
    let election = group.sync();
    assert_eq!(election.seeders, [C]);
    let SyncVerdict::Fetch { may_pass_on, .. } = &election.verdicts[&A] else {
        panic!("{election:?}");
    };
    assert!(!may_pass_on);
    for id in [A, B, C] {
        group.step(id, 1);
    }
    let election = group.sync();
    assert_eq!(
        election.verdicts[&A],
        SyncVerdict::UpToDate { may_seed: false }
    );
    assert_eq!(election.seeders, [C]);
}

#[test]
fn a_receiver_does_not_decide_the_first_revision() {
    let mut group = Group::new([
        offer(ReceiveOnly, 9, &[tensor("key1", 1)]),
        offer(SendOnly, 4, &[tensor("key1", 1)]),
        offer(ReceiveOnly, 0, &[tensor("key1", 1)]),
    ]);
    let election = group.sync();
    assert_eq!(failed(&election), [A]);
    assert_eq!(election.revision, Some(4));
}

#[test]
fn a_sender_whose_revision_is_old_fails_although_its_content_is_elected() {
    let offers = [
        simple(SendOnly, 1),
        offer(SendOnly, 1, &[tensor("key1", 1)]),
    ];
    let election = Group::new(offers).sync();
    assert_eq!(failed(&election), [A]);
    assert!(reason(&election, A).contains("its revision is 0, the elected one 1"));
}

#[test]
fn votes_of_old_revisions_do_not_count() {
    let old = || offer(EnforcePopular, 4, &[tensor("key1", 2)]);
    let offers = [old(), old(), offer(EnforcePopular, 5, &[tensor("key1", 1)])];
    let election = Group::new(offers).sync();
    assert_eq!(election.seeders, [C]);
    assert_eq!(fetched(&election, A), ["key1"]);
}

#[test]
fn a_torn_member_is_neither_candidate_nor_seeder_nor_does_it_pass_on() {
    let offers = [
        torn(simple(EnforcePopular, 2)),
        torn(simple(EnforcePopular, 2)),
        simple(EnforcePopular, 1),
    ];
    let election = Group::new(offers).sync();
    assert_eq!(election.seeders, [C]);
    let SyncVerdict::Fetch { may_pass_on, .. } = &election.verdicts[&A] else {
        panic!("{election:?}");
    };
    assert!(!may_pass_on);

    let election = Group::new([torn(simple(EnforcePopular, 1)), simple(EnforcePopular, 1)]).sync();
    assert_eq!(
        election.verdicts[&A],
        SyncVerdict::UpToDate { may_seed: false }
    );

    let election = Group::new([torn(simple(EnforcePopular, 1))]).sync();
    assert!(reason(&election, A).contains("the last fetch of m1 broke off"));
}

#[test]
fn content_that_may_differ_goes_to_newcomers_and_torn_members_only() {
    let member = |revision, content| {
        let entries = [loose("rng", content), tensor("weights", 1)];
        offer(EnforcePopular, revision, &entries)
    };
    let offers = [
        member(3, 10),
        member(3, 11),
        member(0, 12),
        torn(member(3, 13)),
    ];
    let election = Group::new(offers).sync();
    assert_eq!(election.seeders, [A, B]);
    for id in [C, MemberId(4)] {
        let SyncVerdict::Fetch { keys, .. } = &election.verdicts[&id] else {
            panic!("{election:?}");
        };
        let rng = FetchEntry {
            key: "rng".to_owned(),
            digest: None,
        };
        assert_eq!(**keys, [rng]);
    }
}

#[test]
fn the_largest_revision_is_not_counted_beyond() {
    let election = Group::new([offer(SendOnly, u64::MAX, &[tensor("key1", 1)])]).sync();
    assert_eq!(election.next_expected, Some(u64::MAX));
}

#[test]
fn reasons_stay_short() {
    let key = "é".repeat(10_000);
    let odd = offer(EnforcePopular, 0, &[tensor(&key, 1)]);
    let mut offers: Vec<_> = (0..1_000).map(|_| simple(EnforcePopular, 1)).collect();
    offers.push(odd);
    let election = Group::new(offers).sync();
    let what = reason(&election, MemberId(1_001));
    assert!(what.len() < 600 && what.contains("992 more"), "{what}");

    let election = Group::new((0..1_000).map(|_| simple(ReceiveOnly, 1))).sync();
    let what = reason(&election, A);
    assert!(what.len() < 600 && what.contains("992 more"), "{what}");
}
