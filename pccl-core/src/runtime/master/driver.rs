//! The loop around the master machine.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::accept::{self, Greeted};
use super::door::{Done, Door};
use crate::config::Timing;
use crate::ids::{ConnId, MemberId, PublicKey, Time};
use crate::membership::master::{Master, MasterInput, MasterOutput};
use crate::runtime::clock::Clock;
use crate::runtime::framed::{MessageReader, Outbox};
use crate::runtime::{log, tasks};
use crate::trap::{self, Trap};
use crate::wire::control::{AdminRequest, ControlHello, ControlReply, Up};

/// What the owner of a master asks for.
pub(super) enum Command {
    /// Status as JSON.
    Status(SyncSender<String>),
    /// Evict a member.
    Evict(MemberId),
    /// End in good order.
    Stop,
}

/// What the tasks of the connections have to say.
pub(super) enum Inbound {
    /// Somebody said hello.
    Greeted(Greeted),
    /// Somebody asks to come in without a valid ticket: whether its key is a member's.
    Known(PublicKey, oneshot::Sender<bool>),
    /// A message.
    Message(ConnId, Up),
    /// A connection ended.
    Closed(ConnId, String),
}

/// A task that panicked.
enum Broken {
    /// That accepts connections: nobody could join or come back any more.
    Accept,
    /// Of a connection: that ends with it.
    Connection(ConnId),
}

struct Connection {
    outbox: Outbox,
    reader: JoinHandle<MessageReader>,
}

struct Driver {
    master: Master,
    clock: Clock,
    timing: Timing,
    door: Option<Arc<Door>>,
    connections: BTreeMap<ConnId, Connection>,
    last_conn: u64,
    inbound: mpsc::Sender<Inbound>,
    broken: mpsc::UnboundedSender<Broken>,
    /// Connections that are being closed in good order.
    closing: Vec<JoinHandle<()>>,
    exit: Option<String>,
}

/// Runs a master until it ends; says why it did.
pub(super) fn run(
    listener: TcpListener,
    timing: Timing,
    door: Option<Arc<Door>>,
    new: impl FnOnce(Time) -> Master,
    commands: mpsc::UnboundedReceiver<Command>,
) -> String {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => return format!("the system refused its event loop: {e}"),
    };
    let why = runtime.block_on(async {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(e) => return format!("the system refused its listening socket: {e}"),
        };
        let clock = Clock::start();
        let (inbound, inbox) = mpsc::channel(INBOX);
        let (broken, broken_inbox) = mpsc::unbounded_channel();
        tasks::spawn(
            accept::accept(listener, timing, door.clone(), inbound.clone()),
            tell(&broken, Broken::Accept),
        );
        let driver = Driver {
            master: new(clock.now()),
            clock,
            timing,
            door,
            connections: BTreeMap::new(),
            last_conn: 0,
            inbound,
            broken,
            closing: Vec::new(),
            exit: None,
        };
        driver.run(inbox, broken_inbox, commands).await
    });
    runtime.shutdown_background();
    tracing::info!(%why, "the master ended");
    why
}

