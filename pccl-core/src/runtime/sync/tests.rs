mod by_hand;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use super::*;
use crate::ids::{ContentDigest, Digest, Round, Serial, Tag};
use crate::membership::peer::PeerInput;
use crate::state::digest::TensorDigest;
use crate::state::shared::SharedState;
use crate::testing::{Relay, Rules};
use crate::transport::admission::Admission;
use crate::transport::listener::{Gate, Listener};
use crate::types::{DataType, DigestKind, OpKey, OpKind, SyncStrategy};
use crate::wire::control::{FetchEntry, MemberInfo, OpName};
use crate::wire::frame::{self, Decoder};
use crate::wire::reason::RequestCause;
use crate::wire::state::{
    REPLY_LIMIT, REQUEST_LIMIT, StatePart, StateRefusal, StateReply, StateRequest,
};

const RUN: RunId = RunId(5);
const LIMIT: Duration = Duration::from_secs(60);
/// From one look at something that others bring about to the next.
const LOOK: Duration = Duration::from_millis(1);
const MIB: usize = 1 << 20;
const FAST: DigestKind = DigestKind::Fast;

const OP: OpName = OpName {
    round: Round(1),
    key: OpKey {
        kind: OpKind::Sync,
        tag: Tag(0),
    },
    attempt: 0,
};

/// Key, content, and whether it may differ.
type Tensors = Vec<(&'static str, Vec<u8>, bool)>;

fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i / 64) * 31 + seed) as u8).collect()
}

/// One member in a synchronisation: its listener, and its user's thread.
struct Member {
    info: MemberInfo,
    control: SyncControl,
    said: Receiver<PeerInput>,
    user: JoinHandle<(Tensors, Synchronised)>,
    digests: Vec<TensorDigest>,
    _stop: oneshot::Sender<()>,
}

fn token(id: u64) -> Token {
    Token(u128::from(id) + 1000)
}

/// Who may read from a member: everybody with a small number.
fn admission(id: u64) -> Admission {
    Admission {
        own: Some((RUN, MemberId(id), token(id))),
        readers: (0..10).map(|n| (MemberId(n), token(n))).collect(),
        ..Admission::default()
    }
}

/// Starts a member's part. `spoil` changes the tensors after their digests have been taken.
fn member(id: u64, tensors: Tensors, spoil: fn(&mut Tensors)) -> Member {
    member_with(FAST, id, tensors, spoil)
}

fn member_with(kind: DigestKind, id: u64, mut tensors: Tensors, spoil: fn(&mut Tensors)) -> Member {
    let (control, orders) = pair();
    let (address, stop) = listen(id, control.messages.clone());
    let digests = with_state(&mut tensors, |state| {
        state
            .offer(kind, SyncStrategy::EnforcePopular, false, 0)
            .digests
    });
    spoil(&mut tensors);
    let (says, said) = channel();
    let taken = digests.clone();
    let user = std::thread::spawn(move || {
        let done = with_state(&mut tensors, |state| {
            let watch = Watch::default();
            let own = Own {
                kind,
                digests: &taken,
                revision: 7,
            };
            run(state.tensors_mut(), own, &watch, orders, |input| {
                let _ = says.send(input);
            })
        });
        (tensors, done)
    });
    Member {
        info: MemberInfo {
            id: MemberId(id),
            name: String::new(),
            addresses: vec![address],
            token: token(id),
            key: None,
        },
        control,
        said,
        user,
        digests,
        _stop: stop,
    }
}

fn with_state<T>(tensors: &mut Tensors, f: impl FnOnce(&mut SharedState<'_>) -> T) -> T {
    let mut state = SharedState::new(1);
    for (key, bytes, differs) in tensors {
        state.add(*key, DataType::U8, bytes, *differs).unwrap();
    }
    f(&mut state)
}

fn listen(id: u64, messages: Sender<Message>) -> (SocketAddr, oneshot::Sender<()>) {
    let (stop, mut stopped) = oneshot::channel::<()>();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let (_table, watching) = watch::channel(admission(id));
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            tell.send(listener.address().unwrap()).unwrap();
            let (sender, mut accepted) = tokio::sync::mpsc::channel(8);
            tokio::spawn(listener.run(Gate::new(watching, 0, Timing::default()), sender));
            loop {
                tokio::select! {
                    _ = &mut stopped => return,
                    Some(connection) = accepted.recv() => {
                        let _ = messages.send(Message::Serve {
                            parts: connection.channel.into_parts(crate::transport::secure::Room::SERVE).unwrap(),
                            reader: connection.hello.from,
                            slot: connection.slot,
                        });
                    }
                }
            }
        });
    });
    (told.recv().unwrap(), stop)
}

