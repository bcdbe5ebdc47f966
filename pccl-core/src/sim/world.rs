//! One simulated world: processes on hosts, and the loop that lets time pass.

use super::core::{Core, Event, HostId, ProcId, Thread, Violation, trace};
use super::coverage::{Cover, Coverage};
use super::faults::Faults;
use super::invariants::bounded;
use super::master_node::MasterNode;
use super::network::{Net, Sock};
use super::oracle::{Known, Oracle};
use super::peer_node::PeerNode;
use super::queue::Queue;
use super::rng::Rng;
use super::scenario::{PeerShape, Scenario};
use super::trace::Trace;
use super::watch::{Directory, Watch};
use crate::ids::{RunId, Time};

/// What became of a world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What broke, if anything.
    pub violation: Option<Violation>,
    /// Situations it was in.
    pub coverage: Coverage,
    /// Equal for two runs of one seed.
    pub hash: u64,
    /// Events that were carried out.
    pub events: u64,
    /// The last lines of what happened, if asked for.
    pub lines: Vec<String>,
}

/// Runs the world of a seed, keeping the last `lines` lines of its trace.
pub fn run(seed: u64, lines: usize) -> Outcome {
    let mut world = World::new(Scenario::of(seed), lines);
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    if let Err(panic) = ran {
        let text = panic.downcast_ref::<String>().cloned();
        let what = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        world.core.violate("no_panic", what.unwrap_or_default());
    }
    // A machine that panicked may be in any state.
    let World {
        core,
        procs,
        events,
        ..
    } = world;
    if core
        .violation
        .as_ref()
        .is_some_and(|v| v.invariant == "no_panic")
    {
        std::mem::forget(procs);
    }
    Outcome {
        seed,
        violation: core.violation,
        coverage: core.coverage,
        hash: core.trace.hash(),
        events,
        lines: core.trace.into_lines(),
    }
}

/// The world.
pub(super) struct World {
    pub(super) core: Core,
    pub(super) procs: Vec<Slot>,
    /// Who lives on which host.
    pub(super) hosts: Vec<Option<ProcId>>,
    /// Processes that are to start, with their hosts and shapes.
    pub(super) starting: Vec<(ProcId, HostId, Option<PeerShape>)>,
    events: u64,
}

/// A process's place.
pub(super) struct Slot {
    pub(super) what: Option<Process>,
    /// How often it was stopped and not resumed, and whether its machine sleeps: what happens to it
    /// waits.
    pub(super) stopped: u32,
    pub(super) asleep: bool,
    pub(super) waiting: Vec<Event>,
}

impl Slot {
    /// Whether it does not run at the moment.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped > 0 || self.asleep
    }
}

/// A process.
pub(super) enum Process {
    Master(Box<MasterNode>),
    Peer(Box<PeerNode>),
}

impl World {
    fn new(scenario: Scenario, lines: usize) -> Self {
        let hosts = scenario.hosts();
        let mut core = Core {
            now: Time(0),
            rng: Rng::new(scenario.seed ^ 0x5157_0a11),
            queue: Queue::new(),
            net: Net::new(hosts, scenario.latency.clone()),
            faults: Faults::new(scenario.mix.budget, hosts),
            oracle: Oracle::default(),
            coverage: Coverage::default(),
            trace: Trace::new(lines),
            watch: Watch::default(),
            directory: Directory::default(),
            violation: None,
            scenario,
        };
        let scenario = &core.scenario;
        for (from, to) in &scenario.undialable {
            core.net.set_undialable(HostId(*from), HostId(*to));
        }
        for (a, b) in &scenario.severed {
            core.net.set_cut(HostId(*a), HostId(*b), true);
            core.net.set_cut(HostId(*b), HostId(*a), true);
        }
        core.oracle.edges_trouble =
            !scenario.undialable.is_empty() || !scenario.severed.is_empty() || scenario.flip > 0;
        core.oracle.state_trouble = !scenario.calm;
        let (undialable, severed) = (
            !scenario.undialable.is_empty(),
            !scenario.severed.is_empty(),
        );
        let two_groups = scenario.peers.iter().any(|p| p.group.0 > 0);
        for (seen, what) in [
            (undialable, Cover::UndialablePeer),
            (severed, Cover::BrokenEdge),
            (two_groups, Cover::TwoGroups),
        ] {
            if seen {
                core.cover(what);
            }
        }
        Self {
            core,
            procs: Vec::new(),
            hosts: vec![None; hosts],
            starting: Vec::new(),
            events: 0,
        }
    }

