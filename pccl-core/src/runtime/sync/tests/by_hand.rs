//! Seeders that the test plays itself, word by word.

use super::*;
use crate::runtime::sync::framed::Framed;
use crate::runtime::sync::unpack::tests::{hostile, plain};

/// A member that others dial, and the connections that they open to it.
struct ByHand {
    info: MemberInfo,
    accepted: Receiver<Message>,
    _stop: oneshot::Sender<()>,
}

impl ByHand {
    fn new(id: u64) -> Self {
        let (tell, accepted) = channel();
        let (address, stop) = listen(id, tell);
        Self {
            info: MemberInfo {
                id: MemberId(id),
                name: String::new(),
                addresses: vec![address],
                token: token(id),
                key: None,
            },
            accepted,
            _stop: stop,
        }
    }

    /// The next connection, with its slot.
    fn accept(&self) -> (Framed, Slot) {
        match self.accepted.recv_timeout(LIMIT).unwrap() {
            Message::Serve { parts, slot, .. } => {
                let link = Framed::new(parts, REQUEST_LIMIT, Some(LIMIT), LIMIT);
                (link.unwrap(), slot)
            }
            _ => panic!("only connections come"),
        }
    }
}

fn request(link: &mut Framed) -> StateRequest {
    link.message().unwrap().unwrap()
}

#[test]
fn compressed_chunks_that_are_none_cost_their_seeder_what_it_was_asked_for() {
    let liar = ByHand::new(1);
    let elected = || -> Tensors { vec![("a", plain(MIB), false)] };
    let honest = seeder(2, elected());
    let joiner = member(3, vec![("a", content(2, MIB), false)], |_| {});
    let fetch = vec![entry("a", Some(honest.digests[0].root))];
    let mut frames = hostile(MIB).into_iter().peekable();
    while frames.peek().is_some() {
        let liars = vec![liar.info.clone()];
        joiner.control.plan(task(3, fetch.clone(), liars));
        // So often a seeder is tried.
        for _ in 0..4 {
            let (mut link, _slot) = liar.accept();
            let asked = request(&mut link);
            assert_eq!(asked.part, StatePart::Chunks { first: 0, count: 1 });
            let Some((name, packed)) = frames.next() else {
                continue;
            };
            let reply = StateReply::Packed {
                chunk: 0,
                length: MIB as u32,
                packed: packed.len() as u32,
            };
            link.send(&reply, REPLY_LIMIT).unwrap();
            // It may be given up before it has sent all.
            let _ = link.send_bytes(&packed);
            let more = link.message::<StateRequest>();
            assert!(!matches!(more, Ok(Some(_))), "{name} was taken");
        }
        match joiner.said.recv_timeout(LIMIT).unwrap() {
            PeerInput::OpFailed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    joiner
        .control
        .plan(task(3, fetch, vec![honest.info.clone()]));
    joiner.done();
    let (tensors, done) = joiner.end();
    assert!(tensors == elected());
    assert_eq!(done.sources, [(MemberId(2), MIB as u64)]);
    assert_eq!(honest.end().1.tx_bytes, MIB as u64);
}

#[test]
fn many_tensors_are_asked_for_without_waiting_for_each() {
    const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let one = ByHand::new(1);
    let elected: Tensors = KEYS.map(|key| (key, plain(MIB + 7), false)).into();
    let digests = member(2, elected.clone(), |_| {}).digests;
    let own = KEYS.map(|key| (key, content(2, MIB + 7), false)).into();
    let joiner = member(3, own, |_| {});
    let fetch = KEYS.iter().zip(&digests);
    let fetch = fetch.map(|(key, digest)| entry(key, Some(digest.root)));
    let seeders = vec![one.info.clone()];
    joiner.control.plan(task(3, fetch.collect(), seeders));
    let (mut link, _slot) = one.accept();
    // All lists are asked for before any has been given: one round trip, not one for each.
    for key in KEYS {
        let asked = request(&mut link);
        assert_eq!(asked.key, key);
        assert_eq!(asked.part, StatePart::Digests { first: 0, count: 2 });
    }
    for digest in &digests {
        let list = StateReply::Digests(digest.chunks.clone());
        link.send(&list, REPLY_LIMIT).unwrap();
    }
    // Eight chunks may be under way of a large tensor: of small ones too.
    for _ in 0..4 {
        let asked = request(&mut link);
        assert_eq!(asked.part, StatePart::Chunks { first: 0, count: 2 });
    }
    drop(link);
    assert!(!joiner.end().1.torn);
}
