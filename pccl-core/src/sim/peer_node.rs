//! A process that runs the peer machine: its control thread, as the driver of a real one does.

use std::collections::{BTreeMap, VecDeque};

use super::calls::Calls;
use super::clock::{Clock, PORT};
use super::control_link::Control;
use super::core::{Core, Event, HostId, ProcId, Thread, trace};
use super::coverage::Cover;
use super::data_node::{DataNode, Order};
use super::handshake::{Accepting, Dialling, Step};
use super::invariants::highest_incarnation::Highest;
use super::invariants::{bounded, master_limit};
use super::network::Sock;
use super::scenario::{Moment, PeerShape};
use super::user::User;
use crate::collective::engine::{EngineGroup, StartReduce};
use crate::event::Event as Told;
use crate::ids::{CallId, LaneId, MemberId, Round, RunId, Serial, Time};
use crate::membership::peer::{OwnAddresses, Peer, PeerInput, PeerOutput, PeerSettings, Request};
use crate::transport::admission::Admission;
use crate::types::Attributes;
use crate::wire::control::{Down, GroupView, OpName, Up};
use crate::wire::lane::PeerRefusal;
use crate::wire::reason::RequestCause;

/// What other threads tell the control thread.
pub(super) enum Note {
    /// For the machine.
    Input(PeerInput),
    /// The buffers of a call are free.
    Released(CallId),
    /// The engine's result of this use was made wrong.
    Wrong(OpName, Serial),
}

/// The process.
pub(super) struct PeerNode {
    pub(super) id: ProcId,
    pub(super) host: HostId,
    pub(super) shape: PeerShape,
    pub(super) clock: Clock,
    pub(super) machine: Peer,
    pub(super) data: DataNode,
    pub(super) user: User,
    pub(super) calls: Calls,
    pub(super) notes: VecDeque<Note>,
    pub(super) returned: VecDeque<CallId>,
    pub(super) control: Option<Control>,
    pub(super) dialling: BTreeMap<u32, Dialling>,
    accepting: BTreeMap<u32, Accepting>,
    pub(super) admission: Admission,
    next_lane: u64,
    pub(super) next_call: u64,
    /// Runs that it has been a member of.
    pub(super) member: Option<(RunId, MemberId)>,
    pub(super) registrations: u32,
    /// Rounds completed in its run.
    pub(super) rounds: Round,
    pub(super) group: GroupView,
    spins: u32,
    /// When it last heard from its master, or last began to listen.
    pub(super) master_heard: Time,
    /// The highest life of a master that it was told of, and in which run.
    pub(super) highest: Highest,
    /// Its program is over: the process ends.
    pub(super) exits: bool,
}

impl PeerNode {
    /// A fresh process on a host.
    pub(super) fn new(core: &mut Core, id: ProcId, host: HostId, shape: PeerShape) -> Self {
        let clock = Clock::new(core);
        let settings = PeerSettings {
            master_address: "master".into(),
            group: shape.group,
            name: format!("host{}", host.0),
            own: OwnAddresses {
                port: PORT,
                announce: Vec::new(),
            },
            pool: shape.pool,
            seed: core.rng.bits(),
        };
        let own = core.rng.bits();
        Self {
            id,
            host,
            machine: Peer::new(settings, clock.local(core.now)),
            data: DataNode::new(core, id, clock, shape.segment),
            user: User::new(&core.scenario, &shape, own),
            shape,
            clock,
            calls: Calls::default(),
            notes: VecDeque::new(),
            returned: VecDeque::new(),
            control: None,
            dialling: BTreeMap::new(),
            accepting: BTreeMap::new(),
            admission: Admission::default(),
            next_lane: 0,
            next_call: 0,
            member: None,
            registrations: 0,
            rounds: Round(0),
            group: GroupView::default(),
            spins: 0,
            master_heard: core.now,
            highest: None,
            exits: false,
        }
    }

    /// The process was stopped, or its clock jumped: it cannot tell since when the master is silent.
    pub(super) fn restarted(&mut self, core: &Core) {
        self.master_heard = core.now;
    }

    /// Judges whether it gives its membership up when it has to.
    pub(super) fn check_master(&self, core: &mut Core) {
        let silent = core.now.since(self.master_heard);
        let word = master_limit::check(self.machine.is_member(), silent, core.scenario.timing);
        core.judge(
            "master_limit",
            word.map_err(|w| format!("{:?}: {w}", self.id)),
        );
    }

    /// The control connection's socket.
    pub(super) fn control_sock(&self) -> Option<Sock> {
        self.control.as_ref().map(|c| c.sock)
    }

