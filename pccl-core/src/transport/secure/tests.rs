use std::sync::Arc;

use tokio::net::TcpListener;

use super::*;
use crate::ids::PublicKey;
use crate::transport::channel::Channel;

fn party() -> Arc<Party> {
    Arc::new(Party::new(Identity::new().unwrap()).unwrap())
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    (dialled.unwrap(), accepted.unwrap().0)
}

/// Both ends of a channel between `a`, which dials, and `b`, which is to have `key`.
async fn channels(
    a: Option<&Party>,
    b: Option<&Party>,
    key: PublicKey,
) -> (Result<Channel, String>, Result<Channel, String>) {
    let (dialled, accepted) = pair().await;
    tokio::join!(
        Channel::dial(dialled, a, Some(key)),
        Channel::accept(accepted, b)
    )
}

#[tokio::test]
async fn both_ends_learn_each_others_key_and_hear_each_other() {
    let (a, b) = (party(), party());
    let (one, other) = channels(Some(&a), Some(&b), b.key()).await;
    let (mut one, mut other) = (one.unwrap(), other.unwrap());
    assert_eq!((one.key(), other.key()), (Some(b.key()), Some(a.key())));
    one.write_all(b"there").await.unwrap();
    other.write_all(b"back").await.unwrap();
    let (mut there, mut back) = ([0; 5], [0; 4]);
    other.read_exact(&mut there).await.unwrap();
    one.read_exact(&mut back).await.unwrap();
    assert_eq!((&there, &back), (b"there", b"back"));
}

#[tokio::test]
async fn whoever_has_another_key_is_not_spoken_to() {
    let (a, b) = (party(), party());
    let (one, other) = channels(Some(&a), Some(&b), party().key()).await;
    let said = one.unwrap_err();
    assert!(said.contains("somebody else is there"), "{said}");
    assert!(other.is_err());
}

#[tokio::test]
async fn who_speaks_without_tls_learns_what_is_wrong_and_so_does_the_other() {
    let b = party();
    let preamble = Preamble::dial(Purpose::Peer).encode();
    let (dialled, accepted) = pair().await;
    let dialler = async {
        let mut channel = Channel::plain(dialled);
        channel.write_all(&preamble).await.unwrap();
        let mut answer = [0; PREAMBLE_BYTES];
        channel.read_exact(&mut answer).await.unwrap();
        Preamble::decode(&answer).unwrap().party
    };
    let (party, accepted) = tokio::join!(dialler, Channel::accept(accepted, Some(&b)));
    assert_eq!(party, Purpose::Secured);
    assert!(accepted.unwrap_err().contains("without TLS"));
    // And the other way round: TLS where there is none.
    let (dialled, accepted) = pair().await;
    let acceptor = async {
        let mut channel = Channel::plain(accepted);
        crate::transport::handshake::hear(&mut channel)
            .await
            .map(drop)
    };
    let (dialled, heard) = tokio::join!(Channel::dial(dialled, Some(&b), Some(b.key())), acceptor);
    assert!(heard.is_err());
    let said = dialled.unwrap_err();
    assert!(said.contains("run without tickets"), "{said}");
}

#[tokio::test]
async fn nothing_is_held_for_who_does_not_finish_its_handshake() {
    // A record as long as TLS allows, and handshake messages without an end.
    for first in [
        [0x16, 3, 1, 0x40, 0].to_vec(),
        [&[0x16, 3, 1, 0x0f, 0xff, 1, 0, 0xff, 0xff][..], &[0; 4000]].concat(),
        vec![0x16; 4096],
        vec![0; 4096],
    ] {
        let b = party();
        let (dialled, accepted) = pair().await;
        let dialler = async {
            let mut channel = Channel::plain(dialled);
            let mut bytes = first.clone();
            bytes.resize(HANDSHAKE_LIMIT, 0);
            let _ = channel.write_all(&bytes).await;
            channel
        };
        let (_kept, accepted) = tokio::join!(dialler, Channel::accept(accepted, Some(&b)));
        assert!(accepted.is_err(), "{first:?}");
    }
}

#[tokio::test]
async fn control_connections_share_a_binding_that_no_other_session_has() {
    let (a, b) = (party(), party());
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (dialled, accepted) = pair().await;
        let (one, other) = tokio::join!(dial(dialled, &a, b.key()), accept(accepted, &b));
        let (mut reading, _writing, met) = one.unwrap();
        let (_reading, mut writing, same) = other.unwrap();
        assert_eq!(met.binding, same.binding);
        assert_eq!((met.key, same.key), (b.key(), a.key()));
        assert!(!seen.contains(&met.binding));
        seen.push(met.binding);
        // More than TLS holds at a time.
        let long: Vec<u8> = (0..1_000_000_u32).map(|i| i as u8).collect();
        let read = async {
            let mut got = Vec::new();
            let mut part = [0; 5000];
            while got.len() < long.len() {
                let n = reading.read(&mut part).await.unwrap();
                assert!(n > 0);
                got.extend_from_slice(&part[..n]);
            }
            got
        };
        let (written, got) = tokio::join!(writing.write_all(&long), read);
        written.unwrap();
        assert!(got == long);
    }
}

