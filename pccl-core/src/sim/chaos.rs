//! What faults do to a world.

use std::time::Duration;

use super::core::{Event, HostId, ProcId, trace};
use super::coverage::Cover;
use super::faults::Fault;
use super::scenario::Kind;
use super::world::{Process, World};
use crate::ids::Time;

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// By itself: sockets close after what was written.
    Order,
    /// Killed.
    Killed,
    /// Its machine is gone.
    Vanished,
}

impl World {
    /// A fault strikes.
    pub(super) fn strike(&mut self, fault: Fault) {
        if !self.core.faults.active() {
            return;
        }
        let peers = self.peers();
        let aimed = fault.target.filter(|t| peers.contains(t));
        let Some(target) = aimed.or_else(|| self.core.rng.pick(&peers)) else {
            return;
        };
        let Some((node, _)) = self.peer(target) else {
            return;
        };
        let host = node.host;
        trace!(
            self.core,
            "FAULT {:?} at {target:?} on {host:?}", fault.kind
        );
        match fault.kind {
            Kind::Crash => self.crash(target, End::Killed),
            Kind::PowerCut => self.power_cut(target, host),
            Kind::BreakControl => self.break_control(target, host),
            Kind::BreakLane => self.break_lanes(target, host, false),
            Kind::BreakLanes => self.break_lanes(target, host, true),
            Kind::CutOneWay | Kind::CutBothWays => self.cut_some(host, fault.kind),
            Kind::Isolate => {
                self.core.cover(Cover::Isolated);
                let span = self.core.draw_span();
                for other in 0..self.hosts.len() {
                    if other != host.0 {
                        self.cut(host, HostId(other), span);
                        self.cut(HostId(other), host, span);
                    }
                }
            }
            Kind::Partition => self.partition(),
            Kind::Stall => {
                let span = self.core.draw_span();
                self.core.cover(Cover::StallPeer);
                if span > self.core.scenario.timing.peer_timeout {
                    self.core.cover(Cover::StallPeerLong);
                }
                self.excuse_both(host, span);
                self.stop(target, span);
            }
            Kind::StallMaster => self.stall_master(),
            Kind::Suspend => self.suspend(host),
            Kind::Jump => self.jump(target, host),
            Kind::Evict => self.evict(),
            Kind::SecondMaster => self.second_master(),
            Kind::RestartMaster => self.restart_master(),
            Kind::Leave => {
                let at_once = self.core.rng.chance(500);
                if let Some((node, core)) = self.peer(target) {
                    if at_once {
                        node.leave_now(core);
                    } else {
                        node.user.enough();
                    }
                }
            }
        }
    }

    /// All faults end.
    pub(super) fn calm(&mut self) {
        trace!(self.core, "CALM");
        self.core.faults.stop();
        self.core.directory.mixed = false;
        let now = self.core.now;
        self.core.oracle.liveness.calm(now);
        for from in 0..self.hosts.len() {
            self.core.push(now, Event::Wake { host: HostId(from) });
            for to in 0..self.hosts.len() {
                let (from, to) = (HostId(from), HostId(to));
                self.core.push(now, Event::Heal { from, to });
            }
        }
        for (proc, slot) in self.procs.iter_mut().enumerate() {
            slot.stopped = 0;
            if let Some(Process::Peer(node)) = &mut slot.what {
                node.restarted(&self.core);
            }
            self.core.push(now, Event::Resume { proc: ProcId(proc) });
        }
        for peer in self.peers() {
            if let Some((node, _)) = self.peer(peer) {
                node.user.faithful = true;
            }
        }
        let starting = self.starting.iter().any(|s| s.2.is_none());
        if self.core.directory.masters.is_empty() && !starting {
            let host = HostId(self.core.scenario.master_host(0));
            self.start(host, None, now);
        }
    }

    /// A machine wakes up.
    pub(super) fn wake(&mut self, host: HostId) {
        self.core.net.set_asleep(host, false);
        self.core.heal_paths();
        if let Some(proc) = self.hosts.get(host.0).copied().flatten() {
            self.procs[proc.0].asleep = false;
            self.resume(proc);
        }
    }

