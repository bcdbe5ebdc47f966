//! Unanimous calls: rounds, tries, queries, giving up.

use super::*;
use crate::error::UsageError;
use crate::wire::reason::WaitsIn;

const UPDATE: UnanimousCall = UnanimousCall::UpdateTopology;
const OPTIMIZE: UnanimousCall = UnanimousCall::OptimizeTopology;
const QUERY: UnanimousCall = UnanimousCall::ArePeersPending;
const RING: [u64; 2] = [5, 7];

fn aborted(what: UnanimousCall, stamp: Stamp) -> Result<Answer, Error> {
    Err(Error::Aborted {
        what: WaitsIn::Call(what),
        reason: gave_up(9),
        stamp,
    })
}

fn voted(outputs: &[PeerOutput]) -> Option<VoteName> {
    match sent(outputs)[..] {
        [Up::Vote(name)] => Some(*name),
        _ => None,
    }
}

#[test]
fn a_vote_is_numbered_by_round_and_tries_and_completes() {
    let mut rig = Rig::member(7, &RING);
    let (call, outputs) = rig.vote(UPDATE);
    assert_eq!(
        outputs,
        [PeerOutput::Send(Up::Vote(vote_name(UPDATE, FIRST + 1, 0)))]
    );
    let fails = rig.message(failed(UPDATE, FIRST + 1, 0, stamp(1, 1, &RING)));
    assert_eq!(fails, [complete(call, aborted(UPDATE, stamp(1, 1, &RING)))]);
    let (call, outputs) = rig.vote(UPDATE);
    assert_eq!(voted(&outputs), Some(vote_name(UPDATE, FIRST + 1, 1)));
    let ring = [5, 7, 8];
    let outputs = rig.message(completed(
        UPDATE,
        FIRST + 1,
        1,
        stamp(2, 2, &ring),
        2,
        &ring,
    ));
    let done = complete(call, Ok(Answer::Done(stamp(2, 2, &ring))));
    assert_eq!(outputs.last(), Some(&done));
    assert_eq!(rig.peer.attributes().group_world_size, 3);
    let (_, outputs) = rig.vote(OPTIMIZE);
    assert_eq!(voted(&outputs), Some(vote_name(OPTIMIZE, FIRST + 2, 0)));
}

#[test]
fn a_try_that_failed_before_this_member_voted_fails_its_vote() {
    let mut rig = Rig::member(7, &RING);
    // The master answers a vote for a try that has failed; word of it before that is nothing.
    let early = failed(UPDATE, FIRST + 1, 0, stamp(2, 2, &[7]));
    assert_eq!(rig.message(early.clone()), []);
    assert_eq!(rig.peer.attributes().group_world_size, 2);
    let (call, outputs) = rig.vote(OPTIMIZE);
    assert_eq!(voted(&outputs), Some(vote_name(OPTIMIZE, FIRST + 1, 0)));
    let outputs = rig.message(early);
    let error = aborted(OPTIMIZE, stamp(2, 2, &[7]));
    assert_eq!(outputs.last(), Some(&complete(call, error)));
    assert_eq!(rig.peer.attributes().group_world_size, 1);
    let (_, outputs) = rig.vote(UPDATE);
    assert_eq!(voted(&outputs), Some(vote_name(UPDATE, FIRST + 1, 1)));
}

#[test]
fn a_failure_that_comes_again_is_ignored() {
    let mut rig = Rig::member(7, &RING);
    rig.vote(UPDATE);
    let failure = failed(UPDATE, FIRST + 1, 0, stamp(1, 1, &RING));
    assert_eq!(rig.message(failure.clone()).len(), 1);
    rig.vote(UPDATE);
    assert_eq!(rig.message(failure), []);
    assert_eq!(
        rig.message(failed(UPDATE, FIRST, 1, stamp(1, 1, &RING))),
        []
    );
}

#[test]
fn a_completion_without_an_open_vote_is_ignored() {
    let mut rig = Rig::member(7, &RING);
    let ring = [5, 7, 8];
    let round = completed(UPDATE, FIRST, 0, stamp(2, 2, &ring), 2, &ring);
    assert_eq!(rig.message(round.clone()), []);
    rig.vote(UPDATE);
    assert_eq!(rig.message(round), []);
    assert_eq!(
        rig.message(completed(QUERY, 0, 0, stamp(2, 2, &ring), 2, &ring)),
        []
    );
    assert_eq!(rig.peer.attributes().group_world_size, 2);
}

