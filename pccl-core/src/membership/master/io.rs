//! What goes into the master machine, and what comes out.

use std::net::SocketAddr;

use crate::event::Event;
use crate::ids::{ConnId, MemberId, PublicKey};
use crate::wire::control::{ControlHello, ControlReply, Down, Up};

/// Something that happened.
#[derive(Clone, Debug)]
pub enum MasterInput {
    /// A connection has sent its first words. `remote` is where it comes from.
    Hello {
        /// Numbered by the driver, never reused.
        conn: ConnId,
        /// Source address.
        remote: SocketAddr,
        /// What it said.
        hello: ControlHello,
        /// Key that it has proven to have; none in a run without tickets.
        key: Option<PublicKey>,
    },
    /// A message on a connection that has said hello.
    Message {
        /// Which.
        conn: ConnId,
        /// What.
        message: Up,
    },
    /// A connection that has said hello closed, or sent what cannot be decoded.
    Closed {
        /// Which.
        conn: ConnId,
        /// What the socket or the decoder said.
        cause: String,
    },
    /// Time has passed.
    Tick,
    /// The operator evicts a member.
    Evict {
        /// Whom.
        member: MemberId,
    },
    /// The operator stops the master in good order.
    Stop,
}

/// Something to do.
#[derive(Clone, Debug)]
pub enum MasterOutput {
    /// Answer a hello. After a refusal, an eviction or a status, `Close` follows.
    Reply {
        /// Which connection.
        conn: ConnId,
        /// With what.
        reply: ControlReply,
    },
    /// Send a message.
    Send {
        /// On which connection.
        conn: ConnId,
        /// What.
        message: Down,
    },
    /// Close a connection once what was sent on it has been written; input that has not been read
    /// from it is dropped. No `Closed` comes back.
    Close {
        /// Which.
        conn: ConnId,
    },
    /// Something worth telling people.
    Event(Event),
    /// The master is to end: it was stopped, or another one is ahead of it. (Rule 3)
    Exit {
        /// Why.
        why: String,
    },
}
