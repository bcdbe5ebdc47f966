//! Runs with tickets: who gets in, who does not, and what a bad path can do.
#![cfg(feature = "testing")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pccl_core::config::{MasterConfig, PeerConfig, Security, TicketConfig, Timing};
use pccl_core::error::{ConnectPhase, Error};
use pccl_core::ids::Tag;
use pccl_core::testing::{Relay, Rules};
use pccl_core::types::{DataType, ReduceOp, SyncStrategy};
use pccl_core::wire::reason::RefuseReason;
use pccl_core::wire::ticket::{Secret, Ticket};
use pccl_core::{Communicator, Master, SharedState, master_status};
use support::state::add_with;
use support::{PEER_TIMEOUT, each, is_aborted, peer, within_limit};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(2));

fn master_with(tickets: TicketConfig) -> (Master, String) {
    let config = MasterConfig {
        timing: Timing::from_peer_timeout(PEER_TIMEOUT),
        security: Security::Ticket(tickets),
        ..MasterConfig::default()
    };
    let master = Master::start("127.0.0.1:0", config).unwrap();
    let ticket = master.ticket().unwrap();
    (master, ticket)
}

fn master() -> (Master, String) {
    master_with(TicketConfig::default())
}

fn members(ticket: &str, size: usize) -> Vec<Communicator> {
    let mut members = Vec::new();
    for _ in 0..size {
        add_with(&mut members, ticket, PeerConfig::default());
    }
    members
}

fn sums(members: &[Communicator], count: usize, tag: u64) -> Vec<Result<Vec<f32>, Error>> {
    each(members, |n, member| {
        let mut data: Vec<f32> = (0..count).map(|i| (i % 100 + n) as f32).collect();
        let done = member.all_reduce_in_place(&mut data, ReduceOp::Sum, Tag(tag));
        done.map(|_| data)
    })
}

fn sum_of(size: usize, count: usize) -> Vec<f32> {
    let one = |i: usize| (0..size).map(|n| (i % 100 + n) as f32).sum();
    (0..count).map(one).collect()
}

/// Dials with it, and is turned down.
fn refusal(master: &str) -> Error {
    let refused = peer(master).connect(PATIENCE).unwrap_err();
    assert!(!refused.to_string().contains("pccl1"), "{refused}");
    refused
}

fn changed(ticket: &str, change: impl FnOnce(&mut Ticket)) -> String {
    let mut ticket = Ticket::parse(ticket).unwrap();
    change(&mut ticket);
    ticket.reveal()
}

#[test]
fn a_ticket_is_all_that_a_run_needs() {
    within_limit(|| {
        let (master, ticket) = master();
        let mut members = members(&ticket, 3);
        // Of one segment, of several, and more than a socket takes.
        for (tag, count) in [10, 100_000, 3_000_000].into_iter().enumerate() {
            for sum in sums(&members, count, tag as u64) {
                assert!(sum.unwrap() == sum_of(3, count));
            }
        }
        // A member that was evicted comes back with the same ticket.
        master.evict(members[2].member_id().unwrap());
        let gone = members.remove(2);
        for sum in sums(&members, 1000, 7) {
            // Nobody may compute with a size that it has not been shown.
            assert!(is_aborted(&sum) || sum == Ok(sum_of(2, 1000)), "{sum:?}");
        }
        std::thread::scope(|scope| {
            let back = scope.spawn(|| while gone.update_topology().is_err() {});
            while members[0].attributes().global_world_size < 3 {
                each(&members, |_, member| drop(member.update_topology()));
            }
            back.join().unwrap();
        });
        members.push(gone);
        for sum in sums(&members, 1000, 9) {
            assert_eq!(sum, Ok(sum_of(3, 1000)));
        }
        let status = master_status(&ticket).unwrap();
        assert!(status.contains("groups"), "{status}");
    });
}

#[test]
fn state_is_fetched_inside_tls() {
    within_limit(|| {
        let (_master, ticket) = master();
        let members = members(&ticket, 3);
        let states = each(&members, |n, member| {
            let mut content = vec![n as u8 + 1; 3_000_000];
            let mut state = SharedState::new(u64::from(n < 2));
            state.add("a", DataType::U8, &mut content, false).unwrap();
            let strategy = match n {
                0 => SyncStrategy::SendOnly,
                _ => SyncStrategy::ReceiveOnly,
            };
            member.sync_shared_state(&mut state, strategy).unwrap();
            drop(state);
            content
        });
        assert!(states.iter().all(|s| s.iter().all(|b| *b == 1)));
    });
}

