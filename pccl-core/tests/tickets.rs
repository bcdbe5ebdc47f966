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
use pccl_core::wire::control::{AdminRequest, Invite};
use pccl_core::wire::reason::RefuseReason;
use pccl_core::wire::ticket::{Secret, Ticket};
use pccl_core::{Communicator, Master, SharedState, administer, master_status};
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

/// A master with a file, and what asks it as its operator.
struct Run {
    master: Master,
    ticket: String,
    folder: std::path::PathBuf,
}

impl Run {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("pccl-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (master, ticket) = master_with(TicketConfig {
            identity: Some(folder.join("master")),
            addresses: Vec::new(),
        });
        Self {
            master,
            ticket,
            folder,
        }
    }

    fn ask(&self, request: AdminRequest) -> Result<String, Error> {
        let address = self.master.local_addr().to_string();
        administer(&self.folder.join("master"), &address, request)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn refused_for(error: &Error, reason: &RefuseReason) -> bool {
    matches!(error, Error::Refused { reason: why, .. } if why == reason)
}

#[test]
fn tickets_are_taken_back_and_replaced_while_the_run_goes_on() {
    within_limit(|| {
        let run = Run::new("replaced");
        let relay = Relay::start(run.master.local_addr()).unwrap();
        let behind = changed(&run.ticket, |t| {
            t.addresses = vec![relay.address().to_string()]
        });
        let mut members = members(&run.ticket, 1);
        add_with(&mut members, &behind, PeerConfig::default());
        let second = run.ask(AdminRequest::Invite(Invite::default())).unwrap();
        let invitation = Ticket::parse(&run.ticket).unwrap().invitation;
        run.ask(AdminRequest::Revoke { invitation }).unwrap();
        assert!(run.ask(AdminRequest::Revoke { invitation }).is_err());
        assert!(refused_for(&refusal(&run.ticket), &RefuseReason::Ticket));
        // Who is in stays, also if its connection breaks.
        let events = members[1].events();
        relay.reset();
        let back = std::iter::from_fn(|| events.next_within(Duration::from_secs(20)))
            .any(|event| matches!(event, pccl_core::event::Event::Attached { .. }));
        assert!(back);
        add_with(&mut members, &second, PeerConfig::default());
        assert!(
            sums(&members, 100, 0)
                .iter()
                .all(|s| *s == Ok(sum_of(3, 100)))
        );
        assert_eq!(run.master.ticket(), Some(second));
    });
}

#[test]
fn invitations_for_one_or_for_some_let_in_no_more() {
    within_limit(|| {
        let run = Run::new("some");
        let mut members = members(&run.ticket, 1);
        let once = Invite {
            uses: Some(1),
            ..Invite::default()
        };
        let once = run.ask(AdminRequest::Invite(once)).unwrap();
        add_with(&mut members, &once, PeerConfig::default());
        assert!(refused_for(&refusal(&once), &RefuseReason::Ticket));
        let config = PeerConfig {
            identity: Some(run.folder.join("own")),
            ..PeerConfig::default()
        };
        let own = Communicator::new(&once, config.clone()).unwrap();
        let personal = Invite {
            key: own.public_key(),
            ..Invite::default()
        };
        let personal = run.ask(AdminRequest::Invite(personal)).unwrap();
        assert!(refused_for(&refusal(&personal), &RefuseReason::Ticket));
        add_with(&mut members, &personal, config);
        let past = Invite {
            seconds: Some(0),
            ..Invite::default()
        };
        let past = run.ask(AdminRequest::Invite(past)).unwrap();
        assert!(refused_for(&refusal(&past), &RefuseReason::Ticket));
        assert!(
            sums(&members, 100, 0)
                .iter()
                .all(|s| *s == Ok(sum_of(3, 100)))
        );
        let list = run.ask(AdminRequest::List).unwrap();
        assert!(
            list.contains("uses 1") && list.contains("(secret)"),
            "{list}"
        );
    });
}

#[test]
fn who_is_banned_has_to_go_and_stays_out_also_after_a_restart() {
    within_limit(|| {
        let run = Run::new("banned");
        let mut all = members(&run.ticket, 2);
        let config = PeerConfig {
            identity: Some(run.folder.join("peer")),
            ..PeerConfig::default()
        };
        add_with(&mut all, &run.ticket, config.clone());
        let gone = all.remove(2);
        let key = gone.public_key().unwrap();
        let whom = key.to_string()[..16].to_owned();
        assert!(run.master.status().unwrap().contains(&whom));
        let seconds = None;
        run.ask(AdminRequest::Ban {
            whom: whom.clone(),
            seconds,
        })
        .unwrap();
        let begin = std::time::Instant::now();
        while sums(&all, 100, 0).iter().any(Result::is_err) {
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
        let back = gone.update_topology().unwrap_err();
        assert!(refused_for(&back, &RefuseReason::Banned), "{back}");
        drop((gone, all));
        let kept = TicketConfig {
            identity: Some(run.folder.join("master")),
            addresses: Vec::new(),
        };
        let (second, ticket) = master_with(kept);
        let again = Communicator::new(&ticket, config).unwrap();
        let still = again.connect(PATIENCE).unwrap_err();
        assert!(refused_for(&still, &RefuseReason::Banned), "{still}");
        let address = second.local_addr().to_string();
        let unban = AdminRequest::Unban { whom };
        administer(&run.folder.join("master"), &address, unban).unwrap();
        again.connect(PATIENCE).unwrap();
        // From an address, nobody comes as far as saying a word.
        let whom = "127.0.0.0/8".to_owned();
        run.ask(AdminRequest::Ban { whom, seconds }).unwrap();
        assert!(peer(&run.ticket).connect(PATIENCE).is_err());
    });
}

#[test]
fn only_who_has_the_masters_file_is_its_operator() {
    within_limit(|| {
        let run = Run::new("operator");
        let address = run.master.local_addr().to_string();
        // A key pair of its own, as every peer has one.
        let config = PeerConfig {
            identity: Some(run.folder.join("peer")),
            ..PeerConfig::default()
        };
        let peer = Communicator::new(&run.ticket, config).unwrap();
        let other = run.folder.join("peer");
        assert!(administer(&other, &address, AdminRequest::List).is_err());
        // Only keys on the list, once there is one.
        let key = peer.public_key().unwrap();
        let allowed = true;
        run.ask(AdminRequest::Allow { key, allowed }).unwrap();
        assert!(refused_for(&refusal(&run.ticket), &RefuseReason::Ticket));
        peer.connect(PATIENCE).unwrap();
        let (off, _) = support::master();
        let plain = off.local_addr().to_string();
        assert!(administer(&run.folder.join("master"), &plain, AdminRequest::List).is_err());
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
        listen: Some(port.into()),
        announce: vec![relay.address().into()],
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
        // More than a million bytes in each direction.
        let count = 300_000;
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
            for _ in 0..2 {
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
