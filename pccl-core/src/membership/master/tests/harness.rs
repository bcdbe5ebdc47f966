//! A run of which the tests play all peers: inputs in, messages out, time by hand.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::config::MasterConfig;
use crate::event::Event;
use crate::ids::{
    ConnId, Digest, Epoch, Incarnation, MemberId, PeerGroup, Round, RunId, Serial, Tag, Time, Token,
};
use crate::membership::master::{Master, MasterInput, MasterOutput};
use crate::types::{DataType, OpKey, OpKind, ReduceDescriptor, ReduceOp, UnanimousCall};
use crate::wire::control::{
    AbortRequest, ControlHello, ControlReply, Done, Down, GroupView, OpBody, OpName, Open, Outcome,
    Registration, Report, Stamp, Up, Verdict, VoteName,
};
use crate::wire::reason::{EvictReason, RequestCause};

pub(super) const RUN: RunId = RunId(7);
pub(super) const UPDATE: UnanimousCall = UnanimousCall::UpdateTopology;
pub(super) const PENDING: UnanimousCall = UnanimousCall::ArePeersPending;

/// What the tests know of one peer.
#[derive(Default)]
pub(super) struct Seat {
    pub(super) conn: Option<ConnId>,
    pub(super) token: Token,
    pub(super) inbox: Vec<Down>,
    pub(super) closed: bool,
}

pub(super) struct World {
    pub(super) master: Master,
    pub(super) now: Time,
    pub(super) seats: BTreeMap<MemberId, Seat>,
    by_conn: BTreeMap<ConnId, MemberId>,
    pub(super) events: Vec<Event>,
    pub(super) exit: Option<String>,
    last_conn: u64,
}

pub(super) fn at(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 9))
}

pub(super) fn key(tag: u64) -> OpKey {
    OpKey {
        kind: OpKind::Collective,
        tag: Tag(tag),
    }
}

