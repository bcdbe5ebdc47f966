//! A process that runs the master machine, as the driver of a real one does.

use std::collections::BTreeMap;

use super::clock::{Clock, address_of, send_frame};
use super::core::{Core, Event, HostId, ProcId, Thread, trace};
use super::coverage::Cover;
use super::invariants::bounded;
use super::network::{Reading, Sock};
use super::scenario::Moment;
use crate::config::MasterConfig;
use crate::ids::{ConnId, Incarnation, MemberId, RunId};
use crate::membership::master::{Master, MasterInput, MasterOutput};
use crate::wire::control::{ControlHello, ControlReply, Down, Up};
use crate::wire::frame::{CONTROL_HELLO_LIMIT, Decoder, FRAME_LIMIT, Party, VERSIONS};

/// The process.
pub(super) struct MasterNode {
    pub(super) id: ProcId,
    pub(super) host: HostId,
    pub(super) clock: Clock,
    pub(super) run: RunId,
    machine: Master,
    conns: BTreeMap<u32, Conn>,
    exited: bool,
    spins: u32,
}

struct Conn {
    sock: Sock,
    decoder: Decoder,
    stage: Stage,
    member: Option<MemberId>,
    deadline: crate::ids::Time,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Preamble,
    Hello,
    Open,
}

impl MasterNode {
    /// A fresh master: `life` is what it says of itself, `run` what the oracle calls it, which no
    /// other master shares.
    pub(super) fn new(
        core: &mut Core,
        id: ProcId,
        host: HostId,
        run: RunId,
        life: (RunId, Incarnation),
    ) -> Self {
        let config = MasterConfig {
            timing: core.scenario.timing,
            ..MasterConfig::default()
        };
        let clock = Clock::new(core);
        let seed = core.rng.bits();
        let machine = Master::new(config, life.0, life.1, seed, clock.local(core.now));
        Self {
            id,
            host,
            clock,
            run,
            machine,
            conns: BTreeMap::new(),
            exited: false,
            spins: 0,
        }
    }

    /// Whether it has ended by itself.
    pub(super) fn exited(&self) -> bool {
        self.exited
    }

    /// A connection was accepted.
    pub(super) fn accept(&mut self, core: &mut Core, sock: Sock) {
        let deadline = core.now + core.scenario.timing.handshake();
        core.push(
            deadline,
            Event::Timer {
                proc: self.id,
                thread: Thread::Control,
            },
        );
        self.conns.insert(
            sock.conn,
            Conn {
                sock,
                decoder: Decoder::new(CONTROL_HELLO_LIMIT),
                stage: Stage::Preamble,
                member: None,
                deadline,
            },
        );
    }

    /// A connection has something to read.
    pub(super) fn readable(&mut self, core: &mut Core, sock: Sock) {
        if self.conns.contains_key(&sock.conn) {
            self.read(core, sock);
        }
        self.settle(core);
    }

