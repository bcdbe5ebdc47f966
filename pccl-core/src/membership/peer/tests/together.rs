//! Peers and a real master, joined by connections that deliver at once and in order.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use super::*;
use crate::config::{MasterConfig, Timing};
use crate::ids::ConnId;
use crate::membership::master::{Master, MasterInput, MasterOutput};
use crate::wire::reason::LossCause;

/// A peer and what its driver knows.
struct Node {
    peer: Peer,
    conn: Option<ConnId>,
    own: Option<(MemberId, Token)>,
    admitted: Vec<(MemberId, Token)>,
    /// Lanes and the node at the other end.
    lanes: BTreeMap<LaneId, usize>,
    /// Uses that run: by name, with the members that take part.
    running: BTreeMap<OpName, (Serial, Vec<MemberId>)>,
    alive: bool,
}

enum Delivery {
    Peer(usize, PeerInput),
    Master(MasterInput),
}

/// What a call returned.
#[derive(Clone, PartialEq, Debug)]
enum Return {
    Done(Result<Answer, Error>),
    Operation(Result<Outcome, Error>),
}

struct World {
    master: Master,
    nodes: Vec<Node>,
    now: Time,
    queue: VecDeque<Delivery>,
    returns: BTreeMap<CallId, Return>,
    numbers: u64,
}

