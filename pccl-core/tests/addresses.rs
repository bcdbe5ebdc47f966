//! Names and both families of addresses, wherever an address is taken.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::net::TcpListener;

use pccl_core::config::{MasterConfig, PeerConfig, Place, Security, TicketConfig};
use pccl_core::ids::Tag;
use pccl_core::types::ReduceOp;
use pccl_core::{Communicator, Master};
use support::state::add_with;
use support::{each, within_limit};

fn place(text: &str) -> Place {
    text.parse().unwrap()
}

/// Whether this machine has IPv6 on its loopback.
fn has_ipv6() -> bool {
    let has = TcpListener::bind("[::1]:0").is_ok();
    if !has {
        println!("left out: no IPv6 here");
    }
    has
}

fn works(members: &[Communicator]) {
    let sums = each(members, |_, member| {
        let mut data = [1.0_f32; 5000];
        let done = member.all_reduce_in_place(&mut data, ReduceOp::Sum, Tag(0));
        done.map(|_| data[4999])
    });
    assert!(
        sums.iter().all(|sum| *sum == Ok(members.len() as f32)),
        "{sums:?}"
    );
}

#[test]
fn one_run_takes_names_and_both_families() {
    if !has_ipv6() {
        return;
    }
    within_limit(|| {
        let master = Master::start("[::]:0", MasterConfig::default()).unwrap();
        let port = master.local_addr().port();
        let mut members = Vec::new();
        for host in ["127.0.0.1", "[::1]", "localhost"] {
            add_with(
                &mut members,
                &format!("{host}:{port}"),
                PeerConfig::default(),
            );
        }
        // On both families at once, and by name.
        for listen in ["[::]:0", "localhost:0"] {
            let config = PeerConfig {
                listen: Some(place(listen)),
                ..PeerConfig::default()
            };
            add_with(&mut members, &format!("[::1]:{port}"), config);
        }
        works(&members);
        for member in members[0].members() {
            assert!(!member.addresses.is_empty());
            let v4 = member
                .addresses
                .iter()
                .all(|a| a.ip() == a.ip().to_canonical());
            assert!(v4, "{member:?}");
        }
    });
}

#[test]
fn a_run_with_tickets_is_on_ipv6_alone() {
    if !has_ipv6() {
        return;
    }
    within_limit(|| {
        let config = MasterConfig {
            security: Security::Ticket(TicketConfig::default()),
            ..MasterConfig::default()
        };
        let master = Master::start("[::1]:0", config).unwrap();
        let mut members = Vec::new();
        for _ in 0..2 {
            add_with(
                &mut members,
                &master.ticket().unwrap(),
                PeerConfig::default(),
            );
        }
        works(&members);
    });
}

#[test]
fn of_several_addresses_the_one_that_works_is_used_and_shown() {
    within_limit(|| {
        let master = Master::start("127.0.0.1:0", MasterConfig::default()).unwrap();
        let address = master.local_addr().to_string();
        let mut members = Vec::new();
        // The first leads nowhere; the second is by name, with the port that is listened on.
        let config = PeerConfig {
            listen: Some(place("127.0.0.1:0")),
            announce: vec![place("127.0.0.1:1"), place("localhost:0")],
            ..PeerConfig::default()
        };
        add_with(&mut members, &address, config);
        add_with(&mut members, &address, PeerConfig::default());
        works(&members);
        let seen = members[1].members();
        let first = seen.iter().find(|m| Some(m.id) == members[0].member_id());
        let first = first.unwrap();
        assert_eq!(first.addresses[0].port(), 1);
        let reached = first.reached.unwrap();
        assert!(first.addresses[1..].contains(&reached), "{first:?}");
        let own = members[0].members();
        let second = own.iter().find(|m| Some(m.id) == members[1].member_id());
        assert!(second.unwrap().reached.is_some());
    });
}

#[test]
fn a_place_to_listen_at_that_is_none_is_the_callers_mistake() {
    within_limit(|| {
        let (_master, address) = support::master();
        for wrong in ["no.such.name.invalid:0", "192.0.2.1:0"] {
            let config = PeerConfig {
                listen: Some(place(wrong)),
                ..PeerConfig::default()
            };
            let peer = Communicator::new(&address, config).unwrap();
            let error = peer.connect(None).unwrap_err();
            assert!(
                matches!(error, pccl_core::error::Error::Usage(_)),
                "{error}"
            );
        }
    });
}
