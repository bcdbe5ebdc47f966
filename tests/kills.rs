//! Rounds of killing a peer at a random moment, mostly in the middle of its operations.
//!
//! `PCCL_KILL_ROUNDS` and `PCCL_KILL_SEED` ask for more rounds, or other ones.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pccl_tests::process::cluster::{outcomes, reduce};
use pccl_tests::process::probe::Held;
use pccl_tests::process::random::setting;
use pccl_tests::process::{Cluster, Job, Line, Random, Worker};

const WORKER: &str = env!("CARGO_BIN_EXE_pccl-test-worker");

/// Long enough for a busy machine; a killed process is noticed by its connections, not by this.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// Nothing in a round may take longer. A round takes some 0.3 s on an idle machine.
const ROUND_LIMIT: Duration = Duration::from_secs(20);

/// The step that follows the kill is numbered apart from the one in which it happens.
const AFTER: u64 = 1 << 32;

/// Tags of the operations that run together; the one after the kill has its own.
const TAGS: u64 = 6;

#[derive(Default)]
struct Tally {
    rounds: u64,
    /// Data of an operation was under way and its verdict had not come when the victim died.
    middle: u64,
    /// Rounds with an aborted use.
    aborted: u64,
    verdicts: u64,
    recovery: Vec<Duration>,
    held: Vec<(Held, Held)>,
}

#[test]
fn members_agree_whenever_one_is_killed() {
    let rounds = setting("PCCL_KILL_ROUNDS", 200);
    let seed = setting("PCCL_KILL_SEED", 1);
    println!("{rounds} rounds, seed {seed}");
    let mut random = Random::new(seed);
    let mut cluster = Cluster::start(WORKER, PEER_TIMEOUT);
    cluster.fill(4);
    let mut identities = [0, 1, 2, 3];
    let mut tally = Tally::default();
    let begin = Instant::now();
    for round in 0..rounds {
        // The first peer lives through all rounds.
        let place = 1 + random.below(3) as usize;
        kill_one(
            &mut cluster,
            &mut identities,
            place,
            round,
            &mut random,
            &mut tally,
        );
    }
    report(&mut tally, begin.elapsed());
    assert!(
        2 * tally.middle >= tally.rounds,
        "only {} of {} kills hit the middle of an operation",
        tally.middle,
        tally.rounds
    );
    assert_flat(&tally.held);
}

fn kill_one(
    cluster: &mut Cluster,
    identities: &mut [u32; 4],
    place: usize,
    round: u64,
    random: &mut Random,
    tally: &mut Tally,
) {
    let deadline = Instant::now() + ROUND_LIMIT;
    cluster.said();
    let jobs = jobs(random);
    let all: u32 = identities.iter().map(|i| 1 << i).sum();
    let survivors = all & !(1 << identities[place]);

    let mut victim = cluster.peers.remove(place);
    let killed = strike(cluster, &mut victim, round, &jobs, random, deadline);
    let after = Job {
        tag: TAGS,
        count: 256,
        in_place: true,
    };
    cluster.tell_all(&reduce(round + AFTER, &[after]));
    let last_words = victim.said();
    drop(victim);

    identities[place] ^= 4;
    let newcomer = cluster.spawn(place, identities[place]);
    cluster.expect_all(&format!("reduced {}", round + AFTER), ROUND_LIMIT);
    let said = cluster.said();
    let context = format!("round {round}, jobs {jobs:?}, killed place {place}");
    check_calls(&said, all, survivors, &context);
    let verdicts = check_verdicts(&said, &context);

    tally.rounds += 1;
    tally.verdicts += verdicts.len() as u64;
    tally.middle += u64::from(was_in_the_middle(&last_words, &verdicts));
    tally.aborted += u64::from(verdicts.values().any(|v| v.contains("abort")));
    tally.recovery.push(recovery(&said, survivors, killed));

    cluster.peers.insert(place, newcomer);
    cluster.peers[place].tell("join 4");
    for other in (0..4).filter(|n| *n != place) {
        cluster.peers[other].tell("grow 4");
    }
    for line in cluster.expect_all("grown ", ROUND_LIMIT) {
        assert_eq!(line.words()[2], "4", "{context}");
    }
    assert!(Instant::now() < deadline, "{context}: took too long");
    if let (Some(peer), Some(master)) = (
        Held::by(cluster.peers[0].pid()),
        Held::by(cluster.master.pid()),
    ) {
        tally.held.push((peer, master));
    }
}

/// Lets all reduce, and kills the victim at some moment.
fn strike(
    cluster: &mut Cluster,
    victim: &mut Worker,
    round: u64,
    jobs: &[Job],
    random: &mut Random,
    deadline: Instant,
) -> Instant {
    let moment = random.below(10);
    let largest = jobs.iter().max_by_key(|job| job.count).unwrap();
    // Up to 2 ms: small operations are over sooner.
    let delay = Duration::from_micros(random.below(50 + largest.count as u64 / 512));
    cluster.tell_all(&reduce(round, jobs));
    if moment > 0 {
        victim.tell(&reduce(round, jobs));
    }
    match moment {
        // Before it has begun, or while it begins.
        0 | 1 => {}
        // When something is decided, and other things may not be.
        2 => {
            victim.expect("verdict", deadline);
        }
        // When data of its largest operation is under way.
        _ => {
            victim.expect(&format!("first {} ", largest.tag), deadline);
        }
    }
    std::thread::sleep(delay);
    victim.kill()
}

