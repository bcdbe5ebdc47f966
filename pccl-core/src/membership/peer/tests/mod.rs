//! Tests of the peer machine: inputs in, exact outputs out.

mod calls;
mod edges;
mod joining;
mod leaving;
mod operations;
mod random;
mod session;
mod sync;
mod together;

use std::time::Duration;

use super::{Answer, MasterLink, OwnAddresses, Peer, PeerInput, PeerOutput, PeerSettings, Request};
use crate::error::{ConnectPhase, Error};
use crate::event::Event;
use crate::ids::{
    CallId, Digest, Epoch, Incarnation, LaneId, MemberId, PeerGroup, Round, RunId, Serial, Tag,
    Time, Token, ViewId,
};
use crate::types::{
    Attributes, DataType, OpKey, OpKind, ReduceDescriptor, ReduceOp, UnanimousCall,
};
use crate::wire::control::{
    ControlHello, ControlReply, Down, GroupView, MemberInfo, OpName, Outcome, RunParameters, Stamp,
    Up, Verdict, VoteName,
};
use crate::wire::reason::{AbortReason, Missing, RequestCause};

const ADDRESS: &str = "master:1";
const RUN: RunId = RunId(77);
const HEARTBEAT: Duration = Duration::from_millis(200);
const PEER_TIMEOUT: Duration = Duration::from_secs(1);
const MASTER_LIMIT: Duration = Duration::from_secs(12);
/// Round that admits the peer of [`Rig::member`].
const FIRST: u64 = 4;

/// A peer with a clock, and numbers for calls and lanes.
struct Rig {
    peer: Peer,
    now: Time,
    calls: u64,
    lanes: u64,
    /// How long its connections take to open.
    round_trip: Duration,
    events: Vec<Event>,
    /// Whether the user does not wait in its collectives, and comes for the results later.
    late: bool,
}

impl Rig {
    fn new() -> Self {
        let settings = PeerSettings {
            master_address: ADDRESS.into(),
            group: PeerGroup(3),
            name: "test".into(),
            own: OwnAddresses {
                port: 1000,
                announce: Vec::new(),
            },
            pool: 0,
            seed: 1,
        };
        let now = Time(1_000_000_000);
        Self {
            peer: Peer::new(settings, now),
            now,
            calls: 0,
            lanes: 0,
            round_trip: Duration::from_millis(20),
            events: Vec::new(),
            late: false,
        }
    }

    /// A registered newcomer `own`, with the call that joins.
    fn newcomer(own: u64) -> (Self, CallId) {
        let mut rig = Self::new();
        let (call, _) = rig.call(Request::Connect);
        rig.reply(registered(own));
        (rig, call)
    }

    /// Member `own` of a group with members `ring`, at epoch 1, after round [`FIRST`].
    fn member(own: u64, ring: &[u64]) -> Self {
        let (mut rig, _) = Self::newcomer(own);
        rig.message(completed(
            UnanimousCall::UpdateTopology,
            FIRST,
            0,
            stamp(1, 1, ring),
            1,
            ring,
        ));
        assert!(rig.peer.is_member());
        rig
    }

    fn give(&mut self, input: PeerInput) -> Vec<PeerOutput> {
        self.peer.handle(input, self.now);
        let mut outputs = Vec::new();
        while let Some(output) = self.peer.poll_output() {
            // A user who waits in the call.
            if let PeerOutput::Finish { call, stamp, .. } = output
                && !self.late
            {
                self.peer.handle(PeerInput::Shown { call, stamp }, self.now);
            }
            match output {
                PeerOutput::Event(event) => self.events.push(event),
                output => outputs.push(output),
            }
        }
        outputs
    }

    fn call(&mut self, request: Request) -> (CallId, Vec<PeerOutput>) {
        self.call_within(request, None)
    }

