//! Calls that wait for one another. (Rule 6)

use super::harness::*;
use crate::ids::Serial;
use crate::types::SyncStrategy;
use crate::wire::control::{Down, OpBody, Open, Outcome, Up};
use crate::wire::reason::{AbortReason, WaitsIn};

fn contradiction(outcome: Outcome) -> Vec<(crate::ids::MemberId, WaitsIn)> {
    match outcome {
        Outcome::Abort(AbortReason::Contradiction { calls }) => calls,
        other => panic!("{other:?}"),
    }
}

fn sync(world: &World) -> Open {
    let mut open = world.open_message(0, 0, Serial::default());
    open.op.key.kind = crate::types::OpKind::Sync;
    open.what = OpBody::Sync(crate::types::StateOffer {
        revision: 0,
        strategy: SyncStrategy::EnforcePopular,
        entries: Default::default(),
        torn: false,
    });
    open
}

#[test]
fn a_vote_against_an_operation_of_the_group_fails_both_for_all() {
    for vote_first in [false, true] {
        let (mut world, ids) = World::of(3);
        world.vote(ids[2], UPDATE);
        if vote_first {
            world.vote(ids[1], UPDATE);
            world.open(ids[0], 1, 0);
        } else {
            world.clear();
            world.open(ids[0], 1, 0);
        }
        let calls = contradiction(world.outcome(ids[0]));
        assert!(calls.contains(&(ids[0], WaitsIn::Op(key(1)))));
        assert!(calls.contains(&(ids[2], WaitsIn::Call(UPDATE))));
        assert!(matches!(
            &world.take(ids[2])[..],
            [Down::Failed { vote, reason, .. }] if vote.tries == 0 && reason.is_mismatch()
        ));
        if !vote_first {
            // Whoever votes for that try later fails at once.
            world.vote(ids[1], UPDATE);
        }
        assert!(matches!(&world.take(ids[1])[..], [Down::Failed { .. }]));
        // And whoever opens that use later.
        world.open(ids[1], 1, 0);
        contradiction(world.outcome(ids[1]));
    }
}

#[test]
fn an_operation_opened_before_the_vote_is_found_too() {
    let (mut world, ids) = World::of(3);
    world.open(ids[0], 1, 0);
    world.open(ids[1], 1, 0);
    world.open(ids[0], 2, 0);
    assert!(world.take(ids[0]).is_empty());
    world.vote(ids[2], UPDATE);
    let got = world.take(ids[0]);
    assert!(matches!(&got[..], [Down::Verdict(_), Down::Verdict(_)]));
    contradiction(world.outcome(ids[1]));
}

#[test]
fn other_groups_are_no_contradiction() {
    let (mut world, ids) = World::of_groups(&[2, 2]);
    world.vote(ids[2], UPDATE);
    world.vote(ids[3], UPDATE);
    world.open(ids[0], 1, 0);
    world.open(ids[1], 1, 0);
    for id in &ids[..2] {
        world.done(*id, 1, 0);
    }
    assert_eq!(world.outcome(ids[0]), Outcome::Commit);
    assert!(world.take(ids[2]).is_empty());
}

#[test]
fn a_query_is_no_contradiction() {
    let (mut world, ids) = World::of(2);
    world.vote(ids[0], PENDING);
    world.open(ids[1], 1, 0);
    assert!(world.take(ids[0]).is_empty() && world.take(ids[1]).is_empty());
}

#[test]
fn a_synchronisation_against_an_operation_fails_both() {
    for sync_first in [false, true] {
        let (mut world, ids) = World::of(3);
        let open = sync(&world);
        if sync_first {
            world.up(ids[0], Up::Open(open));
            world.open(ids[1], 1, 0);
        } else {
            world.open(ids[1], 1, 0);
            world.up(ids[0], Up::Open(open));
        }
        for id in &ids[..2] {
            let calls = contradiction(world.outcome(*id));
            assert!(calls.contains(&(ids[1], WaitsIn::Op(key(1)))));
            assert_eq!(calls.len(), 2);
        }
    }
}

#[test]
fn a_vote_against_a_synchronisation_fails_both() {
    let (mut world, ids) = World::of(2);
    let open = sync(&world);
    world.up(ids[0], Up::Open(open));
    world.vote(ids[1], UPDATE);
    contradiction(world.outcome(ids[0]));
    assert!(matches!(&world.take(ids[1])[..], [Down::Failed { .. }]));
}

#[test]
fn crossed_tags_are_left_to_the_limits_of_the_calls() {
    let (mut world, ids) = World::of(2);
    world.open(ids[0], 1, 0);
    world.open(ids[1], 2, 0);
    assert!(world.take(ids[0]).is_empty() && world.take(ids[1]).is_empty());
}