/// One to four operations of 1 KiB to 4 MiB, one of which is mostly large: a kill hits it.
fn jobs(random: &mut Random) -> Vec<Job> {
    let mut tags: Vec<u64> = (0..TAGS).collect();
    let number = 1 + random.below(4);
    let job = |n| {
        let smallest = if n == 0 && random.below(4) > 0 { 8 } else { 0 };
        let doublings = smallest + random.below(13 - smallest);
        Job {
            tag: tags.swap_remove(random.below(tags.len() as u64) as usize),
            count: (256 << doublings) - random.below(200) as usize,
            in_place: random.below(2) == 0,
        }
    };
    (0..number).map(job).collect()
}

/// Every call ended in the same way at all survivors, with the same bits, made of all
/// contributions or of the survivors'.
fn check_calls(said: &[Vec<Line>], all: u32, survivors: u32, context: &str) {
    let calls: Vec<_> = said.iter().map(|lines| outcomes(lines)).collect();
    for other in &calls[1..] {
        assert_eq!(&calls[0], other, "{context}: the survivors disagree");
    }
    for call in &calls[0] {
        let words: Vec<&str> = call.split(' ').collect();
        match words[3] {
            "abort" => assert!(
                !call.contains("Mismatch") && !call.contains("Diverged"),
                "{context}: {call}"
            ),
            "commit" => {
                let set: u32 = words[4].parse().unwrap();
                let late = words[1].parse::<u64>().unwrap() >= AFTER;
                assert!(
                    set == survivors || (set == all && !late),
                    "{context}: {call}"
                );
            }
            _ => panic!("{context}: {call}"),
        }
    }
}

/// The verdicts by serial: what all survivors were told of each use.
fn check_verdicts(said: &[Vec<Line>], context: &str) -> BTreeMap<String, String> {
    let told: Vec<BTreeMap<String, String>> = said
        .iter()
        .map(|lines| {
            let verdicts = lines.iter().filter(|l| l.text.starts_with("verdict "));
            let by_serial = verdicts.map(|line| {
                let words = line.words();
                (
                    words[4].to_owned(),
                    [&words[1..4], &words[5..]].concat().join(" "),
                )
            });
            by_serial.collect()
        })
        .collect();
    for other in &told[1..] {
        assert_eq!(&told[0], other, "{context}: told different verdicts");
    }
    // A name is that of one committed use and any number of earlier ones that were not.
    let mut committed = BTreeSet::new();
    for verdict in told[0].values().filter(|v| v.contains(" commit")) {
        assert!(committed.insert(verdict), "{context}: {verdict} twice");
    }
    told.into_iter().next().unwrap()
}

/// Whether the victim had sent data of a use whose verdict it did not live to hear.
fn was_in_the_middle(last_words: &[Line], verdicts: &BTreeMap<String, String>) -> bool {
    let uses = |start: &str| -> BTreeSet<String> {
        let lines = last_words.iter().filter(|l| l.text.starts_with(start));
        lines.map(|l| l.words()[1..4].join(" ") + " ").collect()
    };
    let (first, decided) = (uses("first "), uses("verdict "));
    let mut open = first.difference(&decided);
    // The verdict was given: the use was real, and the survivors were told how it ended.
    open.any(|op| verdicts.values().any(|v| v.starts_with(op.as_str())))
}

/// Time from the kill to the first committed operation of those who are left.
fn recovery(said: &[Vec<Line>], survivors: u32, killed: Instant) -> Duration {
    let mark = format!(" commit {survivors} ");
    let lines = said.iter().flatten();
    let committed = lines.filter(|l| l.text.starts_with("call ") && l.text.contains(&mark));
    let first = committed.map(|line| line.at).min().unwrap();
    first.saturating_duration_since(killed)
}

fn report(tally: &mut Tally, took: Duration) {
    tally.recovery.sort();
    let n = tally.recovery.len();
    println!(
        "{} rounds in {took:.1?}: {} kills in the middle of an operation, {} rounds with an abort, \
         {} verdicts",
        tally.rounds, tally.middle, tally.aborted, tally.verdicts
    );
    println!(
        "from the kill to the next commit: median {:.1?}, 90 of 100 within {:.1?}, longest {:.1?}",
        tally.recovery[n / 2],
        tally.recovery[n * 9 / 10],
        tally.recovery[n - 1]
    );
}

/// After a fifth of the rounds, neither the peer that lives through all of them nor the master
/// grows: not by one descriptor or thread per ten kills, and not by 16 KiB per kill.
fn assert_flat(held: &[(Held, Held)]) {
    if held.len() < 50 {
        return;
    }
    let largest = |part: &[(Held, Held)]| {
        part.iter()
            .fold((Held::default(), Held::default()), |max, held| {
                (max.0.max(held.0), max.1.max(held.1))
            })
    };
    let rounds = held.len();
    let early = largest(&held[rounds / 5..rounds * 2 / 5]);
    let late = largest(&held[rounds * 4 / 5..]);
    let apart = rounds as u64 * 3 / 5;
    for (who, early, late) in [
        ("the surviving peer", early.0, late.0),
        ("the master", early.1, late.1),
    ] {
        println!("{who}: {early:?} early, {late:?} late");
        assert!(late.descriptors <= early.descriptors + apart / 10);
        assert!(late.threads <= early.threads + apart / 10);
        assert!(late.resident_kib <= early.resident_kib + 16 * apart);
    }
}