    /// World size as the library shows it.
    pub(super) fn attributes(&self) -> Attributes {
        self.machine.attributes()
    }

    /// Somebody has dialled this process.
    pub(super) fn accept(&mut self, core: &mut Core, sock: Sock) {
        let deadline = self.clock.local(core.now) + core.scenario.timing.handshake();
        self.accepting
            .insert(sock.conn, Accepting::new(sock, deadline));
        self.arm(core);
    }

    /// A dial of this process has an answer.
    pub(super) fn dialled(&mut self, core: &mut Core, conn: u32, ok: bool) {
        if self.control.as_ref().is_some_and(|c| c.sock.conn == conn) {
            self.control_dialled(core, ok);
        } else if let Some(dialling) = self.dialling.get_mut(&conn) {
            if ok {
                dialling.connected(core);
            } else if let Some(dialling) = self.dialling.remove(&conn) {
                core.close(dialling.sock);
                self.dial_failed(core, dialling.peer.id, "connection refused", None);
            }
        }
        self.arm(core);
    }

    /// A connection has something to read, or failed.
    pub(super) fn readable(&mut self, core: &mut Core, sock: Sock) {
        if self.data.owns(sock) {
            self.data.readable(core, sock);
            self.collect(core);
        } else if self.control.as_ref().is_some_and(|c| c.sock == sock) {
            self.read_control(core);
        } else if self.dialling.contains_key(&sock.conn) {
            self.read_dialling(core, sock.conn);
        } else if self.accepting.contains_key(&sock.conn) {
            self.read_accepting(core, sock.conn);
        }
        self.arm(core);
    }

    /// A connection has room again.
    pub(super) fn writable(&mut self, core: &mut Core, sock: Sock) {
        if self.data.owns(sock) {
            self.data.writable(core, sock);
            self.collect(core);
        }
        self.arm(core);
    }

    /// A deadline of the control thread may be due.
    pub(super) fn timer(&mut self, core: &mut Core) {
        self.clock.fired(core.now);
        // All input that is there goes before the clock. (Rule 14)
        while !self.notes.is_empty() {
            self.take_note(core);
        }
        self.read_control(core);
        let conns: Vec<u32> = self.dialling.keys().copied().collect();
        for conn in conns {
            self.read_dialling(core, conn);
        }
        let now = self.clock.local(core.now);
        if self.machine.next_deadline().is_some_and(|at| at <= now) {
            self.input(core, PeerInput::Tick);
            let due = self.machine.next_deadline().is_some_and(|at| at <= now);
            self.spins = if due { self.spins + 1 } else { 0 };
            let word = bounded::within(
                "deadlines of a peer due at once",
                self.spins as usize,
                bounded::SPINS as usize,
            );
            core.judge("bounded", word);
        }
        self.handshakes_due(core, now);
        self.arm(core);
    }

    /// The control thread takes a message from another thread.
    pub(super) fn step(&mut self, core: &mut Core) {
        self.take_note(core);
        self.arm(core);
    }

    /// The data thread takes an order.
    pub(super) fn data_step(&mut self, core: &mut Core) {
        self.data.step(core);
        self.collect(core);
    }

    /// A deadline of the data thread may be due.
    pub(super) fn data_timer(&mut self, core: &mut Core) {
        self.data.timer(core);
        self.collect(core);
    }

    /// A user thread makes a call.
    pub(super) fn note(&mut self, core: &mut Core, note: Note) {
        self.notes.push_back(note);
        let delay = core.thread_delay();
        core.after(
            delay,
            Event::Step {
                proc: self.id,
                thread: Thread::Control,
            },
        );
    }

    /// The clock of the machine jumps.
    pub(super) fn jump(&mut self, core: &mut Core, by: std::time::Duration) {
        self.clock.jump(by);
        self.data.clock.follow(&self.clock);
        self.restarted(core);
        self.arm(core);
        for thread in [Thread::Control, Thread::Data] {
            core.push(
                core.now,
                Event::Timer {
                    proc: self.id,
                    thread,
                },
            );
        }
    }

    /// Gives a call up.
    pub(super) fn cancel(&mut self, core: &mut Core, call: CallId) {
        if self.calls.is_open(call) {
            let cause = RequestCause::Cancelled;
            self.note(core, Note::Input(PeerInput::Cancel { call, cause }));
        }
    }

    /// Asks the machine for a call.
    pub(super) fn call(
        &mut self,
        core: &mut Core,
        call: CallId,
        request: Request,
        limit: Option<std::time::Duration>,
    ) {
        self.note(
            core,
            Note::Input(PeerInput::Call {
                call,
                request,
                limit,
            }),
        );
    }

