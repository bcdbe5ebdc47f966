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
    agree(Cluster::start(WORKER, PEER_TIMEOUT), rounds);
}

#[test]
fn members_with_tickets_agree_whenever_one_is_killed() {
    let rounds = setting("PCCL_KILL_ROUNDS", 200) / 4;
    agree(Cluster::start_secured(WORKER, PEER_TIMEOUT), rounds);
}

fn agree(mut cluster: Cluster, rounds: u64) {
    let seed = setting("PCCL_KILL_SEED", 1);
    println!("{rounds} rounds, seed {seed}");
    let mut random = Random::new(seed);
    cluster.fill(4);
    let mut identities = [0, 1, 2, 3];
    let mut tally = Tally::default();
    let begin = Instant::now();
    for round in 0..rounds {
        // The first peer lives through all rounds. Of the others one is killed, at times two.
        let mut victims = vec![1 + random.below(3) as usize];
        if random.below(6) == 0 {
            victims.push(1 + victims[0] % 3);
        }
        kill_some(
            &mut cluster,
            &mut identities,
            &victims,
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

fn kill_some(
    cluster: &mut Cluster,
    identities: &mut [u32; 4],
    victims: &[usize],
    round: u64,
    random: &mut Random,
    tally: &mut Tally,
) {
    let deadline = Instant::now() + ROUND_LIMIT;
    cluster.said();
    let jobs = jobs(random);
    let context = format!("round {round}, jobs {jobs:?}, killed {victims:?}");
    let set = |places: &mut dyn Iterator<Item = usize>| -> u32 {
        places.map(|place| 1u32 << identities[place]).sum()
    };
    let all = set(&mut (0..4));
    let survivors = set(&mut (0..4).filter(|place| !victims.contains(place)));

    let (mut dying, living) = split(std::mem::take(&mut cluster.peers), victims);
    cluster.peers = living;
    let killed = strike(cluster, &mut dying, round, &jobs, random, deadline);
    let after = Job {
        tag: TAGS,
        count: 256,
        in_place: true,
    };
    cluster.tell_all(&reduce(round + AFTER, &[after]));
    let last_words: Vec<_> = dying.iter_mut().map(Worker::said).collect();
    drop(dying);

    let mut newcomers = Vec::new();
    for place in victims {
        identities[*place] ^= 4;
        newcomers.push((*place, cluster.spawn(*place, identities[*place])));
    }
    cluster.expect_all(&format!("reduced {}", round + AFTER), ROUND_LIMIT);
    let said = cluster.said();
    check_votes(&said, &context);
    check_calls(&said, all, survivors, &context);
    let verdicts = check_verdicts(&said, &context);

    tally.rounds += 1;
    tally.verdicts += verdicts.len() as u64;
    let mut in_the_middle = last_words.iter().map(|w| was_in_the_middle(w, &verdicts));
    tally.middle += u64::from(in_the_middle.any(|was| was));
    tally.aborted += u64::from(verdicts.values().any(|v| v.contains("abort")));
    tally.recovery.push(recovery(&said, survivors, killed));

    cluster.tell_all("grow 4");
    newcomers.sort_by_key(|(place, _)| *place);
    for (place, mut newcomer) in newcomers {
        newcomer.tell("join 4");
        cluster.peers.insert(place, newcomer);
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

/// The workers at these places, in this order, and the others.
fn split(workers: Vec<Worker>, places: &[usize]) -> (Vec<Worker>, Vec<Worker>) {
    let numbered = workers.into_iter().enumerate();
    let (mut dying, living): (Vec<_>, Vec<_>) = numbered.partition(|(n, _)| places.contains(n));
    dying.sort_by_key(|(n, _)| places.iter().position(|place| place == n));
    let workers = |numbered: Vec<(usize, Worker)>| numbered.into_iter().map(|(_, w)| w).collect();
    (workers(dying), workers(living))
}

/// Lets all reduce, and kills the victims at some moment. When the last of them was killed.
fn strike(
    cluster: &mut Cluster,
    victims: &mut [Worker],
    round: u64,
    jobs: &[Job],
    random: &mut Random,
    deadline: Instant,
) -> Instant {
    let moment = random.below(20);
    let largest = jobs.iter().max_by_key(|job| job.count).unwrap();
    // At once, since the news has taken its time already, or within 2 ms: small operations are over
    // sooner.
    let longest = largest.count as u64 / 512 * random.below(2);
    let delay = Duration::from_micros(random.below(longest));
    let command = reduce(round, jobs);
    match moment {
        // While all vote.
        0 => {
            cluster.tell_all("topology");
            victims.iter_mut().for_each(|v| v.tell("topology"));
        }
        // Before it has begun anything.
        1 => {}
        _ => victims.iter_mut().for_each(|v| v.tell(&command)),
    }
    cluster.tell_all(&command);
    match moment {
        // While it begins, or before.
        0..3 => {}
        // When something is decided, and other things may not be.
        3 => {
            victims[0].see("verdict", deadline);
        }
        // When data of its largest operation is under way.
        _ => {
            victims[0].see(&format!("first {} ", largest.tag), deadline);
        }
    }
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
    let mut killed = victims[0].kill();
    for victim in &mut victims[1..] {
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        killed = victim.kill();
    }
    killed
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

/// A vote ended in the same way at all survivors.
fn check_votes(said: &[Vec<Line>], context: &str) {
    let votes = |lines: &Vec<Line>| {
        let mut votes = lines
            .iter()
            .filter(|l| l.text.starts_with("topology ") || l.text.starts_with("failed "));
        // Beside the verdict stands the member's own number.
        votes.next().map(|line| match line.words()[..] {
            ["topology", _, world] => world.to_owned(),
            _ => line.text.clone(),
        })
    };
    for other in &said[1..] {
        assert_eq!(votes(&said[0]), votes(other), "{context}: votes differ");
    }
}

/// Every call ended in the same way at all survivors, with the same bits, made of the survivors'
/// contributions and, before the kill, those of the killed.
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
                    set == survivors || (!late && set & survivors == survivors && set & !all == 0),
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

/// Neither the peer that lives through all rounds nor the master grows. What is compared is the least
/// that they hold at the end of a round, since lanes and buffers come and go: it rises, between the
/// second tenth of the rounds and the last, by fewer than one descriptor or thread in ten kills,
/// and by less than 16 KiB in each, two huge pages aside.
fn assert_flat(held: &[(Held, Held)]) {
    let tenth = held.len() / 10;
    if tenth < 5 {
        return;
    }
    let apart = 8 * tenth as u64;
    let held_by: [(&str, Vec<Held>); 2] = [
        ("the surviving peer", held.iter().map(|h| h.0).collect()),
        ("the master", held.iter().map(|h| h.1).collect()),
    ];
    for (who, held) in held_by {
        let tenths = held.chunks_exact(tenth).take(10);
        let least: Vec<Held> = tenths
            .filter_map(|part| part.iter().copied().reduce(Held::min))
            .collect();
        println!("{who}, least held in each tenth of the rounds:");
        for held in &least {
            println!("  {held}");
        }
        let (early, late) = (least[1], least[9]);
        assert!(late.descriptors <= early.descriptors + apart / 10);
        assert!(late.threads <= early.threads + apart / 10);
        assert!(late.resident_kib <= early.resident_kib + 4096 + 16 * apart);
    }
}
