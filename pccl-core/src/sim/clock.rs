//! What every simulated program has: a clock of its own, an address, framed messages.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::Serialize;

use super::core::{Core, Event, HostId, ProcId, Thread};
use super::network::Sock;
use crate::ids::Time;
use crate::wire::frame;

/// A process's monotone clock: its origin is its own, and it may jump forward.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    offset: Duration,
    armed: Option<Time>,
}

impl Clock {
    /// A clock with an origin of its own.
    pub(super) fn new(core: &mut Core) -> Self {
        Self {
            offset: Duration::from_nanos(core.rng.below(1 << 40)),
            armed: None,
        }
    }

    /// The clock of another thread of the same process, whose timers are its own.
    pub(super) fn of_thread(&self) -> Self {
        Self {
            offset: self.offset,
            armed: None,
        }
    }

    /// What it shows.
    pub(super) fn local(&self, now: Time) -> Time {
        now + self.offset
    }

    /// It jumps forward.
    pub(super) fn jump(&mut self, by: Duration) {
        self.offset += by;
        self.armed = None;
    }

    /// Another clock of the same process shows this too.
    pub(super) fn follow(&mut self, other: &Self) {
        if self.offset != other.offset {
            self.offset = other.offset;
            self.armed = None;
        }
    }

    /// A timer has fired. One that was overtaken by an earlier deadline leaves the later one armed,
    /// so that chains of timers merge again.
    pub(super) fn fired(&mut self, now: Time) {
        if self.armed.is_some_and(|at| at <= now) {
            self.armed = None;
        }
    }

    /// Sees to it that a timer fires when a deadline (on this clock) is due.
    pub(super) fn arm(&mut self, core: &mut Core, proc: ProcId, thread: Thread, due: Option<Time>) {
        let Some(due) = due else { return };
        let at = Time(due.0.saturating_sub(self.offset.as_nanos() as u64)).max(core.now);
        if self.armed.is_none_or(|armed| at < armed) {
            self.armed = Some(at);
            core.push(at, Event::Timer { proc, thread });
        }
    }
}

/// Where a host listens.
pub(super) fn address_of(host: HostId) -> SocketAddr {
    let last = u8::try_from(host.0 + 1).unwrap_or(u8::MAX);
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), PORT)
}

/// Which host an address belongs to.
pub(super) fn host_of(address: SocketAddr) -> Option<HostId> {
    match address.ip() {
        IpAddr::V4(ip) => usize::from(ip.octets()[3]).checked_sub(1).map(HostId),
        IpAddr::V6(_) => None,
    }
}

/// Writes one message as a frame.
pub(super) fn send_frame<T: Serialize>(core: &mut Core, sock: Sock, message: &T, limit: usize) {
    match frame::encode(message, limit) {
        Ok(bytes) => core.write(sock, &bytes),
        Err(error) => core.violate("bounded", format!("a message cannot be sent: {error}")),
    }
}

/// Port of every listener.
pub(super) const PORT: u16 = 4700;