#[test]
fn queries_count_by_themselves_and_change_no_attributes() {
    let mut rig = Rig::member(7, &RING);
    rig.reduce(1);
    let (call, outputs) = rig.vote(QUERY);
    assert_eq!(voted(&outputs), Some(vote_name(QUERY, 0, 0)));
    let pending = Stamp {
        pending: true,
        ..stamp(3, 3, &[7])
    };
    let outputs = rig.message(completed(QUERY, 0, 0, pending, 1, &RING));
    assert_eq!(outputs, [complete(call, Ok(Answer::Pending(true)))]);
    assert_eq!(rig.peer.attributes().group_world_size, 2);
    let (call, outputs) = rig.vote(QUERY);
    assert_eq!(voted(&outputs), Some(vote_name(QUERY, 1, 0)));
    let outputs = rig.message(failed(QUERY, 1, 0, stamp(3, 3, &[7])));
    assert_eq!(
        outputs,
        [complete(call, aborted(QUERY, stamp(1, 1, &RING)))]
    );
    let (_, outputs) = rig.vote(QUERY);
    assert_eq!(voted(&outputs), Some(vote_name(QUERY, 1, 1)));
}

#[test]
fn queries_count_from_zero_after_a_round() {
    let mut rig = Rig::member(7, &RING);
    rig.vote(QUERY);
    rig.message(completed(QUERY, 0, 0, stamp(1, 1, &RING), 1, &RING));
    rig.vote(UPDATE);
    rig.message(completed(
        UPDATE,
        FIRST + 1,
        0,
        stamp(1, 1, &RING),
        1,
        &RING,
    ));
    let (_, outputs) = rig.vote(QUERY);
    assert_eq!(voted(&outputs), Some(vote_name(QUERY, 0, 0)));
}

#[test]
fn one_unanimous_call_is_open_at_a_time() {
    let mut rig = Rig::member(7, &RING);
    rig.vote(QUERY);
    for what in [UPDATE, QUERY] {
        let (call, outputs) = rig.vote(what);
        let error = UsageError::CallOpen(WaitsIn::Call(QUERY));
        assert_eq!(outputs, [complete(call, Err(error.into()))]);
    }
}

#[test]
fn a_round_needs_all_operations_to_have_ended() {
    let mut rig = Rig::member(7, &RING);
    rig.reduce(1);
    rig.reduce(2);
    let (call, outputs) = rig.vote(UPDATE);
    let error = UsageError::OperationsOpen(2);
    assert_eq!(outputs, [complete(call, Err(error.into()))]);
    let (_, outputs) = rig.vote(QUERY);
    assert!(voted(&outputs).is_some());
}

#[test]
fn giving_up_takes_the_vote_back_and_waits_for_the_answer() {
    let mut rig = Rig::member(7, &RING);
    let limit = Some(Duration::from_millis(100));
    let (call, _) = rig.call_within(Request::Vote(UPDATE), limit);
    let withdraw = |cause| {
        PeerOutput::Send(Up::Withdraw {
            vote: vote_name(UPDATE, FIRST + 1, 0),
            cause,
        })
    };
    let outputs = rig.pass(Duration::from_millis(100));
    assert_eq!(outputs, [withdraw(RequestCause::TimedOut)]);
    // Once is enough, and the round may be complete all the same.
    let cause = RequestCause::Cancelled;
    assert_eq!(rig.give(PeerInput::Cancel { call, cause }), []);
    let outputs = rig.message(completed(
        UPDATE,
        FIRST + 1,
        0,
        stamp(1, 1, &RING),
        1,
        &RING,
    ));
    let done = complete(call, Ok(Answer::Done(stamp(1, 1, &RING))));
    assert_eq!(outputs, [done]);
    // A cancel of a call that has returned is nothing.
    let cause = RequestCause::Cancelled;
    assert_eq!(rig.give(PeerInput::Cancel { call, cause }), []);
}

#[test]
fn a_vote_survives_a_change_of_the_view() {
    let mut rig = Rig::member(7, &[5, 7, 6]);
    let (call, _) = rig.vote(UPDATE);
    let outputs = rig.message(Down::Group(view(2, &RING)));
    assert!(
        !outputs
            .iter()
            .any(|output| matches!(output, PeerOutput::Complete { .. }))
    );
    let outputs = rig.message(completed(
        UPDATE,
        FIRST + 1,
        0,
        stamp(2, 2, &RING),
        2,
        &RING,
    ));
    let done = complete(call, Ok(Answer::Done(stamp(2, 2, &RING))));
    assert_eq!(outputs.last(), Some(&done));
}

#[test]
fn an_old_completion_does_not_turn_the_view_back() {
    let mut rig = Rig::member(7, &[5, 7, 6]);
    rig.vote(UPDATE);
    rig.message(Down::Group(view(3, &RING)));
    rig.message(completed(
        UPDATE,
        FIRST + 1,
        0,
        stamp(2, 2, &[5, 7, 6]),
        2,
        &[5, 7, 6],
    ));
    assert_eq!(rig.peer.group(), &view(3, &RING));
    assert_eq!(rig.peer.attributes().group_world_size, 3);
}
