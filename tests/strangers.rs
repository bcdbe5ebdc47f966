//! Connections from who knows whom, to every port of a run, which must not notice.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use pccl_tests::process::cluster::LIMIT;
use pccl_tests::process::probe::Held;
use pccl_tests::process::{Cluster, Job, Random};

const WORKER: &str = env!("CARGO_BIN_EXE_pccl-test-worker");

const PEER_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections of each sort to each port: more, in all, than a peer lets wait from one address.
const EACH: usize = 6;

#[test]
fn a_running_job_does_not_notice_strangers() {
    unnoticed(Cluster::start(WORKER, PEER_TIMEOUT));
}

#[test]
fn a_running_job_with_tickets_does_not_notice_strangers() {
    unnoticed(Cluster::start_secured(WORKER, PEER_TIMEOUT));
}

fn unnoticed(mut cluster: Cluster) {
    cluster.fill(3);
    cluster.said();
    cluster.peers[0].tell("addresses");
    let line = cluster.peers[0].expect("addresses ", Instant::now() + LIMIT);
    let mut ports = line.words()[1..]
        .iter()
        .map(|a| a.to_string())
        .collect::<Vec<_>>();
    assert_eq!(ports.len(), 3, "{ports:?}");
    ports.push(cluster.address.clone());
    let before = held(&cluster);

    let mut random = Random::new(3);
    let mut strangers = Vec::new();
    let jobs = [
        Job {
            tag: 0,
            count: 1000,
            in_place: true,
        },
        Job {
            tag: 1,
            count: 500_000,
            in_place: false,
        },
    ];
    let mut step = 0;
    for _ in 0..EACH {
        for port in &ports {
            for words in first_words(&mut random) {
                let mut stranger = TcpStream::connect(port).unwrap();
                // Turned away already, perhaps.
                let _ = stranger.write_all(&words);
                strangers.push(stranger);
            }
        }
        step += 1;
        let calls = cluster.reduce(step, &jobs, LIMIT);
        assert!(
            calls
                .iter()
                .all(|c| c.len() == 2 && c.iter().all(|c| c.contains(" commit 7 "))),
            "{calls:?}"
        );
    }
    println!("{} strangers at {} ports", strangers.len(), ports.len());

    // A newcomer gets in beside them.
    let newcomer = cluster.spawn(3, 3);
    cluster.peers.push(newcomer);
    cluster.peers[3].tell("join 4");
    for peer in &mut cluster.peers[..3] {
        peer.tell("grow 4");
    }
    cluster.expect_all("grown ", LIMIT);
    let calls = cluster.reduce(step + 1, &jobs, LIMIT);
    assert!(
        calls
            .iter()
            .all(|c| c.len() == 2 && c[0].contains(" commit 15 ")),
        "{calls:?}"
    );

    // All of them are turned away, by and by, and nothing is left of them.
    for stranger in &mut strangers {
        stranger.set_read_timeout(Some(LIMIT)).unwrap();
        let mut answer = Vec::new();
        let end = stranger.read_to_end(&mut answer);
        let waits = end.is_err_and(|e| {
            matches!(
                e.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            )
        });
        assert!(!waits, "a stranger was let stay");
        assert!(answer.len() < 1000, "{answer:?}");
    }
    // Four lanes at most per edge, two edges more, and what the admission itself still holds.
    for (before, after) in before.iter().zip(held(&cluster)) {
        assert!(
            after.descriptors <= before.descriptors + 12,
            "{before:?} {after:?}"
        );
        assert!(after.threads <= before.threads + 4, "{before:?} {after:?}");
        assert!(
            after.resident_kib <= before.resident_kib + 16 * 1024,
            "{before:?} {after:?}"
        );
    }
}

fn held(cluster: &Cluster) -> Vec<Held> {
    let peers = cluster.peers.iter().take(3);
    peers
        .chain([&cluster.master])
        .filter_map(|w| Held::by(w.pid()))
        .collect()
}

/// What strangers begin with; then they say nothing more.
fn first_words(random: &mut Random) -> Vec<Vec<u8>> {
    let preamble = |party: u8| [b"PCCL\x01\x00\x01\x00".as_slice(), &[party]].concat();
    let noise: Vec<u8> = (0..2000).map(|_| random.draw() as u8).collect();
    let mut words = vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(),
        noise.clone(),
        b"PCC".to_vec(),
        b"PCCL\xff\xff\x00\x00\x01".to_vec(),
        b"PCCL\x07\x00\x09\x00\x02".to_vec(),
    ];
    // What begins like TLS: nothing more, a record that is never whole, one of noise, one too long, and
    // many that are empty.
    let record = |kind: u8, length: u16, body: &[u8]| {
        [&[kind, 3, 3], &length.to_be_bytes()[..], body].concat()
    };
    words.push(vec![0x16]);
    words.push(record(0x16, 16_384, &noise));
    words.push(record(0x16, 512, &noise[..512]));
    words.push(record(0x16, u16::MAX, &noise));
    words.push(record(0x17, 0, &[]).repeat(300));
    // A first message that claims to be enormous.
    let enormous = [&[1, 0xff, 0xff, 0xff][..], &noise[..508]].concat();
    words.push(record(0x16, 512, &enormous));
    for party in [0, 1, 2, 77] {
        let opening = preamble(party);
        words.push(opening.clone());
        // A frame that claims to be enormous, one cut short, one whose checksum is wrong.
        words.push([&opening[..], &u32::MAX.to_le_bytes(), &noise[..4]].concat());
        words.push([&opening[..], &200u32.to_le_bytes(), &noise[..104]].concat());
        words.push([&opening[..], &200u32.to_le_bytes(), &noise[..204]].concat());
    }
    words
}