    /// Ends a process.
    pub(super) fn end_process(&mut self, proc: ProcId, end: End) {
        let Some(slot) = self.procs.get_mut(proc.0) else {
            return;
        };
        let Some(what) = slot.what.take() else {
            return;
        };
        slot.waiting.clear();
        slot.stopped = 0;
        slot.asleep = false;
        for sock in self.core.net.socks_of(proc) {
            match end {
                End::Order => self.core.close(sock),
                End::Killed => self.core.kill_sock(sock),
                End::Vanished => self.core.forget_sock(sock),
            }
        }
        let host = match &what {
            Process::Master(node) => {
                self.core.directory.masters.retain(|m| m.0 != proc);
                node.host
            }
            Process::Peer(node) => {
                self.core.saw_exit(proc);
                node.host
            }
        };
        self.hosts[host.0] = None;
        trace!(self.core, "{proc:?} on {host:?} ends");
    }

    fn crash(&mut self, target: ProcId, end: End) {
        let Some((node, core)) = self.peer(target) else {
            return;
        };
        core.cover(Cover::Crash);
        if node.calls.ops_open() {
            core.cover(Cover::CrashWithOp);
        }
        if node.calls.vote_open() {
            core.cover(Cover::CrashWithVote);
        }
        if node.member.is_some() && !node.machine.is_member() {
            core.cover(Cover::NewcomerCrash);
        }
        let shape = node.shape.clone();
        let host = node.host;
        let names: Vec<_> = node
            .calls
            .uses()
            .filter(|c| c.sent_done)
            .filter_map(|c| c.started)
            .map(|s| s.0)
            .collect();
        let group = node.shape.group;
        if names.iter().any(|name| self.all_done(*name, group)) {
            self.core.cover(Cover::CrashAfterLastDone);
        }
        self.end_process(target, end);
        let restart = self.core.scenario.mix.restart;
        if self.core.rng.chance(restart) && self.procs.len() < MOST_PROCESSES {
            self.core.cover(Cover::CrashRestart);
            let timeout = self.core.scenario.timing.peer_timeout;
            let pause = self.core.rng.duration(Duration::ZERO, timeout * 2);
            let at = self.core.now + pause;
            self.start(host, Some(shape), at);
        }
    }

    /// Whether every peer that has opened a use is done with it, and has no verdict.
    fn all_done(&self, name: crate::wire::control::OpName, group: crate::ids::PeerGroup) -> bool {
        self.procs.iter().all(|slot| match &slot.what {
            Some(Process::Peer(node)) if node.shape.group == group => node
                .calls
                .uses()
                .filter(|c| c.started.is_some_and(|s| s.0 == name))
                .all(|c| c.sent_done),
            _ => true,
        })
    }

    fn power_cut(&mut self, target: ProcId, host: HostId) {
        self.core.cover(Cover::PowerCut);
        let span = self.core.scenario.timing.peer_timeout * 3;
        for other in 0..self.hosts.len() {
            if other != host.0 {
                self.cut(host, HostId(other), span);
                self.cut(HostId(other), host, span);
            }
        }
        self.crash(target, End::Vanished);
    }

    fn break_control(&mut self, target: ProcId, host: HostId) {
        let span = self.core.scenario.timing.heartbeat * 2;
        let Some(sock) = self.peer(target).and_then(|(node, _)| node.control_sock()) else {
            return;
        };
        self.core.cover(Cover::ControlBroken);
        self.excuse(host, span);
        self.core.break_conn(sock.conn);
    }

