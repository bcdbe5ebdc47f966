//! One lane's socket: moves bytes between it and the engine.

use std::io::{self, ErrorKind, IoSlice, Read};

use mio::net::TcpStream;

use crate::collective::engine::Engine;
use crate::ids::{LaneId, Time};
use crate::runtime::share::SHARE;
use crate::transport::sockopt;

/// Why a socket's turn is over.
#[derive(Debug)]
pub(super) enum Turn {
    /// Its share of the turn is used up; there may be more to do.
    More,
    /// The socket has nothing to read, or takes no more: the poll will say when.
    Blocked,
    /// The engine has nothing to write, or takes nothing more.
    Idle,
    /// The other end has closed its direction.
    End,
    /// The connection is broken.
    Broken(io::Error),
}

/// Reads until the socket is empty or the share is used up. Bytes go where the engine wants them:
/// payloads straight to their place, small frames several at a time to where it takes them apart.
pub(super) fn read(stream: &mut TcpStream, lane: LaneId, engine: &mut Engine, now: Time) -> Turn {
    let mut share = SHARE_BYTES;
    loop {
        if share == 0 {
            return Turn::More;
        }
        let sink = engine.sink(lane);
        if sink.is_empty() {
            return Turn::Idle;
        }
        match stream.read(sink) {
            Ok(0) => return Turn::End,
            Ok(n) => {
                share = share.saturating_sub(n);
                engine.received(lane, n, now);
                SHARE.moved(n);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Turn::Blocked,
            Err(e) => return Turn::Broken(e),
        }
    }
}

/// Writes until the engine has nothing more, the socket takes no more, or the share is used up.
pub(super) fn write(stream: &TcpStream, lane: LaneId, engine: &mut Engine, now: Time) -> Turn {
    let mut share = SHARE_BYTES;
    loop {
        if share == 0 {
            return Turn::More;
        }
        let [header, payload] = engine.gather(lane);
        if header.is_empty() && payload.is_empty() {
            return Turn::Idle;
        }
        let parts = [IoSlice::new(header), IoSlice::new(payload)];
        // By way of `try_io`: some systems say that a socket can be written again only if its
        // owner has seen that it could not be.
        match stream.try_io(|| sockopt::send_vectored(stream, &parts)) {
            Ok(n) => {
                share = share.saturating_sub(n);
                engine.sent(lane, n, now);
                SHARE.moved(n);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Turn::Blocked,
            Err(e) => return Turn::Broken(e),
        }
    }
}

/// Bytes of one lane in one turn, in each direction: a segment of the default size, so that no
/// lane waits long for another, and what was read is passed on while more arrives.
pub(super) const SHARE_BYTES: usize = 512 * 1024;
