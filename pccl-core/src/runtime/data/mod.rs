//! The data thread: it owns the engine and the sockets of all lanes, reads, reduces while the
//! bytes are in the cache, and writes. It never blocks but in its poll, and never waits for
//! another thread.

mod driver;
mod lane;
mod secured;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use mio::{Poll, Token, Waker};
use tokio::sync::mpsc::UnboundedSender;

use crate::collective::buffers::Lent;
use crate::collective::engine::{EngineConfig, EngineEvent, EngineGroup, OpStats, StartReduce};
use crate::ids::{CallId, LaneId, MemberId};
use crate::threads;
use crate::transport::channel::Parts;

/// What the data thread tells its owner. There are never more of these than operations and lanes,
/// and one [`DataEvent::Heard`] per heartbeat.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum DataEvent {
    /// What became of an operation.
    Engine(EngineEvent),
    /// The buffers of a call are not touched any more, and hold what they have to.
    Finished {
        /// The user's call.
        call: CallId,
        /// What its operation has moved.
        stats: OpStats,
    },
    /// A lane is closed; once per lane.
    LaneClosed {
        /// Which.
        lane: LaneId,
        /// Whether either end said goodbye.
        orderly: bool,
        /// What the socket, or the check of a frame, said.
        cause: String,
    },
    /// Data came from these members since the last of these events. (Rule 14)
    Heard(Vec<MemberId>),
}

/// What the owner asks for.
enum Command {
    OpenLane {
        lane: LaneId,
        peer: MemberId,
        parts: Parts,
    },
    CloseLane(LaneId),
    SetGroup(EngineGroup),
    Start(Box<StartReduce>, Lent),
    Finish {
        call: CallId,
        commit: bool,
    },
    Shutdown,
}

/// The thread, as its owner holds it. Dropping it carries out what was asked for, gives all buffers
/// back (as they were, where nothing was asked for), closes the lanes
/// and waits for the thread, which blocks nowhere. If the thread panics, its events end, and no
/// buffer is touched any more from then on.
#[derive(Debug)]
pub(crate) struct DataThread {
    commands: Sender<Command>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl DataThread {
    /// Starts it. The error is what the system said when it refused a thread or a descriptor.
    pub(crate) fn start(
        config: EngineConfig,
        says: UnboundedSender<DataEvent>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let (commands, asked) = channel();
        let thread =
            threads::named("pccl-data")?.spawn(move || driver::run(poll, config, asked, says))?;
        Ok(Self {
            commands,
            waker,
            thread: Some(thread),
        })
    }

    /// Hands over a connection that has passed its handshake.
    pub(crate) fn open_lane(&self, lane: LaneId, peer: MemberId, parts: Parts) {
        self.ask(Command::OpenLane { lane, peer, parts });
    }

    /// Closes a lane in good order.
    pub(crate) fn close_lane(&self, lane: LaneId) {
        self.ask(Command::CloseLane(lane));
    }

    /// The group is this now.
    pub(crate) fn set_group(&self, group: EngineGroup) {
        self.ask(Command::SetGroup(group));
    }

    /// Starts an operation on buffers that stay lent until [`DataEvent::Finished`].
    pub(crate) fn start_reduce(&self, start: StartReduce, lent: Lent) {
        self.ask(Command::Start(Box::new(start), lent));
    }

    /// Gives the buffers of a call back: with the result, or as they were. (Rule 8)
    pub(crate) fn finish(&self, call: CallId, commit: bool) {
        self.ask(Command::Finish { call, commit });
    }

    fn ask(&self, command: Command) {
        // A failed send means that the thread has panicked, which its events tell by their end.
        if self.commands.send(command).is_ok()
            && let Err(cause) = self.waker.wake()
        {
            tracing::error!(target: "pccl::peer", %cause, "cannot wake the data thread");
        }
    }
}

impl Drop for DataThread {
    fn drop(&mut self) {
        self.ask(Command::Shutdown);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(target: "pccl::peer", "the data thread panicked");
        }
    }
}

/// Token of the waker; lanes have their numbers, which never get there.
const WAKE: Token = Token(usize::MAX);

#[cfg(test)]
mod tests;
