//! Synchronisation of the shared state.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::communicator::{Communicator, own_signal, unexpected, waited};
use super::options::CallOptions;
use crate::error::{Error, Result};
use crate::ids::MemberId;
use crate::membership::peer::Request;
use crate::runtime::calls::{Reply, lock};
use crate::runtime::control::Work;
use crate::runtime::sync::{self, Own, SyncProgress, Synchronised, Watch};
use crate::state::shared::SharedState;
use crate::types::SyncStrategy;
use crate::wire::reason::RequestCause;

/// What a synchronisation moved.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SyncInfo {
    /// Bytes of content given to other members.
    pub tx_bytes: u64,
    /// Bytes of content fetched from other members.
    pub rx_bytes: u64,
    /// Revision of the state now.
    pub revision: u64,
    /// Who gave how many of the bytes fetched.
    pub sources: Vec<(MemberId, u64)>,
    /// Tensors of this member that differed from the elected ones although it was at the elected
    /// revision: computation, memory or a program has gone wrong somewhere.
    pub divergences: Vec<Divergence>,
}

/// A tensor whose content was not that of the others, at the same revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divergence {
    /// Which tensor.
    pub key: String,
    /// From the first to behind the last byte that differed.
    pub bytes: Range<u64>,
    /// Who held the elected content.
    pub holders: Vec<MemberId>,
    /// Revision at which this member last had the same state as the others; none if this was its
    /// first synchronisation.
    pub since: Option<u64>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.bytes;
        write!(
            f,
            "the tensor {:?} differed in bytes {start}..{end} from that of {:?}",
            self.key, self.holders
        )?;
        match self.since {
            Some(revision) => write!(f, "; at revision {revision} all were the same"),
            None => f.write_str("; this was the first synchronisation here"),
        }
    }
}

impl Communicator {
    /// Gives all members of the group the same state: the content that most of them hold, at the
    /// newest revision that the rules allow. Members that are out of date fetch what differs from
    /// those that are not. All members of the group call it together; no operation of this peer may
    /// be open. Returns when all have it.
    ///
    /// On success `state.revision` is the elected revision; raise it by one before the next call,
    /// since content at the same one is not elected again. A member whose content breaks a rule
    /// fails, is told what differs, and is out of the group; the others succeed. If the call fails,
    /// tensors may hold part of what was to be fetched; the next call goes on from there.
    pub fn sync_shared_state(
        &self,
        state: &mut SharedState<'_>,
        strategy: SyncStrategy,
    ) -> Result<SyncInfo> {
        self.sync_shared_state_with(state, strategy, CallOptions::default())
    }

    /// Gives up the synchronisation that another thread is in, if there is one: asks for its end,
    /// for all members. Returns at once; the other thread's call returns with the verdict.
    pub fn cancel_sync(&self) {
        for call in lock(&self.syncing).keys() {
            self.control.controls().cancel(*call);
        }
    }

    /// How far the synchronisation that another thread is in has come with what it fetches; none
    /// if there is none, or it is not known yet what to fetch.
    pub fn sync_progress(&self) -> Option<SyncProgress> {
        let syncing = lock(&self.syncing);
        syncing.values().find_map(|watch| watch.progress())
    }

    /// As [`Communicator::sync_shared_state`].
    pub fn sync_shared_state_with(
        &self,
        state: &mut SharedState<'_>,
        strategy: SyncStrategy,
        options: CallOptions,
    ) -> Result<SyncInfo> {
        // A raised revision says that the user has put the content right.
        let torn = lock(&self.torn).is_some_and(|revision| state.revision <= revision);
        let kind = self.control.snapshot().digests;
        let offered = state.offer(kind, strategy, torn, self.digest_threads);
        let (control, orders) = sync::pair();
        let controls = self.control.controls();
        let watch = Arc::new(Watch::default());
        let (call, ticket) = {
            // Under the lock, so that whoever learns of this call can cancel it.
            let mut syncing = lock(&self.syncing);
            let (call, ticket) = controls.submit(
                Request::Sync(offered.offer),
                options.limit,
                Work::Sync(control),
                own_signal(),
            );
            syncing.insert(call, watch.clone());
            (call, ticket)
        };
        let says = |input| controls.input(input);
        let revision = state.revision;
        let own = Own {
            kind,
            digests: &offered.digests,
            revision,
        };
        let tensors = state.tensors_mut();
        let work = || sync::run(tensors, own, &watch, orders, says);
        let done = catch_unwind(AssertUnwindSafe(work));
        let panicked = done.is_err();
        let done: Synchronised = done.unwrap_or_else(|_| {
            // The others wait for this member's word. Content may have been fetched in part.
            let what = "its synchronisation panicked".into();
            controls.cancel_for(call, RequestCause::Internal { what });
            let torn = true;
            Synchronised {
                torn,
                ..Synchronised::default()
            }
        });
        let result = waited(ticket.wait(None));
        let result = match panicked {
            true => Err(Error::Internal("the synchronisation panicked".into())),
            false => result,
        };
        lock(&self.syncing).remove(&call);
        let divergences = self.divergences(&done, revision);
        if result.is_ok() {
            *lock(&self.torn) = None;
            *lock(&self.agreed) = done.revision;
        } else if done.torn {
            *lock(&self.torn) = Some(state.revision);
        }
        match result? {
            Reply::Committed(..) => {
                state.revision = done.revision.unwrap_or(state.revision);
                Ok(SyncInfo {
                    tx_bytes: done.tx_bytes,
                    rx_bytes: done.rx_bytes,
                    revision: state.revision,
                    sources: done.sources,
                    divergences,
                })
            }
            other => Err(unexpected(other)),
        }
    }

    /// What differed and should not have, as it is told; also logged.
    fn divergences(&self, done: &Synchronised, revision: u64) -> Vec<Divergence> {
        let since = *lock(&self.agreed);
        let told = done.differences.iter().map(|difference| Divergence {
            key: difference.key.clone(),
            bytes: difference.bytes.clone(),
            holders: difference.holders.clone(),
            since,
        });
        let told: Vec<Divergence> = told.collect();
        if since.is_none() {
            // Members that have just begun may well begin differently.
            return told;
        }
        for divergence in told.iter().take(LOGGED) {
            tracing::warn!(target: "pccl::peer", revision, "state diverged: {divergence}");
        }
        if told.len() > LOGGED {
            let more = told.len() - LOGGED;
            tracing::warn!(target: "pccl::peer", revision, more, "and more tensors diverged");
        }
        told
    }
}

/// Tensors named in the log of one synchronisation: enough to see which part of a model it is.
const LOGGED: usize = 16;