#[tokio::test]
async fn a_man_in_the_middle_who_ends_tls_with_a_key_of_his_own_hears_nothing() {
    let (a, master, middle) = (party(), party(), party());
    let (dialled, accepted) = pair().await;
    let (one, other) = tokio::join!(dial(dialled, &a, master.key()), accept(accepted, &middle));
    let said = one.err().unwrap();
    assert!(said.contains("somebody else is there"), "{said}");
    assert!(other.is_err());
}

#[test]
fn what_was_recorded_of_a_handshake_opens_no_other_session() {
    let (a, b) = (party(), party());
    let mut one = Session::dial(&a, b.key()).unwrap();
    let mut other = Session::accept(&b).unwrap();
    let mut recorded = Vec::new();
    while !(one.handshake().unwrap() & other.handshake().unwrap()) {
        recorded.extend_from_slice(one.pending());
        carry(&mut one, &mut other);
        carry(&mut other, &mut one);
    }
    recorded.extend_from_slice(one.pending());
    carry(&mut one, &mut other);
    assert!(other.handshake().unwrap());
    let mut again = Session::accept(&b).unwrap();
    let mut said = Ok(false);
    for part in recorded.chunks(100) {
        if said.is_ok() {
            again.room()[..part.len()].copy_from_slice(part);
            said = again.arrived(part.len()).and_then(|()| again.handshake());
            let n = again.pending().len();
            again.sent(n);
        }
    }
    assert!(!matches!(said, Ok(true)), "{said:?}");
}

#[test]
fn an_identity_survives_its_text_and_nothing_printed_shows_its_secret() {
    let identity = Identity::new().unwrap();
    let text = identity.text();
    let same = Identity::from_text(&text).unwrap();
    assert_eq!(same.key(), identity.key());
    let party = Party::new(identity.clone()).unwrap();
    let printed = format!("{identity:?} {party:?}");
    let secret = text.rsplit('-').next().unwrap();
    assert!(!printed.contains(secret), "{printed}");
    assert!(Identity::from_text("nonsense").is_err());
}

/// Two sessions past their handshake.
fn sessions() -> (Session, Session) {
    let (a, b) = (party(), party());
    let mut one = Session::dial(&a, b.key()).unwrap();
    let mut other = Session::accept(&b).unwrap();
    loop {
        let (first, second) = (one.handshake().unwrap(), other.handshake().unwrap());
        carry(&mut one, &mut other);
        carry(&mut other, &mut one);
        if first && second {
            one.widen(Room::LANE);
            other.widen(Room::SERVE);
            return (one, other);
        }
    }
}

/// What one end has to send arrives at the other.
fn carry(from: &mut Session, to: &mut Session) {
    while !from.pending().is_empty() {
        let room = to.room();
        let n = room.len().min(from.pending().len());
        room[..n].copy_from_slice(&from.pending()[..n]);
        from.sent(n);
        to.arrived(n).unwrap();
    }
}

#[test]
fn a_session_carries_bytes_of_any_length_in_order_whatever_is_taken_at_a_time() {
    let (mut one, mut other) = sessions();
    let content: Vec<u8> = (0..500_000_u32).map(|i| (i * 7 / 3) as u8).collect();
    let (mut said, mut got) = (0, Vec::new());
    let mut appetite = 1;
    while got.len() < content.len() {
        if one.pending().is_empty() && said < content.len() {
            let (front, back) = content[said..].split_at(48.min(content.len() - said));
            said += one.say([front, back]).unwrap();
        }
        let room = other.room();
        let n = room.len().min(one.pending().len()).min(20_000);
        room[..n].copy_from_slice(&one.pending()[..n]);
        one.sent(n);
        other.arrived(n).unwrap();
        loop {
            appetite = appetite * 31 % 4099;
            let mut left = appetite;
            let heard = other.hear(|bytes| {
                let n = bytes.len().min(left);
                got.extend_from_slice(&bytes[..n]);
                left -= n;
                n
            });
            // An end that has not been read can still speak.
            let _ = other.say([b"x", &[]]).unwrap();
            let n = other.pending().len();
            other.sent(n);
            if heard.unwrap() == Heard::All {
                break;
            }
        }
    }
    assert!(got == content);
}

#[test]
fn one_changed_bit_changes_no_content() {
    for at in [0, 3, 7, 40] {
        let (mut one, mut other) = sessions();
        one.say([&[5; 100], &[]]).unwrap();
        let room = other.room();
        let n = one.pending().len();
        room[..n].copy_from_slice(one.pending());
        room[at] ^= 1;
        other.arrived(n).unwrap();
        let mut got = Vec::new();
        let heard = other.hear(|bytes| {
            got.extend_from_slice(bytes);
            bytes.len()
        });
        // A changed kind means nothing, and a changed length may only make it wait for more; content
        // comes as it was said, or not at all.
        assert!(
            heard.is_err() || (heard == Ok(Heard::All) && at < 5),
            "{at}: {heard:?}"
        );
        assert!(got.is_empty() || (got == [5; 100] && at == 0), "{at}");
        // And it stays ended.
        let again = other.hear(|bytes| bytes.len());
        assert_eq!(again.is_err(), heard.is_err());
    }
}
