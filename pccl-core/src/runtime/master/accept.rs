//! Accepts connections and listens to their first words.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::door::Door;
use super::driver::Inbound;
use crate::config::Timing;
use crate::ids::PublicKey;
use crate::runtime::framed::MessageReader;
use crate::runtime::half_open::HalfOpen;
use crate::transport::backoff::Backoff;
use crate::transport::secure::{self, Met, Writing};
use crate::transport::sockopt::{self, Role};
use crate::trap::{self, Trap};
use crate::wire::control::{ControlHello, ControlReply, TicketProof};
use crate::wire::frame::{self, Party, Preamble};
use crate::wire::reason::RefuseReason;

/// A connection that has said its first words.
pub(super) struct Greeted {
    pub(super) remote: SocketAddr,
    pub(super) hello: ControlHello,
    /// Key that it has proven to have, in a run with tickets.
    pub(super) key: Option<PublicKey>,
    pub(super) reader: MessageReader,
    pub(super) writer: Writing,
}

/// Accepts for ever; each connection has the limit of a handshake for its first words. With a door,
/// only who has a ticket, or is a member, gets past it.
pub(super) async fn accept(
    listener: TcpListener,
    timing: Timing,
    door: Option<Arc<Door>>,
    inbound: mpsc::Sender<Inbound>,
) {
    let half_open = HalfOpen::default();
    let places = Arc::new(Semaphore::new(LONG_HELLOS));
    let mut backoff = Backoff::default();
    loop {
        match listener.accept().await {
            Ok((stream, remote)) => {
                trap::pass(Trap::Accept);
                backoff.reset();
                // The same address by whichever family it came.
                let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
                if door
                    .as_ref()
                    .is_some_and(|door| door.bars(remote.ip(), None))
                {
                    tracing::debug!(%remote, "turned away: banned");
                    continue;
                }
                let Some(permit) = half_open.admit(remote.ip()) else {
                    tracing::debug!(%remote, "turned away: too many connections are in their handshake");
                    continue;
                };
                let (inbound, places) = (inbound.clone(), places.clone());
                let door = door.clone();
                tokio::spawn(async move {
                    let entrance = Entrance {
                        timing: &timing,
                        places: &places,
                        door: door.as_deref(),
                        inbound: &inbound,
                    };
                    let greeting = entrance.greet(stream, remote);
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

/// What a connection meets before it is one of a member.
struct Entrance<'e> {
    timing: &'e Timing,
    places: &'e Semaphore,
    door: Option<&'e Door>,
    inbound: &'e mpsc::Sender<Inbound>,
}

impl Entrance<'_> {
    async fn greet(&self, mut stream: TcpStream, remote: SocketAddr) -> Result<Greeted, String> {
        trap::pass(Trap::Greet);
        sockopt::apply(&stream, Role::Control, self.timing);
        let (read, mut writer, met) = match self.door {
            None => {
                let (read, write) = secure::plain(stream);
                (read, write, None)
            }
            Some(door) => {
                if secure::turned_away(&mut stream).await? {
                    return Err("it speaks without TLS".into());
                }
                let (read, write, met) = secure::accept(stream, door.party()).await?;
                (read, write, Some(met))
            }
        };
        let limit = match met {
            Some(_) => frame::PROOF_LIMIT,
            None => frame::CONTROL_HELLO_LIMIT,
        };
        let mut reader = MessageReader::new(read, limit);
        let preamble = match reader.preamble().await? {
            Ok(preamble) => preamble,
            Err(e) => {
                if e.is_tls() {
                    // It learns from this that there is none here.
                    let answer = Preamble::dial(Party::Control).encode();
                    let _ = writer.write_all(&answer).await;
                }
                return Err(e.to_string());
            }
        };
        let (answer, version) = preamble.answer(frame::VERSIONS, Party::Control);
        let sent = writer.write_all(&answer.encode()).await;
        sent.map_err(|e| e.to_string())?;
        version.map_err(|e| e.to_string())?;
        if preamble.party != Party::Control {
            return Err("it looks for a member here".into());
        }
        let mut guest = Guest::default();
        if let (Some(door), Some(met)) = (self.door, met) {
            let proof: TicketProof = reader.message().await?;
            let passed = self.passes(door, met, &proof, remote).await;
            let refusal = match passed {
                Ok(passed) => {
                    guest = passed;
                    None
                }
                Err(refusal) => Some(refusal),
            };
            if let Some(refusal) = refusal {
                refuse(&mut writer, refusal).await;
                // A socket closed with unread input would tell the other end to drop the answer.
                let _ = tokio::time::timeout(LINGER, reader.discard()).await;
                return Err(format!("{:?} shows no valid ticket, or is banned", met.key));
            }
            reader.set_limit(frame::CONTROL_HELLO_LIMIT);
        }
        let hello = reader.first_message(self.places).await;
        let hello = hello.and_then(|hello| self.allows(&guest, met, hello));
        match hello {
            Ok(hello) => {
                reader.set_limit(frame::FRAME_LIMIT);
                Ok(Greeted {
                    remote,
                    hello,
                    key: met.map(|met| met.key),
                    reader,
                    writer,
                })
            }
            Err(what) => {
                refuse(&mut writer, RefuseReason::Malformed { what: what.clone() }).await;
                Err(what)
            }
        }
    }

    /// Whether somebody shows a valid ticket, or has been let in before and is still a member: that
    /// may come back whatever has become of its ticket. Or is the operator.
    async fn passes(
        &self,
        door: &Door,
        met: Met,
        proof: &TicketProof,
        remote: SocketAddr,
    ) -> Result<Guest, RefuseReason> {
        if door.is_operator(&met) {
            return Ok(Guest {
                invitation: None,
                operator: true,
            });
        }
        if door.bars(remote.ip(), Some(met.key)) {
            return Err(RefuseReason::Banned);
        }
        if door.admits(&met, proof) {
            return Ok(Guest {
                invitation: Some(proof.invitation),
                operator: false,
            });
        }
        let (answer, known) = oneshot::channel();
        let asked = self.inbound.send(Inbound::Known(met.key, answer)).await;
        match asked.is_ok() && known.await.unwrap_or(false) {
            true => Ok(Guest::default()),
            false => Err(RefuseReason::Ticket),
        }
    }

    /// Whether somebody who has got past the door may say this.
    fn allows(
        &self,
        guest: &Guest,
        met: Option<Met>,
        hello: ControlHello,
    ) -> Result<ControlHello, String> {
        let (Some(door), Some(met)) = (self.door, met) else {
            return Ok(hello);
        };
        let may = match &hello {
            ControlHello::Register(_) => {
                let enter = |invitation| door.enter(invitation, met.key);
                guest.invitation.is_some_and(enter)
            }
            ControlHello::Admin(_) => guest.operator,
            ControlHello::Status => guest.operator || guest.invitation.is_some(),
            ControlHello::Attach { .. } => true,
        };
        may.then_some(hello)
            .ok_or_else(|| "that takes another ticket, or the file of the master".into())
    }
}

/// Somebody who has got past the door.
#[derive(Default)]
struct Guest {
    /// Which it has shown a valid ticket of.
    invitation: Option<u32>,
    operator: bool,
}

async fn refuse(writer: &mut Writing, reason: RefuseReason) {
    if let Ok(reply) = frame::encode(&ControlReply::Refused(reason), frame::FRAME_LIMIT) {
        // Who is gone is told nothing.
        let _ = writer.write_all(&reply).await;
        let _ = writer.shutdown().await;
    }
}

/// How long the other end may take to read that it was refused.
const LINGER: Duration = Duration::from_secs(1);

/// Long hellos that are read at a time. Together they hold as much as a full house of short ones.
const LONG_HELLOS: usize = 16;
