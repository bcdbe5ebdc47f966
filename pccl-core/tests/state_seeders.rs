//! A joiner and its seeders, over paths that are slow enough to see what happens in the middle.
#![cfg(feature = "testing")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::net::TcpListener;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pccl_core::config::PeerConfig;
use pccl_core::testing::{Relay, Rules};
use pccl_core::{Communicator, Master, SyncProgress};
use support::state::{State, add, add_with};
use support::{master, within_limit};

const SIZE: usize = 24 << 20;

fn state(value: u8) -> State {
    state_of(value, SIZE)
}

fn state_of(value: u8, size: usize) -> State {
    State {
        tensors: vec![("w".into(), vec![value; size])],
        ..State::simple(0)
    }
}

/// Members that others reach by a slow path, and one more.
fn behind_relays(seeders: usize) -> (Master, Vec<Communicator>, Vec<Relay>) {
    let (master, address) = master();
    let mut relays = Vec::new();
    let mut members = Vec::new();
    for _ in 0..seeders {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = free.local_addr().unwrap();
        drop(free);
        let relay = Relay::start(listen).unwrap();
        let config = PeerConfig {
            listen: Some(listen.into()),
            announce: vec![relay.address().into()],
            // Content this plain would fly.
            compress_state: false,
            ..PeerConfig::default()
        };
        add_with(&mut members, &address, config);
        relays.push(relay);
    }
    add(&mut members, &address, 0);
    slow_down(&relays, 10 << 20);
    (master, members, relays)
}

/// Bytes per second of each.
fn slow_down(relays: &[Relay], rate: u64) {
    for relay in relays {
        relay.set(Rules {
            rate: Some(rate),
            ..Rules::default()
        });
    }
}

#[test]
fn seeders_that_die_half_way_cost_their_chunks_only() {
    within_limit(|| {
        let (_master, members, _relays) = behind_relays(3);
        std::thread::scope(|scope| {
            let seeders: Vec<_> = members[..3]
                .iter()
                .map(|member| scope.spawn(move || state(1).at(7).sync(member)))
                .collect();
            let joiner = &members[3];
            let joining = scope.spawn(move || {
                let mut state = state(0);
                (state.sync(joiner), state)
            });
            let progress = reached(joiner, |p| p.fetched >= p.total / 4);
            assert_eq!(progress.total, SIZE as u64);
            assert!(progress.rate() > 0.0 && progress.time_left().is_some());
            members[0].abandon();
            members[1].abandon();
            let (result, state) = joining.join().unwrap();
            let info = result.unwrap();
            assert_eq!((info.rx_bytes, info.revision), (SIZE as u64, 7));
            assert_eq!(state.value(0), 1);
            let given: u64 = info.sources.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(given, SIZE as u64);
            // Nothing that the dead ones had given was fetched again.
            let results: Vec<_> = seeders.into_iter().map(|s| s.join().unwrap()).collect();
            assert!(results[0].is_err() && results[1].is_err());
            let sent = results[2].as_ref().unwrap().tx_bytes;
            assert!(sent < SIZE as u64, "{info:?}");
        });
        let sizes = members[2..].iter().map(|m| m.attributes().group_world_size);
        assert_eq!(sizes.collect::<Vec<_>>(), [2, 2]);
    });
}

/// How far the joiner is when it is as far as that.
fn reached(joiner: &Communicator, far: impl Fn(SyncProgress) -> bool) -> SyncProgress {
    loop {
        if let Some(progress) = joiner.sync_progress().filter(|p| far(*p)) {
            return progress;
        }
        sleep(Duration::from_millis(1));
    }
}

/// Bytes that a joiner gets from each of so many members, all behind paths so slow that nothing else
/// counts, and how long it takes; of the members, `dying` die when it has half of it.
fn join_from(seeders: usize, dying: usize) -> (Vec<u64>, f64) {
    let (_master, members, relays) = behind_relays(seeders);
    slow_down(&relays, 4 << 20);
    std::thread::scope(|scope| {
        let seeding: Vec<_> = members[..seeders]
            .iter()
            .map(|member| scope.spawn(move || state(1).at(7).sync(member)))
            .collect();
        let joiner = &members[seeders];
        let ids: Vec<_> = members.iter().map(|m| m.member_id().unwrap()).collect();
        let joining = scope.spawn(move || {
            let mut state = state(0);
            let info = state.sync(joiner).unwrap();
            let end = Instant::now();
            assert_eq!((state.value(0), info.rx_bytes), (1, SIZE as u64));
            (info, end)
        });
        reached(joiner, |_| true);
        let begin = Instant::now();
        if dying > 0 {
            reached(joiner, |p| p.fetched >= p.total / 2);
        }
        for member in &members[..dying] {
            member.abandon();
        }
        let succeeded = seeding.into_iter().filter_map(|s| s.join().unwrap().ok());
        assert_eq!(succeeded.count(), seeders - dying);
        let (info, end) = joining.join().unwrap();
        let from = |id| info.sources.iter().find(|(source, _)| *source == id);
        let bytes = ids[..seeders].iter().map(|id| from(*id).map_or(0, |s| s.1));
        (bytes.collect(), (end - begin).as_secs_f64())
    })
}

#[test]
fn three_slow_seeders_share_the_work_and_their_deaths_cost_their_share() {
    within_limit(|| {
        let (_, one) = join_from(1, 0);
        let (shares, three) = join_from(3, 0);
        println!("one {one:.2} s; three {three:.2} s, {shares:?}");
        // With paths all as slow as each other, the largest share is what takes the time. What a
        // busy machine adds to that tells nothing.
        let size = SIZE as u64;
        assert!(shares.iter().all(|share| *share < size / 2), "{shares:?}");
        let (shares, dying) = join_from(3, 2);
        println!("two of three dying half-way {dying:.2} s, {shares:?}");
        // Half of it from three, half of it from the last: two thirds, and none of it twice.
        assert_eq!(shares.iter().sum::<u64>(), size);
        assert!(shares[2] < size * 5 / 6, "{shares:?}");
    });
}

#[test]
fn a_fetch_whose_only_seeder_dies_goes_on_in_the_next_synchronisation() {
    within_limit(|| {
        let (master, mut members, relays) = behind_relays(1);
        let (seeder, joiner) = (&members[0], &members[1]);
        let (torn, fetched) = std::thread::scope(|scope| {
            let seeding = scope.spawn(move || state(1).at(7).sync(seeder));
            let joining = scope.spawn(move || {
                let mut state = state(0);
                (state.sync(joiner), state)
            });
            let fetched = reached(joiner, |p| p.fetched >= p.total / 4).fetched;
            seeder.abandon();
            seeding.join().unwrap().unwrap_err();
            let (result, state) = joining.join().unwrap();
            result.unwrap_err();
            (state, fetched)
        });
        drop(relays);
        // Whole chunks of the new content lie there. Another member comes with all of it.
        members.remove(0);
        if members[0].member_id().is_none() {
            members[0].connect(None).unwrap();
        }
        add(&mut members, &master.local_addr().to_string(), 0);
        let mut torn = torn;
        let mut whole = state(1).at(7);
        let info = std::thread::scope(|scope| {
            let (joiner, seeder) = (&members[0], &members[1]);
            let seeding = scope.spawn(|| whole.sync(seeder));
            let info = torn.sync(joiner).unwrap();
            seeding.join().unwrap().unwrap();
            info
        });
        assert!(torn == state(1).at(7));
        assert!(info.rx_bytes <= SIZE as u64 - fetched, "{info:?}");
    });
}
