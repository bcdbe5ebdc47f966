//! Connections: byte streams that are late, split, stuck, broken, half open, or corrupt.
//!
//! Within a connection bytes keep their order, as in TCP; nothing else is promised. A path that is
//! cut holds what is in flight (the sender's kernel repeats it) until it heals or the sender's
//! kernel gives up.

use std::collections::VecDeque;
use std::time::Duration;

use super::core::{Core, Event, HostId, ProcId, trace};
use super::coverage::Cover;
use crate::ids::Time;

/// One end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Sock {
    /// Number of the connection; never reused.
    pub(super) conn: u32,
    /// Zero at the side that dialled.
    pub(super) end: u8,
}

impl Sock {
    /// The other end.
    pub(super) fn other(self) -> Self {
        Self {
            conn: self.conn,
            end: 1 - self.end,
        }
    }
}

/// How reading ends for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// More may come.
    Open,
    /// The other end closed after its last byte.
    Ended,
    /// The connection is no more.
    Failed(&'static str),
}

/// All connections and paths.
#[derive(Debug)]
pub(super) struct Net {
    conns: Vec<Option<Box<Conn>>>,
    hosts: usize,
    cut: Vec<bool>,
    undialable: Vec<bool>,
    latency: Vec<Duration>,
    /// Hosts whose packets wait: the machine sleeps.
    asleep: Vec<bool>,
}

#[derive(Debug)]
struct Conn {
    ends: [End; 2],
    pipes: [Pipe; 2],
    /// Carries data of operations now: its bits may flip.
    data: bool,
    /// The path dropped it: nothing arrives, neither end knows yet.
    broken: bool,
}

#[derive(Debug)]
struct End {
    proc: Option<ProcId>,
    host: HostId,
    open: bool,
    arrived: VecDeque<u8>,
    ended: bool,
    failed: Option<&'static str>,
}

#[derive(Debug, Default)]
struct Pipe {
    flight: VecDeque<Chunk>,
    last: Time,
    outstanding: usize,
    stuck: Option<Time>,
    /// The end of the stream is on its way already.
    closed: bool,
}

#[derive(Debug)]
struct Chunk {
    at: Time,
    what: Carried,
}

#[derive(Debug)]
enum Carried {
    Bytes(Vec<u8>),
    End,
    Reset,
}

impl Net {
    /// A network of `hosts` hosts with these one-way delays, row by row.
    pub(super) fn new(hosts: usize, latency: Vec<Duration>) -> Self {
        Self {
            conns: Vec::new(),
            hosts,
            cut: vec![false; hosts * hosts],
            undialable: vec![false; hosts * hosts],
            latency,
            asleep: vec![false; hosts],
        }
    }

    /// Cuts or heals the path from one host to another, in this direction only.
    pub(super) fn set_cut(&mut self, from: HostId, to: HostId, cut: bool) {
        let at = self.path(from, to);
        self.cut[at] = cut;
    }

    /// Lets a host not be dialled from another, for good: a firewall.
    pub(super) fn set_undialable(&mut self, from: HostId, to: HostId) {
        let at = self.path(from, to);
        self.undialable[at] = true;
    }

    /// Whether packets from one host reach the other.
    pub(super) fn reaches(&self, from: HostId, to: HostId) -> bool {
        !self.cut[self.path(from, to)] && !self.asleep[from.0] && !self.asleep[to.0]
    }

    /// Whether one host can be dialled from another, apart from passing cuts.
    pub(super) fn dialable(&self, from: HostId, to: HostId) -> bool {
        !self.undialable[self.path(from, to)]
    }

    /// One-way delay without jitter.
    pub(super) fn delay(&self, from: HostId, to: HostId) -> Duration {
        self.latency[self.path(from, to)]
    }

    /// Puts a host to sleep or wakes it.
    pub(super) fn set_asleep(&mut self, host: HostId, asleep: bool) {
        self.asleep[host.0] = asleep;
    }