fn task(own: u64, fetch: Vec<FetchEntry>, seeders: Vec<MemberInfo>) -> Task {
    Task {
        plan: SyncPlan {
            op: OP,
            quoted: Serial::default(),
            revision: 7,
            fetch: Arc::new(fetch),
            seeders,
            readers: Vec::new(),
        },
        run: RUN,
        own: MemberId(own),
        token: token(own),
        timing: Timing::default(),
        packs: false,
        party: None,
    }
}

fn entry(key: &str, digest: Option<ContentDigest>) -> FetchEntry {
    FetchEntry {
        key: key.into(),
        digest,
    }
}

impl Member {
    fn done(&self) -> Digest {
        match self.said.recv_timeout(LIMIT).unwrap() {
            PeerInput::OpDone { op: OP, result, .. } => result,
            other => panic!("{other:?}"),
        }
    }

    fn end(self) -> (Tensors, Synchronised) {
        drop(self.control);
        self.user.join().unwrap()
    }

    fn behind(&self, relay: &Relay) -> MemberInfo {
        MemberInfo {
            addresses: vec![relay.address()],
            ..self.info.clone()
        }
    }

    fn relay(&self) -> Relay {
        Relay::start(self.info.addresses[0]).unwrap()
    }
}

fn seeder(id: u64, tensors: Tensors) -> Member {
    let member = member(id, tensors, |_| {});
    member.control.plan(task(id, vec![], vec![]));
    member
}

fn wait_until(mut reached: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !reached() {
        assert!(begin.elapsed() < LIMIT);
        std::thread::sleep(LOOK);
    }
}

#[test]
fn mixed_tensors_come_from_two_seeders() {
    let elected = || -> Tensors {
        vec![
            ("a", content(1, 3 * MIB + 100), false),
            ("b", vec![], false),
            ("c", content(2, 5), false),
            ("d", content(3, 9 * MIB), false),
            ("e", content(4, MIB), true),
            ("f", content(5, 1000), false),
        ]
    };
    let (one, two) = (seeder(1, elected()), seeder(2, elected()));
    let mut own = elected();
    own[0].1 = content(9, 3 * MIB + 100);
    own[2].1 = content(9, 5);
    own[3].1[5 * MIB] ^= 1;
    own[4].1 = content(9, MIB);
    let joiner = member(3, own, |_| {});
    let root = |i: usize| Some(one.digests[i].root);
    let fetch = vec![
        entry("a", root(0)),
        entry("b", root(1)),
        entry("c", root(2)),
        entry("d", root(3)),
        entry("e", None),
    ];
    let seeders = vec![one.info.clone(), two.info.clone()];
    joiner.control.plan(task(3, fetch, seeders));
    let results = [joiner.done(), one.done(), two.done()];
    assert_eq!(results, [results[0]; 3]);
    let (tensors, done) = joiner.end();
    assert_eq!(tensors, elected());
    // Of "d" only the chunk that differed.
    assert_eq!(done.rx_bytes, (3 * MIB + 100 + 5 + MIB + MIB) as u64);
    assert!(!done.torn && done.revision == Some(7));
    let (sent, also_sent) = (one.end().1.tx_bytes, two.end().1.tx_bytes);
    assert_eq!(sent + also_sent, done.rx_bytes);
}

#[test]
fn a_seeder_cut_in_the_middle_is_replaced_by_another() {
    let elected = || -> Tensors { vec![("a", content(1, 8 * MIB), false)] };
    let (one, two) = (seeder(1, elected()), seeder(2, elected()));
    let joiner = member(3, vec![("a", content(2, 8 * MIB), false)], |_| {});
    let relay = one.relay();
    relay.set(Rules {
        rate: Some(20 * MIB as u64),
        pieces: Some(10_000),
        ..Rules::default()
    });
    let fetch = vec![entry("a", Some(one.digests[0].root))];
    let seeders = vec![one.behind(&relay)];
    joiner.control.plan(task(3, fetch.clone(), seeders));
    wait_until(|| relay.passed() > 2 * MIB as u64);
    joiner.control.plan(task(3, fetch, vec![two.info.clone()]));
    relay.set(Rules {
        refuse: true,
        ..Rules::default()
    });
    relay.reset();
    joiner.done();
    let (tensors, done) = joiner.end();
    assert_eq!(tensors, elected());
    assert_eq!(done.rx_bytes, 8 * MIB as u64);
    assert!(one.end().1.tx_bytes > 0 && two.end().1.tx_bytes > 0);
}

