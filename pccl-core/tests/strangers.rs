//! Whoever does not speak the protocol is turned away and harms nobody.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use pccl_core::error::{ConnectPhase, Error};
use pccl_core::ids::{Digest, Epoch, Incarnation, MemberId, Round, RunId, Serial, Tag, Token};
use pccl_core::types::{DataType, OpKey, OpKind, ReduceDescriptor, ReduceOp};
use pccl_core::wire::control::{
    ControlHello, ControlReply, OpBody, OpName, OpReport, Open, Report,
};
use pccl_core::wire::frame::{
    self, CONTROL_HELLO_AT_ONCE, CONTROL_HELLO_LIMIT, Decoder, MAGIC, Party, Preamble, VersionRange,
};
use support::{PEER_TIMEOUT, each, group, peer, within_limit};

/// Says something, and returns all that comes back until the other end closes.
fn say(address: &str, words: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(words).unwrap();
    let mut answer = Vec::new();
    // A reset is as good an end as any.
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn dial() -> Vec<u8> {
    Preamble::dial(Party::Control).encode().to_vec()
}

#[test]
fn masters_and_members_turn_nonsense_away_and_go_on() {
    within_limit(|| {
        let (master, members) = group(2);
        let mut doors: Vec<_> = members[0]
            .members()
            .iter()
            .map(|m| m.addresses[0])
            .collect();
        doors.push(master.local_addr());
        for door in doors {
            let door = door.to_string();
            assert_eq!(say(&door, b"GET / HTTP/1.1\r\n\r\n"), b"");
            let mut claim = dial();
            claim.extend(u32::MAX.to_le_bytes());
            claim.extend([0; 100]);
            say(&door, &claim);
            let mut noise = dial();
            noise.extend((0..CONTROL_HELLO_AT_ONCE).map(|i| (i * 31) as u8));
            say(&door, &noise);
        }
        let sums = each(&members, |_, m| {
            let mut buffer = [1u8; 100];
            m.all_reduce_in_place(&mut buffer, ReduceOp::Sum, Tag(0))
                .unwrap();
            buffer[0]
        });
        assert_eq!(sums, [2, 2]);
    });
}

#[test]
fn another_version_is_told_which_ones_there_are() {
    within_limit(|| {
        let (_master, address) = support::master();
        let words = Preamble {
            versions: VersionRange {
                low: 900,
                high: 901,
            },
            party: Party::Control,
        };
        let answer = say(&address, &words.encode());
        assert_eq!(answer.get(..4), Some(&MAGIC[..]));
        let answer = Preamble::decode(answer.first_chunk().unwrap()).unwrap();
        assert!(answer.versions.high < 900);
    });
}

#[test]
fn the_silent_are_shown_the_door_in_time() {
    within_limit(|| {
        let (_master, address) = support::master();
        let begin = Instant::now();
        assert_eq!(say(&address, b""), b"");
        assert!(begin.elapsed() < 3 * PEER_TIMEOUT);
    });
}

#[test]
fn a_member_is_no_master() {
    within_limit(|| {
        let (_master, members) = group(1);
        let address = members[0].members()[0].addresses[0].to_string();
        let connected = peer(&address).connect(None);
        let expected = matches!(
            connected,
            Err(Error::Unreachable {
                phase: ConnectPhase::Handshake,
                ..
            })
        );
        assert!(expected, "{connected:?}");
    });
}

/// What a member with as many operations in flight as there may be brings when it comes back.
fn longest_report() -> Report {
    let quoted = Serial {
        incarnation: Incarnation(u64::MAX),
        counter: u64::MAX,
    };
    let op = |tag| OpReport {
        open: Open {
            op: OpName {
                round: Round(u64::MAX),
                key: OpKey {
                    kind: OpKind::Collective,
                    tag: Tag(u64::MAX - tag),
                },
                attempt: u32::MAX,
            },
            epoch: Epoch(u64::MAX),
            quoted,
            what: OpBody::Reduce {
                descriptor: ReduceDescriptor {
                    count: u64::MAX,
                    data_type: DataType::F32,
                    op: ReduceOp::Sum,
                    quantization: None,
                    algorithm: None,
                },
                digest: Digest(u128::MAX),
            },
        },
        done: Some(Digest(u128::MAX)),
        abort: None,
    };
    Report {
        incarnation: Incarnation(1),
        known: Epoch(1),
        shown: Epoch(1),
        round: Round(1),
        queries: Round(0),
        quoted,
        ops: (0..1024).map(op).collect(),
        vote: None,
        closed: Vec::new(),
    }
}

#[test]
fn the_longest_report_of_who_comes_back_is_read() {
    within_limit(|| {
        let (_master, address) = support::master();
        let hello = ControlHello::Attach {
            run: RunId(1),
            id: MemberId(1),
            token: Token(1),
            report: Some(Box::new(longest_report())),
        };
        let hello = frame::encode(&hello, CONTROL_HELLO_LIMIT).unwrap();
        assert!(hello.len() > CONTROL_HELLO_AT_ONCE);
        let mut decoder = Decoder::new(CONTROL_HELLO_LIMIT);
        decoder.feed(&say(&address, &[dial(), hello].concat()));
        assert!(matches!(decoder.preamble(), Ok(Some(_))));
        let reply = decoder.message::<ControlReply>();
        assert!(
            matches!(reply, Ok(Some(ControlReply::Evicted { .. }))),
            "{reply:?}"
        );
    });
}
