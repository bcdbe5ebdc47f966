//! The master machine: who is a member, and how operations and unanimous calls end.
//!
//! One file per round or phase. What a message costs grows with the members that it concerns;
//! only rounds and losses look at all of them.

mod admission;
mod contradiction;
mod edges;
mod groups;
mod heartbeat;
mod hello;
mod io;
mod loss;
mod members;
mod operations;
mod status;
mod sync;
#[cfg(test)]
mod tests;
mod timers;
mod uses;
mod votes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use edges::Edges;
use groups::{Group, World};
use members::{Departed, Node};
use timers::{Timer, Timers};
use votes::Votes;

use crate::config::MasterConfig;
use crate::event::Event;
use crate::ids::{ConnId, Incarnation, MemberId, PeerGroup, PublicKey, RunId, Serial, Time, Token};
use crate::types::UnanimousCall;
use crate::wire::control::{ControlReply, Down, Up};
use crate::wire::reason::{EvictReason, RefuseReason};

pub use io::{MasterInput, MasterOutput};
pub use status::{GroupStatus, MasterStatus, MemberStatus};

/// Most members that a reason or a warning names: what people can read, and what keeps messages
/// small in large groups.
const NAMED: usize = 64;

/// The master of a run. See [`crate::membership`] for how it is driven.
#[derive(Debug)]
pub struct Master {
    config: MasterConfig,
    run: RunId,
    incarnation: Incarnation,
    random: u64,
    /// Time of the event that is being handled.
    now: Time,
    /// Arithmetic version of the run: that of its first peer.
    arithmetic: Option<u32>,
    last_id: u64,
    last_use: u64,
    last_verdict: u64,
    nodes: BTreeMap<MemberId, Node>,
    connections: BTreeMap<ConnId, MemberId>,
    departed: Departed,
    groups: BTreeMap<PeerGroup, Group>,
    world: World,
    edges: Edges,
    /// Newcomers that have a plan and a connection.
    pending: BTreeSet<MemberId>,
    /// Who is to be told anew whom to expect.
    touched: BTreeSet<MemberId>,
    votes: Votes,
    timers: Timers,
    outputs: VecDeque<MasterOutput>,
    ended: bool,
    /// Until when whoever goes away has the peer time-out to come back, whatever others report: this
    /// process stood still, and many come back at once.
    patient_until: Option<Time>,
}

impl Master {
    /// A master that has decided nothing yet. `seed` makes the tokens: it must be random where
    /// strangers can reach the peers.
    pub fn new(
        config: MasterConfig,
        run: RunId,
        incarnation: Incarnation,
        seed: u64,
        now: Time,
    ) -> Self {
        Self {
            config,
            run,
            incarnation,
            random: seed,
            now,
            arithmetic: None,
            last_id: 0,
            last_use: 0,
            last_verdict: 0,
            nodes: BTreeMap::new(),
            connections: BTreeMap::new(),
            departed: Departed::default(),
            groups: BTreeMap::new(),
            world: World::default(),
            edges: Edges::default(),
            pending: BTreeSet::new(),
            touched: BTreeSet::new(),
            votes: Votes::default(),
            timers: Timers::default(),
            outputs: VecDeque::new(),
            ended: false,
            patient_until: None,
        }
    }

    /// Takes an event in.
    pub fn handle(&mut self, input: MasterInput, now: Time) {
        self.now = self.now.max(now);
        if self.ended {
            if let MasterInput::Hello { conn, .. } = input {
                self.reply_and_close(conn, ControlReply::Refused(RefuseReason::Stopping));
            }
            return;
        }
        self.notice_gap();
        match input {
            MasterInput::Hello {
                conn,
                remote,
                hello,
                key,
            } => self.hello(conn, remote, hello, key),
            MasterInput::Message { conn, message } => {
                if let Some(id) = self.connections.get(&conn).copied() {
                    self.alive(id);
                    self.message(id, message);
                }
            }
            MasterInput::Closed { conn, cause } => self.closed(conn, cause),
            MasterInput::Tick => self.tick(),
            MasterInput::Evict { member } => self.evict(member, EvictReason::Operator),
            MasterInput::Stop => self.stop(),
        }
        // Nobody is left to vote for those that wait. (Rule 15)
        if self.world.members == 0 && !self.pending.is_empty() && !self.ended {
            self.complete_round(UnanimousCall::UpdateTopology);
        }
        self.expect_touched();
    }

    /// Whether a member, or a newcomer, has this key.
    pub fn knows(&self, key: PublicKey) -> bool {
        self.nodes.values().any(|node| node.key == Some(key))
    }

