//! The loop around the peer machine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::calls::Calls;
use super::handle::{Shared, Snapshot};
use super::lanes::Lanes;
use super::link::{Link, LinkEvent};
use super::setup;
use crate::collective::buffers::Lent;
use crate::config::{PeerConfig, Timing};
use crate::error::{Error, Result, UsageError};
use crate::ids::{CallId, MemberId, RunId, Token};
use crate::membership::peer::{OwnAddresses, Peer, PeerInput, PeerSettings, Request};
use crate::runtime::calls::{self, Completer, Reply, lock};
use crate::runtime::clock::Clock;
use crate::runtime::data::{DataEvent, DataThread};
use crate::runtime::randomness;
use crate::runtime::sync::SyncControl;
use crate::runtime::target::Target;
use crate::runtime::tasks;
use crate::transport::listener::{Accepted, Listener};
use crate::trap::{self, Trap};
use crate::types::Attributes;
use crate::wire::control::Stamp;
use crate::wire::reason::RequestCause;

/// What a call works on, besides its request.
pub(crate) enum Work {
    /// Nothing.
    None,
    /// Buffers of an all-reduce.
    Reduce(Lent),
    /// The way to the user's thread, which fetches and serves the state itself.
    Sync(SyncControl),
}

/// What user threads ask for.
pub(super) enum Command {
    /// A call; its completer is always used.
    Call {
        call: CallId,
        request: Request,
        limit: Option<Duration>,
        work: Work,
        completer: Completer,
    },
    /// Give a call up.
    Cancel { call: CallId, cause: RequestCause },
    /// A collective that failed returns to its user now; answered when that is known.
    Shown {
        call: CallId,
        stamp: Stamp,
        completer: Completer,
    },
    /// Give all open calls up.
    CancelAll,
    /// What the user's thread, fetching state, has to say.
    Input(PeerInput),
    /// Leave the run at once.
    Abandon,
    /// Leave in good order and end the thread.
    Close,
}

impl Command {
    /// Ends a call that is not carried out. What it works on is let go of before its user goes on.
    fn fail(self, error: &Error) {
        if let Self::Call {
            work, completer, ..
        } = self
        {
            drop(work);
            completer.complete(Err(error.clone()));
        }
    }
}

/// What the tasks of this thread have to say, besides those of the control connection.
pub(super) enum Inbound {
    /// The listener is bound, or cannot be.
    Prepared(Result<(Listener, OwnAddresses)>),
    /// Something that the machine wants to know.
    Input(PeerInput),
    /// Somebody has dialled this member, and was let in.
    Accepted(Accepted),
    /// A member that was dialled has let this one in.
    Lane(super::lanes::Opened),
    /// A task panicked: which.
    Broken(&'static str),
}

/// The thread's state. The data thread comes first, so that it ends first, however this one ends:
/// nobody touches a user's buffer any more when the calls are dropped and their waiters wake.
pub(super) struct Driver {
    pub(super) data: Option<Data>,
    pub(super) calls: Calls,
    pub(super) shared: Arc<Shared>,
    pub(super) master: Target,
    pub(super) config: PeerConfig,
    pub(super) clock: Clock,
    pub(super) timing: Timing,
    pub(super) own: Option<(RunId, MemberId, Token)>,
    pub(super) link: Link,
    pub(super) lanes: Lanes,
    peer: Option<Peer>,
    settings: Option<PeerSettings>,
    /// Commands that came while the listener was being bound.
    waiting: Option<Vec<Command>>,
    inbound: mpsc::UnboundedSender<Inbound>,
    closing: bool,
    /// Whether a task has panicked: this thread ends as if it had panicked itself.
    broken: bool,
    /// Whether the machine has left the run for good: the next membership needs a new one.
    pub(super) left: bool,
}

/// The data thread and what it says.
pub(super) struct Data {
    pub(super) thread: DataThread,
    pub(super) events: mpsc::UnboundedReceiver<DataEvent>,
}

/// Runs a communicator until it is closed.
pub(super) fn run(
    master: Target,
    config: PeerConfig,
    shared: Arc<Shared>,
    commands: mpsc::UnboundedReceiver<Command>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => {
            // Completers that are dropped say only that the thread has ended.
            tracing::error!(target: "pccl::peer", cause = %e, "the system refused an event loop");
            return;
        }
    };
    runtime.block_on(async {
        let (inbound, inbox) = mpsc::unbounded_channel();
        let (link, link_inbox) = Link::new(master.clone(), inbound.clone());
        let driver = Driver {
            data: None,
            calls: Calls::default(),
            shared,
            lanes: Lanes::new(inbound.clone(), config.pool, master.party()),
            master,
            config,
            clock: Clock::start(),
            timing: Timing::default(),
            own: None,
            link,
            peer: None,
            settings: None,
            waiting: None,
            inbound,
            closing: false,
            broken: false,
            left: false,
        };
        driver.run(commands, inbox, link_inbox).await;
    });
    // A name look-up may still be blocked in the system; it must not hold up the owner.
    runtime.shutdown_background();
}

