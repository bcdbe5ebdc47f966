//! The master of a run.

use std::net::SocketAddr;
use std::path::Path;

use crate::config::MasterConfig;
use crate::error::{Error, Result};
use crate::ids::MemberId;
use crate::runtime::master::MasterThread;
use crate::wire::control::AdminRequest;

/// A running master: it keeps the members of a run in agreement, and moves none of their data.
///
/// Dropping it stops it in good order: all calls of all members fail at once.
pub struct Master {
    thread: MasterThread,
}

impl Master {
    /// Listens at `listen` (`host:port`, port zero for any free one) and starts.
    pub fn start(listen: &str, config: MasterConfig) -> Result<Self> {
        Ok(Self {
            thread: MasterThread::start(listen, config)?,
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.thread.local_addr()
    }

    /// The ticket with which peers join, secret included; none if security is off. Whoever has it can
    /// join.
    pub fn ticket(&self) -> Option<String> {
        self.thread.ticket().map(|ticket| ticket.reveal())
    }

    /// Status of the run as JSON text. An error once the master has ended.
    pub fn status(&self) -> Result<String> {
        let ended = || Error::Internal("the master has ended".into());
        self.thread.status().ok_or_else(ended)
    }

    /// Evicts a member. It learns why, and may join again.
    pub fn evict(&self, member: MemberId) {
        self.thread.evict(member);
    }

    /// Asks for an orderly end. Returns at once; may be repeated.
    pub fn stop(&self) {
        self.thread.stop();
    }

    /// Something that stops this master from another thread, as when a signal arrives.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + Clone + 'static {
        self.thread.stopper()
    }

    /// Blocks until the master has ended, and says why it did. May be repeated.
    pub fn join(&mut self) -> Result<String> {
        self.thread.join()
    }
}

impl std::fmt::Debug for Master {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Master")
            .field("local_addr", &self.local_addr())
            .finish_non_exhaustive()
    }
}

/// Asks the master at `address`, which may be a ticket, for the status of its run, as JSON text.
pub fn master_status(address: &str) -> Result<String> {
    crate::runtime::dial::ask_status(address)
}

/// Asks the master at `address` to do something for its operator, whom it knows by the file of its key
/// pair. The answer is for people; that to [`AdminRequest::Invite`] is a ticket.
pub fn administer(identity: &Path, address: &str, request: AdminRequest) -> Result<String> {
    crate::runtime::dial::ask_operator(identity, address, request)
}