    /// Members and newcomers, with the address that each was last seen at and its key.
    pub fn who(&self) -> impl Iterator<Item = (MemberId, IpAddr, Option<PublicKey>)> {
        let who = self.nodes.iter();
        who.map(|(id, node)| (*id, node.seen_at(), node.key))
    }

    /// The next thing to do, in order.
    pub fn poll_output(&mut self) -> Option<MasterOutput> {
        self.outputs.pop_front()
    }

    /// When [`MasterInput::Tick`] is due at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    fn message(&mut self, id: MemberId, message: Up) {
        let accepted = self.nodes.get(&id).is_some_and(|node| node.accepted);
        match message {
            Up::Heartbeat { quoted, heard } => self.heartbeat(id, quoted, &heard),
            Up::LanesClosed { peer, cause: _ } => self.lanes_closed(id, peer),
            Up::LanesOpen { peer } => self.lanes_open(id, peer),
            Up::CannotDial { peer, cause } => self.cannot_dial(id, peer, cause),
            Up::Leave => self.leave(id),
            Up::Pong => self.ponged(id),
            Up::Open(_) | Up::Done(_) | Up::AbortRequest(_) | Up::Vote(_) | Up::Withdraw { .. }
                if !accepted =>
            {
                self.protocol(id, "an operation or a vote before its admission");
            }
            Up::Open(open) => self.open(id, open),
            Up::Done(done) => self.done(id, done),
            Up::AbortRequest(request) => self.abort_request(id, request),
            Up::Vote(vote) => self.vote(id, vote),
            Up::Withdraw { vote, cause } => self.withdraw(id, vote, cause),
        }
    }

    fn tick(&mut self) {
        // Each deadline that fires sets its next one later than now, so this ends; the limit
        // guards against a slip there.
        for _ in 0..=self.timers.all().count() {
            let Some(timer) = self.timers.pop(self.now) else {
                return;
            };
            match timer {
                Timer::Beat => self.beat(),
                Timer::Silence(id) => self.silence_due(id),
                Timer::Away(id) => self.away_due(id),
                Timer::Edge(a, b) => self.edge_due(a, b),
                Timer::Probing(id) => self.probing_due(id),
                Timer::Use(group, id) => self.use_waits(group, id),
                Timer::Round => self.votes_wait(Timer::Round),
                Timer::Query => self.votes_wait(Timer::Query),
            }
        }
    }

    /// Ends in good order: all calls fail at once. (Rule 17)
    fn stop(&mut self) {
        self.end("stopped".to_owned());
    }

    fn end(&mut self, why: String) {
        let connections = std::mem::take(&mut self.connections);
        for conn in connections.into_keys() {
            self.output(MasterOutput::Send {
                conn,
                message: Down::Stopping,
            });
            self.output(MasterOutput::Close { conn });
        }
        self.timers = Timers::default();
        self.ended = true;
        self.output(MasterOutput::Exit { why });
    }

    /// Sends to whoever has a connection; whoever has none brings its state when it comes back.
    fn send(&mut self, id: MemberId, message: Down) {
        if let Some(conn) = self.nodes.get(&id).and_then(|node| node.conn) {
            self.output(MasterOutput::Send { conn, message });
        }
    }

    fn reply_and_close(&mut self, conn: ConnId, reply: ControlReply) {
        self.output(MasterOutput::Reply { conn, reply });
        self.output(MasterOutput::Close { conn });
    }

    fn output(&mut self, output: MasterOutput) {
        self.outputs.push_back(output);
    }

    fn event(&mut self, event: Event) {
        self.output(MasterOutput::Event(event));
    }

    fn group_of(&self, id: MemberId) -> Option<PeerGroup> {
        self.nodes.get(&id).map(|node| node.group)
    }

    fn serial(&self, counter: u64) -> Serial {
        Serial {
            incarnation: self.incarnation,
            counter,
        }
    }

    /// Puts out somebody that sent what no correct member sends.
    fn protocol(&mut self, id: MemberId, what: &str) {
        let what = what.to_owned();
        self.evict(id, EvictReason::Protocol { what });
    }

    fn token(&mut self) -> Token {
        let mut half = || {
            // splitmix64
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            u128::from(z ^ (z >> 31))
        };
        Token(half() << 64 | half())
    }
}

/// The first few of many, for people.
fn few(members: impl IntoIterator<Item = MemberId>) -> Vec<MemberId> {
    members.into_iter().take(NAMED).collect()
}
