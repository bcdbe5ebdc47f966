//! The data thread of a simulated peer: the engine and the sockets of its lanes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::clock::Clock;
use super::core::{Core, Event, ProcId, Thread, trace};
use super::coverage::Cover;
use super::invariants::{bounded, well_formed};
use super::network::{Reading, Sock};
use super::peer_node::Note;
use super::scenario::BIG;
use super::scenario::Moment;
use crate::collective::buffers::Lent;
use crate::collective::engine::{Engine, EngineConfig, EngineEvent, EngineGroup, StartReduce};
use crate::ids::{CallId, Digest, LaneId, MemberId, Time};
use crate::membership::peer::PeerInput;

/// What the control thread tells the data thread.
pub(super) enum Order {
    /// A lane's handshake is over.
    Open {
        lane: LaneId,
        sock: Sock,
        peer: MemberId,
    },
    /// Close a lane in good order.
    Close(LaneId),
    /// The group changed.
    Group(EngineGroup),
    /// Start an all-reduce.
    Start(Box<StartReduce>, Lent),
    /// Let go of an operation's buffers.
    Finish { call: CallId, commit: bool },
}

/// The thread.
pub(super) struct DataNode {
    proc: ProcId,
    pub(super) clock: Clock,
    engine: Engine,
    lanes: BTreeMap<LaneId, Lane>,
    by_conn: BTreeMap<u32, LaneId>,
    pub(super) orders: VecDeque<Order>,
    pub(super) notes: Vec<Note>,
    heard: BTreeSet<MemberId>,
    tell_heard: Time,
    /// Operations that the engine has.
    running: usize,
    /// Chance (per mille) that a result is computed wrongly.
    wrong: u32,
    spins: u32,
}

struct Lane {
    sock: Sock,
    peer: MemberId,
    /// The last write was cut short within a frame.
    torn: bool,
    /// After the goodbye: when the other end must have closed too.
    until: Option<Time>,
}

impl DataNode {
    /// A data thread without lanes.
    pub(super) fn new(core: &Core, proc: ProcId, clock: Clock, segment: u32) -> Self {
        let config = EngineConfig {
            segment,
            protected: false,
            timing: core.scenario.timing,
            // None where tensors are big: each slice has its own small room only.
            scratch: match core.scenario.program.elements >= BIG {
                true => 0,
                false => 64 * u64::from(segment),
            },
        };
        Self {
            proc,
            clock,
            engine: Engine::new(config, clock.local(core.now)),
            lanes: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            orders: VecDeque::new(),
            notes: Vec::new(),
            heard: BTreeSet::new(),
            tell_heard: Time(0),
            running: 0,
            wrong: core.scenario.program.wrong,
            spins: 0,
        }
    }

    /// Whether a connection is one of its lanes.
    pub(super) fn owns(&self, sock: Sock) -> bool {
        self.by_conn.contains_key(&sock.conn)
    }

    /// The sockets of its lanes, each with the member at the other end.
    pub(super) fn lanes(&self) -> Vec<(Sock, MemberId)> {
        self.lanes.values().map(|l| (l.sock, l.peer)).collect()
    }

    /// Whether a lane's last write was cut short within a frame.
    pub(super) fn is_torn(&self, sock: Sock) -> bool {
        let lane = self.by_conn.get(&sock.conn);
        lane.and_then(|l| self.lanes.get(l)).is_some_and(|l| l.torn)
    }

    /// The engine, to look at.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Ends the thread, as a driver does between two memberships: what was ordered is done, then
    /// the lanes close.
    pub(super) fn end(&mut self, core: &mut Core) {
        while !self.orders.is_empty() {
            self.step(core);
        }
        for lane in self.lanes.values() {
            core.close(lane.sock);
        }
        self.by_conn.clear();
    }

    /// Lanes that closed with the thread.
    pub(super) fn ended_lanes(&mut self) -> Vec<LaneId> {
        std::mem::take(&mut self.lanes).into_keys().collect()
    }

