//! The one port that other members dial.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Duration, Instant, timeout_at};

use super::admission::{self, Admission};
use super::backoff::Backoff;
use super::channel::Channel;
use super::handshake;
use super::secure::Party;
use super::slots::{Slot, Slots};
use super::sockopt::{self, Role};
use crate::config::Timing;
use crate::ids::MemberId;
use crate::trap::{self, Trap};
use crate::wire::lane::{PeerHello, PeerRefusal, PeerReply, Purpose};

/// What every handshake of a listener needs.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    /// Who is let in.
    pub(crate) admission: watch::Receiver<Admission>,
    /// Connections per edge that this member wants.
    pub(crate) wanted: u16,
    /// Limits in time.
    pub(crate) timing: Timing,
    /// Room for lanes.
    pub(crate) lanes: Slots,
    /// Room for readers of state.
    pub(crate) readers: Slots,
    /// Who speaks TLS, in a run with tickets.
    pub(crate) party: Option<Arc<Party>>,
}

impl Gate {
    /// A gate with the usual room.
    pub(crate) fn new(admission: watch::Receiver<Admission>, wanted: u16, timing: Timing) -> Self {
        Self {
            admission,
            wanted,
            timing,
            lanes: Slots::new(LANES_PER_EDGE, LANES),
            readers: Slots::new(READERS_PER_MEMBER, READERS),
            party: None,
        }
    }

    /// The same gate, passed inside TLS only.
    pub(crate) fn secured(self, party: Option<Arc<Party>>) -> Self {
        Self { party, ..self }
    }
}

/// A connection that was accepted and welcomed.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// Nothing has been read from it beyond the handshake.
    pub(crate) channel: Channel,
    /// Where it comes from.
    pub(crate) remote: SocketAddr,
    /// What it said; its proof has been checked.
    pub(crate) hello: PeerHello,
    /// To be kept as long as the connection.
    pub(crate) slot: Slot,
}

/// A listening port.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: tokio::net::TcpListener,
}

impl Listener {
    /// Listens; port zero lets the system choose one. Needs a runtime around it.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = tokio::net::TcpListener::from_std(sockopt::listen(address)?)?;
        Ok(Self { socket })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Accepts until dropped, or until nobody takes what it accepts.
    pub(crate) async fn run(self, gate: Gate, accepted: mpsc::Sender<Accepted>) {
        let mut half_open = HalfOpen::default();
        let mut backoff = Backoff::default();
        loop {
            tokio::select! {
                connection = self.socket.accept() => match connection {
                    Ok((stream, remote)) => {
                        // The same address by whichever family it came.
                        let remote = SocketAddr::new(remote.ip().to_canonical(), remote.port());
                        trap::pass(Trap::Listener);
                        backoff.reset();
                        half_open.start(stream, remote, &gate, &accepted);
                    }
                    Err(e) => {
                        // Out of descriptors, mostly: the connection stays in the system's queue,
                        // and the next accept would fail in the same way at once.
                        let wait = backoff.next();
                        tracing::warn!(
                            target: "pccl::peer",
                            cause = %e,
                            ?wait,
                            "cannot accept connections"
                        );
                        tokio::time::sleep(wait).await;
                    }
                },
                Some(ended) = half_open.tasks.join_next() => half_open.end(ended.ok()),
                () = accepted.closed() => return,
            }
        }
    }
}

/// Handshakes in progress, in the order in which they began.
#[derive(Default)]
struct HalfOpen {
    tasks: JoinSet<u64>,
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

struct Entry {
    source: IpAddr,
    /// Whether it has said hello, and waits for a table that knows it.
    greeted: Arc<AtomicBool>,
    task: AbortHandle,
}

impl HalfOpen {
    fn start(
        &mut self,
        stream: TcpStream,
        remote: SocketAddr,
        gate: &Gate,
        accepted: &mpsc::Sender<Accepted>,
    ) {
        let source = remote.ip();
        let same = self.entries.values().filter(|e| e.source == source);
        if same.count() >= HALF_OPEN_PER_SOURCE {
            self.make_room(|e| e.source == source);
        } else if self.entries.len() >= HALF_OPEN {
            self.make_room(|_| true);
        }
        let number = self.next;
        self.next += 1;
        let greeted = Arc::new(AtomicBool::new(false));
        let handshake = shake(
            stream,
            remote,
            gate.clone(),
            greeted.clone(),
            accepted.clone(),
        );
        let task = self.tasks.spawn(async move {
            handshake.await;
            number
        });
        self.entries.insert(
            number,
            Entry {
                source,
                greeted,
                task,
            },
        );
    }

