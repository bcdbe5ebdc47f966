//! Connections between members, until the data thread has them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant};

use super::driver::{Inbound, broken};
use crate::config::Timing;
use crate::ids::{LaneId, MemberId};
use crate::membership::peer::PeerInput;
use crate::runtime::tasks;
use crate::transport::admission::Admission;
use crate::transport::channel::Channel;
use crate::transport::handshake::{self, Dial};
use crate::transport::listener::{Accepted, Gate, Listener};
use crate::transport::secure::Party;
use crate::transport::slots::Slot;
use crate::trap::{self, Trap};
use crate::wire::lane::Purpose;

/// A connection whose handshake is over.
pub(super) struct Opened {
    /// The membership that it was opened under, if it is known; of an earlier one it is of no use
    /// any more.
    membership: Option<u64>,
    pub(super) channel: Channel,
    pub(super) peer: MemberId,
    pub(super) dialled: bool,
    /// Where it was dialled, or comes from.
    pub(super) address: SocketAddr,
    /// Connections per edge that the other end wants; zero: as many as the path can use.
    pub(super) wanted: u16,
    /// How long it took to open, by the dialler's word.
    pub(super) round_trip: Duration,
    slot: Option<Slot>,
}

/// Dials, the admission table, and the numbers of lanes.
pub(super) struct Lanes {
    inbound: mpsc::UnboundedSender<Inbound>,
    admission: watch::Sender<Admission>,
    wanted: u16,
    party: Option<Arc<Party>>,
    membership: u64,
    last_lane: u64,
    dials: Vec<AbortHandle>,
    /// Where members of this membership have answered: dialled first the next time.
    answered: BTreeMap<MemberId, SocketAddr>,
    /// Lanes that the data thread has, each with its place among the accepted ones.
    open: BTreeMap<LaneId, Option<Slot>>,
}

impl Lanes {
    /// With a party, all connections are inside TLS.
    pub(super) fn new(
        inbound: mpsc::UnboundedSender<Inbound>,
        wanted: u16,
        party: Option<Arc<Party>>,
    ) -> Self {
        Self {
            inbound,
            admission: watch::Sender::default(),
            wanted,
            party,
            membership: 0,
            last_lane: 0,
            dials: Vec::new(),
            answered: BTreeMap::new(),
            open: BTreeMap::new(),
        }
    }

    /// Accepts from now on whom the admission table knows.
    pub(super) fn listen(&self, listener: Listener, timing: Timing) {
        let gate = Gate::new(self.admission.subscribe(), self.wanted, timing);
        let gate = gate.secured(self.party.clone());
        let (accepted, mut inbox) = mpsc::channel(ACCEPTED);
        let broken = |task| broken(&self.inbound, task);
        tasks::spawn(listener.run(gate, accepted), broken("accepting members"));
        let inbound = self.inbound.clone();
        let hand_over = async move {
            while let Some(connection) = inbox.recv().await {
                if inbound.send(Inbound::Accepted(connection)).is_err() {
                    return;
                }
            }
        };
        tasks::spawn(hand_over, broken("handing over what was accepted"));
    }

    /// A connection that was accepted and is for data.
    pub(super) fn accepted(&self, accepted: Accepted, wanted: u16) -> Opened {
        let Accepted {
            channel,
            remote,
            hello,
            slot,
        } = accepted;
        // It may have been let in just before this member left the run that it was for.
        let own = self.admission.borrow().own;
        let current = own.is_some_and(|(run, ..)| run == hello.run);
        Opened {
            membership: current.then_some(self.membership),
            channel,
            peer: hello.from,
            dialled: false,
            address: remote,
            wanted,
            round_trip: Duration::from_micros(hello.round_trip.into()),
            slot: Some(slot),
        }
    }

    /// Replaces the admission table.
    pub(super) fn admit(&self, admission: Admission) {
        self.admission
            .send_modify(|table| *table = admission.after(table));
    }

    /// Dials a member for data, in the background.
    pub(super) fn dial(&mut self, mut dial: Dial, timing: Timing) {
        if let Some(answered) = self.answered.get(&dial.peer.id) {
            // Sorting keeps the order of the others.
            dial.peer
                .addresses
                .sort_by_key(|address| address != answered);
        }
        let (inbound, membership) = (self.inbound.clone(), self.membership);
        let addresses = dial.peer.addresses.len().max(1) as u32;
        let deadline = Instant::now() + timing.handshake() * addresses.min(MOST_SHARES);
        let dial = async move {
            trap::pass(Trap::DialMember);
            let peer = dial.peer.id;
            let message = match handshake::dial(&dial, deadline, &timing).await {
                Ok(dialled) => Inbound::Lane(Opened {
                    membership: Some(membership),
                    channel: dialled.channel,
                    peer,
                    dialled: true,
                    address: dialled.address,
                    wanted: dialled.wanted,
                    round_trip: dialled.round_trip,
                    slot: None,
                }),
                Err(error) => Inbound::Input(PeerInput::DialFailed {
                    peer,
                    cause: error.to_string(),
                    refusal: error.refusal,
                }),
            };
            let _ = inbound.send(message);
        };
        let task = tasks::spawn(dial, broken(&self.inbound, "dialling a member"));
        self.dials.retain(|dial| !dial.is_finished());
        self.dials.push(task.abort_handle());
    }

    /// Who speaks TLS, in a run with tickets.
    pub(super) fn party(&self) -> Option<Arc<Party>> {
        self.party.clone()
    }

    /// Purpose of connections that carry data.
    pub(super) fn purpose(&self) -> Purpose {
        Purpose::Lane {
            wanted: self.wanted,
        }
    }

    /// Gives a lane its number; none if it is of an earlier membership.
    pub(super) fn register(&mut self, opened: &mut Opened) -> Option<LaneId> {
        if opened.membership != Some(self.membership) {
            return None;
        }
        if opened.dialled {
            let answered = self.answered.insert(opened.peer, opened.address);
            if answered != Some(opened.address) {
                let (peer, address) = (opened.peer, opened.address);
                tracing::debug!(target: "pccl::peer", %peer, %address, "reached a member");
            }
        }
        self.last_lane += 1;
        let lane = LaneId(self.last_lane);
        self.open.insert(lane, opened.slot.take());
        Some(lane)
    }

    /// A lane has closed.
    pub(super) fn closed(&mut self, lane: LaneId) {
        self.open.remove(&lane);
    }

    /// Whether the data thread has lanes.
    pub(super) fn any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Lanes that the data thread has not said to be closed.
    pub(super) fn take_open(&mut self) -> Vec<LaneId> {
        std::mem::take(&mut self.open).into_keys().collect()
    }

    /// The membership has ended, or another one begins: nobody is let in until the machine says
    /// whom, and dials under way are called off.
    pub(super) fn new_membership(&mut self) {
        self.membership += 1;
        self.answered.clear();
        self.admission.send_replace(Admission::default());
        for dial in self.dials.drain(..) {
            dial.abort();
        }
    }
}

/// Connections past their handshake and not yet taken.
const ACCEPTED: usize = 64;

/// A member with very many addresses is not dialled for longer than this many handshakes.
const MOST_SHARES: u32 = 8;