    /// Open ends of a process, in the order of the connections.
    pub(super) fn socks_of(&self, proc: ProcId) -> Vec<Sock> {
        let mut socks = Vec::new();
        for (number, conn) in self.conns.iter().enumerate() {
            let Some(conn) = conn else { continue };
            for (end, state) in conn.ends.iter().enumerate() {
                if state.open && state.proc == Some(proc) {
                    socks.push(Sock {
                        conn: number as u32,
                        end: end as u8,
                    });
                }
            }
        }
        socks
    }

    /// The process at an end.
    pub(super) fn proc_of(&self, sock: Sock) -> Option<ProcId> {
        self.conn(sock)
            .and_then(|conn| conn.ends[sock.end as usize].proc)
    }

    fn path(&self, from: HostId, to: HostId) -> usize {
        from.0 * self.hosts + to.0
    }

    fn conn(&self, sock: Sock) -> Option<&Conn> {
        self.conns.get(sock.conn as usize)?.as_deref()
    }

    fn conn_mut(&mut self, sock: Sock) -> Option<&mut Conn> {
        self.conns.get_mut(sock.conn as usize)?.as_deref_mut()
    }

    fn hosts_of(&self, from: Sock) -> Option<(HostId, HostId)> {
        let conn = self.conn(from)?;
        let ends = &conn.ends;
        Some((
            ends[from.end as usize].host,
            ends[1 - from.end as usize].host,
        ))
    }
}

impl Core {
    /// Dials `to`. [`Event::DialAnswer`] follows, unless the path is cut: then nothing does.
    pub(super) fn dial(&mut self, proc: ProcId, from: HostId, to: HostId) -> Sock {
        let end = |proc, host| End {
            proc,
            host,
            open: false,
            arrived: VecDeque::new(),
            ended: false,
            failed: None,
        };
        let conn = self.net.conns.len() as u32;
        self.net.conns.push(Some(Box::new(Conn {
            ends: [end(Some(proc), from), end(None, to)],
            pipes: [Pipe::default(), Pipe::default()],
            data: false,
            broken: false,
        })));
        let sock = Sock { conn, end: 0 };
        if let Some(conn) = self.net.conn_mut(sock) {
            conn.ends[0].open = true;
        }
        let at = self.now + self.draw_latency(from, to);
        self.push(at, Event::Syn { conn });
        sock
    }

    /// The first packet of a dial is there: gives the listening end if somebody takes it.
    pub(super) fn syn(&mut self, conn: u32, listener: Option<ProcId>) -> Option<Sock> {
        let dialler = Sock { conn, end: 0 };
        let (from, to) = self.net.hosts_of(dialler)?;
        if !self.net.conn(dialler).is_some_and(|c| c.ends[0].open) {
            return None;
        }
        if !self.net.reaches(from, to) {
            // The dialler's kernel tries again as long as it waits.
            self.cover(Cover::DialIntoSilence);
            self.after(self.scenario.timing.heartbeat, Event::Syn { conn });
            return None;
        }
        let back = self.now + self.draw_latency(to, from);
        let ok = listener.is_some() && self.net.dialable(from, to);
        self.push(back, Event::DialAnswer { conn, ok });
        if !ok {
            self.cover(Cover::DialRefused);
            return None;
        }
        let state = self.net.conn_mut(dialler)?;
        state.ends[1].proc = listener;
        state.ends[1].open = true;
        Some(dialler.other())
    }

    /// Whether the answer to a dial gets back to a dialler that still waits for it.
    pub(super) fn answer_arrives(&mut self, conn: u32, ok: bool) -> bool {
        let dialler = Sock { conn, end: 0 };
        let open = self
            .net
            .conn(dialler)
            .is_some_and(|c| c.ends[0].open && !c.broken);
        let Some((from, to)) = self.net.hosts_of(dialler).filter(|_| open) else {
            return false;
        };
        if !self.net.reaches(to, from) {
            let again = self.scenario.timing.heartbeat;
            self.after(again, Event::DialAnswer { conn, ok });
            return false;
        }
        true
    }

    /// Host that a connection is dialled to.
    pub(super) fn dialled_host(&self, conn: u32) -> Option<HostId> {
        let dialler = Sock { conn, end: 0 };
        self.net.hosts_of(dialler).map(|hosts| hosts.1)
    }

