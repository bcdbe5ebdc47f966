//! Newcomers wait until the members admit them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use support::{each, group, join_until, peer, within_limit};

#[test]
fn a_newcomer_is_pending_until_the_members_let_it_in() {
    within_limit(|| {
        let (master, mut members) = group(2);
        let newcomer = peer(&master.local_addr().to_string());
        std::thread::scope(|scope| {
            let joining = scope.spawn(|| newcomer.connect(None));
            let begin = Instant::now();
            // The members ask together until one has arrived.
            while !each(&members, |_, m| m.are_peers_pending().unwrap())[0] {
                assert!(begin.elapsed() < Duration::from_secs(30));
            }
            assert!(!joining.is_finished());
            let sizes = each(&members, |_, m| {
                m.update_topology().unwrap();
                m.attributes().group_world_size
            });
            assert_eq!(sizes, [3, 3]);
            joining.join().unwrap().unwrap();
        });
        members.push(newcomer);
        let sums = each(&members, |n, m| {
            let mut buffer = [n as u64 + 1; 10];
            m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
                .unwrap();
            buffer[9]
        });
        assert_eq!(sums, [6, 6, 6]);
        assert!(members.iter().all(|m| m.members().len() == 3));
    });
}

#[test]
fn joining_can_be_given_up() {
    within_limit(|| {
        let (master, _members) = group(1);
        let newcomer = peer(&master.local_addr().to_string());
        // The member never votes.
        let joined = newcomer.connect(Some(Duration::from_millis(300)));
        assert!(
            matches!(joined, Err(pccl_core::error::Error::NotAdmitted(_))),
            "{joined:?}"
        );
        assert_eq!(newcomer.member_id(), None);
    });
}

#[test]
fn groups_of_one_run_reduce_apart() {
    within_limit(|| {
        let (master, address) = support::master();
        let config = |group| pccl_core::config::PeerConfig {
            group: pccl_core::ids::PeerGroup(group),
            ..Default::default()
        };
        let members: Vec<_> = [1, 1, 2, 2]
            .map(|g| pccl_core::Communicator::new(&address, config(g)).unwrap())
            .into();
        members[0].connect(None).unwrap();
        let sums = each(&members, |n, m| {
            if n == 0 {
                support::grow_until(m, 4);
            } else {
                join_until(m, 4);
            }
            let attributes = m.attributes();
            assert_eq!(
                (attributes.peer_groups, attributes.group_world_size),
                (2, 2)
            );
            let mut buffer = [1 << n];
            m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
                .unwrap();
            buffer[0]
        });
        assert_eq!(sums, [3, 3, 12, 12]);
        drop(master);
    });
}
