//! The control connection of a peer.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::driver::{Inbound, broken};
use crate::config::Timing;
use crate::error::Error;
use crate::membership::peer::{MasterLink, PeerInput};
use crate::runtime::dial::{self, Opened};
use crate::runtime::framed::{MessageReader, Outbox};
use crate::runtime::target::Target;
use crate::runtime::tasks;
use crate::trap::{self, Trap};
use crate::wire::control::{ControlHello, Down, Up};

/// The connection to the master, of which there is at most one.
pub(super) struct Link {
    master: Target,
    /// Counts dials; what an earlier connection still had to say is recognised by it.
    generation: u64,
    state: State,
    /// Connections that are being closed in good order.
    closing: Vec<JoinHandle<()>>,
    events: mpsc::Sender<(u64, LinkEvent)>,
    /// To tell of a task that panicked.
    inbound: mpsc::UnboundedSender<Inbound>,
}

enum State {
    Closed,
    Dialling(JoinHandle<()>),
    Open {
        outbox: Outbox,
        reader: JoinHandle<MessageReader>,
    },
}

/// What the tasks of a connection have to say.
pub(super) enum LinkEvent {
    /// It is open, and the master has answered the hello.
    Opened(Opened),
    /// It could not be opened.
    Failed(Error),
    /// A message.
    Message(Down),
    /// It was open and closed.
    Closed(String),
}

impl Link {
    /// No connection yet. The receiver gets the events of all connections.
    pub(super) fn new(
        master: Target,
        inbound: mpsc::UnboundedSender<Inbound>,
    ) -> (Self, mpsc::Receiver<(u64, LinkEvent)>) {
        let (events, inbox) = mpsc::channel(INBOX);
        let link = Self {
            master,
            generation: 0,
            state: State::Closed,
            closing: Vec::new(),
            events,
            inbound,
        };
        (link, inbox)
    }

    /// Dials the master, in the background. An earlier connection is dropped.
    pub(super) fn dial(&mut self, hello: ControlHello, timing: Timing) {
        self.abort();
        let generation = self.generation;
        let master = self.master.clone();
        let events = self.events.clone();
        let dial = async move {
            trap::pass(Trap::DialMaster);
            let event = match dial::dial(&master, &hello, &timing).await {
                Ok(opened) => LinkEvent::Opened(opened),
                Err(error) => LinkEvent::Failed(error),
            };
            let _ = events.send((generation, event)).await;
        };
        let broken = broken(&self.inbound, "dialling the master");
        self.state = State::Dialling(tasks::spawn(dial, broken));
    }

    /// What an event means to the machine; none if it is of an earlier connection.
    pub(super) fn event(&mut self, generation: u64, event: LinkEvent) -> Option<PeerInput> {
        if generation != self.generation {
            return None;
        }
        Some(match event {
            LinkEvent::Opened(opened) => {
                let Opened {
                    reply,
                    reader,
                    writer,
                } = opened;
                let writing = broken(&self.inbound, "writing to the master");
                let reading = broken(&self.inbound, "reading from the master");
                let read = read(generation, reader, self.events.clone());
                self.state = State::Open {
                    outbox: Outbox::start(writer, QUEUE_LIMIT, writing),
                    reader: tasks::spawn(read, reading),
                };
                PeerInput::Master(MasterLink::Reply(reply))
            }
            LinkEvent::Failed(error) => {
                self.abort();
                PeerInput::Master(MasterLink::Failed(error))
            }
            LinkEvent::Message(message) => PeerInput::Message(message),
            LinkEvent::Closed(cause) => {
                self.abort();
                PeerInput::Master(MasterLink::Closed { cause })
            }
        })
    }

    /// Sends a message. If the connection cannot take it, it is closed, and that is what comes
    /// back.
    pub(super) fn send(&mut self, message: &Up) -> Option<PeerInput> {
        let State::Open { outbox, .. } = &self.state else {
            return None;
        };
        let cause = outbox.push(message).err()?;
        self.abort();
        Some(PeerInput::Master(MasterLink::Closed { cause }))
    }

    /// Closes the connection once what was sent on it has been written.
    pub(super) fn close(&mut self, limit: Duration) {
        self.generation += 1;
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Closed => {}
            State::Dialling(dial) => dial.abort(),
            State::Open { outbox, reader } => {
                self.closing.retain(|closing| !closing.is_finished());
                self.closing.push(outbox.close(reader, limit));
            }
        }
    }

    /// Drops the connection, with all that is on its way.
    pub(super) fn abort(&mut self) {
        self.generation += 1;
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Closed => {}
            State::Dialling(dial) => dial.abort(),
            State::Open { outbox, reader } => {
                outbox.abort();
                reader.abort();
            }
        }
    }

    /// Waits for what was sent before a close, at most `limit`.
    pub(super) async fn flush(mut self, limit: Duration) {
        self.close(limit);
        let all = async {
            for closing in self.closing {
                let _ = closing.await;
            }
        };
        let _ = tokio::time::timeout(limit, all).await;
    }
}

async fn read(
    generation: u64,
    mut reader: MessageReader,
    events: mpsc::Sender<(u64, LinkEvent)>,
) -> MessageReader {
    loop {
        let (event, last) = match reader.message().await {
            Ok(message) => {
                trap::pass(Trap::ReadMaster);
                (LinkEvent::Message(message), false)
            }
            Err(cause) => (LinkEvent::Closed(cause), true),
        };
        if events.send((generation, event)).await.is_err() || last {
            return reader;
        }
    }
}

/// Messages of the master read and not yet handed to the machine; then the connection waits.
const INBOX: usize = 256;

/// Bytes that may wait for the master before the connection counts as of no use.
const QUEUE_LIMIT: usize = 8 * 1024 * 1024;
