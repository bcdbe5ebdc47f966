//! Elections against a plain form of the rules, over random offers.

use proptest::prelude::*;

use super::*;

/// The rules once more, member by member and as plainly as they can be said.
fn plainly(expected: Option<u64>, offers: &BTreeMap<MemberId, StateOffer>) -> Plain {
    let any_enforces = offers.values().any(|o| o.strategy == EnforcePopular);
    let mut alive: Vec<(MemberId, &StateOffer)> = offers.iter().map(|(id, o)| (*id, o)).collect();
    alive.retain(|(_, o)| !any_enforces || o.strategy == EnforcePopular);
    let sends = |o: &StateOffer| o.strategy != ReceiveOnly && !o.torn && !o.entries.is_empty();
    let first = alive
        .iter()
        .filter(|(_, o)| sends(o))
        .map(|(_, o)| o.revision)
        .max();
    let Some(revision) = expected.or(first) else {
        return Plain::default();
    };
    alive.retain(|(_, o)| o.revision <= revision);
    let candidates: Vec<_> = alive
        .iter()
        .filter(|(_, o)| sends(o) && o.revision == revision)
        .collect();
    let strip = |o: &StateOffer| {
        let mut entries = o.entries.to_vec();
        for e in entries.iter_mut().filter(|e| e.allow_content_inequality) {
            e.digest = ContentDigest::default();
        }
        entries
    };
    let votes = |o: &StateOffer| {
        candidates
            .iter()
            .filter(|(_, c)| strip(c) == strip(o))
            .count()
    };
    let Some(most) = candidates.iter().map(|(_, o)| votes(o)).max() else {
        return Plain::default();
    };
    // Members come in the order of their age, and so do the lists that tie.
    let (_, winner) = candidates.iter().find(|(_, o)| votes(o) == most).unwrap();

    let mut plain = Plain {
        revision: Some(revision),
        ..Plain::default()
    };
    for &(id, o) in &alive {
        let bare = |o: &StateOffer| {
            let mut entries = o.entries.to_vec();
            entries
                .iter_mut()
                .for_each(|e| e.digest = ContentDigest::default());
            entries
        };
        if bare(o) != bare(winner) {
            continue;
        }
        let old = o.revision < revision;
        let mut keys = Vec::new();
        for (own, elected) in o.entries.iter().zip(&*winner.entries) {
            let dirty = own.digest != elected.digest && !own.allow_content_inequality;
            if dirty || (own.allow_content_inequality && (old || o.torn)) {
                keys.push(own.key.clone());
            }
        }
        if o.strategy == SendOnly && (old || !keys.is_empty()) {
            continue;
        }
        if keys.is_empty() && !old && sends(o) {
            plain.seeders.push(id);
        }
        plain.fetches.insert(id, keys);
    }
    plain
}

#[derive(PartialEq, Debug, Default)]
struct Plain {
    revision: Option<u64>,
    seeders: Vec<MemberId>,
    /// Keys to fetch of everyone who does not fail.
    fetches: BTreeMap<MemberId, Vec<String>>,
}

/// Offers that agree often enough for elections to be interesting.
fn offers() -> impl Strategy<Value = BTreeMap<MemberId, StateOffer>> {
    let strategies = prop_oneof![
        4 => Just(vec![EnforcePopular]),
        4 => Just(vec![SendOnly, ReceiveOnly]),
        1 => Just(vec![EnforcePopular, SendOnly, ReceiveOnly]),
    ];
    let member = |strategies: Vec<SyncStrategy>| {
        let entry = |key: &'static str, loose: bool| {
            (0..12u8, 0..3u128, prop::bool::weighted(0.05)).prop_map(move |(luck, content, odd)| {
                (luck > 0).then(|| StateEntry {
                    allow_content_inequality: loose ^ odd,
                    count: if luck == 1 { 7 } else { 1024 },
                    ..tensor(key, content)
                })
            })
        };
        let entries = (entry("a", false), entry("b", false), entry("c", true));
        let revision = prop_oneof![4 => Just(2u64), 1 => 0..4u64];
        let strategy = prop::sample::select(strategies);
        (revision, strategy, entries, prop::bool::weighted(0.1)).prop_map(
            |(revision, strategy, (a, b, c), torn)| {
                let entries = [a, b, c].into_iter().flatten().collect();
                StateOffer::new(revision, strategy, entries, torn).unwrap()
            },
        )
    };
    strategies.prop_flat_map(move |strategies| {
        prop::collection::btree_map((0..20u64).prop_map(MemberId), member(strategies), 1..7)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn elections_are_those_of_the_plain_rules(
        offers in offers(),
        expected in prop_oneof![Just(None), Just(Some(2)), (0..4u64).prop_map(Some)],
    ) {
        let election = elect(expected, &offers);
        let mut outcome = Plain {
            revision: election.revision,
            seeders: election.seeders.clone(),
            fetches: BTreeMap::new(),
        };
        for id in election.verdicts.keys() {
            if !failed(&election).contains(id) {
                outcome.fetches.insert(*id, fetched(&election, *id));
            }
        }
        prop_assert_eq!(outcome, plainly(expected, &offers));
        prop_assert_eq!(
            election.next_expected,
            election.revision.map_or(expected, |revision| Some(revision + 1))
        );
    }

    #[test]
    fn whoever_has_to_fetch_finds_a_seeder_and_ends_with_the_same_content(offers in offers()) {
        let mut group = Group { expected: None, offers };
        let election = group.sync();
        let fetching = election.verdicts.keys().any(|id| !fetched(&election, *id).is_empty());
        prop_assert!(!fetching || !election.seeders.is_empty());
        if election.revision.is_some() {
            // Once more, one step on: nobody fails, nobody fetches.
            let ids: Vec<_> = group.offers.keys().copied().collect();
            for id in ids {
                let offer = group.offers.get_mut(&id).unwrap();
                offer.revision += 1;
                offer.torn = false;
            }
            assert_quiet(&group.sync());
        }
    }
}