    fn call_within(
        &mut self,
        request: Request,
        limit: Option<Duration>,
    ) -> (CallId, Vec<PeerOutput>) {
        self.calls += 1;
        let call = CallId(self.calls);
        let outputs = self.give(PeerInput::Call {
            call,
            request,
            limit,
        });
        (call, outputs)
    }

    fn vote(&mut self, what: UnanimousCall) -> (CallId, Vec<PeerOutput>) {
        self.call(Request::Vote(what))
    }

    fn reduce(&mut self, tag: u64) -> (CallId, Vec<PeerOutput>) {
        let tag = Tag(tag);
        let descriptor = DESCRIPTOR;
        self.call(Request::Reduce { tag, descriptor })
    }

    fn reply(&mut self, reply: ControlReply) -> Vec<PeerOutput> {
        self.give(PeerInput::Master(MasterLink::Reply(reply)))
    }

    fn broken(&mut self) -> Vec<PeerOutput> {
        let cause = "reset".into();
        self.give(PeerInput::Master(MasterLink::Closed { cause }))
    }

    fn message(&mut self, message: Down) -> Vec<PeerOutput> {
        self.give(PeerInput::Message(message))
    }

    fn done(&mut self, op: OpName, quoted: Serial) -> Vec<PeerOutput> {
        self.give(PeerInput::OpDone {
            op,
            quoted,
            result: Digest(9),
        })
    }

    fn lane_open(&mut self, peer: u64, dialled: bool, wanted: u16) -> (LaneId, Vec<PeerOutput>) {
        self.lanes += 1;
        let lane = LaneId(self.lanes);
        let outputs = self.give(PeerInput::LaneOpen {
            lane,
            peer: MemberId(peer),
            dialled,
            wanted,
            round_trip: self.round_trip,
        });
        (lane, outputs)
    }

    fn lane_closed(&mut self, lane: LaneId, orderly: bool) -> Vec<PeerOutput> {
        self.give(PeerInput::LaneClosed {
            lane,
            orderly,
            cause: "reset".into(),
        })
    }

    fn dial_failed(&mut self, peer: u64) -> Vec<PeerOutput> {
        self.give(PeerInput::DialFailed {
            peer: MemberId(peer),
            cause: "refused".into(),
            refusal: None,
        })
    }

    /// Lets time pass with a tick at each deadline, as a driver does.
    fn pass(&mut self, time: Duration) -> Vec<PeerOutput> {
        let end = self.now + time;
        let mut outputs = Vec::new();
        while let Some(due) = self.peer.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            outputs.extend(self.give(PeerInput::Tick));
            let next = self.peer.next_deadline();
            assert!(
                next.is_none_or(|next| next > self.now),
                "{next:?} at {:?}",
                self.now
            );
        }
        self.now = end;
        outputs
    }

    /// Lets time pass with a master that sends heartbeats.
    fn pass_with_master(&mut self, time: Duration) -> Vec<PeerOutput> {
        let end = self.now + time;
        let mut outputs = Vec::new();
        while self.now < end {
            outputs.extend(self.message(Down::Heartbeat));
            outputs.extend(self.pass(HEARTBEAT.min(end.since(self.now))));
        }
        outputs
    }
}

const DESCRIPTOR: ReduceDescriptor = ReduceDescriptor {
    count: 10,
    data_type: DataType::F32,
    op: ReduceOp::Sum,
    quantization: None,
    algorithm: None,
};

fn parameters() -> RunParameters {
    RunParameters {
        heartbeat_ms: HEARTBEAT.as_millis() as u32,
        peer_timeout_ms: PEER_TIMEOUT.as_millis() as u32,
        master_limit_ms: MASTER_LIMIT.as_millis() as u32,
        digests: Default::default(),
    }
}

fn registered(own: u64) -> ControlReply {
    ControlReply::Registered {
        run: RUN,
        incarnation: Incarnation(2),
        id: MemberId(own),
        token: token(own),
        parameters: parameters(),
    }
}

