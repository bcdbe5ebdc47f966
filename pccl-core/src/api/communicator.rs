//! A peer of a run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::options::{CallOptions, Member};
use crate::config::PeerConfig;
use crate::error::{Error, Result, UsageError};
use crate::ids::{CallId, MemberId, PublicKey};
use crate::membership::peer::Request;
use crate::runtime::calls::{Reply, Signal, Ticket};
use crate::runtime::control::{ControlThread, Snapshot, Work};
use crate::runtime::events::EventStream;
use crate::runtime::sync::Watch;
use crate::types::{Algorithm, Attributes, UnanimousCall};

/// A peer: one member of a run, or somebody who may become one.
///
/// All methods take `&self` and may be called from several threads; which calls may be open at
/// the same time is said at each. Calls block until all members that they need have made them, and
/// use no CPU meanwhile.
///
/// Dropping a communicator leaves the run in good order: operations that are still open are
/// cancelled for all members. It takes bounded time, and does not wait for a master that is gone.
pub struct Communicator {
    pub(super) control: ControlThread,
    /// Synchronisations that threads are in, so that they can be given up. One at most is open;
    /// others are about to be refused.
    pub(super) syncing: Mutex<BTreeMap<CallId, Arc<Watch>>>,
    /// Revision of the state that a broken fetch has left torn. (Rule 22)
    pub(super) torn: Mutex<Option<u64>>,
    /// Revision of the last synchronisation that succeeded.
    pub(super) agreed: Mutex<Option<u64>>,
    /// Most threads that compute digests.
    pub(super) digest_threads: u16,
    /// What all-reduces go by that ask for nothing.
    pub(super) algorithm: Option<Algorithm>,
}

impl Communicator {
    /// A peer that knows where its master is: `host:port`, `address:port` or `[address]:port`, or a
    /// ticket that the master has printed, with which all that is said is encrypted and authenticated.
    /// Looks nothing up and dials nobody before [`Communicator::connect`].
    pub fn new(master: &str, config: PeerConfig) -> Result<Self> {
        let digest_threads = config.digest_threads;
        let algorithm = match config.algorithm {
            Some(algorithm) => Some(algorithm),
            None => asked_for_by_environment()?,
        };
        Ok(Self {
            control: ControlThread::start(master, config)?,
            syncing: Mutex::default(),
            torn: Mutex::default(),
            agreed: Mutex::default(),
            digest_threads,
            algorithm,
        })
    }

    /// Joins the run. The first peer of a run is a member at once; later ones return when the
    /// members have admitted them in [`Communicator::update_topology`]. These go on behind that
    /// call, so a newcomer begins there, too, without an update or a query of its own.
    ///
    /// With a limit, dials again until it has passed; without one, a dial that fails ends the call,
    /// but once registered it waits as long as the members take.
    pub fn connect(&self, limit: Option<Duration>) -> Result<()> {
        self.done(Request::Connect, limit)
    }

    /// Admits the newcomers that wait, if any. All members of the run call it together; it returns
    /// when all have. No operation of this peer may be open. On a peer that was evicted, or has
    /// left, it joins again, like `connect`.
    pub fn update_topology(&self) -> Result<()> {
        self.update_topology_with(CallOptions::default())
    }

    /// As [`Communicator::update_topology`].
    pub fn update_topology_with(&self, options: CallOptions) -> Result<()> {
        let vote = Request::Vote(UnanimousCall::UpdateTopology);
        self.done(vote, options.limit)
    }

    /// Whether newcomers wait for admission: the same answer at all members. All members of the
    /// run call it together. May be called while operations run.
    pub fn are_peers_pending(&self) -> Result<bool> {
        self.are_peers_pending_with(CallOptions::default())
    }

    /// As [`Communicator::are_peers_pending`].
    pub fn are_peers_pending_with(&self, options: CallOptions) -> Result<bool> {
        let vote = Request::Vote(UnanimousCall::ArePeersPending);
        match self.call(vote, options.limit)? {
            Reply::Pending(pending) => Ok(pending),
            other => Err(unexpected(other)),
        }
    }

    /// Leaves the run in good order; operations that are open are cancelled for all members. The
    /// communicator can connect again.
    pub fn leave(&self) -> Result<()> {
        self.done(Request::Leave, None)
    }

    /// Gives up all calls that are open on other threads. Each returns with what the master decides,
    /// which may still be success. Returns at once.
    pub fn cancel_all(&self) {
        self.control.controls().cancel_all();
    }

    /// Leaves the run at once, without waiting for anybody; see
    /// [`OpHandle::abandon`](super::handle::OpHandle::abandon).
    pub fn abandon(&self) {
        self.control.controls().abandon();
    }

    /// Begins a call that another thread, or a later moment, may wait for or give up.
    pub fn begin(&self, call: Begin, options: CallOptions) -> CallHandle {
        let request = match call {
            Begin::Connect => Request::Connect,
            Begin::UpdateTopology => Request::Vote(UnanimousCall::UpdateTopology),
            Begin::ArePeersPending => Request::Vote(UnanimousCall::ArePeersPending),
            Begin::OptimizeTopology => Request::Vote(UnanimousCall::OptimizeTopology),
        };
        let controls = self.control.controls().clone();
        let (call, ticket) = controls.submit(request, options.limit, Work::None, own_signal());
        CallHandle {
            ticket,
            call,
            controls,
        }
    }

