//! Synchronisation of the shared state.

use super::*;
use crate::error::UsageError;
use crate::types::{StateOffer, SyncStrategy};
use crate::wire::control::{OpBody, SyncPlan};
use crate::wire::reason::WaitsIn;

const RING: [u64; 2] = [5, 7];

fn offer() -> StateOffer {
    StateOffer {
        revision: 3,
        strategy: SyncStrategy::EnforcePopular,
        entries: Default::default(),
        torn: false,
    }
}

fn sync_name() -> OpName {
    OpName {
        key: OpKey {
            kind: OpKind::Sync,
            tag: Tag(0),
        },
        ..name(0, 0)
    }
}

fn plan(readers: &[u64]) -> SyncPlan {
    SyncPlan {
        op: sync_name(),
        quoted: serial(0),
        revision: 4,
        fetch: Default::default(),
        seeders: Vec::new(),
        readers: readers
            .iter()
            .map(|id| (MemberId(*id), token(*id)))
            .collect(),
    }
}

fn admits(readers: &[u64]) -> PeerOutput {
    PeerOutput::Admit {
        own: Some((RUN, MemberId(7), token(7))),
        peers: vec![(MemberId(5), token(5))],
        readers: readers
            .iter()
            .map(|id| (MemberId(*id), token(*id)))
            .collect(),
        keys: Vec::new(),
    }
}

#[test]
fn a_synchronisation_opens_gets_its_plan_and_is_committed() {
    let mut rig = Rig::member(7, &RING);
    let (call, outputs) = rig.call(Request::Sync(offer()));
    assert!(matches!(&outputs[..], [PeerOutput::Send(Up::Open(open))]
        if open.op == sync_name() && open.what == OpBody::Sync(offer())));
    let outputs = rig.message(Down::SyncPlan(plan(&[5])));
    let start = |plan| PeerOutput::StartSync { call, plan };
    assert_eq!(outputs, [admits(&[5]), start(plan(&[5]))]);
    // The same plan after a reconnection is nothing new; another one is.
    assert_eq!(rig.message(Down::SyncPlan(plan(&[5]))), []);
    assert_eq!(
        rig.message(Down::SyncPlan(plan(&[]))),
        [admits(&[]), start(plan(&[]))]
    );
    rig.message(Down::SyncPlan(plan(&[5])));
    assert_eq!(sent(&rig.done(sync_name(), serial(0))).len(), 1);
    // Members may have been removed meanwhile; a synchronisation shows that.
    let outputs = rig.message(verdict(sync_name(), 6, Outcome::Commit, stamp(2, 2, &[7])));
    let finish = PeerOutput::Finish {
        call,
        op: sync_name(),
        quoted: serial(0),
        outcome: Ok(Outcome::Commit),
        stamp: stamp(2, 2, &[7]),
    };
    // Readers are shut out before the call returns.
    assert_eq!(outputs[..2], [admits(&[]), finish]);
    assert_eq!(rig.peer.attributes().group_world_size, 1);
}

#[test]
fn a_synchronisation_works_alone_and_between_other_calls_only() {
    let mut rig = Rig::member(7, &[7]);
    assert_eq!(sent(&rig.call(Request::Sync(offer())).1).len(), 1);

    let mut rig = Rig::member(7, &RING);
    rig.reduce(1);
    let (call, outputs) = rig.call(Request::Sync(offer()));
    let error = UsageError::OperationsOpen(1);
    assert_eq!(outputs, [complete(call, Err(error.into()))]);

    let mut rig = Rig::member(7, &RING);
    rig.call(Request::Sync(offer()));
    let (call, outputs) = rig.call(Request::Sync(offer()));
    let error = UsageError::InUse(sync_name().key);
    assert_eq!(outputs, [complete(call, Err(error.into()))]);
    let (call, outputs) = rig.reduce(1);
    let error = UsageError::CallOpen(WaitsIn::Op(sync_name().key));
    assert_eq!(outputs, [complete(call, Err(error.into()))]);
    let (call, outputs) = rig.vote(UnanimousCall::UpdateTopology);
    let error = UsageError::OperationsOpen(1);
    assert_eq!(outputs, [complete(call, Err(error.into()))]);
}

#[test]
fn a_plan_for_a_use_that_has_ended_is_ignored() {
    let mut rig = Rig::member(7, &RING);
    assert_eq!(rig.message(Down::SyncPlan(plan(&[5]))), []);
}

#[test]
fn a_failed_fetch_asks_for_an_abort() {
    let mut rig = Rig::member(7, &RING);
    rig.call(Request::Sync(offer()));
    rig.message(Down::SyncPlan(plan(&[])));
    let what = "nobody answered".into();
    let outputs = rig.give(PeerInput::OpFailed {
        op: sync_name(),
        quoted: serial(0),
        cause: RequestCause::FetchFailed { what },
    });
    assert!(matches!(sent(&outputs)[..], [Up::AbortRequest(_)]));
}
