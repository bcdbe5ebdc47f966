//! The peer machine: the membership side of one communicator.
//!
//! Pure: see [`crate::membership`] for how it is driven. It decides when to dial whom, what the
//! master is told, when calls return and with what; the driver owns sockets, buffers and threads.
//!
//! How calls end, in all cases:
//! - A use of a key, or a unanimous call, ends with the master's word. Its limit, a cancel, or the
//!   communicator's end only ask for it to fail (once, the first reason counts) and then wait for
//!   that word, which may be success.
//! - If the master cannot be reached for the master limit, or owes such a word for that long, the
//!   peer has left the run: everything open fails with `MasterLost`. Limits of calls stand still
//!   while the master is away, so that this alone ends them then.
//! - Eviction and the master's stop fail everything open at once.
//! - A call that joins and has no limit fails with the first dial of the master that fails; with
//!   a limit, dials are repeated until it passes. Once registered it waits for its admission.
//! - After any of these but leaving, `connect` and `update_topology` register anew.

mod attributes;
mod backoff;
mod calls;
mod edges;
mod io;
mod lanes;
mod operations;
mod session;
mod standing;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

pub use io::{Answer, MasterLink, OwnAddresses, PeerInput, PeerOutput, Request};

pub(crate) use self::session::timing;

use self::attributes::Shown;
use self::backoff::Random;
use self::calls::Votes;
use self::edges::Edges;
use self::lanes::Admitted;
use self::operations::Operations;
use self::session::{Identity, Session};
use self::standing::{Joining, Leaving};
use crate::config::Timing;
use crate::error::Error;
use crate::event::Event;
use crate::ids::{CallId, Epoch, MemberId, PeerGroup, RunId, Time};
use crate::planted::{Bug, planted};
use crate::types::{Attributes, UnanimousCall};
use crate::wire::control::{Down, GroupView, Up};
use crate::wire::reason::RequestCause;

/// What a peer is told when it is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerSettings {
    /// Address of the master as the user gave it; only for messages to people.
    pub master_address: String,
    /// Group to join.
    pub group: PeerGroup,
    /// What the operators shall call it.
    pub name: String,
    /// Where it is to be dialled.
    pub own: OwnAddresses,
    /// Connections per edge; zero chooses automatically, more than 64 counts as 64.
    pub pool: u16,
    /// Spreads retries; equal seeds and inputs give equal outputs.
    pub seed: u64,
}

/// The membership side of one communicator.
#[derive(Clone, Debug)]
pub struct Peer {
    settings: PeerSettings,
    /// Defaults until the master says what holds in its run.
    timing: Timing,
    standing: Standing,
    session: Session,
    /// Who this peer is, from its registration until it is out.
    identity: Option<Identity>,
    /// Who it was when it last registered.
    before: Option<Identity>,
    shown: Shown,
    /// The call that joined; later ones belong to this membership.
    member_since: CallId,
    /// The group as last heard of; lanes follow it.
    known: GroupView,
    votes: Votes,
    ops: Operations,
    edges: Edges,
    /// Members that data came from since the last heartbeat.
    heard: BTreeSet<MemberId>,
    random: Random,
    /// What the driver was last told.
    admitted: Admitted,
    told_group: (Epoch, Epoch),
    /// Deadline after the last event, to notice when the own loop stood still.
    due: Option<Time>,
    outputs: VecDeque<PeerOutput>,
}

/// In the run or not.
#[derive(Clone, Debug)]
enum Standing {
    /// Never joined, or out for this reason.
    Out(Option<Error>),
    /// Registering, or registered and not yet admitted.
    Joining(Joining),
    /// A member.
    Member,
    /// Has said that it leaves.
    Leaving(Leaving),
    /// Has left for good.
    Closed,
}