    /// Marks a connection as one whose bits may flip.
    pub(super) fn carries_data(&mut self, sock: Sock) {
        if let Some(conn) = self.net.conn_mut(sock) {
            conn.data = true;
        }
    }

    /// Bytes that may be written to an end at the moment: the kernel's buffers are finite.
    pub(super) fn room(&self, sock: Sock) -> usize {
        let Some(conn) = self.net.conn(sock) else {
            return 0;
        };
        if !conn.ends[sock.end as usize].open {
            return 0;
        }
        let held = conn.pipes[sock.end as usize].outstanding;
        self.scenario.socket_buffer.saturating_sub(held)
    }

    /// Writes all of `bytes`; what is lost shows later, or never.
    pub(super) fn write(&mut self, sock: Sock, bytes: &[u8]) {
        let Some((from, to)) = self.net.hosts_of(sock) else {
            return;
        };
        let flips = self.flips();
        let mut rest = bytes;
        while !rest.is_empty() {
            let take = if self.rng.chance(self.scenario.split) {
                1 + self.rng.index(rest.len())
            } else {
                rest.len()
            };
            let (now, later) = rest.split_at(take);
            rest = later;
            let mut chunk = now.to_vec();
            let flip = flips && self.rng.chance(self.scenario.flip);
            let at = self.now + self.draw_latency(from, to);
            let spot = self.rng.index(chunk.len());
            let bit = self.rng.below(8);
            let Some(conn) = self.net.conn_mut(sock) else {
                return;
            };
            if !conn.ends[sock.end as usize].open {
                return;
            }
            if conn.broken {
                // A half-open end finds out when it writes.
                self.push(at, Event::Reset { sock });
                return;
            }
            let flipped = flip && conn.data;
            if flipped {
                chunk[spot] ^= 1 << bit;
            }
            let pipe = &mut conn.pipes[sock.end as usize];
            let at = at.max(pipe.last);
            pipe.last = at;
            pipe.outstanding += chunk.len();
            pipe.flight.push_back(Chunk {
                at,
                what: Carried::Bytes(chunk),
            });
            if flipped {
                self.cover(Cover::BitFlip);
            }
            self.push(at, Event::Arrive { from: sock });
        }
    }

    /// Something may have arrived from `from`: gives the other end if it has something to read.
    pub(super) fn arrive(&mut self, from: Sock) -> Option<Sock> {
        let (source, target) = self.net.hosts_of(from)?;
        let (there, back) = (
            self.net.reaches(source, target),
            self.net.reaches(target, source),
        );
        let (now, patience) = (self.now, self.scenario.user_timeout);
        let reset_at = now + self.draw_latency(target, source);
        let conn = self.net.conn_mut(from)?;
        if conn.broken {
            return None;
        }
        let [first, second] = &mut conn.ends;
        let end = if from.end == 0 { second } else { first };
        let pipe = &mut conn.pipes[from.end as usize];
        if pipe.stuck.is_some() || pipe.flight.front().is_none_or(|c| c.at > now) {
            return None;
        }
        if !there || (!end.open && !back) {
            pipe.stuck = Some(now);
            self.push(
                now + patience,
                Event::Stuck {
                    sock: from,
                    since: now,
                },
            );
            trace!(self, "net: {from:?} is stuck");
            return None;
        }
        let mut news = false;
        while let Some(chunk) = pipe.flight.front() {
            if chunk.at > now {
                break;
            }
            let Some(Chunk { what, .. }) = pipe.flight.pop_front() else {
                break;
            };
            match what {
                Carried::Bytes(bytes) if end.open => {
                    end.arrived.extend(bytes);
                    news = true;
                }
                Carried::Bytes(_) => {
                    self.push(reset_at, Event::Reset { sock: from });
                    self.reap(from.conn);
                    return None;
                }
                Carried::End => {
                    end.ended = true;
                    news = true;
                }
                Carried::Reset => {
                    end.failed = Some("connection reset");
                    news = true;
                }
            }
        }
        (news && end.open).then(|| from.other())
    }