    /// Takes the next order.
    pub(super) fn step(&mut self, core: &mut Core) {
        let Some(order) = self.orders.pop_front() else {
            return;
        };
        let now = self.clock.local(core.now);
        match order {
            Order::Open { lane, sock, peer } => {
                let new = Lane {
                    sock,
                    peer,
                    torn: false,
                    until: None,
                };
                trace!(core, "{:?} lane {lane} is {sock:?}", self.proc);
                self.lanes.insert(lane, new);
                self.by_conn.insert(sock.conn, lane);
                core.carries_data(sock);
                self.engine.lane_open(lane, peer, now);
            }
            Order::Close(lane) => self.engine.close_lane(lane),
            Order::Group(group) => self.engine.set_group(group, now),
            Order::Start(start, lent) => {
                self.running += 1;
                if self.running > 1 {
                    core.cover(Cover::ConcurrentOps);
                }
                self.engine.start(*start, lent, now);
            }
            Order::Finish { call, commit } => {
                self.running = self.running.saturating_sub(1);
                self.engine.finish(call, commit);
                self.notes.push(Note::Released(call));
            }
        }
        // What the engine did not want before it may want now.
        let all: Vec<LaneId> = self.lanes.keys().copied().collect();
        for lane in all {
            self.read(core, lane);
        }
        self.settle(core);
    }

    /// A lane has something to read, or failed.
    pub(super) fn readable(&mut self, core: &mut Core, sock: Sock) {
        if let Some(lane) = self.by_conn.get(&sock.conn).copied() {
            self.read(core, lane);
        }
        self.settle(core);
    }

    /// A lane has room again.
    pub(super) fn writable(&mut self, core: &mut Core, sock: Sock) {
        if let Some(lane) = self.by_conn.get(&sock.conn).copied() {
            self.write(core, lane);
        }
        self.settle(core);
    }

