use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::*;
use crate::ids::{RunId, Token};
use crate::transport::handshake::{Dial, DialError, Dialled, dial};
use crate::wire::control::MemberInfo;

const RUN: RunId = RunId(9);

/// A listener at work, the table it asks, and what it accepts.
struct Member {
    address: SocketAddr,
    table: watch::Sender<Admission>,
    accepted: mpsc::Receiver<Accepted>,
}

fn member(peer_timeout: Duration, knows: &[u64]) -> Member {
    let admission = Admission {
        own: Some((RUN, MemberId(1), Token(1))),
        peers: knows
            .iter()
            .map(|n| (MemberId(*n), Token(u128::from(*n))))
            .collect(),
        ..Admission::default()
    };
    let (table, watching) = watch::channel(admission);
    let (sender, accepted) = mpsc::channel(64);
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address().unwrap();
    let gate = Gate::new(watching, 2, Timing::from_peer_timeout(peer_timeout));
    tokio::spawn(listener.run(gate, sender));
    Member {
        address,
        table,
        accepted,
    }
}

async fn call(member: &Member, from: u64, purpose: Purpose) -> Result<Dialled, DialError> {
    let request = Dial {
        peer: MemberInfo {
            id: MemberId(1),
            name: String::new(),
            addresses: vec![member.address],
            token: Token(1),
            key: None,
        },
        run: RUN,
        own: MemberId(from),
        token: Token(u128::from(from)),
        purpose,
        party: None,
    };
    let limit = Instant::now() + Duration::from_secs(10);
    dial(&request, limit, &Timing::default()).await
}

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(200);
const LANE: Purpose = Purpose::Lane { wanted: 2 };

#[tokio::test]
async fn a_known_member_gets_a_lane() {
    let mut member = member(LONG, &[2]);
    let mut dialled = call(&member, 2, LANE).await.unwrap();
    let mut accepted = member.accepted.recv().await.unwrap();
    assert_eq!(accepted.hello.from, MemberId(2));
    dialled.channel.write_all(b"there").await.unwrap();
    let mut got = [0; 5];
    accepted.channel.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"there");
    let (stream, _) = dialled
        .channel
        .into_parts(crate::transport::secure::Room::SERVE)
        .unwrap();
    assert_eq!(accepted.remote, stream.local_addr().unwrap());
}

#[tokio::test]
async fn a_dialler_that_is_ahead_of_the_masters_word_waits_for_it() {
    let mut member = member(LONG, &[]);
    let arrives = async {
        // The handshake is in its wait when the hello has been answered with nothing for a while;
        // whether it is does not change the outcome.
        tokio::task::yield_now().await;
        member.table.send_modify(|table| {
            table.peers.insert(MemberId(3), Token(3));
        });
    };
    let (_, dialled) = tokio::join!(arrives, call(&member, 3, LANE));
    assert!(dialled.is_ok());
    assert!(member.accepted.recv().await.is_some());
}

#[tokio::test]
async fn an_unknown_dialler_is_refused_at_the_deadline() {
    let member = member(SHORT, &[2]);
    let error = call(&member, 3, LANE).await.unwrap_err();
    assert_eq!(error.refusal, Some(PeerRefusal::Unknown));
    let error = call(&member, 2, Purpose::State).await.unwrap_err();
    assert_eq!(error.refusal, Some(PeerRefusal::NoSync));
}

#[tokio::test]
async fn a_silent_dialler_is_dropped_at_the_deadline() {
    let member = member(SHORT, &[]);
    let mut silent = TcpStream::connect(member.address).await.unwrap();
    let mut got = Vec::new();
    let _ = silent.read_to_end(&mut got).await;
    assert!(got.is_empty());
}

#[tokio::test]
async fn silent_diallers_do_not_shut_out_a_member() {
    let mut member = member(LONG, &[2]);
    let mut silent = Vec::new();
    for _ in 0..HALF_OPEN_PER_SOURCE * 3 {
        silent.push(TcpStream::connect(member.address).await.unwrap());
    }
    assert!(call(&member, 2, LANE).await.is_ok());
    assert!(member.accepted.recv().await.is_some());
    // The first ones have been dropped long before their deadline.
    let mut got = Vec::new();
    let _ = silent[0].read_to_end(&mut got).await;
    assert!(got.is_empty());
}

#[tokio::test]
async fn lanes_of_one_edge_are_limited_until_one_closes() {
    let mut member = member(LONG, &[2]);
    let mut lanes = Vec::new();
    for _ in 0..LANES_PER_EDGE {
        let dialled = call(&member, 2, LANE).await.unwrap();
        lanes.push((dialled, member.accepted.recv().await.unwrap()));
    }
    let error = call(&member, 2, LANE).await.unwrap_err();
    assert_eq!(error.refusal, Some(PeerRefusal::TooMany));
    lanes.pop();
    assert!(call(&member, 2, LANE).await.is_ok());
}

#[tokio::test]
async fn the_listener_ends_with_whoever_takes_its_connections() {
    let (_table, watching) = watch::channel(Admission::default());
    let (sender, accepted) = mpsc::channel(1);
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address().unwrap();
    let gate = Gate::new(watching, 2, Timing::default());
    let task = tokio::spawn(listener.run(gate, sender));
    drop(accepted);
    task.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