    /// The kernel gives up on what is stuck since then.
    pub(super) fn give_up_stuck(&mut self, sock: Sock, since: Time) -> Option<Sock> {
        let conn = self.net.conn_mut(sock)?;
        let pipe = &mut conn.pipes[sock.end as usize];
        if pipe.stuck != Some(since) {
            return None;
        }
        pipe.flight.clear();
        let end = &mut conn.ends[sock.end as usize];
        if !end.open {
            self.reap(sock.conn);
            return None;
        }
        end.failed = Some("connection timed out");
        trace!(self, "net: the kernel of {sock:?} gives up");
        self.cover(Cover::HalfOpenTimedOut);
        Some(sock)
    }

    /// A reset arrives at an end.
    pub(super) fn reset(&mut self, sock: Sock) -> Option<Sock> {
        let end = &mut self.net.conn_mut(sock)?.ends[sock.end as usize];
        if !end.open || end.failed.is_some() {
            return None;
        }
        end.failed = Some("connection reset");
        trace!(self, "net: {sock:?} is reset");
        Some(sock)
    }

    /// Takes at most `most` bytes that have arrived, and says whether more can come after all that
    /// has arrived is taken.
    pub(super) fn read(&mut self, sock: Sock, most: usize) -> (Vec<u8>, Reading) {
        let Some((from, to)) = self.net.hosts_of(sock) else {
            return (Vec::new(), Reading::Failed("connection closed"));
        };
        let wake = self.now + self.net.delay(from, to);
        let full = self.scenario.socket_buffer;
        let Some(conn) = self.net.conn_mut(sock) else {
            return (Vec::new(), Reading::Failed("connection closed"));
        };
        let end = &mut conn.ends[sock.end as usize];
        let take = most.min(end.arrived.len());
        let bytes: Vec<u8> = end.arrived.drain(..take).collect();
        let state = if !end.arrived.is_empty() {
            Reading::Open
        } else if let Some(cause) = end.failed {
            Reading::Failed(cause)
        } else if end.ended {
            Reading::Ended
        } else {
            Reading::Open
        };
        let pipe = &mut conn.pipes[1 - sock.end as usize];
        let was_full = pipe.outstanding >= full;
        pipe.outstanding = pipe.outstanding.saturating_sub(take);
        if was_full && pipe.outstanding < full {
            self.push(wake, Event::Writable { sock: sock.other() });
        }
        (bytes, state)
    }

    /// Puts back what a reader took and does not want: it is read again first.
    pub(super) fn unread(&mut self, sock: Sock, bytes: &[u8]) {
        if let Some(conn) = self.net.conn_mut(sock) {
            for byte in bytes.iter().rev() {
                conn.ends[sock.end as usize].arrived.push_front(*byte);
            }
        }
    }

    /// Bytes that have arrived and were not read.
    pub(super) fn unread_len(&self, sock: Sock) -> usize {
        self.net
            .conn(sock)
            .map_or(0, |c| c.ends[sock.end as usize].arrived.len())
    }

    /// Says that nothing more comes from an end; it can still be read from.
    pub(super) fn half_close(&mut self, sock: Sock) {
        let Some((from, to)) = self.net.hosts_of(sock) else {
            return;
        };
        let at = self.now + self.draw_latency(from, to);
        let Some(conn) = self.net.conn_mut(sock) else {
            return;
        };
        let pipe = &mut conn.pipes[sock.end as usize];
        if conn.broken || pipe.closed || !conn.ends[sock.end as usize].open {
            return;
        }
        let at = at.max(pipe.last);
        pipe.last = at;
        pipe.closed = true;
        pipe.flight.push_back(Chunk {
            at,
            what: Carried::End,
        });
        self.push(at, Event::Arrive { from: sock });
    }

    /// Closes an end after what was written.
    pub(super) fn close(&mut self, sock: Sock) {
        self.shut(sock, Carried::End, None);
    }

    /// Closes an end as the kernel does for a killed process: a part of what was written may never
    /// leave.
    pub(super) fn kill_sock(&mut self, sock: Sock) {
        let torn = self.rng.chance(500);
        let share = torn.then(|| self.rng.below(1001));
        let what = if torn { Carried::Reset } else { Carried::End };
        self.shut(sock, what, share);
    }

