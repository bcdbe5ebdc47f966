//! Accepts connections and listens to their first words.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use super::driver::Inbound;
use crate::config::Timing;
use crate::runtime::framed::MessageReader;
use crate::runtime::half_open::HalfOpen;
use crate::transport::backoff::Backoff;
use crate::transport::sockopt::{self, Role};
use crate::trap::{self, Trap};
use crate::wire::control::{ControlHello, ControlReply};
use crate::wire::frame::{self, Party};
use crate::wire::reason::RefuseReason;

/// A connection that has said its first words.
pub(super) struct Greeted {
    pub(super) remote: SocketAddr,
    pub(super) hello: ControlHello,
    pub(super) reader: MessageReader,
    pub(super) writer: OwnedWriteHalf,
}

/// Accepts for ever; each connection has the limit of a handshake for its first words.
pub(super) async fn accept(listener: TcpListener, timing: Timing, inbound: mpsc::Sender<Inbound>) {
    let half_open = HalfOpen::default();
    let places = Arc::new(Semaphore::new(LONG_HELLOS));
    let mut backoff = Backoff::default();
    loop {
        match listener.accept().await {
            Ok((stream, remote)) => {
                trap::pass(Trap::Accept);
                backoff.reset();
                let Some(permit) = half_open.admit(remote.ip()) else {
                    tracing::debug!(%remote, "turned away: too many connections are in their handshake");
                    continue;
                };
                let (inbound, places) = (inbound.clone(), places.clone());
                tokio::spawn(async move {
                    let greeting = greet(stream, remote, &timing, &places);
                    let greeted = tokio::time::timeout(timing.handshake(), greeting).await;
                    drop(permit);
                    match greeted {
                        Ok(Ok(greeted)) => {
                            let _ = inbound.send(Inbound::Greeted(greeted)).await;
                        }
                        Ok(Err(cause)) => {
                            tracing::debug!(%remote, phase = "handshake", %cause, "turned away");
                        }
                        Err(_) => {
                            let cause = "silent for too long";
                            tracing::debug!(%remote, phase = "handshake", cause, "turned away");
                        }
                    }
                });
            }
            Err(cause) => {
                // Out of descriptors, mostly: those who wait stay in the system's queue.
                tracing::warn!(phase = "accept", %cause, "cannot accept connections");
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

async fn greet(
    stream: TcpStream,
    remote: SocketAddr,
    timing: &Timing,
    places: &Semaphore,
) -> Result<Greeted, String> {
    trap::pass(Trap::Greet);
    sockopt::apply(&stream, Role::Control, timing);
    let (read, mut writer) = stream.into_split();
    let mut reader = MessageReader::new(read, frame::CONTROL_HELLO_LIMIT);
    let preamble = reader.preamble().await?;
    let (answer, version) = preamble.answer(frame::VERSIONS, Party::Control);
    let sent = writer.write_all(&answer.encode()).await;
    sent.map_err(|e| e.to_string())?;
    version.map_err(|e| e.to_string())?;
    if preamble.party != Party::Control {
        return Err("it looks for a member here".into());
    }
    match reader.first_message(places).await {
        Ok(hello) => {
            reader.set_limit(frame::FRAME_LIMIT);
            Ok(Greeted {
                remote,
                hello,
                reader,
                writer,
            })
        }
        Err(what) => {
            let reason = RefuseReason::Malformed { what: what.clone() };
            let reply = ControlReply::Refused(reason);
            if let Ok(reply) = frame::encode(&reply, frame::FRAME_LIMIT) {
                let _ = writer.write_all(&reply).await;
            }
            Err(what)
        }
    }
}

/// Long hellos that are read at a time. Together they hold as much as a full house of short ones.
const LONG_HELLOS: usize = 16;
