//! Synchronisation of the shared state.

use super::communicator::{Communicator, own_signal, unexpected, waited};
use super::options::CallOptions;
use crate::error::Result;
use crate::membership::peer::Request;
use crate::runtime::calls::{Reply, lock};
use crate::runtime::control::Work;
use crate::runtime::sync;
use crate::state::shared::SharedState;
use crate::types::SyncStrategy;

/// What a synchronisation moved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SyncInfo {
    /// Bytes of content given to other members.
    pub tx_bytes: u64,
    /// Bytes of content fetched from other members.
    pub rx_bytes: u64,
    /// Revision of the state now.
    pub revision: u64,
}

impl Communicator {
    /// Gives all members of the group the same state: the content that most of them hold, at the
    /// newest revision that the rules allow. Members that are out of date fetch what differs from
    /// those that are not. All members of the group call it together; no operation of this peer may
    /// be open. Returns when all have it.
    ///
    /// On success `state.revision` is the elected revision. A member whose content breaks a rule
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
        for call in &*lock(&self.syncing) {
            self.control.controls().cancel(*call);
        }
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
        let offered = state.offer(strategy, torn);
        let (control, orders) = sync::pair();
        let controls = self.control.controls();
        let (call, ticket) = {
            // Under the lock, so that whoever learns of this call can cancel it.
            let mut syncing = lock(&self.syncing);
            let (call, ticket) = controls.submit(
                Request::Sync(offered.offer),
                options.limit,
                Work::Sync(control),
                own_signal(),
            );
            syncing.insert(call);
            (call, ticket)
        };
        let says = |input| controls.input(input);
        let done: sync::Synchronised =
            sync::run(state.tensors_mut(), &offered.digests, orders, says);
        let result = waited(ticket.wait(None));
        lock(&self.syncing).remove(&call);
        if result.is_ok() {
            *lock(&self.torn) = None;
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
                })
            }
            other => Err(unexpected(other)),
        }
    }
}
