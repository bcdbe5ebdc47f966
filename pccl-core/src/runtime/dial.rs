//! Dials a master.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::framed::MessageReader;
use super::target::Target;
use crate::config::Timing;
use crate::error::{ConnectPhase, Error, Result, UsageError};
use crate::threads;
use crate::transport::secure::{self, Identity, Writing};
use crate::transport::sockopt::{self, Role};
use crate::wire::control::{AdminRequest, ControlHello, ControlReply, TicketProof};
use crate::wire::frame::{self, Party, Preamble};
use crate::wire::reason::RefuseReason;

/// An open connection, with the master's answer.
pub(super) struct Opened {
    pub(super) reply: ControlReply,
    pub(super) reader: MessageReader,
    pub(super) writer: Writing,
}

/// Dials the master and says `hello`. Takes at most the limit of a handshake for each of: looking
/// up the name, the connection, the handshake.
pub(super) async fn dial(master: &Target, hello: &ControlHello, timing: &Timing) -> Result<Opened> {
    let limit = timing.handshake();
    let failed = |phase: ConnectPhase, cause: String| Error::Unreachable {
        address: master.shown().into(),
        phase,
        cause,
    };
    let addresses = master.resolve(limit).await?;
    let stream = within(limit, connect(addresses)).await;
    let stream = stream.map_err(|e| failed(ConnectPhase::Dial, e))?;
    let opened = within(limit, greet(stream, master, hello, timing)).await;
    opened.map_err(|e| failed(ConnectPhase::Handshake, e))
}

/// Asks a master, at an address or with a ticket, for the status of its run, from a thread without an event loop.
pub(crate) fn ask_status(master: &str) -> Result<String> {
    let target = Target::new(master, Identity::new)?;
    match ask(&target, &ControlHello::Status)? {
        ControlReply::Status(status) => Ok(status),
        ControlReply::Refused(reason) => Err(Error::Refused {
            address: target.shown().into(),
            reason,
        }),
        other => Err(Error::Unreachable {
            address: target.shown().into(),
            phase: ConnectPhase::Handshake,
            cause: format!("it answered with {other:?}"),
        }),
    }
}

/// Asks a master to do something, as its operator.
pub(crate) fn ask_operator(identity: &Path, master: &str, request: AdminRequest) -> Result<String> {
    let unusable = |e: std::io::Error| {
        let why = format!("cannot use {}: {e}", identity.display());
        let name = "identity";
        Error::Usage(UsageError::Argument { name, why })
    };
    let text = std::fs::read_to_string(identity).map_err(unusable)?;
    let own = Identity::from_text(text.lines().next().unwrap_or_default().trim());
    let target = Target::operator(master, own.map_err(unusable)?)?;
    match ask(&target, &ControlHello::Admin(request))? {
        ControlReply::Admin(Ok(said)) => Ok(said),
        ControlReply::Admin(Err(why)) => {
            let name = "request";
            Err(UsageError::Argument { name, why }.into())
        }
        ControlReply::Refused(reason) => Err(Error::Refused {
            address: target.shown().into(),
            reason,
        }),
        other => Err(Error::Unreachable {
            address: target.shown().into(),
            phase: ConnectPhase::Handshake,
            cause: format!("it answered with {other:?}"),
        }),
    }
}

fn ask(target: &Target, hello: &ControlHello) -> Result<ControlReply> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Internal(format!("the system refused an event loop: {e}")))?;
    let opened = runtime.block_on(dial(target, hello, &Timing::default()));
    runtime.shutdown_background();
    opened.map(|opened| opened.reply)
}

/// Addresses that a name stands for, looked up anew each time: a master that moves keeps its name.
pub(super) async fn resolve(master: &str, limit: Duration) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = master.parse() {
        return Ok(vec![address]);
    }
    let found = within(limit, look_up(master.to_owned())).await;
    found.map_err(|cause| Error::Unreachable {
        address: master.into(),
        phase: ConnectPhase::Resolve,
        cause,
    })
}

/// Asks the system, on a thread of its own: that may block for as long as the system likes.
async fn look_up(name: String) -> Result<Vec<SocketAddr>, String> {
    let (say, heard) = oneshot::channel();
    let ask = move || {
        let found = name.to_socket_addrs();
        let found = found.map(|all| all.take(ADDRESSES).collect::<Vec<_>>());
        // Who asked may have given up.
        let _ = say.send(found.map_err(|e| e.to_string()));
    };
    let thread = threads::named("pccl-resolve");
    let thread = thread.and_then(|thread| thread.spawn(ask));
    thread.map_err(|e| e.to_string())?;
    match heard.await {
        Ok(Ok(found)) if found.is_empty() => Err("the name has no address".into()),
        Ok(found) => found,
        Err(e) => Err(e.to_string()),
    }
}

async fn within<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let timed_out = |_| Err(format!("no answer within {limit:?}"));
    let done = tokio::time::timeout(limit, step).await;
    done.unwrap_or_else(timed_out)
}

/// The first connection that opens. Dials start one after the other, a little apart, so that an
/// address family that leads nowhere costs that little and not the whole limit.
async fn connect(addresses: Vec<SocketAddr>) -> Result<TcpStream, String> {
    let mut dials = JoinSet::new();
    for (n, address) in addresses.into_iter().take(ADDRESSES).enumerate() {
        dials.spawn(async move {
            tokio::time::sleep(STAGGER * n as u32).await;
            let stream = TcpStream::connect(address).await;
            stream.map_err(|e| format!("{address}: {e}"))
        });
    }
    let mut causes = Vec::new();
    while let Some(dial) = dials.join_next().await {
        match dial {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(cause)) => causes.push(cause),
            Err(e) => causes.push(e.to_string()),
        }
    }
    Err(causes.join("; "))
}

async fn greet(
    stream: TcpStream,
    master: &Target,
    hello: &ControlHello,
    timing: &Timing,
) -> Result<Opened, String> {
    sockopt::apply(&stream, Role::Control, timing);
    let mut words = Preamble::dial(Party::Control).encode().to_vec();
    let (read, mut writer) = match master.secured() {
        None => secure::plain(stream),
        Some(secured) => {
            let ticket = &secured.ticket;
            let opened = secure::dial(stream, &secured.party, ticket.key);
            let (read, write, met) = opened.await?;
            let proof = TicketProof {
                invitation: ticket.invitation,
                proof: ticket.secret.proof(&met.binding),
            };
            let proof = frame::encode(&proof, frame::PROOF_LIMIT);
            words.extend(proof.map_err(|e| e.to_string())?);
            (read, write)
        }
    };
    let hello = frame::encode(hello, frame::CONTROL_HELLO_LIMIT);
    words.extend(hello.map_err(|e| e.to_string())?);
    let sent = writer.write_all(&words).await;
    sent.map_err(|e| e.to_string())?;
    let mut reader = MessageReader::new(read, frame::FRAME_LIMIT);
    let answer = reader.preamble().await?.map_err(|e| e.to_string())?;
    answer.chosen(frame::VERSIONS).map_err(|e| e.to_string())?;
    let reply = match answer.party {
        Party::Control => reader.message().await?,
        Party::Secured => ControlReply::Refused(RefuseReason::Ticket),
        Party::Peer => return Err("it is no master, but a member of a run".into()),
    };
    Ok(Opened {
        reply,
        reader,
        writer,
    })
}

/// Addresses of one name that are dialled.
const ADDRESSES: usize = 16;

/// Time between the starts of two dials.
const STAGGER: Duration = Duration::from_millis(200);