#[test]
fn who_has_no_ticket_or_a_wrong_one_stays_outside_and_learns_why() {
    within_limit(|| {
        let (master, ticket) = master();
        let members = members(&ticket, 2);
        let address = master.local_addr().to_string();
        let no_ticket = |error: &Error| {
            matches!(
                error,
                Error::Refused {
                    reason: RefuseReason::Ticket,
                    ..
                }
            )
        };
        let plain = refusal(&address);
        assert!(no_ticket(&plain), "{plain}");
        let asked = master_status(&address).unwrap_err();
        assert!(no_ticket(&asked), "{asked}");
        let other_secret = changed(&ticket, |t| t.secret = Secret([1; 16]));
        let wrong = refusal(&other_secret);
        assert!(no_ticket(&wrong), "{wrong}");
        let revoked = refusal(&changed(&ticket, |t| t.invitation += 1));
        assert!(no_ticket(&revoked), "{revoked}");
        // Another master has taken the address, or somebody stands in between.
        let other_key = refusal(&changed(&ticket, |t| t.key.0[0] ^= 1));
        let Error::Unreachable {
            phase: ConnectPhase::Handshake,
            cause,
            ..
        } = &other_key
        else {
            panic!("{other_key:?}")
        };
        assert!(cause.contains("somebody else is there"), "{cause}");
        // A ticket at a master that gives none.
        let (off, _) = support::master();
        let here = off.local_addr().to_string();
        let none = refusal(&changed(&ticket, |t| t.addresses = vec![here]));
        assert!(none.to_string().contains("without tickets"), "{none}");
        let broken = Communicator::new(&ticket[..ticket.len() - 2], PeerConfig::default());
        assert!(matches!(broken, Err(Error::Usage(_))), "{broken:?}");
        // None of that was noticed.
        assert!(
            sums(&members, 10, 0)
                .iter()
                .all(|s| *s == Ok(sum_of(2, 10)))
        );
    });
}

#[test]
fn all_addresses_of_a_ticket_are_tried() {
    within_limit(|| {
        let (_master, ticket) = master();
        let several = changed(&ticket, |t| {
            t.addresses.insert(0, "127.0.0.1:1".into());
            t.addresses.insert(0, "no.such.name.invalid:1".into());
            t.addresses.push("[::1]:1".into());
        });
        let member = peer(&several);
        member.connect(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(member.attributes().global_world_size, 1);
    });
}

#[test]
fn a_run_outlives_its_masters_file_and_keys_are_kept() {
    within_limit(|| {
        let folder = std::env::temp_dir().join(format!("pccl-tickets-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let kept = TicketConfig {
            identity: Some(folder.join("master")),
            addresses: vec!["127.0.0.1:1".into()],
        };
        let (first, ticket) = master_with(kept.clone());
        drop(first);
        let (_second, again) = master_with(kept);
        assert_eq!(ticket, again);
        let config = PeerConfig {
            identity: Some(folder.join("peer")),
            ..PeerConfig::default()
        };
        drop(Communicator::new(&ticket, config.clone()).unwrap());
        let key = std::fs::read(folder.join("peer")).unwrap();
        drop(Communicator::new(&ticket, config).unwrap());
        assert_eq!(std::fs::read(folder.join("peer")).unwrap(), key);
        std::fs::remove_dir_all(folder).unwrap();
    });
}

/// A master, two members and a relay on the way to the first.
fn relayed() -> (Master, Vec<Communicator>, Relay) {
    // A free port, as far as can be known.
    let port: SocketAddr = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let relay = Relay::start(port).unwrap();
    let (master, ticket) = master();
    let mut members = Vec::new();
    let config = PeerConfig {
        listen: Some(port),
        announce: vec![relay.address()],
        pool: 1,
        ..PeerConfig::default()
    };
    add_with(&mut members, &ticket, config);
    let config = PeerConfig {
        pool: 1,
        ..PeerConfig::default()
    };
    add_with(&mut members, &ticket, config);
    (master, members, relay)
}

#[test]
fn a_changed_bit_on_the_way_never_changes_a_sum() {
    within_limit(|| {
        let (_master, members, relay) = relayed();
        let count = 1_000_000;
        assert!(
            sums(&members, count, 0)
                .iter()
                .all(|s| *s == Ok(sum_of(2, count)))
        );
        let harmed = AtomicBool::new(false);
        for flip in [1_000_000, 100_000, 5_000, 300, 20] {
            relay.set(Rules {
                flip: Some(flip),
                ..Rules::default()
            });
            relay.reset();
            for _ in 0..3 {
                let results = sums(&members, count, flip);
                for sum in &results {
                    assert!(is_aborted(sum) || *sum == Ok(sum_of(2, count)));
                    harmed.fetch_or(is_aborted(sum), Ordering::Relaxed);
                }
                assert_eq!(is_aborted(&results[0]), is_aborted(&results[1]));
            }
        }
        assert!(harmed.into_inner(), "nothing was changed");
        relay.set(Rules::default());
        relay.reset();
        // And the members are still there.
        let begin = std::time::Instant::now();
        while sums(&members, count, 1).iter().any(Result::is_err) {
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
    });
}

#[test]
fn a_member_whose_control_connection_breaks_comes_back_inside_tls() {
    within_limit(|| {
        let (master, ticket) = master();
        let relay = Relay::start(master.local_addr()).unwrap();
        let behind = changed(&ticket, |t| t.addresses = vec![relay.address().to_string()]);
        let mut members = members(&ticket, 1);
        add_with(&mut members, &behind, PeerConfig::default());
        let events = members[1].events();
        let own = members[1].member_id();
        relay.reset();
        let back = std::iter::from_fn(|| events.next_within(Duration::from_secs(20)))
            .any(|event| matches!(event, pccl_core::event::Event::Attached { .. }));
        assert!(back);
        for sum in sums(&members, 1000, 0) {
            assert_eq!(sum, Ok(sum_of(2, 1000)));
        }
        assert_eq!(members[1].member_id(), own);
    });
}
