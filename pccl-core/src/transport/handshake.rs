//! First words on a connection between members, on either side.
//!
//! Whoever dials sends preamble and hello in one write and then waits; whoever accepts answers the
//! preamble at once and the hello once the dialler is known. Neither side reads a byte beyond the
//! handshake, so that what follows belongs to the connection's owner.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, timeout_at};

use super::channel::Channel;
use super::secure::Party as Own;
use super::sockopt::{self, Role};
use crate::config::Timing;
use crate::error::DialFailure;
use crate::ids::{MemberId, RunId, Token};
use crate::wire::control::MemberInfo;
use crate::wire::frame::{
    self, Decoder, PEER_HELLO_LIMIT, PREAMBLE_BYTES, Party, Preamble, VERSIONS,
};
use crate::wire::lane::{PeerHello, PeerRefusal, PeerReply, Purpose};

/// Whom to dial, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    /// Whom, where, and what it must prove itself with.
    pub(crate) peer: MemberInfo,
    /// The run that it must be in.
    pub(crate) run: RunId,
    /// Own number.
    pub(crate) own: MemberId,
    /// Own proof.
    pub(crate) token: Token,
    /// What for.
    pub(crate) purpose: Purpose,
    /// Who speaks TLS, in a run with tickets.
    pub(crate) party: Option<Arc<Own>>,
}

/// A connection that was dialled and welcomed.
#[derive(Debug)]
pub(crate) struct Dialled {
    /// Nothing has been read from it beyond the handshake.
    pub(crate) channel: Channel,
    /// Where the member answered.
    pub(crate) address: SocketAddr,
    /// Connections per edge that the other end wants; zero: as many as the path can use.
    pub(crate) wanted: u16,
    /// How long it took to open.
    pub(crate) round_trip: Duration,
}

/// Why a member could not be dialled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DialError {
    /// Each address with what it said.
    pub(crate) failure: DialFailure,
    /// What the member itself said, if it answered.
    pub(crate) refusal: Option<PeerRefusal>,
}

impl std::fmt::Display for DialError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.failure.attempts.is_empty() {
            return f.write_str("it has no address");
        }
        for (i, (address, cause)) in self.failure.attempts.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{address}: {cause}")?;
        }
        Ok(())
    }
}

/// Dials a member at its addresses in turn, each with an equal share of the time that is left,
/// until the member itself has answered.
pub(crate) async fn dial(
    dial: &Dial,
    deadline: Instant,
    timing: &Timing,
) -> Result<Dialled, DialError> {
    let addresses = dial.peer.addresses.iter().take(ADDRESS_LIMIT);
    let mut left = addresses.len() as u32;
    let mut error = DialError {
        failure: DialFailure {
            peer: dial.peer.id,
            attempts: Vec::new(),
        },
        refusal: None,
    };
    for &address in addresses {
        let now = Instant::now();
        let share = now + deadline.saturating_duration_since(now) / left;
        left -= 1;
        match attempt(dial, address, share, deadline, timing).await {
            Ok(dialled) => return Ok(dialled),
            Err(No::Refused(refusal)) => {
                error.failure.attempts.push((address, said(refusal).into()));
                error.refusal = Some(refusal);
                // Somebody else at that address says nothing about the member; its own word does.
                if refusal != PeerRefusal::NotMe {
                    break;
                }
            }
            Err(No::Failed(cause)) => error.failure.attempts.push((address, cause)),
        }
    }
    Err(error)
}

/// Takes the hello of a dialler, and answers its preamble. The error is for people.
pub(crate) async fn hear(channel: &mut Channel) -> Result<PeerHello, String> {
    let mut bytes = [0; PREAMBLE_BYTES];
    channel.read_exact(&mut bytes).await?;
    let preamble = match Preamble::decode(&bytes) {
        Ok(preamble) => preamble,
        Err(e) => {
            if e.is_tls() {
                // It learns from this that there is none here.
                let answer = Preamble::dial(Party::Peer).encode();
                let _ = channel.write_all(&answer).await;
            }
            return Err(e.to_string());
        }
    };
    let (answer, chosen) = preamble.answer(VERSIONS, Party::Peer);
    channel.write_all(&answer.encode()).await?;
    chosen.map_err(|e| e.to_string())?;
    if preamble.party != Party::Peer {
        return Err("it takes this member for a master".into());
    }
    message(channel).await
}