    fn run(&mut self) {
        self.begin();
        let bound = self.core.scenario.call_bound();
        let mut next_check = Time(0);
        let mut calm_at = None;
        let mut all_gone_at: Option<Time> = None;
        while let Some((at, event)) = self.core.queue.pop() {
            self.core.now = at;
            self.events += 1;
            if let Event::Calm = event {
                calm_at = Some(at);
            }
            self.core.trace.mix(&[at.0, event.number()]);
            self.handle(event);
            if self.events > EVENTS_LIMIT {
                let word = bounded::within("events", self.events as usize, EVENTS_LIMIT as usize);
                self.core.judge("bounded", word);
            }
            if at >= next_check {
                next_check = at + self.core.scenario.timing.peer_timeout;
                let word = self.core.oracle.liveness.check(at, bound);
                self.core.judge("liveness", word);
                self.check_masters();
                if calm_at.is_some_and(|c| at.since(c) > self.core.scenario.total_bound()) {
                    let who = self.unfinished();
                    let word = self.core.oracle.liveness.unfinished(&who);
                    self.core.judge("liveness", word);
                }
            }
            if self.core.violation.is_some() {
                for slot in &self.procs {
                    if let Some(Process::Peer(node)) = &slot.what {
                        trace!(
                            self.core,
                            "{:?} engine at the end: {:?}",
                            node.id,
                            node.data.engine()
                        );
                    }
                }
                return;
            }
            if self.all_gone() && !self.somebody_stopped() {
                let since = *all_gone_at.get_or_insert(at);
                // The master finds out that the last have gone, and forgets all.
                if at.since(since) > self.core.scenario.timing.peer_timeout * 4 {
                    break;
                }
            } else {
                all_gone_at = None;
            }
        }
        self.last_words();
    }

    fn check_masters(&mut self) {
        for slot in self.procs.iter().filter(|slot| !slot.is_stopped()) {
            if let Some(Process::Peer(node)) = &slot.what {
                node.check_master(&mut self.core);
            }
        }
    }

    fn begin(&mut self) {
        let master = HostId(self.core.scenario.master_host(0));
        self.start(master, None, Time(0));
        let shapes = self.core.scenario.peers.clone();
        for (index, shape) in shapes.into_iter().enumerate() {
            let at = Time(0) + shape.start;
            self.start(HostId(index), Some(shape), at);
        }
        let horizon = self.core.scenario.mix.horizon;
        if self.core.scenario.mix.budget > 0 {
            for _ in 0..self.core.scenario.mix.scattered {
                // Most of a world's work is done early.
                let within = if self.core.rng.chance(500) {
                    horizon / 20
                } else {
                    horizon
                };
                let at = self.core.rng.duration(std::time::Duration::ZERO, within);
                self.core.push(Time(0) + at, Event::Scattered);
            }
        }
        self.core.push(Time(0) + horizon, Event::Calm);
    }

    /// Starts a process on a host at a time; a master, if it has no shape.
    pub(super) fn start(&mut self, host: HostId, shape: Option<PeerShape>, at: Time) -> ProcId {
        let proc = ProcId(self.procs.len());
        self.procs.push(Slot {
            what: None,
            stopped: 0,
            asleep: false,
            waiting: Vec::new(),
        });
        self.starting.push((proc, host, shape));
        self.core.push(at, Event::Start { proc });
        proc
    }