pub(super) fn body(count: u64) -> OpBody {
    let descriptor = ReduceDescriptor {
        count,
        data_type: DataType::F32,
        op: ReduceOp::Sum,
        quantization: None,
        algorithm: None,
    };
    OpBody::Reduce {
        descriptor,
        digest: descriptor.digest(),
    }
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(MasterConfig::default())
    }

    pub(super) fn with(config: MasterConfig) -> Self {
        let now = Time(1_000_000_000);
        Self {
            master: Master::new(config, RUN, Incarnation(1), 42, now),
            now,
            seats: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            events: Vec::new(),
            exit: None,
            last_conn: 0,
        }
    }

    /// A run of `n` members of group 0, in the order in which they registered.
    pub(super) fn of(n: usize) -> (Self, Vec<MemberId>) {
        Self::of_groups(&[n])
    }

    /// A run with this many members in groups 0, 1, ...
    pub(super) fn of_groups(sizes: &[usize]) -> (Self, Vec<MemberId>) {
        let mut world = Self::new();
        let mut ids = Vec::new();
        for (group, n) in sizes.iter().enumerate() {
            for _ in 0..*n {
                ids.push(world.join(group as u32));
            }
        }
        if ids.len() > 1 {
            world.vote(ids[0], UPDATE);
        }
        world.clear();
        (world, ids)
    }

    pub(super) fn input(&mut self, input: MasterInput) -> Vec<(ConnId, ControlReply)> {
        self.master.handle(input, self.now);
        let mut replies = Vec::new();
        while let Some(output) = self.master.poll_output() {
            match output {
                MasterOutput::Reply { conn, reply } => {
                    if let ControlReply::Registered { id, token, .. } = &reply {
                        let seat = self.seats.entry(*id).or_default();
                        seat.conn = Some(conn);
                        seat.token = *token;
                        self.by_conn.insert(conn, *id);
                    }
                    replies.push((conn, reply));
                }
                MasterOutput::Send { conn, message } => {
                    // What goes to a connection that its owner has given up is lost.
                    if let Some(id) = self.by_conn.get(&conn) {
                        self.seats.get_mut(id).unwrap().inbox.push(message);
                    }
                }
                MasterOutput::Close { conn } => {
                    if let Some(id) = self.by_conn.remove(&conn) {
                        let seat = self.seats.get_mut(&id).unwrap();
                        if seat.conn == Some(conn) {
                            seat.conn = None;
                            seat.closed = true;
                        }
                    }
                }
                MasterOutput::Event(event) => self.events.push(event),
                MasterOutput::Exit { why } => self.exit = Some(why),
            }
        }
        replies
    }

    pub(super) fn hello(&mut self, hello: ControlHello) -> (ConnId, Vec<ControlReply>) {
        self.hello_from(at(1), hello)
    }

    pub(super) fn hello_from(
        &mut self,
        remote: SocketAddr,
        hello: ControlHello,
    ) -> (ConnId, Vec<ControlReply>) {
        self.last_conn += 1;
        let conn = ConnId(self.last_conn);
        if let ControlHello::Attach { id, .. } = &hello
            && let Some(seat) = self.seats.get_mut(id)
        {
            if let Some(old) = seat.conn.replace(conn) {
                self.by_conn.remove(&old);
            }
            self.by_conn.insert(conn, *id);
        }
        let replies = self.input(MasterInput::Hello {
            conn,
            remote,
            hello,
            key: None,
        });
        (conn, replies.into_iter().map(|(_, reply)| reply).collect())
    }

    /// Registers a newcomer that has not tried any edge.
    pub(super) fn register(&mut self, group: u32) -> MemberId {
        let hello = ControlHello::Register(Registration {
            group: PeerGroup(group),
            name: String::new(),
            port: 4_000,
            addresses: vec![],
            arithmetic: 1,
        });
        let (_, replies) = self.hello(hello);
        match replies.first() {
            Some(ControlReply::Registered { id, .. }) => *id,
            other => panic!("{other:?}"),
        }
    }

    /// Registers a newcomer all of whose edges work.
    pub(super) fn join(&mut self, group: u32) -> MemberId {
        let id = self.register(group);
        for peer in self.dials(id) {
            self.up(id, Up::LanesOpen { peer });
        }
        id
    }

    /// Whom somebody was told to dial since its inbox was last looked at.
    pub(super) fn dials(&self, id: MemberId) -> Vec<MemberId> {
        let dials = self.seats[&id]
            .inbox
            .iter()
            .filter_map(|message| match message {
                Down::Dial { peers } => Some(peers.iter().map(|p| p.id)),
                _ => None,
            });
        dials.flatten().collect()
    }

    pub(super) fn up(&mut self, id: MemberId, message: Up) {
        let conn = self.seats[&id].conn.expect("has a connection");
        self.input(MasterInput::Message { conn, message });
    }

    /// The connection of a peer breaks.
    pub(super) fn cut(&mut self, id: MemberId) {
        let conn = self.seats.get_mut(&id).unwrap().conn.take().unwrap();
        self.by_conn.remove(&conn);
        let cause = "reset".to_owned();
        self.input(MasterInput::Closed { conn, cause });
    }

    pub(super) fn attach(&mut self, id: MemberId, report: Option<Report>) -> Vec<ControlReply> {
        let token = self.seats[&id].token;
        let report = report.map(Box::new);
        let run = RUN;
        self.hello(ControlHello::Attach {
            run,
            id,
            token,
            report,
        })
        .1
    }

    pub(super) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.master.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.input(MasterInput::Tick);
        }
        self.now = end;
    }

    /// Time passes while these peers send heartbeats.
    pub(super) fn wait_alive(&mut self, time: Duration, ids: &[MemberId]) {
        let end = self.now + time;
        while self.now < end {
            let step = Duration::from_millis(500).min(end.since(self.now));
            self.wait(step);
            for id in ids {
                if self.seats[id].conn.is_some() {
                    let quoted = Serial::default();
                    let heard = vec![];
                    self.up(*id, Up::Heartbeat { quoted, heard });
                }
            }
        }
    }

    /// Messages to a peer since the last look, heartbeats and pings aside.
    pub(super) fn take(&mut self, id: MemberId) -> Vec<Down> {
        let inbox = std::mem::take(&mut self.seats.get_mut(&id).unwrap().inbox);
        inbox
            .into_iter()
            .filter(|m| !matches!(m, Down::Heartbeat | Down::Ping))
            .collect()
    }

    pub(super) fn clear(&mut self) {
        self.events.clear();
        for seat in self.seats.values_mut() {
            seat.inbox.clear();
        }
    }

    pub(super) fn round(&self) -> Round {
        self.master.votes.round
    }

    pub(super) fn epoch(&self, group: u32) -> Epoch {
        self.master.groups[&PeerGroup(group)].epoch
    }

    /// A group's members in the order of its ring.
    pub(super) fn order(&self, group: u32) -> Vec<MemberId> {
        self.master.ring(PeerGroup(group))
    }

    /// A group's members, the oldest first.
    pub(super) fn ring(&self, group: u32) -> Vec<MemberId> {
        let mut ids = self.order(group);
        ids.sort();
        ids
    }

    pub(super) fn name(&self, tag: u64, attempt: u32) -> OpName {
        OpName {
            round: self.round(),
            key: key(tag),
            attempt,
        }
    }

    pub(super) fn open_message(&self, tag: u64, attempt: u32, quoted: Serial) -> Open {
        Open {
            op: self.name(tag, attempt),
            epoch: self.epoch(0),
            quoted,
            what: body(8),
        }
    }

    /// Opens a use under the present epoch, quoting nothing.
    pub(super) fn open(&mut self, id: MemberId, tag: u64, attempt: u32) {
        let open = self.open_message(tag, attempt, Serial::default());
        self.up(id, Up::Open(open));
    }

    pub(super) fn done(&mut self, id: MemberId, tag: u64, attempt: u32) {
        self.done_with(id, tag, attempt, 5);
    }

    pub(super) fn done_with(&mut self, id: MemberId, tag: u64, attempt: u32, result: u128) {
        let op = self.name(tag, attempt);
        self.up(
            id,
            Up::Done(Done {
                op,
                quoted: Serial::default(),
                result: Digest(result),
            }),
        );
    }

    pub(super) fn give_up(&mut self, id: MemberId, tag: u64, attempt: u32, cause: RequestCause) {
        let op = self.name(tag, attempt);
        self.up(
            id,
            Up::AbortRequest(AbortRequest {
                op,
                quoted: Serial::default(),
                cause,
            }),
        );
    }

    pub(super) fn ballot(&self, call: UnanimousCall, tries: u32) -> VoteName {
        let round = match call {
            UnanimousCall::ArePeersPending => self.master.votes.queries,
            _ => self.round(),
        };
        VoteName { call, round, tries }
    }

    pub(super) fn vote(&mut self, id: MemberId, call: UnanimousCall) {
        let vote = self.ballot(call, 0);
        self.up(id, Up::Vote(vote));
    }

    /// What a member without anything open brings.
    pub(super) fn report(&self) -> Report {
        Report {
            incarnation: Incarnation(1),
            known: self.epoch(0),
            shown: self.epoch(0),
            round: self.round(),
            queries: self.master.votes.queries,
            quoted: Serial::default(),
            ops: vec![],
            vote: None,
            closed: vec![],
        }
    }

    /// The only message to a peer since the last look, which must be a verdict.
    pub(super) fn verdict(&mut self, id: MemberId) -> Verdict {
        match self.take(id).as_slice() {
            [Down::Verdict(verdict)] => verdict.clone(),
            other => panic!("{id} got {other:?}"),
        }
    }

    pub(super) fn outcome(&mut self, id: MemberId) -> Outcome {
        self.verdict(id).outcome
    }

    pub(super) fn completed(&mut self, id: MemberId) -> (VoteName, Stamp, GroupView) {
        let all = self.take(id);
        let mut found = all.into_iter().filter_map(|message| match message {
            Down::Completed { vote, stamp, group } => Some((vote, stamp, group)),
            _ => None,
        });
        found.next().expect("completed")
    }

    pub(super) fn evicted(&mut self, id: MemberId) -> EvictReason {
        let all = self.take(id);
        let mut found = all.into_iter().filter_map(|message| match message {
            Down::Evicted(reason) => Some(reason),
            _ => None,
        });
        found.next().expect("evicted")
    }

    /// Epoch of group 0, if there is that group.
    pub(super) fn epoch_or_zero(&self) -> Epoch {
        self.master
            .groups
            .get(&PeerGroup(0))
            .map_or(Epoch(0), |g| g.epoch)
    }

    /// What a member without anything open brings that knows nothing.
    pub(super) fn report_of_nothing(&self) -> Report {
        Report {
            incarnation: Incarnation(1),
            known: Epoch(0),
            shown: Epoch(0),
            round: self.round(),
            queries: Round(0),
            quoted: Serial::default(),
            ops: vec![],
            vote: None,
            closed: vec![],
        }
    }

    /// Invariants of the master's tables.
    pub(super) fn check(&self) {
        let master = &self.master;
        let accepted = master.nodes.values().filter(|n| n.accepted).count();
        assert_eq!(master.world.members, accepted);
        assert_eq!(
            master.groups.values().map(|g| g.ring.len()).sum::<usize>(),
            accepted
        );
        for (number, group) in &master.groups {
            assert!(!group.ring.is_empty() || !group.newcomers.is_empty());
            let planned = group.newcomers.intersection(&master.pending).count();
            assert_eq!(group.planned.len(), group.ring.len() + planned);
            for id in &group.ring {
                let node = &master.nodes[id];
                assert!(node.accepted && node.group == *number);
            }
            assert!(group.newcomers.iter().all(|id| !master.nodes[id].accepted));
            assert!(
                group
                    .voters
                    .iter()
                    .all(|id| master.votes.cast.contains_key(id))
            );
            assert!(
                group
                    .suspects
                    .keys()
                    .all(|id| master.nodes.contains_key(id))
            );
        }
        for id in master.votes.cast.keys() {
            assert!(master.nodes[id].accepted);
        }
        assert!(
            accepted == 0 || master.votes.cast.len() < accepted,
            "a vote is not judged"
        );
        assert!(
            accepted > 0 || master.pending.is_empty(),
            "nobody is left to vote"
        );
        for (id, node) in &master.nodes {
            assert_eq!(node.away.is_some(), node.conn.is_none());
            for other in &node.edges {
                assert!(master.nodes[other].edges.contains(id));
                assert!(master.edges.state(*id, *other).is_some());
            }
            for other in &node.reported {
                assert!(master.nodes[other].closed_by.contains_key(id));
            }
        }
        let edges: usize = master.nodes.values().map(|n| n.edges.len()).sum();
        assert_eq!(edges, master.edges.len() * 2);
        let connected = master.nodes.values().filter(|n| n.conn.is_some()).count();
        assert_eq!(master.connections.len(), connected);
        if !master.nodes.is_empty() {
            assert!(master.next_deadline().is_some());
        }
    }
}

/// What somebody is told that is no member (any more), by a master of this life.
pub(super) fn evicted(incarnation: u64, reason: EvictReason) -> ControlReply {
    ControlReply::Evicted {
        run: RUN,
        incarnation: Incarnation(incarnation),
        reason,
    }
}