impl Driver {
    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Inbound>,
        mut broken: mpsc::UnboundedReceiver<Broken>,
        mut commands: mpsc::UnboundedReceiver<Command>,
    ) -> String {
        self.carry_out();
        while self.exit.is_none() {
            let deadline = self.master.next_deadline().map(|t| self.clock.instant(t));
            tokio::select! {
                biased;
                Some(command) = commands.recv() => self.command(command),
                Some(broken) = broken.recv() => self.broken(broken),
                Some(inbound) = inbox.recv() => self.inbound(inbound),
                () = sleep_until(deadline) => {}
            }
            if self.is_due() {
                self.drain(&mut inbox).await;
                self.input(MasterInput::Tick);
            }
        }
        self.finish().await
    }

    fn is_due(&self) -> bool {
        let deadline = self.master.next_deadline();
        deadline.is_some_and(|t| t <= self.clock.now())
    }

    /// Takes in all input that can be read: no deadline may fire before. (Rule 14)
    ///
    /// Yielding lets the event loop ask the system for readable sockets, and their tasks read
    /// them. When a round has brought nothing, there was nothing.
    async fn drain(&mut self, inbox: &mut mpsc::Receiver<Inbound>) {
        for _ in 0..DRAIN_ROUNDS {
            tokio::task::yield_now().await;
            let mut quiet = true;
            while let Ok(inbound) = inbox.try_recv() {
                self.inbound(inbound);
                quiet = false;
            }
            if quiet {
                return;
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Status(answer) => {
                let status = serde_json::to_string(&self.master.status());
                // The asker may have gone.
                let _ = answer.try_send(status.unwrap_or_else(|e| e.to_string()));
            }
            Command::Evict(member) => self.input(MasterInput::Evict { member }),
            Command::Stop => self.input(MasterInput::Stop),
        }
    }

    fn inbound(&mut self, inbound: Inbound) {
        match inbound {
            Inbound::Greeted(greeted) => self.greeted(greeted),
            Inbound::Known(key, answer) => {
                // Who asked may have given up.
                let _ = answer.send(self.master.knows(key));
            }
            // What a closed connection still had to say was dropped with it. (Rule 13)
            Inbound::Message(conn, message) if self.connections.contains_key(&conn) => {
                self.input(MasterInput::Message { conn, message });
            }
            Inbound::Closed(conn, cause) => self.closed(conn, cause),
            Inbound::Message(..) => {}
        }
    }

    fn greeted(&mut self, greeted: Greeted) {
        let Greeted {
            remote,
            hello,
            key,
            reader,
            writer,
        } = greeted;
        self.last_conn += 1;
        let conn = ConnId(self.last_conn);
        let connection = Connection {
            outbox: Outbox::start(
                writer,
                QUEUE_LIMIT,
                tell(&self.broken, Broken::Connection(conn)),
            ),
            reader: tasks::spawn(
                read(conn, reader, self.inbound.clone()),
                tell(&self.broken, Broken::Connection(conn)),
            ),
        };
        self.connections.insert(conn, connection);
        if let (ControlHello::Admin(request), Some(door)) = (&hello, self.door.clone()) {
            return self.administer(conn, &door, request);
        }
        self.input(MasterInput::Hello {
            conn,
            remote,
            hello,
            key,
        });
    }

    /// Does what the operator wants.
    fn administer(&mut self, conn: ConnId, door: &Door, request: &AdminRequest) {
        let Done { said, bans } = door.administer(request);
        if bans {
            let barred = |(id, address, key)| door.bars(address, key).then_some(id);
            let barred: Vec<MemberId> = self.master.who().filter_map(barred).collect();
            for member in barred {
                self.input(MasterInput::Evict { member });
            }
        }
        // One that does not take the answer is closed like one that does.
        let _ = self.push(conn, &ControlReply::Admin(said));
        self.close(conn);
    }

    fn closed(&mut self, conn: ConnId, cause: String) {
        if let Some(connection) = self.connections.remove(&conn) {
            connection.outbox.abort();
            // The other end of one that did not read may never close.
            connection.reader.abort();
            self.input(MasterInput::Closed { conn, cause });
        }
    }

    /// A bug that what one peer says, or is told, brings out ends that connection; the others do
    /// not suffer from it.
    fn broken(&mut self, broken: Broken) {
        match broken {
            Broken::Accept => {
                tracing::error!("the task that accepts connections panicked");
                self.exit = Some("its task that accepts connections panicked".into());
            }
            Broken::Connection(conn) => {
                tracing::error!(?conn, "the task of a connection panicked");
                self.closed(conn, "its task panicked".into());
            }
        }
    }

    fn input(&mut self, input: MasterInput) {
        trap::pass(Trap::Master);
        self.master.handle(input, self.clock.now());
        self.carry_out();
    }

    fn carry_out(&mut self) {
        // A connection that cannot take an output is an input of its own, after these outputs.
        let mut broken = Vec::new();
        while let Some(output) = self.master.poll_output() {
            match output {
                MasterOutput::Reply { conn, reply } => {
                    broken.extend(self.push(conn, &reply));
                }
                MasterOutput::Send { conn, message } => {
                    broken.extend(self.push(conn, &message));
                }
                MasterOutput::Close { conn } => self.close(conn),
                MasterOutput::Event(event) => log::at_master(&event),
                MasterOutput::Exit { why } => self.exit = Some(why),
            }
        }
        for (conn, cause) in broken {
            self.closed(conn, cause);
        }
    }

    fn push<T: serde::Serialize>(&self, conn: ConnId, message: &T) -> Option<(ConnId, String)> {
        let pushed = self.connections.get(&conn)?.outbox.push(message);
        pushed.err().map(|cause| (conn, cause))
    }

    fn close(&mut self, conn: ConnId) {
        if let Some(Connection { outbox, reader }) = self.connections.remove(&conn) {
            self.closing.retain(|closing| !closing.is_finished());
            let limit = self.timing.handshake();
            self.closing.push(outbox.close(reader, limit));
        }
    }

    /// Lets everybody read what was last said, for a short while.
    async fn finish(mut self) -> String {
        let open: Vec<_> = self.connections.keys().copied().collect();
        for conn in open {
            self.close(conn);
        }
        let closing = std::mem::take(&mut self.closing);
        let all = async {
            for closing in closing {
                let _ = closing.await;
            }
        };
        let _ = tokio::time::timeout(STOP_LIMIT, all).await;
        self.exit.unwrap_or_default()
    }
}

async fn read(
    conn: ConnId,
    mut reader: MessageReader,
    inbound: mpsc::Sender<Inbound>,
) -> MessageReader {
    loop {
        let (said, last) = match reader.message().await {
            Ok(message) => {
                trap::pass(Trap::ReadPeer);
                (Inbound::Message(conn, message), false)
            }
            Err(cause) => (Inbound::Closed(conn, cause), true),
        };
        if inbound.send(said).await.is_err() || last {
            return reader;
        }
    }
}

fn tell(to: &mpsc::UnboundedSender<Broken>, broken: Broken) -> impl FnOnce() + Send + 'static {
    let to = to.clone();
    move || {
        // A master that has ended needs no telling.
        let _ = to.send(broken);
    }
}

async fn sleep_until(deadline: Option<std::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Messages read and not yet handed to the machine; a full inbox makes the connections wait.
const INBOX: usize = 1024;

/// Rounds of reading before a tick. A member that sends without end must not hold up time.
const DRAIN_ROUNDS: usize = 64;

/// Bytes that may wait for one connection. A member that is this far behind is closed; it comes
/// back and is told what it missed. Views of the largest group fit several times.
const QUEUE_LIMIT: usize = 8 * 1024 * 1024;

/// Time for the last words of a master that ends.
const STOP_LIMIT: Duration = Duration::from_secs(1);