    /// Ends the oldest silent handshake, or the oldest if all have spoken.
    fn make_room(&mut self, among: impl Fn(&Entry) -> bool) {
        let mut candidates = self.entries.iter().filter(|(_, e)| among(e));
        let oldest = candidates.next().map(|(n, _)| *n);
        let silent = |(_, e): &(&u64, &Entry)| !e.greeted.load(Ordering::Relaxed);
        let mut candidates = self.entries.iter().filter(|(_, e)| among(e));
        let victim = candidates.find(silent).map(|(n, _)| *n).or(oldest);
        if let Some(entry) = victim.and_then(|n| self.entries.remove(&n)) {
            entry.task.abort();
        }
    }

    /// An aborted task does not say its number; its entry went when it was aborted.
    fn end(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.entries.remove(&number);
        }
    }
}

/// One handshake, from the first byte to the hand-over.
async fn shake(
    stream: TcpStream,
    remote: SocketAddr,
    mut gate: Gate,
    greeted: Arc<AtomicBool>,
    accepted: mpsc::Sender<Accepted>,
) {
    let deadline = Instant::now() + gate.timing.handshake();
    sockopt::apply(&stream, Role::Bulk, &gate.timing);
    let opening = async {
        let mut channel = Channel::accept(stream, gate.party.as_deref()).await?;
        let hello = handshake::hear(&mut channel).await?;
        Ok::<_, String>((channel, hello))
    };
    let (mut channel, hello) = match timeout_at(deadline, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(cause)) => {
            tracing::debug!(target: "pccl::peer", %remote, cause, "handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!(target: "pccl::peer", %remote, "no hello in time");
            return;
        }
    };
    greeted.store(true, Ordering::Relaxed);
    sockopt::fit(
        channel.stream(),
        Duration::from_micros(hello.round_trip.into()),
    );
    let slots = match hello.purpose {
        Purpose::Lane { .. } => &gate.lanes,
        Purpose::State => &gate.readers,
    };
    let key = channel.key();
    let admitted = admission::admit(&mut gate.admission, &hello, key, deadline).await;
    let (reply, slot) = match admitted.map(|token| (token, slots.take(hello.from))) {
        Ok((token, Some(slot))) => {
            let wanted = gate.wanted;
            (PeerReply::Welcome { token, wanted }, Some(slot))
        }
        Ok((_, None)) => {
            let reason = PeerRefusal::TooMany;
            (PeerReply::Refused { reason }, None)
        }
        Err(reason) => (PeerReply::Refused { reason }, None),
    };
    let answered = handshake::answer(&mut channel, &reply).await;
    match (answered, slot) {
        (Ok(()), Some(slot)) => {
            let connection = Accepted {
                channel,
                remote,
                hello,
                slot,
            };
            // Nobody takes it only when the communicator is ending.
            let _ = accepted.send(connection).await;
        }
        (answered, _) => {
            let from: MemberId = hello.from;
            tracing::debug!(target: "pccl::peer", %remote, %from, ?reply, ?answered, "connection turned down");
        }
    }
}

/// Handshakes in progress: whoever dials has sent nothing that proves anything yet.
const HALF_OPEN: usize = 64;

/// Of these from one address, so that one address cannot shut out the others.
const HALF_OPEN_PER_SOURCE: usize = 16;

/// Lanes of one edge: the most that a user can ask for.
const LANES_PER_EDGE: usize = 64;

/// Lanes that others have dialled, in all; twice this must fit into the usual limit of descriptors
/// of a large host.
const LANES: usize = 2048;

/// Connections of one reader of state: one, and one that has died without a word.
const READERS_PER_MEMBER: usize = 2;

/// Readers of state at a time; more wait their turn at other seeders.
pub(crate) const READERS: usize = 64;

#[cfg(test)]
mod tests;