    /// Closes an end without a word: the machine is gone.
    pub(super) fn forget_sock(&mut self, sock: Sock) {
        if let Some(conn) = self.net.conn_mut(sock) {
            conn.ends[sock.end as usize].open = false;
            conn.pipes[sock.end as usize].flight.clear();
        }
        self.reap(sock.conn);
    }

    /// The path drops a connection: what is in flight is lost; each end hears of it some time, or
    /// only when it writes.
    pub(super) fn break_conn(&mut self, conn: u32) {
        let longest = self.scenario.timing.heartbeat / 4;
        for end in 0..2 {
            let sock = Sock { conn, end };
            let Some(state) = self.net.conn_mut(sock) else {
                return;
            };
            state.broken = true;
            state.pipes[end as usize].flight.clear();
            if self.rng.chance(800) {
                let at = self.now + self.rng.duration(Duration::ZERO, longest);
                self.push(at, Event::Reset { sock });
            } else {
                self.cover(Cover::HalfOpen);
            }
        }
        self.reap(conn);
    }

    /// Lets what is stuck go on where its path works again.
    pub(super) fn heal_paths(&mut self) {
        let longest = self.scenario.timing.heartbeat / 2;
        for conn in 0..self.net.conns.len() as u32 {
            for end in 0..2 {
                let sock = Sock { conn, end };
                let Some((from, to)) = self.net.hosts_of(sock) else {
                    break;
                };
                if !self.net.reaches(from, to) {
                    continue;
                }
                let again = self.now + self.rng.duration(Duration::ZERO, longest);
                let Some(state) = self.net.conn_mut(sock) else {
                    break;
                };
                let pipe = &mut state.pipes[end as usize];
                if pipe.stuck.take().is_none() {
                    continue;
                }
                trace!(self, "net: {sock:?} goes on");
                let Some(state) = self.net.conn_mut(sock) else {
                    break;
                };
                let pipe = &mut state.pipes[end as usize];
                for chunk in &mut pipe.flight {
                    chunk.at = chunk.at.max(again);
                }
                pipe.last = pipe.last.max(again);
                let due: Vec<Time> = pipe.flight.iter().map(|c| c.at).collect();
                for at in due {
                    self.push(at, Event::Arrive { from: sock });
                }
            }
        }
    }

    /// One-way delay of the next packet.
    pub(super) fn draw_latency(&mut self, from: HostId, to: HostId) -> Duration {
        let base = self.net.delay(from, to);
        let jitter = self.rng.duration(Duration::ZERO, self.scenario.jitter);
        if self.rng.chance(self.scenario.lossy) {
            // A packet was lost and sent again.
            return base + jitter + self.scenario.timing.heartbeat / 2;
        }
        base + jitter
    }

    fn shut(&mut self, sock: Sock, what: Carried, share: Option<u64>) {
        let Some((from, to)) = self.net.hosts_of(sock) else {
            return;
        };
        let at = self.now + self.draw_latency(from, to);
        let Some(conn) = self.net.conn_mut(sock) else {
            return;
        };
        let end = &mut conn.ends[sock.end as usize];
        if !end.open {
            return;
        }
        end.open = false;
        end.arrived.clear();
        let failed = end.failed.is_some();
        let pipe = &mut conn.pipes[sock.end as usize];
        if failed || conn.broken {
            pipe.flight.clear();
        } else if !pipe.closed {
            if let Some(share) = share {
                let keep = pipe.flight.len() as u64 * share / 1000;
                pipe.flight.truncate(keep as usize);
            }
            let at = at.max(pipe.last);
            pipe.last = at;
            pipe.flight.push_back(Chunk { at, what });
            self.push(at, Event::Arrive { from: sock });
        }
        self.reap(sock.conn);
    }

    fn reap(&mut self, conn: u32) {
        let Some(slot) = self.net.conns.get_mut(conn as usize) else {
            return;
        };
        // An end that was never taken up is closed too.
        if slot
            .as_ref()
            .is_some_and(|c| !c.ends[0].open && !c.ends[1].open)
        {
            *slot = None;
        }
    }
}