    fn break_lanes(&mut self, target: ProcId, host: HostId, all: bool) {
        let Some((node, _)) = self.peer(target) else {
            return;
        };
        let mut lanes = node.data.lanes();
        if lanes.is_empty() {
            return;
        }
        if all {
            self.core.cover(Cover::AllLanesBroken);
        } else {
            self.core.cover(Cover::LaneBroken);
            self.core.rng.shuffle(&mut lanes);
            // A lane in the middle of a frame is the more interesting one.
            if let Some((node, _)) = self.peer(target)
                && let Some(at) = lanes.iter().position(|l| node.data.is_torn(l.0))
            {
                lanes.swap(0, at);
            }
            lanes.truncate(1);
        }
        let span = self.core.scenario.timing.heartbeat * 2;
        let (from, to) = (self.core.now, self.core.now + span);
        self.core.faults.excuse_lanes(host, from, to);
        for (sock, _) in lanes {
            if let Some(other) = self.core.net.proc_of(sock.other())
                && let Some(known) = self.core.oracle.known.get(&other).copied()
            {
                self.core.faults.excuse_lanes(known.host, from, to);
            }
            self.core.break_conn(sock.conn);
        }
    }

    fn cut_some(&mut self, host: HostId, kind: Kind) {
        let span = self.core.draw_span();
        let peers = self.core.scenario.peer_hosts;
        // The path to the master every third time.
        let other = if self.core.rng.chance(333) {
            self.core.scenario.master_host(0)
        } else {
            self.core.rng.index(peers)
        };
        if other == host.0 {
            return;
        }
        let other = HostId(other);
        if kind == Kind::CutBothWays {
            self.core.cover(Cover::CutBothWays);
            self.cut(host, other, span);
            self.cut(other, host, span);
        } else {
            self.core.cover(Cover::CutOneWay);
            if self.core.rng.chance(500) {
                self.cut(host, other, span);
            } else {
                self.cut(other, host, span);
            }
        }
    }

    fn partition(&mut self) {
        self.core.cover(Cover::Partition);
        let span = self.core.draw_span();
        let sides: Vec<bool> = (0..self.hosts.len())
            .map(|_| self.core.rng.chance(500))
            .collect();
        for from in 0..sides.len() {
            for to in 0..sides.len() {
                if sides[from] != sides[to] {
                    self.cut(HostId(from), HostId(to), span);
                }
            }
        }
    }

    fn cut(&mut self, from: HostId, to: HostId, span: Duration) {
        let peers = self.core.scenario.peer_hosts;
        let masters_too = from.0 >= peers || to.0 >= peers;
        let slack = self.core.scenario.timing.heartbeat * 2;
        if masters_too {
            let peer = if from.0 >= peers { to } else { from };
            self.excuse(peer, span + slack);
        } else {
            self.core.oracle.edges_trouble = true;
            let (start, end) = (self.core.now, self.core.now + span + slack);
            self.core.faults.excuse_lanes(from, start, end);
            self.core.faults.excuse_lanes(to, start, end);
        }
        self.core.net.set_cut(from, to, true);
        self.core.after(span, Event::Heal { from, to });
    }

    fn stop(&mut self, proc: ProcId, span: Duration) {
        if let Some(slot) = self.procs.get_mut(proc.0) {
            slot.stopped += 1;
        }
        self.core.after(span, Event::Resume { proc });
    }

    fn stall_master(&mut self) {
        let span = self.core.draw_span();
        let timing = self.core.scenario.timing;
        let masters: Vec<ProcId> = self.core.directory.masters.iter().map(|m| m.0).collect();
        let Some(master) = self.core.rng.pick(&masters) else {
            return;
        };
        self.core.cover(Cover::StallMaster);
        if span > timing.peer_timeout {
            self.core.cover(Cover::StallMasterLong);
        }
        if span > timing.master_limit {
            self.core.cover(Cover::StallMasterBeyondLimit);
        }
        self.excuse_all_if_short(span);
        self.stop(master, span);
    }

    fn suspend(&mut self, host: HostId) {
        let span = self.core.draw_span();
        let master = self.core.rng.chance(250);
        let host = if master {
            HostId(self.core.scenario.master_host(0))
        } else {
            host
        };
        self.core.cover(Cover::Suspend);
        if master {
            self.excuse_all_if_short(span);
        } else {
            self.excuse_both(host, span);
        }
        self.core.net.set_asleep(host, true);
        if let Some(proc) = self.hosts.get(host.0).copied().flatten()
            && let Some(slot) = self.procs.get_mut(proc.0)
        {
            slot.asleep = true;
        }
        self.core.after(span, Event::Wake { host });
    }

