use proptest::prelude::*;

use super::*;
use crate::ids::{
    ContentDigest, Digest, Epoch, Incarnation, MemberId, PeerGroup, Round, RunId, Serial, Tag,
    Token, ViewId,
};
use crate::types::{
    Attributes, DataType, OpKey, OpKind, ReduceDescriptor, ReduceOp, StateEntry, StateOffer,
    SyncStrategy, UnanimousCall,
};
use crate::wire::control::*;
use crate::wire::lane::{OpenFrame, PeerHello, PeerRefusal, PeerReply, Purpose};
use crate::wire::reason::{AbortReason, EvictReason, LossCause, RefuseReason, RequestCause};

const SERIAL: Serial = Serial {
    incarnation: Incarnation(1),
    counter: 300,
};

const OP: OpName = OpName {
    round: Round(2),
    key: OpKey {
        kind: OpKind::Collective,
        tag: Tag(7),
    },
    attempt: 1,
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn body<T: Serialize>(message: &T) -> String {
    let frame = encode(message, FRAME_LIMIT).unwrap();
    hex(&frame[FRAME_HEADER_BYTES..])
}

fn info() -> MemberInfo {
    MemberInfo {
        id: MemberId(3),
        name: "gpu-3".into(),
        addresses: vec![
            "10.0.0.3:4711".parse().unwrap(),
            "[2001:db8::3]:4711".parse().unwrap(),
        ],
        token: Token(0x80),
        key: None,
    }
}

fn stamp() -> Stamp {
    Stamp {
        view: ViewId(5),
        epoch: Epoch(4),
        attributes: Attributes {
            global_world_size: 3,
            group_world_size: 2,
            peer_groups: 2,
            largest_group_world_size: 2,
        },
        pending: true,
    }
}

fn report() -> Report {
    let open = Open {
        op: OP,
        epoch: Epoch(4),
        quoted: SERIAL,
        what: OpBody::Reduce {
            descriptor: ReduceDescriptor {
                count: 1000,
                data_type: DataType::F32,
                op: ReduceOp::Avg,
                quantization: None,
                algorithm: None,
            },
            digest: Digest(1),
        },
    };
    Report {
        incarnation: Incarnation(1),
        known: Epoch(4),
        shown: Epoch(3),
        round: Round(2),
        queries: Round(0),
        quoted: SERIAL,
        ops: vec![OpReport {
            open,
            done: Some(Digest(2)),
            abort: Some(RequestCause::TimedOut),
        }],
        vote: None,
        closed: vec![MemberId(9)],
    }
}

/// One of each shape that travels, as frames.
fn frames() -> Vec<Vec<u8>> {
    let verdict = Verdict {
        op: OP,
        serial: SERIAL,
        outcome: Outcome::Abort(AbortReason::MemberLost {
            member: MemberId(9),
            name: "gone".into(),
            cause: LossCause::Died,
        }),
        stamp: stamp(),
    };
    let offer = StateOffer {
        revision: 10,
        strategy: SyncStrategy::EnforcePopular,
        entries: std::sync::Arc::new(vec![StateEntry {
            key: "w".into(),
            data_type: DataType::BF16,
            count: 6,
            allow_content_inequality: false,
            digest: ContentDigest::fast(3),
        }]),
        torn: false,
    };
    let group = GroupView {
        epoch: Epoch(4),
        ring: vec![info(), info()],
        choice: crate::types::Choice::RING,
    };
    let ups = [
        Up::Heartbeat {
            quoted: SERIAL,
            heard: vec![MemberId(1), MemberId(200)],
        },
        Up::Open(Open {
            op: OP,
            epoch: Epoch(4),
            quoted: SERIAL,
            what: OpBody::Sync(offer),
        }),
        Up::Vote(VoteName {
            call: UnanimousCall::ArePeersPending,
            round: Round(1),
            tries: 0,
        }),
        Up::Leave,
        Up::Pong,
    ];
    let downs = [
        Down::Verdict(verdict),
        Down::Group(group),
        Down::Evicted(EvictReason::Operator),
        Down::Heartbeat,
        Down::Ping,
    ];
    let replies = [
        ControlReply::Refused(RefuseReason::Full { limit: 4 }),
        ControlReply::Status("{}".into()),
    ];
    let attach = ControlHello::Attach {
        run: RunId(1),
        id: MemberId(3),
        token: Token(2),
        report: Some(Box::new(report())),
    };
    let mut frames: Vec<_> = ups
        .iter()
        .map(|m| encode(m, FRAME_LIMIT).unwrap())
        .collect();
    frames.extend(downs.iter().map(|m| encode(m, FRAME_LIMIT).unwrap()));
    frames.extend(replies.iter().map(|m| encode(m, FRAME_LIMIT).unwrap()));
    frames.push(encode(&attach, CONTROL_HELLO_LIMIT).unwrap());
    frames
}

#[test]
fn preambles_have_their_documented_bytes() {
    let dial = Preamble::dial(Party::Control);
    assert_eq!(
        hex(&dial.encode()),
        "5043434c".to_owned() + "0100" + "0100" + "01"
    );
    let range = Preamble {
        versions: VersionRange {
            low: 2,
            high: 0x0105,
        },
        party: Party::Peer,
    };
    assert_eq!(hex(&range.encode()), "5043434c0200050102");
    assert_eq!(Preamble::decode(&range.encode()), Ok(range));
}

#[test]
fn frames_have_their_documented_bytes() {
    let frame = encode(&Up::Leave, FRAME_LIMIT).unwrap();
    // The ninth variant; its CRC32 is that of the single byte 0x09.
    assert_eq!(
        hex(&frame),
        format!("01000000{}09", hex(&0xABDE_5729_u32.to_le_bytes()))
    );
    assert_eq!(crc32fast::hash(&[9]), 0xABDE_5729);
}

#[test]
fn messages_have_their_recorded_bytes() {
    let hello = ControlHello::Register(Registration {
        group: PeerGroup(1),
        name: "a".into(),
        port: 4711,
        addresses: vec!["10.0.0.3:4711".parse().unwrap()],
        arithmetic: 1,
    });
    assert_eq!(
        body(&hello),
        "000101 61 e724 01 00 0a000003 e724 01".replace(' ', "")
    );
    assert_eq!(body(&ControlHello::Status), "02");
    let peer = PeerHello {
        round_trip: 80_000,
        run: RunId(1),
        from: MemberId(2),
        to: MemberId(300),
        token: Token(128),
        purpose: Purpose::Lane { wanted: 2 },
    };
    assert_eq!(body(&peer), "01 02 ac02 8001 00 02 80f104".replace(' ', ""));
    let welcome = PeerReply::Welcome {
        token: Token(3),
        wanted: 2,
    };
    assert_eq!(body(&welcome), "000302");
    let refused = PeerReply::Refused {
        reason: PeerRefusal::NoSync,
    };
    assert_eq!(body(&refused), "0103");
    let heartbeat = Up::Heartbeat {
        quoted: SERIAL,
        heard: vec![MemberId(1)],
    };
    assert_eq!(body(&heartbeat), "00 01 ac02 01 01".replace(' ', ""));
    let done = Up::Done(Done {
        op: OP,
        quoted: SERIAL,
        result: Digest(128),
    });
    assert_eq!(body(&done), "02 02 00 07 01 01 ac02 8001".replace(' ', ""));
    let commit = Down::Verdict(Verdict {
        op: OP,
        serial: SERIAL,
        outcome: Outcome::Commit,
        stamp: stamp(),
    });
    assert_eq!(
        body(&commit),
        "01 02000701 01ac02 00 0504 03020202 01".replace(' ', "")
    );
    let open = OpenFrame {
        op: OP,
        epoch: Epoch(4),
        quoted: SERIAL,
        descriptor: Digest(5),
        grant: u64::MAX,
    };
    assert_eq!(
        body(&open),
        "02000701 04 01ac02 05 ffffffffffffffffff01".replace(' ', "")
    );
}

#[test]
fn the_newest_common_version_is_chosen_and_a_stranger_is_told_why() {
    let range = |low, high| VersionRange { low, high };
    assert_eq!(range(1, 3).common(range(2, 5)), Some(3));
    assert_eq!(range(1, 1).common(range(2, 5)), None);
    for (dialler, acceptor) in [((1, 3), (2, 5)), ((2, 5), (1, 3)), ((4, 4), (4, 4))] {
        let dialler = range(dialler.0, dialler.1);
        let acceptor = range(acceptor.0, acceptor.1);
        let hello = Preamble {
            versions: dialler,
            party: Party::Peer,
        };
        let (answer, chosen) = hello.answer(acceptor, Party::Peer);
        assert_eq!(answer.chosen(dialler), chosen);
        assert_eq!(chosen.ok(), dialler.common(acceptor));
    }
    for (dialler, acceptor) in [((1, 1), (2, 2)), ((5, 6), (2, 3))] {
        let dialler = range(dialler.0, dialler.1);
        let acceptor = range(acceptor.0, acceptor.1);
        let hello = Preamble {
            versions: dialler,
            party: Party::Peer,
        };
        let (answer, chosen) = hello.answer(acceptor, Party::Peer);
        assert!(chosen.is_err());
        let told = FrameError::Version {
            own: dialler,
            other: acceptor,
        };
        assert_eq!(answer.chosen(dialler), Err(told));
    }
}

#[test]
fn what_is_no_preamble_is_refused_for_its_reason() {
    let check = |bytes: &[u8; PREAMBLE_BYTES]| Preamble::decode(bytes).unwrap_err();
    assert_eq!(check(b"GET / HTT"), FrameError::Magic(*b"GET "));
    assert_eq!(check(b"PCCL\0\0\x01\0\x01"), FrameError::Range(0, 1));
    assert_eq!(check(b"PCCL\x02\0\x01\0\x01"), FrameError::Range(2, 1));
    assert_eq!(check(b"PCCL\x01\0\x01\0\x04"), FrameError::Purpose(4));
}

#[test]
fn a_length_is_not_believed() {
    let mut decoder = Decoder::new(FRAME_LIMIT);
    decoder.feed(&(FRAME_LIMIT as u32).to_le_bytes());
    decoder.feed(&[0; 4]);
    assert_eq!(decoder.frame(), Ok(None));
    assert!(decoder.buffer.capacity() < 1024);

    let mut decoder = Decoder::new(100);
    decoder.feed(&101u32.to_le_bytes());
    decoder.feed(&[0; 4]);
    let told = FrameError::TooLarge {
        length: 101,
        limit: 100,
    };
    assert_eq!(decoder.frame(), Err(told.clone()));
    decoder.feed(&[0; 100]);
    assert_eq!(decoder.frame(), Err(told));
    assert!(decoder.buffer.is_empty());
}

#[test]
fn a_message_that_the_receiver_would_refuse_is_not_sent() {
    let status = ControlReply::Status("x".repeat(100));
    assert!(matches!(
        encode(&status, 100),
        Err(FrameError::TooLarge { limit: 100, .. })
    ));
    assert!(encode(&status, 102).is_ok());
}

#[test]
fn left_over_bytes_of_a_body_are_an_error() {
    assert_eq!(decode::<ControlHello>(&[2]), Ok(ControlHello::Status));
    assert!(matches!(
        decode::<ControlHello>(&[2, 0]),
        Err(FrameError::Malformed { length: 2, .. })
    ));
    assert!(decode::<ControlHello>(&[]).is_err());
}

#[test]
fn what_follows_the_framed_part_is_not_lost() {
    let mut decoder = Decoder::new(PEER_HELLO_LIMIT);
    decoder.feed(&Preamble::dial(Party::Peer).encode());
    decoder.feed(&encode(&PeerRefusal::NotMe, 10).unwrap());
    decoder.feed(b"data");
    assert!(decoder.preamble().unwrap().is_some());
    assert_eq!(decoder.message(), Ok(Some(PeerRefusal::NotMe)));
    assert!(!decoder.is_empty());
    assert_eq!(decoder.into_rest(), b"data");
}

#[test]
fn a_reader_that_takes_what_is_missing_takes_one_frame() {
    let stream = frames().concat();
    let mut decoder = Decoder::new(FRAME_LIMIT);
    let (mut at, mut got) = (0, 0);
    while at < stream.len() {
        let want = decoder.missing();
        assert!(want > 0);
        // At most half of it at a time.
        let end = at + want.div_ceil(2);
        decoder.feed(&stream[at..end]);
        at = end;
        if decoder.missing() == 0 {
            assert!(decoder.frame().unwrap().is_some());
            assert!(decoder.is_empty());
            got += 1;
        }
    }
    assert_eq!(got, frames().len());
    let mut decoder = Decoder::new(10);
    decoder.feed(&[0xFF; 8]);
    assert_eq!(decoder.missing(), 0);
    assert!(decoder.frame().is_err());
}

#[test]
fn a_large_frame_does_not_keep_its_room() {
    let mut decoder = Decoder::new(FRAME_LIMIT);
    decoder.feed(&encode(&"x".repeat(1 << 20), FRAME_LIMIT).unwrap());
    assert!(decoder.frame().unwrap().is_some());
    decoder.feed(&encode(&0u8, 10).unwrap());
    assert!(decoder.buffer.capacity() <= KEPT_BYTES);
}

fn drain(decoder: &mut Decoder, into: &mut Vec<Vec<u8>>) -> Result<(), FrameError> {
    while let Some(body) = decoder.frame()? {
        into.push(body.to_vec());
    }
    Ok(())
}

proptest! {
    #[test]
    fn frames_come_out_whole_however_they_are_split(
        cuts in proptest::collection::vec(1usize..40, 1..200),
    ) {
        let frames = frames();
        let stream = frames.concat();
        let mut decoder = Decoder::new(FRAME_LIMIT);
        let mut got = Vec::new();
        let (mut at, mut cuts) = (0, cuts.iter().cycle());
        while at < stream.len() {
            let end = (at + cuts.next().unwrap()).min(stream.len());
            decoder.feed(&stream[at..end]);
            drain(&mut decoder, &mut got).unwrap();
            at = end;
        }
        let bodies: Vec<_> = frames.iter().map(|f| f[FRAME_HEADER_BYTES..].to_vec()).collect();
        prop_assert_eq!(got, bodies);
        prop_assert!(decoder.is_empty());
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = cut.index(bytes.len() + 1);
        let mut decoder = Decoder::new(64);
        let mut ends = Vec::new();
        for part in [&bytes[..cut], &bytes[cut..]] {
            decoder.feed(part);
            ends.push(decoder.preamble().is_ok());
            let mut got = Vec::new();
            ends.push(drain(&mut decoder, &mut got).is_ok());
            prop_assert!(got.iter().all(|b| b.len() <= 64));
        }
        // An error stays.
        prop_assert!(ends.is_sorted_by(|a, b| a >= b));
    }

    #[test]
    fn no_body_makes_a_message_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode::<ControlHello>(&bytes);
        let _ = decode::<ControlReply>(&bytes);
        let _ = decode::<Up>(&bytes);
        let _ = decode::<Down>(&bytes);
        let _ = decode::<PeerHello>(&bytes);
        let _ = decode::<PeerReply>(&bytes);
        let _ = decode::<OpenFrame>(&bytes);
    }

    #[test]
    fn a_flipped_bit_never_gives_the_same_frames(bit in any::<prop::sample::Index>()) {
        let mut frames = frames();
        let index = bit.index(frames.len());
        let frame = &mut frames[index];
        let original = frame[FRAME_HEADER_BYTES..].to_vec();
        let bit = bit.index(frame.len() * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        let mut decoder = Decoder::new(FRAME_LIMIT);
        decoder.feed(frame);
        prop_assert!(!matches!(decoder.frame(), Ok(Some(body)) if body == original));
    }

    #[test]
    fn messages_survive_the_wire(id in any::<u64>(), token in any::<u128>(), name in ".{0,50}") {
        let message = Down::Dial {
            peers: vec![MemberInfo { id: MemberId(id), name, token: Token(token), ..info() }],
        };
        let mut decoder = Decoder::new(FRAME_LIMIT);
        decoder.feed(&encode(&message, FRAME_LIMIT).unwrap());
        prop_assert_eq!(decoder.message(), Ok(Some(message)));
    }
}