    /// A deadline may be due.
    pub(super) fn timer(&mut self, core: &mut Core) {
        self.clock.fired(core.now);
        let all: Vec<LaneId> = self.lanes.keys().copied().collect();
        for lane in all {
            self.read(core, lane);
        }
        let now = self.clock.local(core.now);
        if self.engine.next_deadline().is_some_and(|at| at <= now) {
            self.engine.tick(now);
            let due = self.engine.next_deadline().is_some_and(|at| at <= now);
            self.spins = if due { self.spins + 1 } else { 0 };
            let word = bounded::within(
                "deadlines of an engine due at once",
                self.spins as usize,
                bounded::SPINS as usize,
            );
            core.judge("bounded", word);
        }
        let late: Vec<LaneId> = self
            .lanes
            .iter()
            .filter(|(_, l)| l.until.is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for lane in late {
            self.close(core, lane, true, GOODBYE);
        }
        self.settle(core);
    }

    fn read(&mut self, core: &mut Core, id: LaneId) {
        let whole = core.scenario.split == 0;
        for _ in 0..READS_PER_TURN {
            let now = self.clock.local(core.now);
            let Some(lane) = self.lanes.get(&id) else {
                return;
            };
            let sock = lane.sock;
            let there = core.unread_len(sock);
            let sink = self.engine.sink(id);
            if sink.is_empty() && there > 0 {
                // It waits for the master's word; the bytes stay in the socket.
                return;
            }
            let most = sink.len().min(there);
            let most = if whole || most == 0 {
                most
            } else {
                1 + core.rng.index(most)
            };
            let (bytes, state) = core.read(sock, most);
            if !bytes.is_empty() {
                if let Some(place) = sink.get_mut(..bytes.len()) {
                    place.copy_from_slice(&bytes);
                }
                self.engine.received(id, bytes.len(), now);
                self.events(core);
                continue;
            }
            match state {
                Reading::Open => return,
                Reading::Ended => {
                    let orderly = lane.until.is_some();
                    self.close(core, id, orderly, "the other end closed the connection");
                    return;
                }
                Reading::Failed(cause) => {
                    self.close(core, id, false, cause);
                    return;
                }
            }
        }
        // A long queue gets its next turn at once.
        core.push(
            core.now,
            Event::Timer {
                proc: self.proc,
                thread: Thread::Data,
            },
        );
    }

    fn write(&mut self, core: &mut Core, id: LaneId) {
        for _ in 0..WRITES_PER_TURN {
            let Some(lane) = self.lanes.get_mut(&id) else {
                return;
            };
            let sock = lane.sock;
            let room = core.room(sock);
            let [head, rest] = self.engine.gather(id);
            let total = head.len() + rest.len();
            if total == 0 {
                lane.torn = false;
                return;
            }
            if room == 0 {
                return;
            }
            let mut take = total.min(room);
            if core.rng.chance(core.scenario.split) {
                take = 1 + core.rng.index(take);
            }
            let bytes: Vec<u8> = head.iter().chain(rest).take(take).copied().collect();
            lane.torn = take < total;
            if lane.torn {
                core.moment(Moment::MidFrame, self.proc);
            }
            core.write(sock, &bytes);
            self.engine.sent(id, take, self.clock.local(core.now));
        }
        core.push(
            core.now,
            Event::Writable {
                sock: self.lanes[&id].sock,
            },
        );
    }

    /// Carries out what the engine asks for, until it asks for nothing.
    fn settle(&mut self, core: &mut Core) {
        for _ in 0..bounded::OUTPUTS_PER_INPUT {
            self.events(core);
            let Some(lane) = self.engine.poll_writable() else {
                break;
            };
            self.write(core, lane);
        }
        self.events(core);
        let now = self.clock.local(core.now);
        self.heard.extend(self.engine.heard());
        if !self.heard.is_empty() && now >= self.tell_heard {
            self.tell_heard = now + core.scenario.timing.heartbeat;
            let heard = std::mem::take(&mut self.heard).into_iter().collect();
            self.notes.push(Note::Input(PeerInput::Heard(heard)));
        }
        let heard = (!self.heard.is_empty()).then_some(self.tell_heard);
        let lingering = self.lanes.values().filter_map(|l| l.until);
        let due = lingering
            .chain(heard)
            .chain(self.engine.next_deadline())
            .min();
        self.clock.arm(core, self.proc, Thread::Data, due);
    }

    fn events(&mut self, core: &mut Core) {
        while let Some(event) = self.engine.poll_event() {
            trace!(core, "{:?} engine -> {event:?}", self.proc);
            match event {
                EngineEvent::LaneFault { lane, what, .. } => self.close(core, lane, false, &what),
                EngineEvent::LaneBye { lane } => self.close(core, lane, true, GOODBYE),
                EngineEvent::ByeSent { lane } => {
                    let until = self.clock.local(core.now) + LINGER;
                    if let Some(state) = self.lanes.get_mut(&lane) {
                        state.until = Some(until);
                        core.half_close(state.sock);
                    }
                }
                EngineEvent::Done { op, quoted, result } => {
                    let mut result = result;
                    if self.wrong > 0 && core.faults.active() && core.rng.chance(self.wrong) {
                        core.cover(Cover::WrongResult);
                        result = Digest(result.0 ^ u128::from(core.rng.bits() | 1));
                        self.notes.push(Note::Wrong(op, quoted));
                    }
                    let done = PeerInput::OpDone { op, quoted, result };
                    self.notes.push(Note::Input(done));
                }
                EngineEvent::Failed { op, quoted, cause } => {
                    let word = well_formed::failed(&cause);
                    core.judge(
                        "well_formed",
                        word.map_err(|w| format!("{:?}: {w}", self.proc)),
                    );
                    let failed = PeerInput::OpFailed { op, quoted, cause };
                    self.notes.push(Note::Input(failed));
                }
                EngineEvent::FirstSegmentSent { .. } => {}
            }
        }
    }

    fn close(&mut self, core: &mut Core, id: LaneId, orderly: bool, cause: &str) {
        let Some(lane) = self.lanes.remove(&id) else {
            return;
        };
        self.by_conn.remove(&lane.sock.conn);
        if lane.torn && !orderly {
            core.cover(Cover::LaneDeathMidFrame);
        }
        core.close(lane.sock);
        let now = self.clock.local(core.now);
        self.engine.lane_closed(id, orderly, cause, now);
        self.notes.push(Note::Input(PeerInput::LaneClosed {
            lane: id,
            orderly,
            cause: cause.to_owned(),
        }));
    }
}

/// What a lane that ended with a goodbye said.
const GOODBYE: &str = "closed in good order";

/// How long the other end may take to close its side after a goodbye.
const LINGER: Duration = Duration::from_secs(1);

/// Reads of one lane before others get their turn.
const READS_PER_TURN: usize = 10_000;

/// Writes of one lane before others get their turn.
const WRITES_PER_TURN: usize = 10_000;
