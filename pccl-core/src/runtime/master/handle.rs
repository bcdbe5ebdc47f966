//! The master's thread as its owner sees it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;

use super::door::Door;
use super::driver::{self, Command};
use crate::config::{MasterConfig, Security};
use crate::error::{Error, Result, UsageError};
use crate::ids::{Incarnation, MemberId, RunId};
use crate::membership::master::Master;
use crate::runtime::calls::lock;
use crate::runtime::{listen, randomness};
use crate::threads;
use crate::transport::sockopt;
use crate::wire::ticket::Ticket;

/// A running master.
pub(crate) struct MasterThread {
    commands: mpsc::UnboundedSender<Command>,
    local_addr: SocketAddr,
    door: Option<Arc<Door>>,
    why: Arc<Mutex<Option<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl MasterThread {
    /// Listens, and starts the thread.
    pub(crate) fn start(address: &str, config: MasterConfig) -> Result<Self> {
        if let Some(why) = config.timing.mistake() {
            let name = "timing";
            return Err(UsageError::Argument { name, why }.into());
        }
        let listener = listen::bind(address)?;
        let local_addr = listener
            .local_addr()
            .map_err(|e| Error::Internal(format!("address of the listening socket: {e}")))?;
        let door = match &config.security {
            Security::Ticket(tickets) => {
                let addresses = ticket_addresses(&tickets.addresses, local_addr);
                Some(Arc::new(Door::open(tickets, addresses)?))
            }
            Security::Off => {
                if !local_addr.ip().is_loopback() {
                    tracing::warn!(
                        address = %local_addr,
                        "security is off: whoever reaches this address can join the run, and \
                         whoever is on the way can read and change what is said; use tickets \
                         (--security ticket)"
                    );
                }
                None
            }
        };
        let run = RunId(randomness::u128()?);
        let seed = randomness::u64()?;
        let (commands, inbox) = mpsc::unbounded_channel();
        let why = Arc::new(Mutex::new(None));
        let timing = config.timing;
        let thread = threads::named("pccl-master")
            .and_then(|thread| {
                let (why, guarded) = (why.clone(), door.clone());
                thread.spawn(move || {
                    let new = |now| Master::new(config, run, Incarnation(1), seed, now);
                    let ended = driver::run(listener, timing, guarded, new, inbox);
                    *lock(&why) = Some(ended);
                })
            })
            .map_err(|e| Error::Internal(format!("thread of the master: {e}")))?;
        Ok(Self {
            commands,
            local_addr,
            door,
            why,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// All that a peer needs to join; none in a run without tickets, or in one whose open invitations
    /// have all been taken back.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.door.as_ref()?.ticket()
    }

    /// Status of the run as JSON; none if the master has ended.
    pub(crate) fn status(&self) -> Option<String> {
        let (answer, status) = std_mpsc::sync_channel(1);
        self.commands.send(Command::Status(answer)).ok()?;
        status.recv_timeout(STATUS_LIMIT).ok()
    }

    /// Evicts a member.
    pub(crate) fn evict(&self, member: MemberId) {
        // A master that has ended has no members.
        let _ = self.commands.send(Command::Evict(member));
    }

    /// Asks for an orderly end; does not wait for it.
    pub(crate) fn stop(&self) {
        // A master that has ended is stopped.
        let _ = self.commands.send(Command::Stop);
    }

    /// Something that can stop the master from another thread.
    pub(crate) fn stopper(&self) -> impl Fn() + Send + Sync + Clone + 'static {
        let commands = self.commands.clone();
        move || {
            let _ = commands.send(Command::Stop);
        }
    }

    /// Waits for the end, and says why it came.
    pub(crate) fn join(&mut self) -> Result<String> {
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            return Err(Error::Internal("the master's thread panicked".into()));
        }
        let why = lock(&self.why).clone();
        why.ok_or_else(|| Error::Internal("the master's thread panicked".into()))
    }
}

impl Drop for MasterThread {
    fn drop(&mut self) {
        self.stop();
        let _ = self.join();
    }
}

/// Where peers find the master, as far as it knows.
fn ticket_addresses(said: &[String], listens: SocketAddr) -> Vec<String> {
    if !said.is_empty() {
        return said.to_vec();
    }
    if !listens.ip().is_unspecified() {
        return vec![listens.to_string()];
    }
    let own = sockopt::addresses_outside(listens.is_ipv6());
    let mut own: Vec<String> = own
        .map(|ip| SocketAddr::new(ip, listens.port()).to_string())
        .collect();
    if own.is_empty() {
        own.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listens.port()).to_string());
    }
    own
}

/// A master that does not answer its own process within this time hangs.
const STATUS_LIMIT: Duration = Duration::from_secs(10);