    fn take_note(&mut self, core: &mut Core) {
        match self.notes.pop_front() {
            None => {}
            Some(Note::Input(input)) => self.input(core, input),
            Some(Note::Released(call)) => self.return_call(core, call),
            Some(Note::Wrong(op, quoted)) => self.calls.wrong(op, quoted),
        }
    }

    /// Hands what the data thread said to the control thread.
    pub(super) fn collect(&mut self, core: &mut Core) {
        for note in std::mem::take(&mut self.data.notes) {
            self.note(core, note);
        }
        let due = self.data.engine().next_deadline();
        self.data.clock.arm(core, self.id, Thread::Data, due);
    }

    pub(super) fn order(&mut self, core: &mut Core, order: Order) {
        self.data.orders.push_back(order);
        let delay = core.thread_delay();
        core.after(
            delay,
            Event::Step {
                proc: self.id,
                thread: Thread::Data,
            },
        );
    }

    /// Lets a user's thread go on.
    pub(super) fn return_call(&mut self, core: &mut Core, call: CallId) {
        self.returned.push_back(call);
        let delay = core.thread_delay();
        core.after(
            delay,
            Event::Step {
                proc: self.id,
                thread: Thread::User,
            },
        );
    }

    pub(super) fn input(&mut self, core: &mut Core, input: PeerInput) {
        let now = self.clock.local(core.now);
        if !matches!(
            input,
            PeerInput::Message(Down::Heartbeat) | PeerInput::Heard(_) | PeerInput::Tick
        ) {
            trace!(core, "{:?} <- {input:?}", self.id);
        }
        if let PeerInput::Call { call, .. } = &input
            && let Some(open) = self.calls.open.get_mut(call)
        {
            open.shown = self.machine.attributes().group_world_size;
        }
        self.machine.handle(input, now);
        let mut count = 0;
        while let Some(output) = self.machine.poll_output() {
            self.output(core, output);
            count += 1;
            if count > bounded::OUTPUTS_PER_INPUT {
                core.violate("bounded", "a peer's outputs have no end".into());
                return;
            }
        }
        if self.machine.member_id().is_none() && self.member.take().is_some() {
            if let Some(known) = core.oracle.known.get_mut(&self.id) {
                known.member = None;
            }
            core.saw_gone(self.id, self.machine.attributes());
        }
    }

    fn output(&mut self, core: &mut Core, output: PeerOutput) {
        if !matches!(output, PeerOutput::Send(Up::Heartbeat { .. })) {
            trace!(core, "{:?} -> {output:?}", self.id);
        }
        match output {
            PeerOutput::DialMaster { hello } => self.dial_master(core, &hello),
            PeerOutput::Send(message) => self.send(core, &message),
            PeerOutput::CloseMaster => {
                if let Some(control) = self.control.take() {
                    core.close(control.sock);
                }
            }
            PeerOutput::DialPeer {
                peer,
                run,
                own,
                token,
            } => {
                core.moment(Moment::Dialled, self.id);
                let deadline = self.clock.local(core.now) + core.scenario.timing.handshake();
                let wanted = self.shape.pool;
                match Dialling::start(core, self.id, self.host, peer, deadline, |to| {
                    super::handshake::hello(run, own, to, token, wanted)
                }) {
                    Ok(dialling) => {
                        self.dialling.insert(dialling.sock.conn, dialling);
                    }
                    Err(peer) => {
                        let failed = PeerInput::DialFailed {
                            peer,
                            cause: "it has no address".into(),
                            refusal: None,
                        };
                        self.note(core, Note::Input(failed));
                    }
                }
            }
            PeerOutput::Admit {
                own,
                peers,
                readers,
                keys,
            } => {
                self.admission = Admission {
                    own,
                    peers: peers.into_iter().collect(),
                    readers: readers.into_iter().collect(),
                    keys: keys.into_iter().collect(),
                    ..Admission::default()
                }
                .after(&self.admission);
                let waiting: Vec<u32> = self.accepting.keys().copied().collect();
                for conn in waiting {
                    self.read_accepting(core, conn);
                }
            }
            PeerOutput::CloseLane { lane } => self.order(core, Order::Close(lane)),
            PeerOutput::StartReduce {
                call,
                op,
                quoted,
                descriptor,
                group,
                own,
            } => {
                let Some(lent) = self.started(core, call, op, quoted, &group, own) else {
                    return;
                };
                let start = StartReduce {
                    call,
                    op,
                    quoted,
                    descriptor,
                    group,
                    own,
                };
                self.order(core, Order::Start(Box::new(start), lent));
            }
            PeerOutput::StartSync { call, plan } => self.start_sync(core, call, plan),
            PeerOutput::Finish {
                call,
                op,
                quoted,
                outcome,
                stamp,
            } => self.finish(core, call, (op, quoted), outcome, stamp),
            PeerOutput::Group { group, shown } => {
                if group.epoch != self.group.epoch && self.calls.ops_open() {
                    core.cover(Cover::EpochChangeInFlight);
                }
                self.group = group.clone();
                self.order(core, Order::Group(EngineGroup { view: group, shown }));
            }
            PeerOutput::Complete { call, result } => {
                if self.calls.complete(call, result) {
                    self.return_call(core, call);
                } else {
                    core.violate("one_answer", format!("{:?} completes {call}", self.id));
                }
            }
            PeerOutput::Event(event) => self.told(core, &event),
        }
    }