    /// A deadline may be due.
    pub(super) fn timer(&mut self, core: &mut Core) {
        self.clock.fired(core.now);
        // All input that is there goes before the clock. (Rule 14)
        let socks: Vec<Sock> = self.conns.values().map(|c| c.sock).collect();
        for sock in socks {
            self.read(core, sock);
        }
        let now = core.now;
        let late: Vec<u32> = self
            .conns
            .iter()
            .filter(|(_, c)| c.stage != Stage::Open && c.deadline <= now)
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            if let Some(conn) = self.conns.remove(&number) {
                core.close(conn.sock);
            }
        }
        let local = self.clock.local(core.now);
        if self.machine.next_deadline().is_some_and(|at| at <= local) {
            self.input(core, MasterInput::Tick);
            let due = self.machine.next_deadline().is_some_and(|at| at <= local);
            self.spins = if due { self.spins + 1 } else { 0 };
            let word = bounded::within(
                "deadlines of the master due at once",
                self.spins as usize,
                bounded::SPINS as usize,
            );
            core.judge("bounded", word);
        }
        self.settle(core);
    }

    /// The operator evicts a member.
    pub(super) fn evict(&mut self, core: &mut Core, member: MemberId) {
        self.input(core, MasterInput::Evict { member });
        self.settle(core);
    }

    /// The clock of its machine jumps.
    pub(super) fn jump(&mut self, core: &mut Core, by: std::time::Duration) {
        self.clock.jump(by);
        self.settle(core);
    }

    /// What it still holds; nothing, when nobody is left.
    pub(super) fn leftovers(&self) -> Vec<(&'static str, usize)> {
        let _ = &self.machine;
        vec![("connections of the master", self.conns.len())]
    }

    fn read(&mut self, core: &mut Core, sock: Sock) {
        let (bytes, state) = core.read(sock, usize::MAX);
        let Some(conn) = self.conns.get_mut(&sock.conn) else {
            return;
        };
        conn.decoder.feed(&bytes);
        // What was decoded before a replacement closed the connection is dropped.
        while let Some(conn) = self.conns.get_mut(&sock.conn) {
            match conn.next() {
                Ok(Some(news)) => self.news(core, sock, news),
                Ok(None) => break,
                Err(cause) => {
                    self.lost(core, sock, cause);
                    core.close(sock);
                    return;
                }
            }
        }
        match state {
            Reading::Open => {}
            Reading::Ended => {
                self.lost(core, sock, "the other end closed it".into());
                core.close(sock);
            }
            Reading::Failed(cause) => {
                self.lost(core, sock, cause.into());
                core.close(sock);
            }
        }
    }

    fn lost(&mut self, core: &mut Core, sock: Sock, cause: String) {
        if let Some(conn) = self.conns.remove(&sock.conn)
            && conn.stage == Stage::Open
        {
            let conn = ConnId(u64::from(sock.conn));
            self.input(core, MasterInput::Closed { conn, cause });
        }
    }

    fn news(&mut self, core: &mut Core, sock: Sock, news: News) {
        let conn = ConnId(u64::from(sock.conn));
        match news {
            News::Preamble(answer) => core.write(sock, &answer),
            News::Hello(hello) => {
                let remote = core
                    .net
                    .proc_of(sock.other())
                    .and_then(|p| core.oracle.known.get(&p))
                    .map_or_else(|| address_of(self.host), |k| address_of(k.host));
                if let ControlHello::Attach { id, report, .. } = &hello {
                    if let Some(conn) = self.conns.get_mut(&sock.conn) {
                        conn.member = Some(*id);
                    }
                    if let Some(report) = report {
                        if report.ops.iter().any(|op| op.done.is_none()) {
                            core.cover(Cover::ReattachUndecided);
                        }
                        if report.vote.is_some() {
                            core.cover(Cover::ReattachVote);
                        }
                    }
                }
                self.input(
                    core,
                    MasterInput::Hello {
                        conn,
                        remote,
                        hello,
                        key: None,
                    },
                );
            }
            News::Message(message) => {
                let member = self.conns.get(&sock.conn).and_then(|c| c.member);
                let watched = core.watch_up(self.run, sock.conn, member, &message);
                self.input(core, MasterInput::Message { conn, message });
                if let Some(proc) = watched {
                    core.moment(Moment::AllDone, proc);
                }
            }
        }
    }

    fn input(&mut self, core: &mut Core, input: MasterInput) {
        let now = self.clock.local(core.now);
        trace!(core, "{:?} <- {input:?}", self.id);
        self.machine.handle(input, now);
        let mut count = 0;
        while let Some(output) = self.machine.poll_output() {
            self.output(core, output);
            count += 1;
            if count > bounded::OUTPUTS_PER_INPUT {
                core.violate("bounded", "the master's outputs have no end".into());
                return;
            }
        }
    }

    fn output(&mut self, core: &mut Core, output: MasterOutput) {
        if !matches!(output, MasterOutput::Send { .. }) {
            trace!(core, "{:?} -> {output:?}", self.id);
        }
        match output {
            MasterOutput::Reply { conn, reply } => {
                let Some(known) = self.conns.get_mut(&(conn.0 as u32)) else {
                    return;
                };
                if let ControlReply::Registered { id, .. } = &reply {
                    known.member = Some(*id);
                }
                send_frame(core, known.sock, &reply, FRAME_LIMIT);
            }
            MasterOutput::Send { conn, message } => {
                let Some(known) = self.conns.get(&(conn.0 as u32)) else {
                    return;
                };
                if !matches!(message, Down::Heartbeat) {
                    trace!(core, "{:?} -> {:?} {message:?}", self.id, known.member);
                }
                core.watch_down(self.run, known.sock.conn, known.member, &message);
                send_frame(core, known.sock, &message, FRAME_LIMIT);
            }
            MasterOutput::Close { conn } => {
                if let Some(known) = self.conns.remove(&(conn.0 as u32)) {
                    core.close(known.sock);
                }
            }
            MasterOutput::Event(event) => core.saw_master_event(self.run, &event),
            MasterOutput::Exit { .. } => self.exited = true,
        }
    }

    fn settle(&mut self, core: &mut Core) {
        let due = self.machine.next_deadline();
        self.clock.arm(core, self.id, Thread::Control, due);
    }
}

enum News {
    Preamble([u8; crate::wire::frame::PREAMBLE_BYTES]),
    Hello(ControlHello),
    Message(Up),
}

impl Conn {
    fn next(&mut self) -> Result<Option<News>, String> {
        match self.stage {
            Stage::Preamble => {
                let Some(preamble) = self.decoder.preamble().map_err(|e| e.to_string())? else {
                    return Ok(None);
                };
                let (answer, chosen) = preamble.answer(VERSIONS, Party::Control);
                chosen.map_err(|e| e.to_string())?;
                self.stage = Stage::Hello;
                Ok(Some(News::Preamble(answer.encode())))
            }
            Stage::Hello => {
                let Some(hello) = self.decoder.message().map_err(|e| e.to_string())? else {
                    return Ok(None);
                };
                self.decoder.set_limit(FRAME_LIMIT);
                self.stage = Stage::Open;
                Ok(Some(News::Hello(hello)))
            }
            Stage::Open => {
                let message = self.decoder.message().map_err(|e| e.to_string())?;
                Ok(message.map(News::Message))
            }
        }
    }
}
