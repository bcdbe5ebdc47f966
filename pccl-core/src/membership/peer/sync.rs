//! Synchronisation of the shared state: an operation of the group whose work the master hands
//! out. (Rule 21)

use std::time::Duration;

use super::Peer;
use super::io::PeerOutput;
use crate::error::{Error, UsageError};
use crate::ids::{CallId, MemberId, Tag, Time, Token};
use crate::types::{OpKey, OpKind, StateOffer};
use crate::wire::control::{OpBody, SyncPlan};

impl Peer {
    /// The user calls a synchronisation. Unlike a reduction it works alone too: the first member
    /// of a group says what the state is.
    pub(super) fn sync(
        &mut self,
        call: CallId,
        offer: StateOffer,
        limit: Option<Duration>,
        now: Time,
    ) {
        let key = OpKey {
            kind: OpKind::Sync,
            tag: Tag(0),
        };
        if let Err(error) = self.may_sync(key) {
            self.complete(call, Err(error));
            return;
        }
        self.open(call, key, OpBody::Sync(offer), limit, now);
    }

    /// The master has elected the state. A plan that comes again (after a reconnection) is not
    /// started again; one that has changed (a seeder was lost) replaces the first.
    pub(super) fn on_sync_plan(&mut self, plan: SyncPlan) {
        let Some(op) = self.ops.find(plan.op, plan.quoted) else {
            return;
        };
        if op.plan.as_ref() == Some(&plan) {
            return;
        }
        let call = op.call;
        op.plan = Some(plan.clone());
        // Readers are let in before the driver begins to serve.
        self.tell_admitted();
        self.outputs.push_back(PeerOutput::StartSync { call, plan });
    }

    /// Members that may read state: only while the call is open, since the content belongs to the
    /// user again when it has returned. (Rule 21)
    pub(super) fn readers(&self) -> Vec<(MemberId, Token)> {
        let plan = self.ops.sync().and_then(|op| op.plan.as_ref());
        plan.map_or_else(Vec::new, |plan| plan.readers.clone())
    }

    fn may_sync(&self, key: OpKey) -> Result<(), Error> {
        self.must_be_member()?;
        if self.ops.any(OpKind::Collective) {
            return Err(UsageError::OperationsOpen(self.ops.len()).into());
        }
        self.may_open(key)
    }
}
