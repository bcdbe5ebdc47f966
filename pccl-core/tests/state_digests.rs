//! Which digests a run uses is the master's word.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use pccl_core::config::MasterConfig;
use pccl_core::state::digest::digest_tensor;
use pccl_core::types::{DataType, DigestKind, SyncStrategy};
use pccl_core::{Communicator, Master};
use support::state::{State, add, moved, sync, told};
use support::within_limit;

/// A run with these digests.
fn members(size: usize, digests: DigestKind) -> (Master, Vec<Communicator>) {
    let config = MasterConfig {
        digests,
        ..MasterConfig::default()
    };
    let master = Master::start("127.0.0.1:0", config).unwrap();
    let mut members = Vec::new();
    for _ in 0..size {
        add(&mut members, &master.local_addr().to_string(), 0);
    }
    (master, members)
}

#[test]
fn members_use_the_digests_that_the_master_announces() {
    for kind in [DigestKind::Fast, DigestKind::Cryptographic] {
        within_limit(move || {
            let (_master, members) = members(2, kind);
            let state = |value| State::simple(value).with(SyncStrategy::SendOnly);
            let mut states = [state(1), state(2)];
            let results = sync(&members, &mut states);
            // Who only sends and is outvoted is told both digests.
            for (_, content) in states.iter().flat_map(|s| &s.tensors) {
                let digest = digest_tensor(kind, DataType::U8, content.len() as u64, content);
                let said = told(&results[1]);
                assert!(said.contains(&digest.root.to_string()), "{said}");
            }
        });
    }
}

#[test]
fn states_are_moved_under_cryptographic_digests() {
    within_limit(|| {
        let (_master, members) = members(3, DigestKind::Cryptographic);
        let state = |value: u8| State {
            tensors: vec![
                ("small".into(), vec![value; 9]),
                ("large".into(), vec![value; (5 << 20) + 1]),
            ],
            ..State::simple(0)
        };
        let size = (5 << 20) + 10;
        let mut states = [state(1), state(1), state(2)];
        assert_eq!(moved(&sync(&members, &mut states))[2], (0, size));
        assert!(states[2] == state(1).at(0));
        states.iter_mut().for_each(|state| state.revision += 1);
        states[0].tensors[1].1[4 << 20] ^= 1;
        let moved = moved(&sync(&members, &mut states));
        assert_eq!(moved[0], (0, 1 << 20));
        assert!(states[0] == state(1).at(1));
    });
}