#[test]
fn what_a_stalled_seeder_owes_comes_from_another() {
    let elected = || -> Tensors { vec![("a", content(1, 24 * MIB), false)] };
    let (one, two) = (seeder(1, elected()), seeder(2, elected()));
    let own = vec![("a", content(2, 24 * MIB), false)];
    let joiner = member(3, own, |_| {});
    let (slow, swift) = (one.relay(), two.relay());
    let rules = Rules {
        rate: Some(20 * MIB as u64),
        ..Rules::default()
    };
    slow.set(rules);
    swift.set(rules);
    let fetch = vec![entry("a", Some(one.digests[0].root))];
    let mut task = task(3, fetch, vec![one.behind(&slow), two.behind(&swift)]);
    // A connection that is silent would be given up long after this test.
    task.timing = Timing::from_peer_timeout(LIMIT * 2);
    joiner.control.plan(task);
    wait_until(|| slow.passed() > 2 * MIB as u64);
    slow.set(Rules {
        cut_backward: true,
        ..rules
    });
    joiner.done();
    let (tensors, done) = joiner.end();
    assert_eq!(tensors, elected());
    assert_eq!(done.rx_bytes, 24 * MIB as u64);
    assert_eq!(done.sources.len(), 2);
    one.end();
    two.end();
}

#[test]
fn a_slow_reader_gets_what_shrinks_compressed() {
    let noise = |seed: usize| -> Vec<u8> {
        let mut state = seed as u64;
        let next = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as u8
        };
        (0..8 * MIB).map(next).collect()
    };
    for (shrinks, bytes) in [(true, content(1, 40 * MIB)), (false, noise(7))] {
        let size = bytes.len();
        let elected: Tensors = vec![("a", bytes, false)];
        let one = member(1, elected.clone(), |_| {});
        one.control.plan(Task {
            packs: true,
            ..task(1, vec![], vec![])
        });
        let joiner = member(3, vec![("a", vec![0; size], false)], |_| {});
        let relay = one.relay();
        relay.set(Rules {
            rate: Some(10 * MIB as u64),
            ..Rules::default()
        });
        let fetch = vec![entry("a", Some(one.digests[0].root))];
        joiner
            .control
            .plan(task(3, fetch, vec![one.behind(&relay)]));
        joiner.done();
        let passed = relay.passed();
        let (tensors, done) = joiner.end();
        assert!(tensors == elected);
        assert_eq!(done.rx_bytes, size as u64);
        assert_eq!(one.end().1.tx_bytes, size as u64);
        if shrinks {
            assert!(passed < (size - size / 4) as u64, "{passed}");
        } else {
            assert!(passed >= size as u64, "{passed}");
        }
    }
}

#[test]
fn content_that_is_not_the_elected_one_never_touches_a_tensor() {
    let elected = || -> Tensors { vec![("a", content(1, 3 * MIB), false)] };
    for kind in [FAST, DigestKind::Cryptographic] {
        let liar = member_with(kind, 1, elected(), |tensors| tensors[0].1[2 * MIB + 3] ^= 1);
        liar.control.plan(task(1, vec![], vec![]));
        let own = vec![("a", content(2, 3 * MIB), false)];
        let joiner = member_with(kind, 4, own, |_| {});
        let fetch = vec![entry("a", Some(liar.digests[0].root))];
        joiner
            .control
            .plan(task(4, fetch.clone(), vec![liar.info.clone()]));
        match joiner.said.recv_timeout(LIMIT).unwrap() {
            PeerInput::OpFailed {
                cause: RequestCause::FetchFailed { what },
                ..
            } => assert!(what.contains("m1: chunk 2 of \"a\""), "{what}"),
            other => panic!("{other:?}"),
        }
        // Another seeder puts it right: only what is missing comes from it.
        let honest = member_with(kind, 2, elected(), |_| {});
        honest.control.plan(task(2, vec![], vec![]));
        joiner
            .control
            .plan(task(4, fetch, vec![honest.info.clone()]));
        joiner.done();
        let (tensors, done) = joiner.end();
        assert_eq!(tensors, elected());
        assert_eq!(done.rx_bytes, 3 * MIB as u64);
        assert_eq!(honest.end().1.tx_bytes, MIB as u64);
    }
}

