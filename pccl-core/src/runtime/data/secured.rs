//! One lane inside TLS: moves bytes between its socket and the engine, and encrypts and decrypts them
//! on the way.

use std::io::{self, ErrorKind, IoSlice, Read};

use mio::net::TcpStream;

use super::lane::{SHARE_BYTES, Turn};
use crate::collective::engine::Engine;
use crate::ids::{LaneId, Time};
use crate::runtime::share::SHARE;
use crate::transport::secure::{Heard, Session};
use crate::transport::sockopt;

/// As [`super::lane::read`].
pub(super) fn read(
    stream: &mut TcpStream,
    session: &mut Session,
    lane: LaneId,
    engine: &mut Engine,
    now: Time,
) -> Turn {
    let mut share = SHARE_BYTES;
    loop {
        match session.hear(|bytes| give(bytes, lane, engine, now)) {
            Ok(Heard::All) => {}
            Ok(Heard::Enough) => return Turn::Idle,
            Ok(Heard::End) => return Turn::End,
            Err(cause) => return Turn::Broken(io::Error::other(cause)),
        }
        if share == 0 {
            return Turn::More;
        }
        match stream.read(session.room()) {
            Ok(0) => return Turn::End,
            Ok(n) => {
                share = share.saturating_sub(n);
                SHARE.moved(n);
                if let Err(cause) = session.arrived(n) {
                    return Turn::Broken(io::Error::other(cause));
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Turn::Blocked,
            Err(e) => return Turn::Broken(e),
        }
    }
}

/// Copies what was decrypted to where the engine wants it; as much as it takes.
fn give(bytes: &[u8], lane: LaneId, engine: &mut Engine, now: Time) -> usize {
    let mut given = 0;
    while let Some(rest) = bytes.get(given..).filter(|rest| !rest.is_empty()) {
        let sink = engine.sink(lane);
        let n = sink.len().min(rest.len());
        let (Some(room), Some(part)) = (sink.get_mut(..n), rest.get(..n)) else {
            break;
        };
        if n == 0 {
            break;
        }
        room.copy_from_slice(part);
        engine.received(lane, n, now);
        given += n;
    }
    given
}

/// As [`super::lane::write`].
pub(super) fn write(
    stream: &TcpStream,
    session: &mut Session,
    lane: LaneId,
    engine: &mut Engine,
    now: Time,
) -> Turn {
    let mut share = SHARE_BYTES;
    loop {
        let pending = session.pending();
        if !pending.is_empty() {
            let parts = [IoSlice::new(pending)];
            match stream.try_io(|| sockopt::send_vectored(stream, &parts)) {
                Ok(n) => session.sent(n),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Turn::Blocked,
                Err(e) => return Turn::Broken(e),
            }
            continue;
        }
        if share == 0 {
            return Turn::More;
        }
        let [header, payload] = engine.gather(lane);
        if header.is_empty() && payload.is_empty() {
            return Turn::Idle;
        }
        match session.say([header, payload]) {
            Ok(n) => {
                share = share.saturating_sub(n);
                SHARE.moved(n);
                engine.sent(lane, n, now);
            }
            Err(cause) => return Turn::Broken(io::Error::other(cause)),
        }
    }
}