    /// World sizes, as of the last call that changed them: connect, a unanimous call, a
    /// synchronisation, or a failed operation. (A lone or evicted peer sees ones.)
    pub fn attributes(&self) -> Attributes {
        self.control.attributes()
    }

    /// Own number in the run; none while this peer is no member.
    pub fn member_id(&self) -> Option<MemberId> {
        self.control.snapshot().own
    }

    /// Own public key, by which the master and the members know this peer in a run with tickets; none
    /// without a ticket.
    pub fn public_key(&self) -> Option<PublicKey> {
        self.control.public_key()
    }

    /// Members of the own group in the order of the ring, as last heard of; empty while this peer
    /// is no member.
    pub fn members(&self) -> Vec<Member> {
        let Snapshot { ring, reached, .. } = self.control.snapshot();
        let member = ring.into_iter().map(|info| Member {
            id: info.id,
            name: info.name,
            addresses: info.addresses,
            reached: reached.get(&info.id).copied(),
        });
        member.collect()
    }

    /// Events of this peer from now on.
    pub fn events(&self) -> EventStream {
        self.control.subscribers().subscribe()
    }

    pub(super) fn done(&self, request: Request, limit: Option<Duration>) -> Result<()> {
        match self.call(request, limit)? {
            Reply::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    fn call(&self, request: Request, limit: Option<Duration>) -> Result<Reply> {
        let controls = self.control.controls();
        let (_, ticket) = controls.submit(request, limit, Work::None, own_signal());
        waited(ticket.wait(None))
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let snapshot = self.control.snapshot();
        f.debug_struct("Communicator")
            .field("member", &snapshot.own)
            .field("attributes", &snapshot.attributes)
            .finish()
    }
}

/// A call that [`Communicator::begin`] can begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// [`Communicator::connect`].
    Connect,
    /// [`Communicator::update_topology`].
    UpdateTopology,
    /// [`Communicator::are_peers_pending`].
    ArePeersPending,
    /// Agreement on the order of the ring. All members of the run call it together, with no
    /// operation open. Links are not measured: the members agree on the order that they have.
    OptimizeTopology,
}

/// A call that has begun. Dropping it leaves the call to itself.
pub struct CallHandle {
    ticket: Ticket,
    call: CallId,
    controls: crate::runtime::control::Controls,
}

impl CallHandle {
    /// Blocks until the call has ended. The answer of [`Begin::ArePeersPending`]; `false` for the
    /// others.
    pub fn wait(&self) -> Result<bool> {
        answer(waited(self.ticket.wait(None)))
    }

    /// Blocks until the call has ended, at most `limit`; `None` after that time.
    pub fn wait_timeout(&self, limit: Duration) -> Option<Result<bool>> {
        self.ticket.wait(Some(limit)).map(answer)
    }

    /// Gives the call up: it fails for all members that have made it, unless it is complete.
    /// Returns at once; a wait gives what came of it.
    pub fn cancel(&self) {
        if !self.ticket.is_complete() {
            self.controls.cancel(self.call);
        }
    }

    /// Leaves the run at once, without waiting for anybody; see
    /// [`OpHandle::abandon`](super::handle::OpHandle::abandon).
    pub fn abandon(&self) {
        if !self.ticket.is_complete() {
            self.controls.abandon();
        }
    }
}

impl std::fmt::Debug for CallHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallHandle")
            .field("call", &self.call)
            .field("result", &self.ticket.peek())
            .finish()
    }
}

fn answer(result: Result<Reply>) -> Result<bool> {
    match result? {
        Reply::Done => Ok(false),
        Reply::Pending(pending) => Ok(pending),
        other => Err(unexpected(other)),
    }
}

/// Algorithm that the environment names; none if it leaves the choice.
fn asked_for_by_environment() -> Result<Option<Algorithm>> {
    match std::env::var(ALGORITHM) {
        Ok(name) if !name.is_empty() => match name.parse() {
            Ok(algorithm) => Ok(Some(algorithm)),
            Err(error) => Err(UsageError::Argument {
                name: ALGORITHM,
                why: error.to_string(),
            }
            .into()),
        },
        _ => Ok(None),
    }
}

/// Environment variable that names the algorithm of all-reduces that ask for none.
const ALGORITHM: &str = "PCCL_ALGORITHM";

/// The result of a wait without limit.
pub(super) fn waited(result: Option<Result<Reply>>) -> Result<Reply> {
    result.unwrap_or_else(|| Err(Error::Internal("a wait without limit ended".into())))
}

pub(super) fn unexpected(reply: Reply) -> Error {
    Error::Internal(format!("a call ended with {reply:?}"))
}

/// A signal for one call.
pub(super) fn own_signal() -> Arc<Signal> {
    Arc::default()
}