impl Driver {
    async fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut inbox: mpsc::UnboundedReceiver<Inbound>,
        mut link_inbox: mpsc::Receiver<(u64, LinkEvent)>,
    ) {
        let mut close_at: Option<Instant> = None;
        loop {
            let deadline = self.peer.as_ref().and_then(Peer::next_deadline);
            let deadline = deadline.map(|t| Instant::from_std(self.clock.instant(t)));
            let deadline = deadline.into_iter().chain(close_at).min();
            tokio::select! {
                biased;
                command = commands.recv(), if !self.closing => {
                    self.command(command.unwrap_or(Command::Close));
                }
                Some((generation, event)) = link_inbox.recv() => self.link_event(generation, event),
                Some(inbound) = inbox.recv() => self.inbound(inbound),
                event = next_data_event(&mut self.data) => self.data_event(event),
                () = sleep_until(deadline) => {}
            }
            if self.is_due() {
                self.drain(&mut inbox, &mut link_inbox).await;
                self.input(PeerInput::Tick);
            }
            if self.broken {
                return;
            }
            if self.closing {
                let at = *close_at.get_or_insert_with(|| Instant::now() + CLOSE_LIMIT);
                if !self.calls.contains(LEAVE) || Instant::now() >= at {
                    break;
                }
            }
        }
        self.finish(commands).await;
    }

    /// Own number, from registration on.
    pub(super) fn own_id(&self) -> Option<MemberId> {
        self.own.map(|(_, id, _)| id)
    }

    fn is_due(&self) -> bool {
        let deadline = self.peer.as_ref().and_then(Peer::next_deadline);
        deadline.is_some_and(|t| t <= self.clock.now())
    }

    /// Takes in all input that can be read: no deadline may fire before. (Rule 14)
    ///
    /// Yielding lets the event loop ask the system for readable sockets, and their tasks read
    /// them. When a round has brought nothing, there was nothing.
    async fn drain(
        &mut self,
        inbox: &mut mpsc::UnboundedReceiver<Inbound>,
        link_inbox: &mut mpsc::Receiver<(u64, LinkEvent)>,
    ) {
        for _ in 0..DRAIN_ROUNDS {
            tokio::task::yield_now().await;
            let mut quiet = true;
            while let Ok((generation, event)) = link_inbox.try_recv() {
                self.link_event(generation, event);
                quiet = false;
            }
            while let Ok(inbound) = inbox.try_recv() {
                self.inbound(inbound);
                quiet = false;
            }
            while let Some(Ok(event)) = self.data.as_mut().map(|data| data.events.try_recv()) {
                self.data_event(Some(event));
                quiet = false;
            }
            if quiet {
                return;
            }
        }
    }

    fn command(&mut self, command: Command) {
        if let Some(waiting) = &mut self.waiting
            && !matches!(command, Command::Close | Command::Abandon)
        {
            waiting.push(command);
            return;
        }
        match command {
            Command::Close => self.close(),
            Command::Abandon => self.abandon(&Error::Abandoned),
            Command::CancelAll => {
                let cause = RequestCause::Cancelled;
                for call in self.calls.ids() {
                    let cause = cause.clone();
                    self.input(PeerInput::Cancel { call, cause });
                }
            }
            Command::Input(input) => self.input(input),
            Command::Shown {
                call,
                stamp,
                completer,
            } => {
                self.input(PeerInput::Shown { call, stamp });
                self.show();
                completer.complete(Ok(Reply::Done));
            }
            Command::Cancel { call, cause } => self.input(PeerInput::Cancel { call, cause }),
            Command::Call {
                call,
                request,
                limit,
                work,
                completer,
            } => {
                if self.peer.is_some() {
                    self.calls.add(call, &request, completer, work);
                    self.input(PeerInput::Call {
                        call,
                        request,
                        limit,
                    });
                    return;
                }
                match request {
                    Request::Connect => {
                        self.prepare(limit);
                        self.command(Command::Call {
                            call,
                            request,
                            limit,
                            work,
                            completer,
                        });
                    }
                    Request::Leave => completer.complete(Ok(Reply::Done)),
                    _ => {
                        drop(work);
                        completer.complete(Err(Error::Usage(UsageError::NotConnected)));
                    }
                }
            }
        }
    }

    /// Binds the listener, without holding up this thread. Commands wait until then.
    fn prepare(&mut self, limit: Option<Duration>) {
        self.waiting = Some(Vec::new());
        let longest = self.timing.handshake();
        let limit = limit.map_or(longest, |l| l.min(longest));
        let (master, config) = (self.master.clone(), self.config.clone());
        let inbound = self.inbound.clone();
        let prepare = async move {
            trap::pass(Trap::Prepare);
            let prepared = setup::listen(&master, &config, limit).await;
            let _ = inbound.send(Inbound::Prepared(prepared));
        };
        tasks::spawn(prepare, broken(&self.inbound, "preparing to listen"));
    }

    fn prepared(&mut self, prepared: Result<(Listener, OwnAddresses)>) {
        let Some(waiting) = self.waiting.take() else {
            return;
        };
        let started = prepared.and_then(|(listener, own)| self.start_peer(listener, own));
        if let Err(error) = started {
            waiting.into_iter().for_each(|command| command.fail(&error));
            return;
        }
        for command in waiting {
            self.command(command);
        }
    }

    fn start_peer(&mut self, listener: Listener, own: OwnAddresses) -> Result<()> {
        let settings = PeerSettings {
            master_address: self.master.shown().to_owned(),
            group: self.config.group,
            name: self.config.name.clone(),
            own,
            pool: self.config.pool,
            seed: randomness::u64()?,
        };
        self.lanes.listen(listener, self.timing);
        self.peer = Some(Peer::new(settings.clone(), self.clock.now()));
        self.settings = Some(settings);
        Ok(())
    }

    fn inbound(&mut self, inbound: Inbound) {
        match inbound {
            Inbound::Prepared(prepared) => self.prepared(prepared),
            Inbound::Input(input) => self.input(input),
            Inbound::Accepted(accepted) => self.accepted(accepted),
            Inbound::Lane(opened) => self.lane(opened),
            Inbound::Broken(task) => {
                tracing::error!(target: "pccl::peer", task, "a task panicked");
                self.broken = true;
            }
        }
    }

    /// Hands an input to the machine and carries out what comes of it.
    pub(super) fn input(&mut self, input: PeerInput) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let Some(peer) = &mut self.peer else { return };
            trap::pass(Trap::Control);
            peer.handle(input, self.clock.now());
            while let Some(output) = self.peer.as_mut().and_then(Peer::poll_output) {
                self.carry_out(output, &mut inputs);
            }
        }
        if std::mem::take(&mut self.left) && !self.closing {
            self.lanes.new_membership();
            self.new_peer();
        }
    }

    /// A machine that is in no run.
    fn new_peer(&mut self) {
        self.own = None;
        if let Some(settings) = self.settings.clone() {
            self.peer = Some(Peer::new(settings, self.clock.now()));
        }
        *lock(&self.shared.snapshot) = Snapshot::default();
    }

    /// Shows user threads the state of the membership. Done before a call completes, so that its
    /// user finds what the call has changed.
    pub(super) fn show(&self) {
        let (attributes, member) = match &self.peer {
            Some(peer) => (peer.attributes(), peer.is_member()),
            None => (Attributes::ALONE, false),
        };
        let mut snapshot = lock(&self.shared.snapshot);
        snapshot.attributes = attributes;
        snapshot.own = self.own_id().filter(|_| member);
        if !member {
            snapshot.ring.clear();
            snapshot.reached.clear();
        }
    }

    /// Ends the calls that wait for the listener, which comes too late for them.
    fn fail_waiting(&mut self, error: &Error) {
        for command in self.waiting.take().unwrap_or_default() {
            command.fail(error);
        }
    }

    fn close(&mut self) {
        self.closing = true;
        self.fail_waiting(&Error::Usage(UsageError::Closed));
        if self.peer.is_some() {
            let (_, completer) = calls::call(Arc::default());
            let request = Request::Leave;
            self.calls.add(LEAVE, &request, completer, Work::None);
            self.input(PeerInput::Call {
                call: LEAVE,
                request,
                limit: None,
            });
        }
    }

    /// Leaves the run without a word: nothing of the old membership stays. Every open call ends
    /// with `error`, once the data thread has let go of its buffers.
    pub(super) fn abandon(&mut self, error: &Error) {
        self.fail_waiting(error);
        self.link.abort();
        self.lanes.new_membership();
        self.end_data();
        self.lanes.take_open();
        self.new_peer();
        self.calls.fail_all(error);
    }

    /// Ends the data thread, and hears what it still had to say about buffers.
    pub(super) fn end_data(&mut self) {
        let Some(Data { thread, mut events }) = self.data.take() else {
            return;
        };
        for call in self.calls.lent() {
            thread.finish(call, false);
        }
        drop(thread);
        while let Ok(event) = events.try_recv() {
            if let DataEvent::Finished { call, stats } = event {
                self.calls.released(call, stats);
            }
        }
    }

    async fn finish(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        commands.close();
        let goodbyes = async {
            while self.data.is_some() && self.lanes.any_open() {
                let event = next_data_event(&mut self.data).await;
                self.data_event(event);
            }
        };
        let _ = tokio::time::timeout(FLUSH_LIMIT, goodbyes).await;
        self.end_data();
        self.show();
        let closed = Error::Usage(UsageError::Closed);
        self.calls.fail_all(&closed);
        while let Ok(command) = commands.try_recv() {
            command.fail(&closed);
        }
        self.link.flush(FLUSH_LIMIT).await;
    }
}

/// What a task calls when it panics.
pub(super) fn broken(
    inbound: &mpsc::UnboundedSender<Inbound>,
    task: &'static str,
) -> impl FnOnce() + Send + 'static {
    let inbound = inbound.clone();
    move || {
        // A thread that has ended needs no telling.
        let _ = inbound.send(Inbound::Broken(task));
    }
}

async fn next_data_event(data: &mut Option<Data>) -> Option<DataEvent> {
    match data {
        Some(data) => data.events.recv().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The call by which a communicator that is closed leaves; those of users start at one.
const LEAVE: CallId = CallId(0);

/// Rounds of reading before a tick. A master that sends without end must not hold up time.
const DRAIN_ROUNDS: usize = 64;

/// Longest time for leaving in good order: the machine gives up earlier by itself.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Time for the last words to the master.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
