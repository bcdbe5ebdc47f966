//! TLS 1.3 on every connection of a run with tickets.
//!
//! Both ends show a key of their own (Ed25519, as a raw public key: there are no certificates) and
//! prove to hold its other half. Who dials knows which key it must meet: the master's from the
//! ticket, a member's from the master. Who accepts learns a key, and asks afterwards whose it is.
//! Nothing that was said before ever helps: no resumption, no early data.

mod control;
mod identity;
mod party;
mod session;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) use control::{Met, Reading, Writing, accept, dial, plain};
pub(crate) use identity::{Identity, keep};
pub(crate) use party::Party;
pub(crate) use session::{Heard, Room, Session};

use crate::wire::frame::{self, PREAMBLE_BYTES, Party as Purpose, Preamble};

/// Most bytes that either end takes before it knows the other's key. A handshake between two of
/// this library has some 700.
const HANDSHAKE_LIMIT: usize = 4 * 1024;

/// Reads of what somebody says who has been turned away.
const DISCARDED: usize = 64;

/// To somebody who speaks without TLS where only TLS is spoken: says so, so that people learn what is
/// wrong. Returns whether it was one.
pub(crate) async fn turned_away(stream: &mut TcpStream) -> Result<bool, String> {
    let mut first = [0];
    let peeked = stream.peek(&mut first).await.map_err(|e| e.to_string())?;
    if peeked == 0 {
        return Err("it closed the connection during the handshake".into());
    }
    if frame::MAGIC.first() != first.first() {
        return Ok(false);
    }
    let mut bytes = [0; PREAMBLE_BYTES];
    let read = stream.read_exact(&mut bytes).await;
    read.map_err(|e| e.to_string())?;
    let preamble = Preamble::decode(&bytes).map_err(|e| e.to_string())?;
    let (answer, _) = preamble.answer(frame::VERSIONS, Purpose::Secured);
    let written = stream.write_all(&answer.encode()).await;
    written.map_err(|e| e.to_string())?;
    // A socket closed with unread input would tell the other end to drop the answer.
    let _ = stream.shutdown().await;
    let mut rest = [0; 1024];
    for _ in 0..DISCARDED {
        match stream.read(&mut rest).await {
            Ok(1..) => {}
            _ => break,
        }
    }
    Ok(true)
}

/// What the first bytes of an answer to TLS mean, if they are no TLS.
fn no_tls(bytes: &[u8]) -> Option<String> {
    bytes
        .starts_with(&frame::MAGIC)
        .then(|| "whoever is there speaks without TLS, in a run without tickets".to_owned())
}

#[cfg(test)]
mod tests;