impl Peer {
    /// A peer that is in no run yet.
    pub fn new(settings: PeerSettings, _now: Time) -> Self {
        Self {
            random: Random::new(settings.seed),
            settings,
            timing: Timing::default(),
            standing: Standing::Out(None),
            session: Session::default(),
            identity: None,
            before: None,
            shown: Shown::default(),
            member_since: CallId::default(),
            known: GroupView::default(),
            votes: Votes::default(),
            ops: Operations::default(),
            edges: Edges::default(),
            heard: BTreeSet::new(),
            admitted: Admitted::default(),
            told_group: (Epoch(0), Epoch(0)),
            due: None,
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened. Deadlines fire in ticks only, so that whatever can be read is
    /// handed in before them. (Rule 14)
    pub fn handle(&mut self, input: PeerInput, now: Time) {
        self.notice_stall(now);
        match input {
            PeerInput::Call {
                call,
                request,
                limit,
            } => self.on_call(call, request, limit, now),
            PeerInput::Cancel { call, cause } => self.on_cancel(call, cause, now),
            PeerInput::Master(link) => self.on_master(link, now),
            PeerInput::Message(message) => self.on_message(message, now),
            PeerInput::LaneOpen {
                lane,
                peer,
                dialled,
                wanted,
                round_trip,
            } => self.on_lane_open(lane, peer, dialled.then_some(round_trip), wanted, now),
            PeerInput::LaneClosed {
                lane,
                orderly,
                cause,
            } => self.on_lane_closed(lane, orderly, cause, now),
            PeerInput::DialFailed {
                peer,
                cause,
                refusal,
            } => self.on_dial_failed(peer, cause, refusal, now),
            PeerInput::OpDone { op, quoted, result } => self.on_op_done(op, quoted, result),
            PeerInput::OpFailed { op, quoted, cause } => self.on_op_failed(op, quoted, cause, now),
            PeerInput::Shown { call, stamp } => self.on_shown(call, &stamp),
            PeerInput::Heard(members) => self.on_data(members),
            PeerInput::Tick => self.on_tick(now),
        }
        // A deadline that has passed before it was set says nothing about this process.
        self.due = self.next_deadline().map(|due| due.max(now));
    }

    /// The next thing to do; to be asked until there is none.
    pub fn poll_output(&mut self) -> Option<PeerOutput> {
        self.outputs.pop_front()
    }

    /// When a [`PeerInput::Tick`] is due at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        let session = self.session.next_deadline(&self.timing);
        let edges = self.edges.next_deadline();
        let leaving = match &self.standing {
            Standing::Leaving(leaving) => Some(leaving.deadline),
            _ => None,
        };
        let limits = self.next_limit();
        [session, edges, leaving, limits]
            .into_iter()
            .flatten()
            .min()
    }

    /// World sizes as last shown to the user. They change only when a call returns. (Rule 16)
    pub fn attributes(&self) -> Attributes {
        self.shown.attributes()
    }

    /// Whether this peer is a member that calls can be made on.
    pub fn is_member(&self) -> bool {
        matches!(self.standing, Standing::Member)
    }

    /// The own number, from registration until the peer is out of the run.
    pub fn member_id(&self) -> Option<MemberId> {
        self.own_id()
    }

    /// The run, from registration until the peer is out of it.
    pub fn run_id(&self) -> Option<RunId> {
        self.identity.map(|own| own.run)
    }

    /// The own group as last heard of; empty while not a member.
    pub fn group(&self) -> &GroupView {
        &self.known
    }

    /// Time limits of the run; defaults before the master has told them.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Connections per edge that this peer wants: what its handshakes say. Zero: as many as the
    /// path can use.
    pub fn wanted_lanes(&self) -> u16 {
        self.pool()
    }

    fn on_call(&mut self, call: CallId, request: Request, limit: Option<Duration>, now: Time) {
        match request {
            Request::Connect => self.join(call, limit, false, now),
            Request::Vote(UnanimousCall::UpdateTopology) if self.must_rejoin() => {
                self.join(call, limit, true, now);
            }
            Request::Vote(what) => self.vote(call, what, limit, now),
            Request::Reduce { tag, descriptor } => self.reduce(call, tag, descriptor, limit, now),
            Request::Sync(offer) => self.sync(call, offer, limit, now),
            Request::Leave => self.leave(call, now),
        }
    }

    fn on_cancel(&mut self, call: CallId, cause: RequestCause, now: Time) {
        if let Some(key) = self.ops.key_of(call) {
            self.request_abort(key, cause, now);
        } else if self.votes.is(call) {
            self.withdraw(cause, now);
        } else if matches!(&self.standing, Standing::Joining(joining) if joining.call == call) {
            self.give_up_joining(cause, now);
        }
    }

    fn on_message(&mut self, message: Down, now: Time) {
        if !self.session.is_open() {
            return;
        }
        self.on_heard(now);
        let newcomer = matches!(self.standing, Standing::Joining(_));
        match message {
            Down::Heartbeat => {}
            Down::Ping => self.send(Up::Pong),
            Down::Verdict(verdict) => self.on_verdict(verdict, now),
            // A newcomer learns its group from the round that admits it.
            Down::Group(_) if newcomer => {}
            Down::Group(group) => self.follow(group, now),
            Down::Completed { vote, stamp, group } if newcomer => {
                self.admitted(vote, &stamp, group, now);
            }
            Down::Completed { vote, stamp, group } => self.on_completed(vote, &stamp, group, now),
            Down::Failed {
                vote,
                reason,
                stamp,
            } => self.on_failed(vote, reason, &stamp),
            Down::SyncPlan(plan) => self.on_sync_plan(plan),
            Down::TooMany { op, quoted, held } => self.on_too_many(op, quoted, held),
            Down::Dial { peers } => self.on_dial(peers, now),
            Down::Expect { peers } => self.on_expect(peers, now),
            Down::Evicted(reason) => self.on_evicted(reason, now),
            Down::Goodbye => self.left(now),
            Down::Stopping => self.on_stopping(now),
            Down::Waiting {
                op,
                not_opened,
                not_done,
            } => {
                let missing = if not_opened.is_empty() {
                    not_done
                } else {
                    not_opened
                };
                self.tell_waiting(op.key.to_string(), missing);
            }
            Down::WaitingForVotes { vote, missing } => {
                self.tell_waiting(vote.call.to_string(), missing);
            }
        }
    }

    fn tell_waiting(&mut self, waits: String, missing: Vec<MemberId>) {
        let event = Event::Waiting { waits, missing };
        self.outputs.push_back(PeerOutput::Event(event));
    }

    fn on_tick(&mut self, now: Time) {
        self.session_due(now);
        if !self.session.is_away() {
            self.limits_due(now);
        }
        self.edges_due(now);
        if matches!(&self.standing, Standing::Leaving(leaving) if leaving.deadline <= now) {
            self.left(now);
        }
    }

    /// When the next limit of a call passes. None does while the master is away; the master limit
    /// ends that. (Rule 17)
    fn next_limit(&self) -> Option<Time> {
        if self.session.is_away() {
            return None;
        }
        let joining = match &self.standing {
            Standing::Joining(joining) => joining.deadline,
            _ => None,
        };
        let calls = [joining, self.ops.deadline(), self.votes.deadline()];
        calls.into_iter().flatten().chain(self.owed()).min()
    }

    /// When the master has owed an answer to a request for too long. (Rule 5)
    fn owed(&self) -> Option<Time> {
        if planted(Bug::MasterLimitIgnored) {
            return None;
        }
        let asked = [self.ops.abort_at(), self.votes.withdrawn_at()];
        let asked = asked.into_iter().flatten().min()?;
        Some(asked + self.timing.master_limit)
    }

    fn limits_due(&mut self, now: Time) {
        if self.owed().is_some_and(|at| at <= now) {
            self.master_lost(self.timing.master_limit, now);
            return;
        }
        if matches!(&self.standing, Standing::Joining(joining)
            if joining.deadline.is_some_and(|at| at <= now))
        {
            self.give_up_joining(RequestCause::TimedOut, now);
        }
        self.operations_due(now);
        if self.votes.deadline().is_some_and(|at| at <= now) {
            self.withdraw(RequestCause::TimedOut, now);
        }
    }

    /// A tick that comes more than a heartbeat interval late means that this process stood still;
    /// then nobody's silence counts. (Rule 14)
    fn notice_stall(&mut self, now: Time) {
        let late = self.due.map_or(Duration::ZERO, |due| now.since(due));
        if late <= self.timing.heartbeat || planted(Bug::GapIgnored) {
            return;
        }
        self.session.restart(&self.timing, now);
        self.edges.restart(&self.timing, now);
        let gap_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
        self.outputs
            .push_back(PeerOutput::Event(Event::Stalled { gap_ms }));
    }

    /// Lets a call that is no open operation return.
    fn complete(&mut self, call: CallId, result: Result<Answer, Error>) {
        self.outputs
            .push_back(PeerOutput::Complete { call, result });
    }
}
