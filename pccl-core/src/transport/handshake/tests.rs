use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

fn timing() -> Timing {
    Timing::from_peer_timeout(Duration::from_secs(5))
}

fn to(addresses: Vec<SocketAddr>) -> Dial {
    Dial {
        peer: MemberInfo {
            id: MemberId(1),
            name: String::new(),
            addresses,
            token: Token(11),
            key: None,
        },
        run: RunId(7),
        own: MemberId(2),
        token: Token(22),
        purpose: Purpose::Lane { wanted: 3 },
        party: None,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Accepts one connection and plays a member that answers `reply`.
async fn member(listener: &TcpListener, reply: PeerReply) -> (Channel, PeerHello) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut channel = Channel::plain(stream);
    let hello = hear(&mut channel).await.unwrap();
    answer(&mut channel, &reply).await.unwrap();
    (channel, hello)
}

fn welcome(token: u128) -> PeerReply {
    PeerReply::Welcome {
        token: Token(token),
        wanted: 4,
    }
}

#[tokio::test]
async fn both_ends_learn_about_each_other_and_lose_no_byte_that_follows() {
    let (listener, address) = listener().await;
    let acceptor = async {
        let (mut stream, hello) = member(&listener, welcome(11)).await;
        stream.write_all(b"at once").await.unwrap();
        hello
    };
    let to = to(vec![address]);
    let timing = timing();
    let (hello, dialled) = tokio::join!(acceptor, dial(&to, soon(), &timing));
    let mut dialled = dialled.unwrap();
    assert_eq!(
        (hello.from, hello.token, hello.run),
        (MemberId(2), Token(22), RunId(7))
    );
    assert_eq!(hello.purpose, Purpose::Lane { wanted: 3 });
    assert_eq!(dialled.wanted, 4);
    assert_eq!(dialled.address, address);
    let mut rest = [0; 7];
    dialled.channel.read_exact(&mut rest).await.unwrap();
    assert_eq!(&rest, b"at once");
}

#[tokio::test]
async fn addresses_are_tried_in_turn() {
    let (closed, nobody) = listener().await;
    drop(closed);
    let (other, wrong) = listener().await;
    let (listener, right) = listener().await;
    let not_me = PeerReply::Refused {
        reason: PeerRefusal::NotMe,
    };
    let to = to(vec![nobody, wrong, right]);
    let timing = timing();
    let (_, _, dialled) = tokio::join!(
        member(&other, not_me),
        member(&listener, welcome(11)),
        dial(&to, soon(), &timing),
    );
    assert!(dialled.is_ok());
}

#[tokio::test]
async fn the_members_own_refusal_is_final_and_told() {
    let (listener, address) = listener().await;
    let unknown = PeerReply::Refused {
        reason: PeerRefusal::Unknown,
    };
    let to = to(vec![address, address]);
    let timing = timing();
    let (_, error) = tokio::join!(member(&listener, unknown), dial(&to, soon(), &timing));
    let error = error.unwrap_err();
    assert_eq!(error.refusal, Some(PeerRefusal::Unknown));
    assert_eq!(error.failure.attempts.len(), 1);
    assert!(error.to_string().contains("does not know this member"));
}

#[tokio::test]
async fn who_cannot_prove_that_it_is_the_member_gets_no_lane() {
    let (listener, address) = listener().await;
    let to = to(vec![address]);
    let timing = timing();
    let (_, error) = tokio::join!(member(&listener, welcome(12)), dial(&to, soon(), &timing));
    assert!(error.unwrap_err().to_string().contains("prove"));
}

#[tokio::test]
async fn a_silent_address_takes_its_share_of_the_time_only() {
    let (_silent, mute) = listener().await;
    let (listener, right) = listener().await;
    let to = to(vec![mute, right]);
    let timing = timing();
    let deadline = Instant::now() + Duration::from_millis(600);
    let (_, dialled) = tokio::join!(member(&listener, welcome(11)), dial(&to, deadline, &timing),);
    assert!(dialled.is_ok());
}

#[tokio::test]
async fn each_way_of_not_being_a_member_has_its_name() {
    let (_silent, mute) = listener().await;
    let (web, garbage) = listener().await;
    let (hangs_up, closed) = listener().await;
    let (newer, version) = listener().await;
    let (control, master) = listener().await;
    let to = to(vec![garbage, closed, version, master, mute]);
    let timing = timing();
    let strangers = async {
        let (mut stream, _) = web.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request").await.unwrap();
        drop(hangs_up.accept().await.unwrap());
        let (mut later, _) = newer.accept().await.unwrap();
        let preamble = |low, high, party| Preamble {
            versions: frame::VersionRange { low, high },
            party,
        };
        let speaks = preamble(8, 9, Party::Peer).encode();
        later.write_all(&speaks).await.unwrap();
        let (mut wrong, _) = control.accept().await.unwrap();
        let speaks = preamble(1, 1, Party::Control).encode();
        wrong.write_all(&speaks).await.unwrap();
        (stream, later, wrong)
    };
    let deadline = Instant::now() + Duration::from_millis(1500);
    let (_kept, error) = tokio::join!(strangers, dial(&to, deadline, &timing));
    let error = error.unwrap_err();
    let said: Vec<_> = error
        .failure
        .attempts
        .iter()
        .map(|(_, s)| s.as_str())
        .collect();
    assert_eq!(said.len(), 5);
    assert!(said[0].contains("does not speak this protocol"), "{said:?}");
    assert!(
        said[1].contains("closed") || said[1].contains("reset"),
        "{said:?}"
    );
    assert!(said[2].contains("other end 8 to 9"), "{said:?}");
    assert!(said[3].contains("a master answers"), "{said:?}");
    assert!(said[4].contains("no word in time"), "{said:?}");
    assert_eq!(error.refusal, None);
}

#[tokio::test]
async fn a_dialler_that_talks_nonsense_is_turned_away() {
    let (listener, address) = listener().await;
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PCCL\x01\x00\x01\x00\x02\xFF\xFF\xFF\xFF\x00\x00\x00\x00",
        b"PCCL\x01\x00\x01\x00\x02\x01\x00\x00\x00\x00\x00\x00\x00\x00",
        b"PCCL\x01\x00\x01\x00\x01",
        b"PCCL\x01\x00",
    ] {
        let dialler = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut got = Vec::new();
            let _ = stream.read_to_end(&mut got).await;
            got.len()
        };
        let acceptor = async {
            let (stream, _) = listener.accept().await.unwrap();
            hear(&mut Channel::plain(stream)).await
        };
        let (got, heard) = tokio::join!(dialler, acceptor);
        assert!(heard.is_err(), "{bytes:?}");
        assert!(got <= PREAMBLE_BYTES);
    }
}

#[tokio::test]
async fn an_incompatible_dialler_is_told_what_is_spoken_here() {
    let (listener, address) = listener().await;
    let dialler = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let versions = frame::VersionRange { low: 50, high: 60 };
        let party = Party::Peer;
        let preamble = Preamble { versions, party };
        stream.write_all(&preamble.encode()).await.unwrap();
        let mut bytes = [0; PREAMBLE_BYTES];
        stream.read_exact(&mut bytes).await.unwrap();
        Preamble::decode(&bytes).unwrap().chosen(versions)
    };
    let acceptor = async {
        let (stream, _) = listener.accept().await.unwrap();
        hear(&mut Channel::plain(stream)).await
    };
    let (told, heard) = tokio::join!(dialler, acceptor);
    assert!(heard.is_err());
    let own = frame::VersionRange { low: 50, high: 60 };
    let other = VERSIONS;
    assert_eq!(told, Err(frame::FrameError::Version { own, other }));
}
