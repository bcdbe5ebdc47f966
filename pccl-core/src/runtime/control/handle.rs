//! The control thread as user threads see it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;

use super::driver::{self, Command, Work};
use crate::config::PeerConfig;
use crate::error::{Error, Result, UsageError};
use crate::ids::{CallId, MemberId, PublicKey};
use crate::membership::peer::{PeerInput, Request};
use crate::runtime::calls::{self, Signal, Ticket, lock};
use crate::runtime::events::Subscribers;
use crate::runtime::target::Target;
use crate::threads;
use crate::transport::secure::Identity;
use crate::types::{Attributes, DigestKind};
use crate::wire::control::{MemberInfo, Stamp};
use crate::wire::reason::RequestCause;

/// What the control thread shows to user threads.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) snapshot: Mutex<Snapshot>,
    pub(super) subscribers: Subscribers,
}

/// State of the membership, as of the last call that completed.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    /// World sizes.
    pub(crate) attributes: Attributes,
    /// Own number while a member.
    pub(crate) own: Option<MemberId>,
    /// Own group, in the order of the ring.
    pub(crate) ring: Vec<MemberInfo>,
    /// Where members have been reached, or have dialled from.
    pub(crate) reached: BTreeMap<MemberId, SocketAddr>,
    /// Digests of the run's shared states.
    pub(crate) digests: DigestKind,
}

/// Sends to the control thread. Cheap to clone; does not keep the thread alive.
#[derive(Clone)]
pub(crate) struct Controls {
    commands: mpsc::UnboundedSender<Command>,
    last_call: Arc<AtomicU64>,
    /// Whether the communicator's owner has ended the thread.
    closing: Arc<AtomicBool>,
}

/// A control thread; ends it when dropped.
pub(crate) struct ControlThread {
    controls: Controls,
    shared: Arc<Shared>,
    public_key: Option<PublicKey>,
    thread: Option<JoinHandle<()>>,
}

impl ControlThread {
    /// Starts the thread. Nothing is resolved, bound or dialled before the first connect.
    pub(crate) fn start(master: &str, config: PeerConfig) -> Result<Self> {
        let master = Target::new(master, || match &config.identity {
            Some(path) => Identity::kept(path),
            None => Identity::new(),
        })?;
        let public_key = master.party().map(|party| party.key());
        let (commands, inbox) = mpsc::unbounded_channel();
        let shared = Arc::<Shared>::default();
        let thread = threads::named("pccl-control")
            .and_then(|thread| {
                let shared = shared.clone();
                thread.spawn(move || driver::run(master, config, shared, inbox))
            })
            .map_err(|e| Error::Internal(format!("control thread: {e}")))?;
        Ok(Self {
            controls: Controls {
                commands,
                last_call: Arc::default(),
                closing: Arc::default(),
            },
            shared,
            public_key,
            thread: Some(thread),
        })
    }

    /// To hand to call handles, which may outlive the communicator.
    pub(crate) fn controls(&self) -> &Controls {
        &self.controls
    }

    /// Own key, in a run with tickets.
    pub(crate) fn public_key(&self) -> Option<PublicKey> {
        self.public_key
    }

    /// State of the membership.
    pub(crate) fn snapshot(&self) -> Snapshot {
        lock(&self.shared.snapshot).clone()
    }

    /// World sizes.
    pub(crate) fn attributes(&self) -> Attributes {
        lock(&self.shared.snapshot).attributes
    }

    /// Who is told of events.
    pub(crate) fn subscribers(&self) -> &Subscribers {
        &self.shared.subscribers
    }
}

impl Controls {
    /// Begins a call; `signal` is raised when it completes.
    pub(crate) fn submit(
        &self,
        request: Request,
        limit: Option<Duration>,
        work: Work,
        signal: Arc<Signal>,
    ) -> (CallId, Ticket) {
        let call = CallId(self.last_call.fetch_add(1, Ordering::Relaxed) + 1);
        let (ticket, completer) = calls::call(signal);
        let command = Command::Call {
            call,
            request,
            limit,
            work,
            completer,
        };
        if let Err(mpsc::error::SendError(Command::Call { completer, .. })) =
            self.commands.send(command)
        {
            completer.complete(Err(self.gone()));
        }
        (call, ticket)
    }

    /// Asks for the end of a call.
    pub(crate) fn cancel(&self, call: CallId) {
        self.cancel_for(call, RequestCause::Cancelled);
    }

    /// Asks for the end of a call, and says why.
    pub(crate) fn cancel_for(&self, call: CallId, cause: RequestCause) {
        // A thread that has ended has completed all of its calls.
        let _ = self.commands.send(Command::Cancel { call, cause });
    }

    /// Why there is no thread to make a call.
    fn gone(&self) -> Error {
        if self.closing.load(Ordering::Acquire) {
            return Error::Usage(UsageError::Closed);
        }
        Error::Internal("the communicator's thread has ended; make another communicator".into())
    }

    /// A collective that failed returns to its user: from now on world sizes are those after the
    /// failure. (Rule 16)
    pub(crate) fn shown(&self, call: CallId, stamp: Stamp) {
        let (ticket, completer) = calls::call(Arc::default());
        let command = Command::Shown {
            call,
            stamp,
            completer,
        };
        if self.commands.send(command).is_ok() {
            // The thread answers at once; if it has ended, the slot is filled all the same.
            let _ = ticket.wait(None);
        }
    }

    /// Asks for the end of all open calls.
    pub(crate) fn cancel_all(&self) {
        // As above.
        let _ = self.commands.send(Command::CancelAll);
    }

    /// Tells the machine something, from the user's thread that fetches state.
    pub(crate) fn input(&self, input: PeerInput) {
        // A thread that has ended has ended the call as well.
        let _ = self.commands.send(Command::Input(input));
    }

    /// Leaves the run at once, without a word.
    pub(crate) fn abandon(&self) {
        // A thread that has ended has left.
        let _ = self.commands.send(Command::Abandon);
    }
}

impl Drop for ControlThread {
    fn drop(&mut self) {
        self.controls.closing.store(true, Ordering::Release);
        // A thread that has ended needs no telling.
        let _ = self.controls.commands.send(Command::Close);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(target: "pccl::peer", "the control thread panicked");
        }
    }
}