impl World {
    fn new(nodes: usize) -> Self {
        let now = Time(0);
        let timing = Timing::from_peer_timeout(PEER_TIMEOUT);
        let config = MasterConfig {
            timing,
            ..MasterConfig::default()
        };
        let node = |index: usize| Node {
            peer: Peer::new(
                PeerSettings {
                    master_address: ADDRESS.into(),
                    group: PeerGroup(0),
                    name: format!("node {index}"),
                    own: OwnAddresses {
                        port: 1000 + index as u16,
                        announce: Vec::new(),
                    },
                    pool: 0,
                    seed: index as u64,
                },
                now,
            ),
            conn: None,
            own: None,
            admitted: Vec::new(),
            lanes: BTreeMap::new(),
            running: BTreeMap::new(),
            alive: true,
        };
        Self {
            master: Master::new(config, RUN, Incarnation(1), 5, now),
            nodes: (0..nodes).map(node).collect(),
            now,
            queue: VecDeque::new(),
            returns: BTreeMap::new(),
            numbers: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn call(&mut self, node: usize, request: Request) -> CallId {
        let call = CallId(self.number());
        let input = PeerInput::Call {
            call,
            request,
            limit: None,
        };
        self.queue.push_back(Delivery::Peer(node, input));
        self.settle();
        call
    }

    fn update(&mut self, nodes: &[usize]) -> Vec<Return> {
        let update = UnanimousCall::UpdateTopology;
        let calls = nodes
            .iter()
            .map(|node| self.call(*node, Request::Vote(update)));
        let calls: Vec<CallId> = calls.collect();
        self.results(&calls)
    }

    fn reduce(&mut self, nodes: &[usize]) -> Vec<Return> {
        let request = Request::Reduce {
            tag: Tag(1),
            descriptor: DESCRIPTOR,
        };
        let calls = nodes.iter().map(|node| self.call(*node, request.clone()));
        let calls: Vec<CallId> = calls.collect();
        self.results(&calls)
    }

    fn results(&self, calls: &[CallId]) -> Vec<Return> {
        calls
            .iter()
            .filter_map(|call| self.returns.get(call).cloned())
            .collect()
    }

    fn world_sizes(&self, nodes: &[usize]) -> Vec<u32> {
        let size = |node: &usize| self.nodes[*node].peer.attributes().group_world_size;
        nodes.iter().map(size).collect()
    }

    /// The process of a node is killed: all of its connections close.
    fn kill(&mut self, node: usize) {
        self.nodes[node].alive = false;
        self.cut_master(node);
        for (lane, other) in std::mem::take(&mut self.nodes[node].lanes) {
            self.nodes[other].lanes.remove(&lane);
            let input = lane_closed(lane, false);
            self.queue.push_back(Delivery::Peer(other, input));
        }
        self.settle();
    }

    fn cut_master(&mut self, node: usize) {
        if let Some(conn) = self.nodes[node].conn.take() {
            let cause = "cut".into();
            self.queue
                .push_back(Delivery::Master(MasterInput::Closed { conn, cause }));
        }
    }

    /// The control connection of a node breaks at both ends.
    fn break_master(&mut self, node: usize) {
        self.cut_master(node);
        let cause = "cut".into();
        let input = PeerInput::Master(MasterLink::Closed { cause });
        self.queue.push_back(Delivery::Peer(node, input));
        self.settle();
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            let Some(delivery) = self.queue.pop_front() else {
                return;
            };
            match delivery {
                Delivery::Master(input) => self.master.handle(input, self.now),
                Delivery::Peer(node, input) if self.nodes[node].alive => {
                    self.nodes[node].peer.handle(input, self.now);
                }
                Delivery::Peer(..) => {}
            }
            while let Some(output) = self.master.poll_output() {
                self.master_output(output);
            }
            for node in 0..self.nodes.len() {
                while let Some(output) = self.nodes[node].peer.poll_output() {
                    self.peer_output(node, output);
                }
            }
        }
        panic!("it never settles");
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..100_000 {
            let alive = self.nodes.iter().filter(|node| node.alive);
            let peers = alive.filter_map(|node| node.peer.next_deadline());
            let due = peers.chain(self.master.next_deadline()).min();
            let Some(due) = due.filter(|due| *due <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(due);
            self.queue.push_back(Delivery::Master(MasterInput::Tick));
            for node in 0..self.nodes.len() {
                self.queue.push_back(Delivery::Peer(node, PeerInput::Tick));
            }
            self.settle();
        }
        panic!("time does not pass");
    }

    fn master_output(&mut self, output: MasterOutput) {
        let owner = |nodes: &[Node], conn| nodes.iter().position(|node| node.conn == Some(conn));
        match output {
            MasterOutput::Reply { conn, reply } => {
                if let Some(node) = owner(&self.nodes, conn) {
                    let input = PeerInput::Master(MasterLink::Reply(reply));
                    self.queue.push_back(Delivery::Peer(node, input));
                }
            }
            MasterOutput::Send { conn, message } => {
                if let Some(node) = owner(&self.nodes, conn) {
                    self.queue
                        .push_back(Delivery::Peer(node, PeerInput::Message(message)));
                }
            }
            MasterOutput::Close { conn } => {
                if let Some(node) = owner(&self.nodes, conn) {
                    self.nodes[node].conn = None;
                    let cause = "closed".into();
                    let input = PeerInput::Master(MasterLink::Closed { cause });
                    self.queue.push_back(Delivery::Peer(node, input));
                }
            }
            MasterOutput::Event(_) | MasterOutput::Exit { .. } => {}
        }
    }

    fn peer_output(&mut self, node: usize, output: PeerOutput) {
        match output {
            PeerOutput::DialMaster { hello } => {
                self.cut_master(node);
                let conn = ConnId(self.number());
                self.nodes[node].conn = Some(conn);
                let remote = SocketAddr::from(([127, 0, 0, 1], 9));
                let input = MasterInput::Hello {
                    conn,
                    remote,
                    hello,
                    key: None,
                };
                self.queue.push_back(Delivery::Master(input));
            }
            PeerOutput::Send(message) => {
                if let Some(conn) = self.nodes[node].conn {
                    let input = MasterInput::Message { conn, message };
                    self.queue.push_back(Delivery::Master(input));
                }
            }
            PeerOutput::CloseMaster => self.cut_master(node),
            PeerOutput::DialPeer {
                peer, own, token, ..
            } => self.dial(node, &peer, own, token),
            PeerOutput::Admit { own, peers, .. } => {
                self.nodes[node].own = own.map(|(_, id, token)| (id, token));
                self.nodes[node].admitted = peers;
            }
            PeerOutput::CloseLane { lane } => {
                if let Some(other) = self.nodes[node].lanes.remove(&lane) {
                    self.nodes[other].lanes.remove(&lane);
                    self.queue
                        .push_back(Delivery::Peer(other, lane_closed(lane, true)));
                }
            }
            PeerOutput::StartReduce {
                op, quoted, group, ..
            } => {
                let members = group.ring.iter().map(|member| member.id).collect();
                self.nodes[node].running.insert(op, (quoted, members));
                self.exchange(op);
            }
            PeerOutput::Finish {
                call,
                op,
                outcome,
                stamp,
                ..
            } => {
                self.nodes[node].running.remove(&op);
                let shown = PeerInput::Shown { call, stamp };
                self.queue.push_back(Delivery::Peer(node, shown));
                self.returns.insert(call, Return::Operation(outcome));
            }
            PeerOutput::Complete { call, result } => {
                self.returns.insert(call, Return::Done(result));
            }
            PeerOutput::StartSync { .. } | PeerOutput::Group { .. } | PeerOutput::Event(_) => {}
        }
    }

    fn dial(&mut self, node: usize, peer: &MemberInfo, own: MemberId, token: Token) {
        let there = |other: &Node| {
            let it = other.alive && other.own == Some((peer.id, peer.token));
            it && other.admitted.contains(&(own, token))
        };
        let Some(other) = self.nodes.iter().position(there) else {
            let input = PeerInput::DialFailed {
                peer: peer.id,
                cause: "refused".into(),
                refusal: None,
            };
            self.queue.push_back(Delivery::Peer(node, input));
            return;
        };
        let lane = LaneId(self.number());
        for (here, there, id, dialled) in [(node, other, peer.id, true), (other, node, own, false)]
        {
            self.nodes[here].lanes.insert(lane, there);
            let wanted = self.nodes[there].peer.wanted_lanes();
            let input = PeerInput::LaneOpen {
                lane,
                peer: id,
                dialled,
                wanted,
                round_trip: Duration::from_millis(20),
            };
            self.queue.push_back(Delivery::Peer(here, input));
        }
    }

    /// Stands in for the engines: a use is done once all of its members run it.
    fn exchange(&mut self, op: OpName) {
        let mut ready = Vec::new();
        for node in self.nodes.iter().filter(|node| node.alive) {
            let (Some(own), Some((_, members))) = (node.own, node.running.get(&op)) else {
                continue;
            };
            let all = members.iter().all(|member| {
                let there = |other: &&Node| other.own.map(|(id, _)| id) == Some(*member);
                let other = self.nodes.iter().find(there);
                other.is_some_and(|other| {
                    other.alive && other.running.get(&op).is_some_and(|(_, m)| m == members)
                })
            });
            ready.extend(all.then_some(own.0));
        }
        for id in ready {
            let there = |node: &Node| node.own.map(|(own, _)| own) == Some(id);
            let Some(node) = self.nodes.iter().position(there) else {
                continue;
            };
            let Some((quoted, _)) = self.nodes[node].running.get(&op) else {
                continue;
            };
            let input = PeerInput::OpDone {
                op,
                quoted: *quoted,
                result: Digest(1),
            };
            self.queue.push_back(Delivery::Peer(node, input));
        }
    }
}

fn lane_closed(lane: LaneId, orderly: bool) -> PeerInput {
    PeerInput::LaneClosed {
        lane,
        orderly,
        cause: "reset".into(),
    }
}

/// Nodes that joined one after the other.
fn joined(nodes: usize, members: usize) -> World {
    let mut world = World::new(nodes);
    world.call(0, Request::Connect);
    for newcomer in 1..members {
        let call = world.call(newcomer, Request::Connect);
        assert_eq!(world.results(&[call]), []);
        let before: Vec<usize> = (0..newcomer).collect();
        let results = world.update(&before);
        assert_eq!(results.len(), newcomer);
        assert!(matches!(world.results(&[call])[..], [Return::Done(Ok(_))]));
    }
    let all: Vec<usize> = (0..members).collect();
    assert_eq!(world.world_sizes(&all), vec![members as u32; members]);
    world
}

const COMMIT: Return = Return::Operation(Ok(Outcome::Commit));

#[test]
fn members_join_one_by_one_and_reduce() {
    let mut world = joined(4, 4);
    for _ in 0..3 {
        assert_eq!(world.reduce(&[0, 1, 2, 3]), vec![COMMIT; 4]);
        world.pass(Duration::from_secs(5));
    }
    // Four members exchange directly too: two lanes per edge, three edges per member.
    assert!(world.nodes.iter().all(|node| node.lanes.len() == 6));
}

#[test]
fn a_killed_member_fails_the_use_for_all_and_the_rest_go_on() {
    let mut world = joined(4, 3);
    let request = Request::Reduce {
        tag: Tag(1),
        descriptor: DESCRIPTOR,
    };
    let calls = [world.call(0, request.clone()), world.call(1, request)];
    world.kill(2);
    world.pass(Duration::from_millis(900));
    for result in world.results(&calls) {
        assert!(matches!(
            result,
            Return::Operation(Ok(Outcome::Abort(AbortReason::MemberLost {
                cause: LossCause::Died,
                ..
            })))
        ));
    }
    assert_eq!(world.results(&calls).len(), 2);
    assert_eq!(world.world_sizes(&[0, 1]), [2, 2]);
    assert_eq!(world.reduce(&[0, 1]), [COMMIT, COMMIT]);
    let call = world.call(3, Request::Connect);
    assert_eq!(world.update(&[0, 1]).len(), 2);
    assert!(matches!(world.results(&[call])[..], [Return::Done(Ok(_))]));
    assert_eq!(world.reduce(&[0, 1, 3]), vec![COMMIT; 3]);
}

#[test]
fn a_loss_between_calls_fails_the_next_use_once() {
    let mut world = joined(3, 3);
    world.kill(2);
    world.pass(Duration::from_millis(900));
    assert_eq!(world.world_sizes(&[0, 1]), [3, 3]);
    let failed = world.reduce(&[0, 1]);
    assert!(failed.iter().all(|result| matches!(
        result,
        Return::Operation(Ok(Outcome::Abort(AbortReason::StaleEpoch { .. })))
    )));
    assert_eq!(failed.len(), 2);
    assert_eq!(world.world_sizes(&[0, 1]), [2, 2]);
    assert_eq!(world.reduce(&[0, 1]), [COMMIT, COMMIT]);
}

#[test]
fn broken_control_connections_lose_nothing() {
    let mut world = joined(3, 3);
    for _ in 0..10 {
        let request = Request::Reduce {
            tag: Tag(1),
            descriptor: DESCRIPTOR,
        };
        let first = world.call(0, request.clone());
        world.break_master(0);
        let second = world.call(1, request.clone());
        world.break_master(1);
        let third = world.call(2, request);
        world.break_master(2);
        world.pass(Duration::from_secs(2));
        assert_eq!(world.results(&[first, second, third]), vec![COMMIT; 3]);
    }
    let query = Request::Vote(UnanimousCall::ArePeersPending);
    let first = world.call(0, query.clone());
    world.break_master(0);
    let second = world.call(1, query.clone());
    let third = world.call(2, query);
    world.break_master(1);
    world.pass(Duration::from_secs(2));
    let no = Return::Done(Ok(Answer::Pending(false)));
    assert_eq!(world.results(&[first, second, third]), vec![no; 3]);
}

#[test]
fn a_vote_given_up_fails_for_all_alike() {
    let mut world = joined(3, 3);
    let update = Request::Vote(UnanimousCall::UpdateTopology);
    let first = world.call(0, update.clone());
    let second = world.call(1, update.clone());
    let cancel = PeerInput::Cancel {
        call: first,
        cause: RequestCause::Cancelled,
    };
    world.queue.push_back(Delivery::Peer(0, cancel));
    world.settle();
    // The third votes for the try that has failed.
    let third = world.call(2, update);
    let results = world.results(&[first, second, third]);
    assert_eq!(results.len(), 3);
    assert!(results.iter().all(|result| matches!(
        result,
        Return::Done(Err(Error::Aborted {
            reason: AbortReason::Requested { .. },
            ..
        }))
    )));
    assert!(
        world
            .update(&[0, 1, 2])
            .iter()
            .all(|r| matches!(r, Return::Done(Ok(_))))
    );
}

#[test]
fn leaving_names_the_leaver_and_an_evicted_peer_joins_again() {
    let mut world = joined(3, 3);
    let request = Request::Reduce {
        tag: Tag(1),
        descriptor: DESCRIPTOR,
    };
    let open = [world.call(1, request.clone()), world.call(2, request)];
    let leave = world.call(2, Request::Leave);
    assert!(matches!(world.results(&[leave])[..], [Return::Done(Ok(_))]));
    let leaver = MemberId(3);
    for result in world.results(&open) {
        assert!(matches!(
            result,
            Return::Operation(Ok(Outcome::Abort(AbortReason::Requested {
                by,
                cause: RequestCause::Destroyed,
                ..
            }))) if by == leaver
        ));
    }
    world.pass(Duration::from_secs(1));
    let member = world.nodes[1].own.map(|(id, _)| id).unwrap();
    world
        .queue
        .push_back(Delivery::Master(MasterInput::Evict { member }));
    world.settle();
    assert_eq!(world.world_sizes(&[1]), [1]);
    let again = world.call(1, Request::Vote(UnanimousCall::UpdateTopology));
    assert_eq!(world.update(&[0]).len(), 1);
    assert!(matches!(world.results(&[again])[..], [Return::Done(Ok(_))]));
    assert_eq!(world.world_sizes(&[0, 1]), [2, 2]);
    assert_eq!(world.reduce(&[0, 1]), [COMMIT, COMMIT]);
}

#[test]
fn a_stopped_master_ends_all_calls() {
    let mut world = joined(2, 2);
    let call = world.call(0, Request::Vote(UnanimousCall::UpdateTopology));
    world.queue.push_back(Delivery::Master(MasterInput::Stop));
    world.settle();
    assert!(matches!(
        world.results(&[call])[..],
        [Return::Done(Err(Error::MasterStopped { .. }))]
    ));
    assert_eq!(world.world_sizes(&[0, 1]), [1, 1]);
}
