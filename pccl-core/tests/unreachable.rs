//! Where no master is, connect says so.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use pccl_core::error::{ConnectPhase, Error};
use support::{peer, within_limit};

fn phase(result: Result<(), Error>) -> ConnectPhase {
    match result {
        Err(Error::Unreachable { phase, .. }) => phase,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nobody_listens() {
    within_limit(|| {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let address = format!("127.0.0.1:{port}");
        assert_eq!(phase(peer(&address).connect(None)), ConnectPhase::Dial);
    });
}

#[test]
fn nobody_listens_for_as_long_as_the_limit() {
    within_limit(|| {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let communicator = peer(&format!("127.0.0.1:{port}"));
        let connected = communicator.connect(Some(Duration::from_millis(300)));
        assert_eq!(phase(connected), ConnectPhase::Dial);
    });
}

#[test]
fn the_name_means_nothing() {
    within_limit(|| {
        let connected = peer("an address without a port").connect(None);
        assert_eq!(phase(connected), ConnectPhase::Resolve);
    });
}

#[test]
fn something_else_listens() {
    within_limit(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        assert_eq!(phase(peer(&address).connect(None)), ConnectPhase::Handshake);
        other.join().unwrap();
    });
}
