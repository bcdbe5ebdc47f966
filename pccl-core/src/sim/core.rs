//! What all parts of a simulated world share: the clock, chance, the network, and the record.

use std::time::Duration;

use super::coverage::{Cover, Coverage};
use super::faults::{Fault, Faults};
use super::network::{Net, Sock};
use super::oracle::Oracle;
use super::queue::Queue;
use super::rng::Rng;
use super::scenario::Scenario;
use super::trace::Trace;
use super::watch::{Directory, Watch};
use crate::ids::{CallId, Time};

/// A process: never reused, so a restarted one is another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ProcId(pub(super) usize);

/// A machine with an address; at most one process lives on it at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct HostId(pub(super) usize);

/// Something to come.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The first packet of a dial gets to the listener's machine.
    Syn { conn: u32 },
    /// A dial has its answer.
    DialAnswer { conn: u32, ok: bool },
    /// Bytes written at this end are due at the other.
    Arrive { from: Sock },
    /// The kernel of this end gives up unless something moved since.
    Stuck { sock: Sock, since: Time },
    /// A reset arrives at this end.
    Reset { sock: Sock },
    /// An end has something to read, or failed.
    Readable { sock: Sock },
    /// An end has room again.
    Writable { sock: Sock },
    /// A deadline of a process is due.
    Timer { proc: ProcId, thread: Thread },
    /// A thread takes the next message from another thread of its process.
    Step { proc: ProcId, thread: Thread },
    /// A user gives a call up.
    Cancel { proc: ProcId, call: CallId },
    /// A member asks its seeders for state.
    Fetch { proc: ProcId, call: CallId },
    /// A connection was accepted for a process.
    Accept { proc: ProcId, sock: Sock },
    /// A dialler hears how its dial went.
    Answered { conn: u32, ok: bool },
    /// A process starts.
    Start { proc: ProcId },
    /// A process ends in good order.
    Exit { proc: ProcId },
    /// A stopped process goes on.
    Resume { proc: ProcId },
    /// A suspended machine wakes up.
    Wake { host: HostId },
    /// A fault strikes.
    Fault(Fault),
    /// A fault that waits for no moment is drawn.
    Scattered,
    /// A path that was cut works again.
    Heal { from: HostId, to: HostId },
    /// All faults end; from here on everything must finish.
    Calm,
}

impl Event {
    /// A number for the hash of the trace.
    pub(super) fn number(&self) -> u64 {
        let sock = |sock: &Sock| u64::from(sock.conn) << 8 | u64::from(sock.end);
        let (kind, detail) = match self {
            Self::Syn { conn } => (1, u64::from(*conn)),
            Self::DialAnswer { conn, ok } => (2, u64::from(*conn) << 1 | u64::from(*ok)),
            Self::Arrive { from } => (3, sock(from)),
            Self::Stuck { sock: at, .. } => (4, sock(at)),
            Self::Reset { sock: at } => (5, sock(at)),
            Self::Readable { sock: at } => (6, sock(at)),
            Self::Writable { sock: at } => (7, sock(at)),
            Self::Timer { proc, thread } => (8, (proc.0 as u64) << 2 | *thread as u64),
            Self::Step { proc, thread } => (9, (proc.0 as u64) << 2 | *thread as u64),
            Self::Cancel { proc, .. } => (10, proc.0 as u64),
            Self::Fetch { proc, .. } => (11, proc.0 as u64),
            Self::Accept { proc, .. } => (12, proc.0 as u64),
            Self::Answered { conn, .. } => (13, u64::from(*conn)),
            Self::Start { proc } => (14, proc.0 as u64),
            Self::Exit { proc } => (15, proc.0 as u64),
            Self::Resume { proc } => (16, proc.0 as u64),
            Self::Wake { host } => (17, host.0 as u64),
            Self::Fault(fault) => (18, fault.kind as u64),
            Self::Scattered => (19, 0),
            Self::Heal { from, to } => (20, (from.0 as u64) << 8 | to.0 as u64),
            Self::Calm => (21, 0),
        };
        kind << 48 | detail
    }
}

/// Threads of a process that exchange messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Thread {
    /// Owns the membership machine.
    Control,
    /// Owns the engine and the lanes.
    Data,
    /// Calls the library.
    User,
}

/// What broke, where, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Name of the invariant, as its file.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
    /// Simulated time, in nanoseconds.
    pub at: u64,
}

/// Shared state of a world.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) now: Time,
    pub(super) rng: Rng,
    pub(super) queue: Queue<Event>,
    pub(super) net: Net,
    pub(super) scenario: Scenario,
    pub(super) faults: Faults,
    pub(super) oracle: Oracle,
    pub(super) coverage: Coverage,
    pub(super) trace: Trace,
    pub(super) watch: Watch,
    pub(super) directory: Directory,
    pub(super) violation: Option<Violation>,
}

impl Core {
    /// Schedules an event.
    pub(super) fn push(&mut self, at: Time, event: Event) {
        self.queue.push(at.max(self.now), event);
    }

    /// Schedules an event after a while.
    pub(super) fn after(&mut self, delay: Duration, event: Event) {
        self.push(self.now + delay, event);
    }

    /// Counts a situation.
    pub(super) fn cover(&mut self, what: Cover) {
        self.coverage.count(what);
    }

    /// Records the first violation; the world stops at it.
    pub(super) fn violate(&mut self, invariant: &'static str, what: String) {
        if self.violation.is_none() {
            if self.trace.wanted() {
                self.trace
                    .line(self.now, &format!("VIOLATION of {invariant}: {what}"));
            }
            self.violation = Some(Violation {
                invariant,
                what,
                at: self.now.0,
            });
        }
    }

    /// Takes an invariant's word.
    pub(super) fn judge(&mut self, invariant: &'static str, word: Result<(), String>) {
        if let Err(what) = word {
            self.violate(invariant, what);
        }
    }

    /// Delay between two threads of a process.
    pub(super) fn thread_delay(&mut self) -> Duration {
        self.rng
            .duration(Duration::ZERO, self.scenario.thread_delay)
    }

    /// Whether bits may flip now.
    pub(super) fn flips(&self) -> bool {
        self.scenario.flip > 0 && self.faults.active()
    }
}

/// Adds a line to the trace; costs nothing unless somebody reads it.
macro_rules! trace {
    ($core:expr, $($arg:tt)*) => {
        if $core.trace.wanted() {
            let line = format!($($arg)*);
            let now = $core.now;
            $core.trace.line(now, &line);
        }
    };
}
pub(super) use trace;
