//! A synchronisation of the shared state: fetches and serves chunks.
//!
//! All of it runs while the user's call lasts, on the user's thread and on threads that it starts
//! and joins before it returns. So they borrow the user's tensors like any other code: nothing is
//! copied to be served, and no chunk is served after the call has returned. (Rule 21) The control
//! thread only passes on what the master says, and connections that others have opened.

mod cancel;
mod fetch;
mod framed;
mod job;
mod progress;
mod seeders;
mod serve;
mod unpack;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::config::Timing;
use crate::ids::{MemberId, RunId, Token};
use crate::transport::channel::Parts;
use crate::transport::secure::Party;
use crate::transport::slots::Slot;
use crate::wire::control::SyncPlan;

pub(crate) use job::{Own, Synchronised, run};
pub use progress::SyncProgress;
pub(crate) use progress::Watch;

/// What to do, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// The master's word.
    pub(crate) plan: SyncPlan,
    /// The run.
    pub(crate) run: RunId,
    /// Own number.
    pub(crate) own: MemberId,
    /// Own proof.
    pub(crate) token: Token,
    /// Limits of dials and of silence.
    pub(crate) timing: Timing,
    /// Whether chunks may be compressed for others.
    pub(crate) packs: bool,
    /// Who speaks TLS, in a run with tickets.
    pub(crate) party: Option<Arc<Party>>,
}

/// What the user's thread hears.
enum Message {
    Plan(Box<Task>),
    Serve {
        parts: Parts,
        reader: MemberId,
        slot: Slot,
    },
    /// A fetching thread has ended; the error says what is wrong with the seeder.
    Fetched {
        seeder: MemberId,
        result: Result<(), String>,
    },
    End,
}

/// The control thread's end of a synchronisation. Dropping it ends the user's part: after the
/// verdict, or when there will be none.
#[derive(Debug)]
pub(crate) struct SyncControl {
    messages: Sender<Message>,
}

/// The user's end of a synchronisation.
#[derive(Debug)]
pub(crate) struct SyncOrders {
    messages: Receiver<Message>,
    back: Sender<Message>,
}

/// Both ends.
pub(crate) fn pair() -> (SyncControl, SyncOrders) {
    let (sender, messages) = channel();
    let back = sender.clone();
    (
        SyncControl { messages: sender },
        SyncOrders { messages, back },
    )
}

impl SyncControl {
    /// The plan has come, or has changed: then what has been fetched stays, and only seeders are
    /// replaced.
    pub(crate) fn plan(&self, task: Task) {
        self.tell(Message::Plan(Box::new(task)));
    }

    /// A reader has opened a connection and passed the handshake.
    pub(crate) fn serve(&self, parts: Parts, reader: MemberId, slot: Slot) {
        self.tell(Message::Serve {
            parts,
            reader,
            slot,
        });
    }

    fn tell(&self, message: Message) {
        // The user's part may have ended by itself, by a panic.
        let _ = self.messages.send(message);
    }
}

impl Drop for SyncControl {
    fn drop(&mut self) {
        self.tell(Message::End);
    }
}

#[cfg(test)]
mod tests;