fn attached(incarnation: u64) -> ControlReply {
    ControlReply::Attached {
        incarnation: Incarnation(incarnation),
        parameters: parameters(),
    }
}

fn token(id: u64) -> Token {
    Token(u128::from(id) * 1000)
}

fn info(id: u64) -> MemberInfo {
    MemberInfo {
        id: MemberId(id),
        name: format!("peer {id}"),
        addresses: vec![([127, 0, 0, 1], 100).into()],
        token: token(id),
        key: None,
    }
}

fn view(epoch: u64, ring: &[u64]) -> GroupView {
    GroupView {
        epoch: Epoch(epoch),
        ring: ring.iter().map(|id| info(*id)).collect(),
        choice: crate::types::Choice::RING,
    }
}

fn stamp(view: u64, epoch: u64, ring: &[u64]) -> Stamp {
    let world = ring.len() as u32;
    Stamp {
        view: ViewId(view),
        epoch: Epoch(epoch),
        attributes: Attributes {
            global_world_size: world,
            group_world_size: world,
            peer_groups: 1,
            largest_group_world_size: world,
        },
        pending: false,
    }
}

fn vote_name(call: UnanimousCall, round: u64, tries: u32) -> VoteName {
    VoteName {
        call,
        round: Round(round),
        tries,
    }
}

fn completed(
    call: UnanimousCall,
    round: u64,
    tries: u32,
    stamp: Stamp,
    epoch: u64,
    ring: &[u64],
) -> Down {
    Down::Completed {
        vote: vote_name(call, round, tries),
        stamp,
        group: view(epoch, ring),
    }
}

fn failed(call: UnanimousCall, round: u64, tries: u32, stamp: Stamp) -> Down {
    Down::Failed {
        vote: vote_name(call, round, tries),
        reason: gave_up(9),
        stamp,
    }
}

fn gave_up(by: u64) -> AbortReason {
    AbortReason::Requested {
        by: MemberId(by),
        cause: RequestCause::TimedOut,
        missing: Box::new(Missing::Nobody),
    }
}

fn key(tag: u64) -> OpKey {
    OpKey {
        kind: OpKind::Collective,
        tag: Tag(tag),
    }
}

fn name(tag: u64, attempt: u32) -> OpName {
    OpName {
        round: Round(FIRST + 1),
        key: key(tag),
        attempt,
    }
}

fn serial(counter: u64) -> Serial {
    Serial {
        incarnation: Incarnation(if counter == 0 { 0 } else { 2 }),
        counter,
    }
}

fn verdict(op: OpName, counter: u64, outcome: Outcome, stamp: Stamp) -> Down {
    Down::Verdict(Verdict {
        op,
        serial: serial(counter),
        outcome,
        stamp,
    })
}

fn unreachable(phase: ConnectPhase, cause: &str) -> Error {
    Error::Unreachable {
        address: ADDRESS.into(),
        phase,
        cause: cause.into(),
    }
}

fn complete(call: CallId, result: Result<Answer, Error>) -> PeerOutput {
    PeerOutput::Complete { call, result }
}

fn alone() -> Stamp {
    Stamp::default()
}

/// What is sent to the master.
fn sent(outputs: &[PeerOutput]) -> Vec<&Up> {
    outputs
        .iter()
        .filter_map(|output| match output {
            PeerOutput::Send(message) => Some(message),
            _ => None,
        })
        .collect()
}

/// The hello of the dial among the outputs.
fn hello(outputs: &[PeerOutput]) -> Option<&ControlHello> {
    outputs.iter().find_map(|output| match output {
        PeerOutput::DialMaster { hello } => Some(hello),
        _ => None,
    })
}

/// Whom the outputs dial.
fn dialled(outputs: &[PeerOutput]) -> Vec<u64> {
    let peer = |output: &PeerOutput| match output {
        PeerOutput::DialPeer { peer, .. } => Some(peer.id.0),
        _ => None,
    };
    outputs.iter().filter_map(peer).collect()
}