    fn begin_process(&mut self, proc: ProcId) {
        let Some(at) = self.starting.iter().position(|s| s.0 == proc) else {
            return;
        };
        if self.hosts[self.starting[at].1.0].is_some() {
            // Its predecessor on the host is still there.
            let again = self.core.scenario.timing.heartbeat;
            self.core.after(again, Event::Start { proc });
            return;
        }
        let (_, host, shape) = self.starting.remove(at);
        self.hosts[host.0] = Some(proc);
        let what = match shape {
            None => {
                let run = RunId(u128::from(self.core.rng.bits()) << 64 | proc.0 as u128);
                let life = self.core.directory.life_of(proc, run);
                let node = MasterNode::new(&mut self.core, proc, host, run, life);
                self.core.directory.add(proc, host, run, life);
                Process::Master(Box::new(node))
            }
            Some(shape) => {
                let known = Known {
                    host,
                    group: shape.group,
                    alive: true,
                    member: None,
                    leaving: false,
                };
                self.core.oracle.known.insert(proc, known);
                let node = PeerNode::new(&mut self.core, proc, host, shape);
                self.core.push(
                    self.core.now,
                    Event::Step {
                        proc,
                        thread: Thread::User,
                    },
                );
                Process::Peer(Box::new(node))
            }
        };
        if let Some(slot) = self.procs.get_mut(proc.0) {
            slot.what = Some(what);
        }
        trace!(self.core, "{proc:?} starts on {host:?}");
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Syn { conn } => self.syn(conn),
            Event::DialAnswer { conn, ok } => {
                let dialler = Sock { conn, end: 0 };
                if self.core.answer_arrives(conn, ok)
                    && let Some(proc) = self.core.net.proc_of(dialler)
                {
                    self.give(proc, Event::Answered { conn, ok });
                }
            }
            Event::Arrive { from } => {
                if let Some(sock) = self.core.arrive(from) {
                    self.at_end(sock, Event::Readable { sock });
                }
            }
            Event::Stuck { sock, since } => {
                if let Some(sock) = self.core.give_up_stuck(sock, since) {
                    self.at_end(sock, Event::Readable { sock });
                }
            }
            Event::Reset { sock } => {
                if let Some(sock) = self.core.reset(sock) {
                    self.at_end(sock, Event::Readable { sock });
                }
            }
            Event::Readable { sock } | Event::Writable { sock } => self.at_end(sock, event),
            Event::Timer { proc, .. }
            | Event::Step { proc, .. }
            | Event::Cancel { proc, .. }
            | Event::Fetch { proc, .. }
            | Event::Accept { proc, .. }
            | Event::Exit { proc } => self.give(proc, event),
            Event::Answered { conn, .. } => {
                if let Some(proc) = self.core.net.proc_of(Sock { conn, end: 0 }) {
                    self.give(proc, event);
                }
            }
            Event::Start { proc } => self.begin_process(proc),
            Event::Resume { proc } => {
                if let Some(slot) = self.procs.get_mut(proc.0) {
                    slot.stopped = slot.stopped.saturating_sub(1);
                }
                self.resume(proc);
            }
            Event::Wake { host } => self.wake(host),
            Event::Fault(fault) => self.strike(fault),
            Event::Scattered => self.core.strike(None),
            Event::Heal { from, to } => {
                let severed = &self.core.scenario.severed;
                let (a, b) = (from.0, to.0);
                if !severed.contains(&(a, b)) && !severed.contains(&(b, a)) {
                    self.core.net.set_cut(from, to, false);
                    self.core.heal_paths();
                }
            }
            Event::Calm => self.calm(),
        }
    }

    fn syn(&mut self, conn: u32) {
        let Some(host) = self.core.dialled_host(conn) else {
            return;
        };
        let listener = self.hosts.get(host.0).copied().flatten();
        if let Some(sock) = self.core.syn(conn, listener)
            && let Some(proc) = listener
        {
            self.give(proc, Event::Accept { proc, sock });
        }
    }

    fn at_end(&mut self, sock: Sock, event: Event) {
        if let Some(proc) = self.core.net.proc_of(sock) {
            self.give(proc, event);
        }
    }

    /// Lets a process have an event, now or when it runs again.
    fn give(&mut self, proc: ProcId, event: Event) {
        let Some(slot) = self.procs.get_mut(proc.0) else {
            return;
        };
        if slot.is_stopped() {
            slot.waiting.push(event);
            return;
        }
        let core = &mut self.core;
        match &mut slot.what {
            None => {}
            Some(Process::Master(node)) => {
                match event {
                    Event::Accept { sock, .. } => node.accept(core, sock),
                    Event::Readable { sock } => node.readable(core, sock),
                    Event::Timer { .. } => node.timer(core),
                    _ => {}
                }
                if node.exited() {
                    self.end_process(proc, super::chaos::End::Order);
                }
            }
            Some(Process::Peer(node)) => match event {
                Event::Accept { sock, .. } => node.accept(core, sock),
                Event::Answered { conn, ok } => node.dialled(core, conn, ok),
                Event::Readable { sock } => node.readable(core, sock),
                Event::Writable { sock } => node.writable(core, sock),
                Event::Timer {
                    thread: Thread::Data,
                    ..
                } => node.data_timer(core),
                Event::Timer { .. } => node.timer(core),
                Event::Step { thread, .. } => match thread {
                    Thread::Control => node.step(core),
                    Thread::Data => node.data_step(core),
                    Thread::User => node.user_step(core),
                },
                Event::Cancel { call, .. } => node.cancel(core, call),
                Event::Fetch { call, .. } => self.fetch(proc, call),
                Event::Exit { .. } => self.end_process(proc, super::chaos::End::Order),
                _ => {}
            },
        }
    }

    fn fetch(&mut self, proc: ProcId, call: crate::ids::CallId) {
        let Some(Process::Peer(node)) = &self.procs[proc.0].what else {
            return;
        };
        let (host, own) = (node.host, node.member);
        let plan = node.calls.open.get(&call).and_then(|c| c.plan.clone());
        let (Some((run, own)), Some(plan)) = (own, plan) else {
            return;
        };
        let mut found = Vec::new();
        for seeder in &plan.seeders {
            let Some(other) = self.core.oracle.who.get(&(run, seeder.id)) else {
                continue;
            };
            let slot = &self.procs[other.0];
            let Some(Process::Peer(other)) = &slot.what else {
                continue;
            };
            let net = &self.core.net;
            let path = net.reaches(host, other.host) && net.reaches(other.host, host);
            if slot.is_stopped() || !path || !net.dialable(host, other.host) {
                continue;
            }
            found.extend(other.serves(own).map(|has| (seeder.id, has)));
        }
        let (newcomer, reader) = self.others_during_fetch(proc);
        let core = &mut self.core;
        let Some(Process::Peer(node)) = &mut self.procs[proc.0].what else {
            return;
        };
        let shape = node.shape.clone();
        let mut begun = false;
        if let Some(fetch) = node
            .calls
            .open
            .get_mut(&call)
            .and_then(|c| c.fetch.as_mut())
        {
            fetch.met_newcomer |= newcomer;
            fetch.met_reader |= reader;
            begun = fetch.has_begun();
        }
        node.fetch_step(core, call, &found);
        if begun && self.core.scenario.cut_fetch {
            self.core.scenario.cut_fetch = false;
            self.core.push(self.core.now, Event::Cancel { proc, call });
        }
        if begun && self.core.scenario.second_joiner {
            self.core.scenario.second_joiner = false;
            // A host that nobody began on.
            let host = HostId(self.core.scenario.peers.len());
            self.start(host, Some(shape), self.core.now);
        }
    }

    /// Whether, in a member's group, a newcomer has registered, and another member fetches.
    fn others_during_fetch(&self, proc: ProcId) -> (bool, bool) {
        let Some(Process::Peer(own)) = &self.procs[proc.0].what else {
            return (false, false);
        };
        let mut found = (false, false);
        for slot in &self.procs {
            let Some(Process::Peer(node)) = &slot.what else {
                continue;
            };
            if node.id != proc && node.shape.group == own.shape.group {
                found.0 |= node.member.is_some() && !node.machine.is_member();
                let mut open = node.calls.open.values();
                found.1 |= open.any(|c| c.fetch.is_some() && c.fetched.is_none());
            }
        }
        found
    }

    /// A process that was stopped gets all that waited for it, at once.
    pub(super) fn resume(&mut self, proc: ProcId) {
        let Some(slot) = self.procs.get_mut(proc.0) else {
            return;
        };
        if slot.is_stopped() {
            return;
        }
        if let Some(Process::Peer(node)) = &mut slot.what {
            node.restarted(&self.core);
        }
        for event in std::mem::take(&mut slot.waiting) {
            self.core.push(self.core.now, event);
        }
    }

    /// Peers that live.
    pub(super) fn peers(&self) -> Vec<ProcId> {
        let live = self.procs.iter().enumerate();
        live.filter(|(_, slot)| matches!(slot.what, Some(Process::Peer(_))))
            .map(|(index, _)| ProcId(index))
            .collect()
    }

    pub(super) fn peer(&mut self, proc: ProcId) -> Option<(&mut PeerNode, &mut Core)> {
        match &mut self.procs.get_mut(proc.0)?.what {
            Some(Process::Peer(node)) => Some((node, &mut self.core)),
            _ => None,
        }
    }

    fn all_gone(&self) -> bool {
        self.starting.is_empty()
            && !self
                .procs
                .iter()
                .any(|s| matches!(s.what, Some(Process::Peer(_))))
    }

    /// Whether a process does not run at the moment, and so cannot find out who has gone.
    fn somebody_stopped(&self) -> bool {
        let mut live = self.procs.iter().filter(|slot| slot.what.is_some());
        live.any(Slot::is_stopped)
    }

    fn unfinished(&self) -> Vec<String> {
        let mut who = Vec::new();
        for slot in &self.procs {
            if let Some(Process::Peer(node)) = &slot.what {
                who.push(format!("{:?} at {}", node.id, node.user.whereabouts()));
            }
        }
        who
    }

    /// All is over: nothing may be left.
    fn last_words(&mut self) {
        let mut words = Vec::new();
        for slot in &self.procs {
            if let Some(Process::Master(node)) = &slot.what {
                words.extend(node.leftovers());
            }
        }
        for (what, count) in words {
            let word = bounded::within(what, count, 0);
            self.core.judge("bounded", word);
        }
    }
}

/// Events of one world at most; the longest healthy ones need a twentieth.
const EVENTS_LIMIT: u64 = 4_000_000;