/// Answers a hello. What the socket says is of no interest: a dialler that is gone is told
/// nothing, and one that is there finds out by itself.
pub(crate) async fn answer(channel: &mut Channel, reply: &PeerReply) -> Result<(), String> {
    let frame = frame::encode(reply, PEER_HELLO_LIMIT).map_err(|e| e.to_string())?;
    let deadline = Instant::now() + ANSWER_LIMIT;
    match timeout_at(deadline, channel.write_all(&frame)).await {
        Ok(written) => written,
        Err(_) => Err("it takes no answer".into()),
    }
}

/// Why one address gave no connection.
enum No {
    Refused(PeerRefusal),
    Failed(String),
}

impl From<String> for No {
    fn from(cause: String) -> Self {
        Self::Failed(cause)
    }
}

/// One address: until `share` it must connect and speak the protocol; the reply to the hello may
/// take until `deadline`, since the other end may have to wait for the master's word first.
async fn attempt(
    dial: &Dial,
    address: SocketAddr,
    share: Instant,
    deadline: Instant,
    timing: &Timing,
) -> Result<Dialled, No> {
    let started = Instant::now();
    let connecting = timeout_at(share, TcpStream::connect(address)).await;
    let stream = match connecting {
        Err(_) => {
            return Err(No::Failed(
                "no answer to the connection attempt in time".into(),
            ));
        }
        Ok(Err(e)) => return Err(No::Failed(e.to_string())),
        Ok(Ok(stream)) => stream,
    };
    // A port without a listener in the range that the system gives to diallers can be met by the
    // own attempt.
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        return Err(No::Failed(
            "the connection met itself: nobody listens there".into(),
        ));
    }
    let round_trip = started.elapsed();
    sockopt::apply(&stream, Role::Bulk, timing);
    sockopt::fit(&stream, round_trip);
    let opening = async {
        let mut channel = Channel::dial(stream, dial.party.as_deref(), dial.peer.key).await?;
        let hello = PeerHello {
            run: dial.run,
            from: dial.own,
            to: dial.peer.id,
            token: dial.token,
            purpose: dial.purpose,
            round_trip: u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX),
        };
        let mut first = Preamble::dial(Party::Peer).encode().to_vec();
        let frame = frame::encode(&hello, PEER_HELLO_LIMIT).map_err(|e| e.to_string())?;
        first.extend_from_slice(&frame);
        channel.write_all(&first).await?;
        let mut bytes = [0; PREAMBLE_BYTES];
        channel.read_exact(&mut bytes).await?;
        let preamble = Preamble::decode(&bytes).map_err(|e| e.to_string())?;
        preamble.chosen(VERSIONS).map_err(|e| e.to_string())?;
        match preamble.party {
            Party::Peer => Ok(channel),
            Party::Control => Err("a master answers there".to_owned()),
            Party::Secured => Err("it speaks inside TLS only, in a run with tickets".to_owned()),
        }
    };
    let mut channel = match timeout_at(share, opening).await {
        Ok(opened) => opened?,
        Err(_) => return Err(No::Failed("connected, but no word in time".into())),
    };
    match timeout_at(deadline, message(&mut channel)).await {
        Err(_) => Err(No::Failed("it did not answer the hello in time".into())),
        Ok(Err(cause)) => Err(No::Failed(cause)),
        Ok(Ok(PeerReply::Refused { reason })) => Err(No::Refused(reason)),
        Ok(Ok(PeerReply::Welcome { token, wanted })) => {
            if token != dial.peer.token {
                return Err(No::Failed(
                    "it could not prove that it is the member".into(),
                ));
            }
            Ok(Dialled {
                channel,
                address,
                wanted,
                round_trip,
            })
        }
    }
}

/// One message, and not a byte more.
async fn message<T: serde::de::DeserializeOwned>(channel: &mut Channel) -> Result<T, String> {
    let mut decoder = Decoder::new(PEER_HELLO_LIMIT);
    let mut chunk = [0; 512];
    loop {
        if let Some(message) = decoder.message().map_err(|e| e.to_string())? {
            return Ok(message);
        }
        let want = decoder.missing().min(chunk.len());
        let Some(part) = chunk.get_mut(..want) else {
            return Err("a frame without an end".into());
        };
        channel.read_exact(part).await?;
        decoder.feed(part);
    }
}

fn said(refusal: PeerRefusal) -> &'static str {
    match refusal {
        PeerRefusal::NotMe => "another member, or another run, is there",
        PeerRefusal::Unknown => "it does not know this member",
        PeerRefusal::TooMany => "it has enough connections",
        PeerRefusal::NoSync => "it has no synchronisation open that this member may read from",
    }
}

/// Addresses of one member that are tried. More than any host has, few enough that each share of
/// the time is of use.
const ADDRESS_LIMIT: usize = 16;

/// A reply of a few bytes goes into an empty socket at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
