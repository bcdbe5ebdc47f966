//! Tensors of all sorts, and what members are told whose tensors are not those of the others.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::types::{DataType, SyncStrategy};
use pccl_core::{Divergence, SharedState};
use support::state::{State, add, assert_quiet, members, members_of, moved, succeeded, sync, told};
use support::{each, within_limit};

const ENFORCE: SyncStrategy = SyncStrategy::EnforcePopular;

const TYPES: [DataType; 12] = [
    DataType::U8,
    DataType::I8,
    DataType::U16,
    DataType::I16,
    DataType::U32,
    DataType::I32,
    DataType::U64,
    DataType::I64,
    DataType::F16,
    DataType::BF16,
    DataType::F32,
    DataType::F64,
];

#[test]
fn tensors_of_every_type_and_alignment_are_moved() {
    within_limit(|| {
        let (_master, members) = members(2);
        // More than a chunk, no whole number of anything larger, and behind an odd number of bytes.
        let len = (1 << 20) + 7 * 8;
        let buffers = each(&members, |n, member| {
            let fill = |t: usize| vec![if n == 0 { t as u8 + 1 } else { 0 }; len + 1];
            let mut buffers: Vec<Vec<u8>> = (0..12).map(fill).collect();
            let mut state = SharedState::new(0);
            for ((t, data_type), buffer) in TYPES.iter().enumerate().zip(&mut buffers) {
                let bytes = &mut buffer[1..];
                state
                    .add(format!("t{t}"), *data_type, bytes, false)
                    .unwrap();
            }
            let info = member.sync_shared_state(&mut state, ENFORCE).unwrap();
            drop(state);
            assert_eq!(info.rx_bytes, if n == 0 { 0 } else { 12 * len as u64 });
            buffers
        });
        for (t, (first, second)) in buffers[0].iter().zip(&buffers[1]).enumerate() {
            assert_eq!(first[1..], second[1..], "tensor {t}");
            assert_eq!(second[0], 0);
        }
    });
}

#[test]
fn empty_tensors_are_part_of_a_state() {
    within_limit(|| {
        let (_master, members) = members(2);
        let state = |value| {
            let mut state = State::simple(value);
            state.tensors.push(("empty".into(), Vec::new()));
            state
        };
        let mut states = [state(1), state(2)];
        let moved = moved(&sync(&members, &mut states));
        assert_eq!(moved, [(1024, 0), (0, 1024)]);
        // One that is missing is missed.
        let mut states = [state(1).at(1), State::simple(1).at(1)];
        let results = sync(&members, &mut states);
        assert_eq!(succeeded(&results), [true, false]);
        let what = told(&results[1]);
        assert!(
            what.contains("lacks the tensor \"empty\", which is 0 x U8"),
            "{what}"
        );
        assert!(what.contains("elected state of m1"), "{what}");
    });
}

#[test]
fn thousands_of_small_tensors_reach_a_newcomer() {
    within_limit(|| {
        let (_master, members) = members(3);
        let size = |n: usize| n % 50;
        let state = |value: u8| State {
            tensors: (0..5000)
                .map(|n| (format!("layer{n}"), vec![value; size(n)]))
                .collect(),
            ..State::simple(0)
        };
        let mut states = [state(1).at(4), state(1).at(4), state(0)];
        let moved = moved(&sync(&members, &mut states));
        let bytes: usize = (0..5000).map(size).sum();
        assert_eq!(moved[2], (0, bytes as u64));
        assert_eq!(moved[0].0 + moved[1].0, bytes as u64);
        assert!(states[2] == state(1).at(4));
    });
}

#[test]
fn tensors_that_may_differ_go_to_newcomers_only() {
    within_limit(|| {
        let (_master, members) = members(3);
        let run = |values: [u8; 3], revisions: [u64; 3]| {
            each(&members, |n, member| {
                let mut own = vec![values[n]; 3 << 20];
                let mut weights = vec![0u8; 16];
                let mut state = SharedState::new(revisions[n]);
                state.add("rank", DataType::U8, &mut own, true).unwrap();
                state.add("w", DataType::F32, &mut weights, false).unwrap();
                let info = member.sync_shared_state(&mut state, ENFORCE).unwrap();
                drop(state);
                assert!(own.iter().all(|b| *b == own[0]), "of several members");
                (own[0], info.rx_bytes)
            })
        };
        let end = run([1, 2, 3], [5, 5, 0]);
        assert_eq!(end[..2], [(1, 0), (2, 0)]);
        assert!([1, 2].contains(&end[2].0) && end[2].1 == 3 << 20);
        // Members at the elected revision keep their own.
        assert_eq!(run([1, 2, 3], [6, 6, 6]), [(1, 0), (2, 0), (3, 0)]);
    });
}