    fn jump(&mut self, target: ProcId, host: HostId) {
        let span = self.core.draw_span();
        self.core.cover(Cover::ClockJump);
        if self.core.rng.chance(400) {
            self.excuse_all_if_short(span);
            let masters: Vec<ProcId> = self.core.directory.masters.iter().map(|m| m.0).collect();
            for master in masters {
                if let Some(Process::Master(node)) = &mut self.procs[master.0].what {
                    node.jump(&mut self.core, span);
                }
            }
        } else {
            // A peer that thinks its master silent dials anew.
            self.excuse(host, self.core.scenario.timing.heartbeat * 2);
            if let Some((node, core)) = self.peer(target) {
                node.jump(core, span);
            }
        }
    }

    fn evict(&mut self) {
        let masters: Vec<ProcId> = self.core.directory.masters.iter().map(|m| m.0).collect();
        let Some(master) = self.core.rng.pick(&masters) else {
            return;
        };
        let Some(Process::Master(node)) = &mut self.procs[master.0].what else {
            return;
        };
        let run = node.run;
        let members: Vec<_> = self
            .core
            .oracle
            .known
            .values()
            .filter_map(|k| k.member.filter(|m| m.0 == run))
            .collect();
        let Some((_, member)) = self.core.rng.pick(&members) else {
            return;
        };
        if self.procs[master.0].is_stopped() {
            return;
        }
        self.core.cover(Cover::OperatorEvict);
        self.core.oracle.operator = true;
        let core = &mut self.core;
        if let Some(Process::Master(node)) = &mut self.procs[master.0].what {
            node.evict(core, member);
        }
    }

    fn second_master(&mut self) {
        let host = HostId(self.core.scenario.master_host(1));
        let starting = self.starting.iter().any(|s| s.1 == host);
        if self.hosts[host.0].is_some() || starting {
            return;
        }
        self.core.cover(Cover::SecondMaster);
        self.core.oracle.other_master = true;
        self.core.oracle.led_astray = true;
        self.core.directory.mixed = true;
        let now = self.core.now;
        let proc = self.start(host, None, now);
        // As a machine that was restored from a copy would: it takes the first one's run over.
        let first = self.core.directory.masters.first().map(|m| m.0);
        if self.core.rng.chance(500)
            && let Some(life) = first.and_then(|first| self.core.directory.next_life(first))
        {
            self.core.cover(Cover::NextLife);
            self.core.directory.heirs.insert(proc, life);
        }
    }

    fn restart_master(&mut self) {
        let masters: Vec<ProcId> = self.core.directory.masters.iter().map(|m| m.0).collect();
        let Some(master) = self.core.rng.pick(&masters) else {
            return;
        };
        let Some(Process::Master(node)) = &self.procs[master.0].what else {
            return;
        };
        let host = node.host;
        self.core.cover(Cover::MasterRestart);
        self.core.oracle.other_master = true;
        self.end_process(master, End::Killed);
        let span = self.core.draw_span();
        let at: Time = self.core.now + span;
        self.start(host, None, at);
    }

    /// A host's process, or its path to the master, does not work for a while.
    fn excuse(&mut self, host: HostId, span: Duration) {
        let now = self.core.now;
        self.core.faults.excuse(host, now, now + span);
    }

    fn excuse_both(&mut self, host: HostId, span: Duration) {
        let now = self.core.now;
        self.excuse(host, span);
        self.core.faults.excuse_lanes(host, now, now + span);
    }

    /// A master that was away longer than a heartbeat starts all deadlines anew, so that nobody has
    /// an excuse; shorter gaps add up to silence.
    fn excuse_all_if_short(&mut self, span: Duration) {
        if span <= self.core.scenario.timing.heartbeat * 3 / 2 {
            for host in 0..self.core.scenario.peer_hosts {
                self.excuse(HostId(host), span);
            }
        }
    }
}

/// Processes of one world at most.
const MOST_PROCESSES: usize = 24;