#[test]
fn a_call_that_ends_early_leaves_whole_chunks_and_says_that_it_is_torn() {
    let elected = || -> Tensors { vec![("a", content(1, 8 * MIB), false)] };
    let one = seeder(1, elected());
    let own = content(2, 8 * MIB);
    let joiner = member(3, vec![("a", own.clone(), false)], |_| {});
    let relay = one.relay();
    relay.set(Rules {
        rate: Some(20 * MIB as u64),
        ..Rules::default()
    });
    let fetch = vec![entry("a", Some(one.digests[0].root))];
    joiner
        .control
        .plan(task(3, fetch, vec![one.behind(&relay)]));
    wait_until(|| relay.passed() > 3 * MIB as u64);
    relay.set(Rules {
        cut_backward: true,
        ..Rules::default()
    });
    let (tensors, done) = joiner.end();
    assert!(done.torn && done.rx_bytes > 0 && done.rx_bytes < 8 * MIB as u64);
    let elected = &elected()[0].1;
    let chunks = tensors[0]
        .1
        .chunks(MIB)
        .zip(own.chunks(MIB).zip(elected.chunks(MIB)));
    for (is, (was, wanted)) in chunks {
        assert!(is == was || is == wanted);
    }
    // The seeder's call ends at once, although its reader's path is cut.
    one.end();
}

#[test]
fn a_fetch_without_seeders_fails_by_name() {
    let nobody = MemberInfo {
        id: MemberId(8),
        name: String::new(),
        addresses: vec!["127.0.0.1:1".parse().unwrap()],
        token: token(8),
        key: None,
    };
    let joiner = member(3, vec![("a", content(2, 10), false)], |_| {});
    let fetch = vec![entry("a", Some(ContentDigest::fast(1)))];
    joiner.control.plan(task(3, fetch, vec![nobody]));
    match joiner.said.recv_timeout(LIMIT).unwrap() {
        PeerInput::OpFailed {
            cause: RequestCause::FetchFailed { what },
            ..
        } => assert!(what.contains("m8: 127.0.0.1:1"), "{what}"),
        other => panic!("{other:?}"),
    }
    let (tensors, done) = joiner.end();
    assert_eq!(tensors[0].1, content(2, 10));
    assert!(!done.torn);
}

#[test]
fn a_plan_that_never_comes_ends_with_the_call() {
    let alone = member(1, vec![("a", content(1, 10), false)], |_| {});
    assert_eq!(alone.end().1, Synchronised::default());
}

#[test]
fn requests_that_make_no_sense_are_refused_one_by_one() {
    use std::io::Read;

    let one = seeder(1, vec![("a", content(1, MIB + 1), false)]);
    let info = one.info.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let request = crate::transport::handshake::Dial {
        peer: info,
        run: RUN,
        own: MemberId(2),
        token: token(2),
        purpose: crate::wire::lane::Purpose::State,
        party: None,
    };
    let timing = Timing::default();
    let deadline = tokio::time::Instant::now() + LIMIT;
    let dialled = runtime.block_on(crate::transport::handshake::dial(
        &request, deadline, &timing,
    ));
    let (mut stream, _) = {
        let _runtime = runtime.enter();
        dialled
            .unwrap()
            .channel
            .into_parts(crate::transport::secure::Room::SERVE)
            .unwrap()
    };
    stream.set_nonblocking(false).unwrap();
    let mut ask = |op: OpName, key: &str, part: StatePart| -> StateReply {
        use std::io::Write;
        let key = key.to_owned();
        let request = StateRequest { op, key, part };
        stream
            .write_all(&frame::encode(&request, REQUEST_LIMIT).unwrap())
            .unwrap();
        let mut decoder = Decoder::new(REPLY_LIMIT);
        loop {
            let mut part = vec![0; decoder.missing()];
            stream.read_exact(&mut part).unwrap();
            decoder.feed(&part);
            if let Some(reply) = decoder.message().unwrap() {
                return reply;
            }
        }
    };
    let digests = |first, count| StatePart::Digests { first, count };
    let chunks = |first, count| StatePart::Chunks { first, count };
    let other = OpName { attempt: 9, ..OP };
    let no = StateReply::No;
    assert_eq!(ask(other, "a", digests(0, 1)), no(StateRefusal::OtherUse));
    assert_eq!(ask(OP, "b", digests(0, 1)), no(StateRefusal::NoSuchTensor));
    assert_eq!(ask(OP, "a", digests(0, 3)), no(StateRefusal::OutOfRange));
    assert_eq!(ask(OP, "a", chunks(2, 1)), no(StateRefusal::OutOfRange));
    assert_eq!(ask(OP, "a", chunks(0, 9)), no(StateRefusal::OutOfRange));
    assert_eq!(
        ask(OP, "a", chunks(u64::MAX, 2)),
        no(StateRefusal::OutOfRange)
    );
    let list = one.digests[0].chunks.clone();
    assert_eq!(ask(OP, "a", digests(0, 2)), StateReply::Digests(list));
    let last = StateReply::Chunk {
        chunk: 1,
        length: 1,
    };
    assert_eq!(ask(OP, "a", chunks(1, 1)), last);
    stream.read_exact(&mut [0]).unwrap();
    assert_eq!(one.end().1.tx_bytes, 1);
}
