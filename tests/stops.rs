//! A process that stands still: the others go on without it, and it learns what it missed.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use pccl_tests::process::cluster::{LIMIT, outcomes, reduce};
use pccl_tests::process::{Cluster, Job};

const WORKER: &str = env!("CARGO_BIN_EXE_pccl-test-worker");

/// Short, so that the test is; long enough for the scheduler of a busy machine.
const PEER_TIMEOUT: Duration = Duration::from_secs(2);

const JOB: Job = Job {
    tag: 0,
    count: 2_000_000,
    in_place: true,
};

#[test]
fn a_stopped_peer_is_lost_learns_why_and_joins_again() {
    let mut cluster = Cluster::start(WORKER, PEER_TIMEOUT);
    cluster.fill(3);
    let deadline = Instant::now() + 3 * LIMIT;
    let mut stopped = cluster.peers.pop().unwrap();
    stopped.tell(&reduce(1, &[JOB]));
    cluster.tell_all(&reduce(1, &[JOB]));
    stopped.expect("first ", deadline);
    stopped.stop();
    let begin = Instant::now();

    cluster.expect_all("reduced 1", LIMIT);
    let took = begin.elapsed();
    println!("the others went on after {took:.1?}");
    let said: Vec<_> = cluster.said().iter().map(|lines| outcomes(lines)).collect();
    assert_eq!(said[0], said[1]);
    let (last, before) = said[0].split_last().unwrap();
    assert!(last.contains("commit 3 "), "{said:?}");
    // The silence of its lanes may be noticed before its own.
    let first = before.first().unwrap();
    assert!(
        first.contains("Silent") || first.contains("no byte"),
        "{said:?}"
    );
    assert!(took >= PEER_TIMEOUT / 2, "{took:?}");
    for step in 2..5 {
        let calls = cluster.reduce(step, &[JOB], LIMIT);
        assert!(
            calls
                .iter()
                .all(|c| c.len() == 1 && c[0].contains(" commit 3 ")),
            "{calls:?}"
        );
    }

    stopped.resume();
    stopped.expect("evicted Lost(Silent)", deadline);
    stopped.expect("reduced 1", deadline);
    // It may have to hear first how the use that it was stopped in ended.
    let calls = outcomes(&stopped.said());
    let last = calls.last().unwrap();
    assert!(last.contains("failed Evicted(Lost(Silent))"), "{calls:?}");
    // It has no part in what the others do until it joins again.
    let calls = cluster.reduce(5, &[JOB], LIMIT);
    assert!(
        calls
            .iter()
            .all(|c| c.len() == 1 && c[0].contains(" commit 3 ")),
        "{calls:?}"
    );
    cluster.peers.push(stopped);
    cluster.tell_all("grow 3");
    cluster.expect_all("grown ", LIMIT);
    let calls = cluster.reduce(6, &[JOB], LIMIT);
    assert!(
        calls
            .iter()
            .all(|c| c.len() == 1 && c[0].contains(" commit 7 ")),
        "{calls:?}"
    );
}

#[test]
fn a_master_that_stands_still_for_a_while_loses_nobody() {
    let mut cluster = Cluster::start(WORKER, PEER_TIMEOUT);
    cluster.fill(3);
    cluster.master.stop();
    cluster.tell_all(&reduce(1, &[JOB]));
    // Longer than the peer time-out: how long it stands still is what is tested.
    std::thread::sleep(PEER_TIMEOUT * 2);
    assert!(
        cluster
            .said()
            .iter()
            .flatten()
            .all(|l| !l.text.starts_with("call"))
    );
    cluster.master.resume();
    cluster.expect_all("reduced 1", LIMIT);
    let calls: Vec<_> = cluster.said().iter().map(|lines| outcomes(lines)).collect();
    assert!(
        calls
            .iter()
            .all(|c| c.len() == 1 && c[0].contains(" commit 7 ")),
        "{calls:?}"
    );
    let calls = cluster.reduce(2, &[JOB], LIMIT);
    assert!(
        calls
            .iter()
            .all(|c| c.len() == 1 && c[0].contains(" commit 7 ")),
        "{calls:?}"
    );
}