    fn told(&mut self, core: &mut Core, event: &Told) {
        match event {
            Told::Evicted { member, reason } => {
                if let Some((run, _)) = self.member {
                    core.saw_evicted(run, *member, reason);
                }
            }
            Told::Verdict { op, stamp, .. } => self.calls.verdict(*op, *stamp),
            Told::Admitted { .. } => {
                core.cover(Cover::NewcomerAdmitted);
                if self.registrations > 1 {
                    core.cover(Cover::Rejoined);
                }
            }
            _ => {}
        }
    }

    fn read_dialling(&mut self, core: &mut Core, conn: u32) {
        let Some(dialling) = self.dialling.get_mut(&conn) else {
            return;
        };
        match dialling.read(core) {
            Step::Wait => {}
            Step::Open { wanted, .. } => {
                if let Some(dialling) = self.dialling.remove(&conn) {
                    self.lane_open(core, dialling.sock, dialling.peer.id, true, wanted);
                }
            }
            Step::Failed(cause, refusal) => {
                if let Some(dialling) = self.dialling.remove(&conn) {
                    core.close(dialling.sock);
                    self.dial_failed(core, dialling.peer.id, &cause, refusal);
                }
            }
        }
    }

    fn read_accepting(&mut self, core: &mut Core, conn: u32) {
        let wanted = self.shape.pool;
        let Some(accepting) = self.accepting.get_mut(&conn) else {
            return;
        };
        match accepting.read(core, &self.admission, wanted) {
            Step::Wait => {}
            Step::Open { peer, wanted } => {
                if let Some(accepting) = self.accepting.remove(&conn) {
                    self.lane_open(core, accepting.sock, peer, false, wanted);
                }
            }
            Step::Failed(..) => {
                if let Some(accepting) = self.accepting.remove(&conn) {
                    core.close(accepting.sock);
                }
            }
        }
    }

    fn handshakes_due(&mut self, core: &mut Core, now: Time) {
        let late: Vec<u32> = self
            .dialling
            .iter()
            .filter(|(_, d)| d.deadline <= now)
            .map(|(conn, _)| *conn)
            .collect();
        for conn in late {
            if let Some(dialling) = self.dialling.remove(&conn) {
                core.close(dialling.sock);
                self.dial_failed(core, dialling.peer.id, "no answer in time", None);
            }
        }
        let late: Vec<u32> = self
            .accepting
            .iter()
            .filter(|(_, a)| a.deadline <= now)
            .map(|(conn, _)| *conn)
            .collect();
        for conn in late {
            if let Some(mut accepting) = self.accepting.remove(&conn) {
                accepting.refuse(core);
                core.close(accepting.sock);
            }
        }
    }

    fn lane_open(
        &mut self,
        core: &mut Core,
        sock: Sock,
        peer: MemberId,
        dialled: bool,
        wanted: u16,
    ) {
        let lane = LaneId(self.next_lane);
        self.next_lane += 1;
        self.order(core, Order::Open { lane, sock, peer });
        self.input(
            core,
            PeerInput::LaneOpen {
                lane,
                peer,
                dialled,
                wanted,
                round_trip: std::time::Duration::ZERO,
            },
        );
    }

    fn dial_failed(
        &mut self,
        core: &mut Core,
        peer: MemberId,
        cause: &str,
        refusal: Option<PeerRefusal>,
    ) {
        let cause = cause.to_owned();
        self.input(
            core,
            PeerInput::DialFailed {
                peer,
                cause,
                refusal,
            },
        );
    }

    pub(super) fn arm(&mut self, core: &mut Core) {
        let dials = self.dialling.values().map(|d| d.deadline);
        let accepts = self.accepting.values().map(|a| a.deadline);
        let due = dials
            .chain(accepts)
            .chain(self.machine.next_deadline())
            .min();
        self.clock.arm(core, self.id, Thread::Control, due);
    }
}
