//! Newcomers, members and masters that go at awkward moments.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use pccl_tests::process::cluster::{LIMIT, outcomes, reduce};
use pccl_tests::process::random::setting;
use pccl_tests::process::{Cluster, Job, Random};

const WORKER: &str = env!("CARGO_BIN_EXE_pccl-test-worker");

/// Long enough for a busy machine; hardly anything here waits for it.
const PEER_TIMEOUT: Duration = Duration::from_secs(3);

const SMALL: Job = Job {
    tag: 0,
    count: 1000,
    in_place: true,
};

const LARGE: Job = Job {
    tag: 1,
    count: 1_000_000,
    in_place: true,
};

#[test]
fn newcomers_that_are_killed_do_not_hold_up_the_members() {
    let mut cluster = Cluster::start(WORKER, PEER_TIMEOUT);
    cluster.fill(3);
    let (rounds, seed) = (
        setting("PCCL_KILL_ROUNDS", 200) / 10,
        setting("PCCL_KILL_SEED", 1),
    );
    println!("{rounds} newcomers, seed {seed}");
    let mut random = Random::new(seed);
    let mut slowest = Duration::ZERO;
    for step in 1..=rounds {
        let begin = Instant::now();
        let deadline = begin + LIMIT;
        let mut newcomer = cluster.spawn(3, 3);
        newcomer.tell("connect");
        cluster.tell_all("topology");
        if step % 2 == 0 {
            // Any moment from before it has dialled to after its admission.
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
        } else {
            // A member that has not begun anything yet. Members vote until it is in.
            let mut admitted = false;
            while !admitted {
                let votes = cluster.expect_all("topology ", LIMIT);
                admitted = votes[0].words()[2] == "4";
                if !admitted {
                    cluster.tell_all("topology");
                }
            }
            newcomer.expect("joined ", deadline);
            cluster.tell_all(&reduce(step, &[SMALL]));
        }
        newcomer.kill();
        if step % 2 == 0 {
            // The vote completes, or fails for all.
            cluster.expect_all("", LIMIT);
            cluster.tell_all(&reduce(step, &[SMALL]));
        }
        cluster.expect_all(&format!("reduced {step}"), LIMIT);
        let calls: Vec<_> = cluster.said().iter().map(|lines| outcomes(lines)).collect();
        assert!(calls.iter().all(|c| *c == calls[0]), "{calls:?}");
        assert!(calls[0].last().unwrap().contains(" commit 7 "), "{calls:?}");
        slowest = slowest.max(begin.elapsed());
    }
    println!("slowest round with a killed newcomer: {slowest:.1?}");
}

#[test]
fn a_killed_master_fails_every_call_within_the_limit() {
    let mut cluster = Cluster::start(WORKER, Duration::from_millis(500));
    let master_limit = Duration::from_secs(6);
    cluster.fill(3);
    cluster.said();
    // Two in an operation that lacks the third, which waits in nothing.
    let mut third = cluster.peers.pop().unwrap();
    cluster.tell_all(&reduce(1, &[LARGE, SMALL]));
    cluster.expect_all("begin 1 1", LIMIT);
    cluster.master.kill();
    let begin = Instant::now();
    third.tell("topology");
    cluster.expect_all("reduced 1", LIMIT);
    println!(
        "calls failed {:.1?} after the master was killed",
        begin.elapsed()
    );
    assert!(begin.elapsed() < master_limit + LIMIT / 2);
    let calls: Vec<_> = cluster.said().iter().map(|lines| outcomes(lines)).collect();
    for calls in &calls {
        assert_eq!(calls.len(), 2, "{calls:?}");
        assert!(
            calls.iter().all(|c| c.contains("failed MasterLost")),
            "{calls:?}"
        );
    }
    third.expect("failed MasterLost", Instant::now() + LIMIT);
    // What comes after that fails at once, and says what to do.
    let begin = Instant::now();
    cluster.tell_all(&reduce(2, &[SMALL]));
    cluster.expect_all("call 2 0 failed", LIMIT);
    cluster.tell_all("leave");
    cluster.expect_all("left", LIMIT);
    assert!(begin.elapsed() < LIMIT / 2);
}

#[test]
fn an_orderly_stop_of_the_master_fails_all_calls_at_once() {
    let mut cluster = Cluster::start(WORKER, PEER_TIMEOUT);
    cluster.fill(3);
    cluster.said();
    let mut third = cluster.peers.pop().unwrap();
    let deadline = Instant::now() + LIMIT;
    cluster.tell_all(&reduce(1, &[SMALL, LARGE]));
    cluster.expect_all("begin 1 1", LIMIT);
    let mut newcomer = cluster.spawn(3, 3);
    newcomer.tell("connect");
    cluster.master.tell("stop");
    let begin = Instant::now();
    cluster.expect_all("reduced 1", LIMIT);
    let took = begin.elapsed();
    println!("calls failed {took:.1?} after the stop");
    assert!(took < PEER_TIMEOUT, "{took:?}");
    for calls in cluster.said().iter().map(|lines| outcomes(lines)) {
        assert_eq!(calls.len(), 2, "{calls:?}");
        assert!(
            calls.iter().all(|c| c.contains("failed MasterStopped")),
            "{calls:?}"
        );
    }
    newcomer.expect("failed ", deadline);
    cluster.master.expect("stopped ", deadline);
    // Whoever waited in nothing is told at its next call.
    third.tell(&reduce(2, &[SMALL]));
    third.expect("call 2 0 failed MasterStopped", deadline);
}

#[test]
fn a_member_that_leaves_fails_the_open_operations_of_the_others_alike() {
    let mut cluster = Cluster::start(WORKER, PEER_TIMEOUT);
    cluster.fill(3);
    cluster.said();
    let mut leaver = cluster.peers.pop().unwrap();
    cluster.tell_all(&reduce(1, &[SMALL, LARGE]));
    cluster.expect_all("begin 1 1", LIMIT);
    leaver.tell("leave");
    leaver.expect("left ", Instant::now() + LIMIT);
    cluster.expect_all("reduced 1", LIMIT);
    let calls: Vec<_> = cluster.said().iter().map(|lines| outcomes(lines)).collect();
    assert_eq!(calls[0], calls[1]);
    let commits = calls[0].iter().filter(|c| c.contains(" commit 3 "));
    assert_eq!(commits.count(), 2, "{calls:?}");
    assert!(calls[0].iter().any(|c| c.contains("Left")), "{calls:?}");
    // And comes back.
    leaver.tell("join 3");
    cluster.tell_all("grow 3");
    cluster.expect_all("grown ", LIMIT);
    leaver.expect("grown ", Instant::now() + LIMIT);
    cluster.peers.push(leaver);
    let calls = cluster.reduce(2, &[SMALL, LARGE], LIMIT);
    assert!(
        calls
            .iter()
            .all(|c| c.len() == 2 && c[0].contains(" commit 7 ")),
        "{calls:?}"
    );
}