#[test]
fn a_difference_in_size_type_or_flag_is_named() {
    within_limit(|| {
        let odd: [(DataType, usize, bool, &str); 3] = [
            (DataType::F32, 32, false, "8 x F32 (content must be equal)"),
            (DataType::I32, 16, false, "4 x I32"),
            (DataType::F32, 16, true, "4 x F32 (content may differ)"),
        ];
        for (data_type, len, differs, found) in odd {
            let (_master, members) = members(3);
            let results = each(&members, |n, member| {
                let (t, len, differs) = match n {
                    2 => (data_type, len, differs),
                    _ => (DataType::F32, 16, false),
                };
                let mut bytes = vec![0; len];
                let mut state = SharedState::new(0);
                state.add("layer.7", t, &mut bytes, differs).unwrap();
                member.sync_shared_state(&mut state, ENFORCE)
            });
            assert_eq!(succeeded(&results), [true, true, false]);
            let what = told(&results[2]);
            let expected = "but 4 x F32 (content must be equal) in the elected state of m1, m2";
            assert!(
                what.contains("\"layer.7\"") && what.contains(found) && what.contains(expected),
                "{what}"
            );
        }
    });
}

#[test]
fn who_failed_joins_again_and_gets_the_state() {
    within_limit(|| {
        let (master, mut members) = members(2);
        let mut states = [State::simple(1), State::of(&[("other", 2)])];
        let results = sync(&members, &mut states);
        assert_eq!(succeeded(&results), [true, false]);
        let mut again = vec![members.remove(0)];
        add(&mut again, &master.local_addr().to_string(), 0);
        let mut states = [State::simple(1).at(1), State::simple(0)];
        assert_eq!(moved(&sync(&again, &mut states)), [(1024, 0), (0, 1024)]);
        assert!(states[1] == State::simple(1).at(1));
    });
}

#[test]
fn an_empty_group_forgets_its_revision() {
    within_limit(|| {
        let (master, mut members) = members_of(&[0, 1]);
        let mut state = State::simple(1).at(20);
        state.sync(&members[1]).unwrap();
        members.pop().unwrap().leave().unwrap();
        add(&mut members, &master.local_addr().to_string(), 1);
        // An older revision than the group has seen.
        let mut state = State::simple(1).at(3);
        state.sync(&members[1]).unwrap();
        assert_eq!(state.revision, 3);
    });
}

#[test]
fn one_bit_flipped_at_one_member_is_named_and_costs_one_chunk() {
    within_limit(|| {
        let (_master, members) = members(3);
        let content: Vec<u8> = (0..5 << 20).map(|n: u32| (n / 64) as u8).collect();
        let state = |revision| State {
            tensors: vec![("bias".into(), vec![1; 8]), ("w".into(), content.clone())],
            ..State::simple(0).at(revision)
        };
        assert_quiet(&sync(&members, &mut [state(4), state(4), state(4)]));
        let mut states = [state(5), state(5), state(5)];
        states[2].tensors[1].1[(3 << 20) + 77] ^= 4;
        let results = sync(&members, &mut states);
        assert!(states[2] == state(5));
        let infos: Vec<_> = results.into_iter().map(Result::unwrap).collect();
        assert!(infos[..2].iter().all(|info| info.divergences.is_empty()));
        let ids = |n: &[usize]| -> Vec<_> {
            let ids = n.iter().map(|n| members[*n].member_id().unwrap());
            ids.collect()
        };
        let divergence = Divergence {
            key: "w".into(),
            bytes: (3 << 20) + 77..(3 << 20) + 78,
            holders: ids(&[0, 1]),
            since: Some(4),
        };
        assert_eq!(infos[2].divergences, std::slice::from_ref(&divergence));
        assert!(
            divergence
                .to_string()
                .contains("at revision 4 all were the same")
        );
        assert_eq!(infos[2].rx_bytes, 1 << 20);
        let [(source, bytes)] = infos[2].sources[..] else {
            panic!("{infos:?}");
        };
        assert!(ids(&[0, 1]).contains(&source) && bytes == 1 << 20);
    });
}
