//! Rounds and queries. (Rules 1, 5, 6, 17)

use std::time::Duration;

use super::harness::*;
use crate::event::Event;
use crate::ids::Round;
use crate::types::UnanimousCall;
use crate::wire::control::{Down, Up, VoteName};
use crate::wire::reason::{AbortReason, Missing, RequestCause, WaitsIn};

const OPTIMIZE: UnanimousCall = UnanimousCall::OptimizeTopology;

fn failed(messages: &[Down]) -> (VoteName, AbortReason) {
    match messages {
        [Down::Failed { vote, reason, .. }] => (*vote, reason.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_round_completes_with_the_last_vote() {
    let (mut world, ids) = World::of(3);
    for id in &ids[..2] {
        world.vote(*id, UPDATE);
    }
    assert!(world.take(ids[0]).is_empty());
    world.vote(ids[2], UPDATE);
    for id in &ids {
        assert_eq!(world.completed(*id).0.round, Round(2));
    }
}

#[test]
fn a_vote_taken_back_fails_the_try_for_all_voters_and_for_those_that_vote_later() {
    let (mut world, ids) = World::of(3);
    let first = world.ballot(UPDATE, 0);
    for id in &ids[..2] {
        world.vote(*id, UPDATE);
    }
    let cause = RequestCause::TimedOut;
    world.up(
        ids[0],
        Up::Withdraw {
            vote: first,
            cause: cause.clone(),
        },
    );
    let reason = AbortReason::Requested {
        by: ids[0],
        cause,
        missing: Box::new(Missing::Calls(vec![ids[2]])),
    };
    for id in &ids[..2] {
        assert_eq!(failed(&world.take(*id)), (first, reason.clone()));
    }
    assert!(world.take(ids[2]).is_empty());
    // The next try does not complete with the vote of somebody who is still at the first.
    let second = world.ballot(UPDATE, 1);
    for id in &ids[..2] {
        world.up(*id, Up::Vote(second));
    }
    world.up(ids[2], Up::Vote(first));
    assert_eq!(failed(&world.take(ids[2])), (first, reason));
    assert!(world.take(ids[0]).is_empty());
    world.up(ids[2], Up::Vote(second));
    assert_eq!(world.completed(ids[0]).0, second);
}

#[test]
fn taking_back_what_is_complete_or_has_failed_changes_nothing() {
    let (mut world, ids) = World::of(2);
    let vote = world.ballot(UPDATE, 0);
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    world.clear();
    let cause = RequestCause::Cancelled;
    world.up(ids[0], Up::Withdraw { vote, cause });
    assert!(world.take(ids[0]).is_empty());
}

#[test]
fn unanimity_is_judged_anew_at_a_loss() {
    let (mut world, ids) = World::of(3);
    for id in &ids[..2] {
        world.vote(*id, UPDATE);
    }
    world.clear();
    world.up(ids[2], Up::Leave);
    let got = world.take(ids[0]);
    let [Down::Group(view), Down::Completed { stamp, .. }] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!(view.ring.len(), 2);
    assert_eq!(stamp.attributes.global_world_size, 2);
}

#[test]
fn a_vote_survives_changes_of_the_view() {
    let (mut world, ids) = World::of(4);
    world.vote(ids[0], UPDATE);
    world.up(ids[3], Up::Leave);
    let vote = world.ballot(UPDATE, 0);
    for id in &ids[1..3] {
        world.up(*id, Up::Vote(vote));
    }
    assert_eq!(world.completed(ids[0]).0, vote);
}

#[test]
fn a_vote_for_a_completed_round_is_answered_with_its_result() {
    let (mut world, ids) = World::of(3);
    let vote = world.ballot(UPDATE, 0);
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    let told = world.completed(ids[0]);
    world.up(ids[2], Up::Leave);
    world.clear();
    world.up(ids[0], Up::Vote(vote));
    assert_eq!(world.completed(ids[0]), told);
}

#[test]
fn queries_are_counted_apart_and_from_zero_after_a_round() {
    let (mut world, ids) = World::of(2);
    world.open(ids[0], 1, 0);
    for round in 0..2 {
        for id in &ids {
            world.vote(*id, PENDING);
        }
        let (vote, stamp, _) = world.completed(ids[0]);
        assert_eq!((vote.round, stamp.pending), (Round(round), false));
    }
    assert!(
        world
            .take(ids[1])
            .iter()
            .all(|m| !matches!(m, Down::Verdict(_)))
    );
    assert_eq!(world.round(), Round(2));
    // A query that somebody missed.
    let missed = VoteName {
        call: PENDING,
        round: Round(1),
        tries: 0,
    };
    world.up(ids[0], Up::Vote(missed));
    assert_eq!(world.completed(ids[0]).0, missed);
    world.open(ids[1], 1, 0);
    for id in &ids {
        world.done(*id, 1, 0);
    }
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    assert_eq!(world.ballot(PENDING, 0).round, Round(0));
}

#[test]
fn a_query_that_is_given_up_fails_alone() {
    let (mut world, ids) = World::of(3);
    world.vote(ids[0], PENDING);
    world.vote(ids[1], UPDATE);
    let vote = world.ballot(PENDING, 0);
    let cause = RequestCause::TimedOut;
    world.up(ids[0], Up::Withdraw { vote, cause });
    assert_eq!(failed(&world.take(ids[0])).0, vote);
    assert!(world.take(ids[1]).is_empty());
}

#[test]
fn different_calls_that_all_wait_in_fail_as_a_contradiction() {
    for other in [OPTIMIZE, PENDING] {
        let (mut world, ids) = World::of(3);
        world.vote(ids[0], UPDATE);
        world.vote(ids[1], UPDATE);
        world.vote(ids[2], other);
        let calls = |call| WaitsIn::Call(call);
        for (id, call) in ids.iter().zip([UPDATE, UPDATE, other]) {
            let (vote, reason) = failed(&world.take(*id));
            assert_eq!(vote.call, call);
            assert!(reason.is_mismatch());
            let AbortReason::Contradiction { calls: named } = reason else {
                panic!();
            };
            assert!(named.contains(&(ids[0], calls(UPDATE))));
            assert!(named.contains(&(ids[2], calls(other))));
        }
        // The next try may succeed.
        let vote = world.ballot(UPDATE, 1);
        for id in &ids {
            world.up(*id, Up::Vote(vote));
        }
        assert_eq!(world.completed(ids[0]).0, vote);
    }
}

#[test]
fn an_optimisation_keeps_the_order_and_admits_nobody() {
    let (mut world, ids) = World::of(2);
    let c = world.join(0);
    for id in &ids {
        world.vote(*id, OPTIMIZE);
    }
    let (vote, stamp, _) = world.completed(ids[0]);
    assert_eq!((vote.call, vote.round), (OPTIMIZE, Round(2)));
    assert!(stamp.pending);
    assert_eq!(world.ring(0), ids);
    assert!(world.master.pending.contains(&c));
}

#[test]
fn waiting_names_the_missing() {
    let (mut world, ids) = World::of(2);
    world.vote(ids[0], UPDATE);
    world.wait_alive(Duration::from_millis(10_001), &ids);
    let missing = vec![ids[1]];
    let vote = world.ballot(UPDATE, 0);
    let waiting = Down::WaitingForVotes {
        vote,
        missing: missing.clone(),
    };
    assert_eq!(world.take(ids[0]), std::slice::from_ref(&waiting));
    let told = |event: &&Event| matches!(event, Event::Waiting { missing: m, .. } if *m == missing);
    assert_eq!(world.events.iter().filter(told).count(), 1);
    world.wait_alive(Duration::from_secs(60), &ids);
    assert_eq!(world.take(ids[0]), [waiting]);
}

#[test]
fn an_operation_that_waits_names_the_missing() {
    let (mut world, ids) = World::of(2);
    world.open(ids[0], 1, 0);
    world.wait_alive(Duration::from_millis(10_001), &ids);
    let op = world.name(1, 0);
    let (not_opened, not_done) = (vec![ids[1]], vec![ids[0]]);
    assert_eq!(
        world.take(ids[0]),
        [Down::Waiting {
            op,
            not_opened,
            not_done
        }]
    );
    assert!(world.take(ids[1]).is_empty());
}
