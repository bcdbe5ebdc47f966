//! Uses of keys: names, epochs, verdicts, limits.

use super::*;
use crate::error::UsageError;
use crate::wire::control::{AbortRequest, Done, OpBody, Open};
use crate::wire::reason::WaitsIn;

const RING: [u64; 2] = [5, 7];

fn open(op: OpName, epoch: u64, quoted: Serial) -> PeerOutput {
    PeerOutput::Send(Up::Open(Open {
        op,
        epoch: Epoch(epoch),
        quoted,
        what: OpBody::Reduce {
            descriptor: DESCRIPTOR,
            digest: DESCRIPTOR.digest(),
        },
    }))
}

fn start(call: CallId, op: OpName, quoted: Serial, group: GroupView) -> PeerOutput {
    PeerOutput::StartReduce {
        call,
        op,
        quoted,
        descriptor: DESCRIPTOR,
        group,
        own: MemberId(7),
    }
}

fn finish(call: CallId, op: OpName, quoted: Serial, outcome: Outcome, stamp: Stamp) -> PeerOutput {
    PeerOutput::Finish {
        call,
        op,
        quoted,
        outcome: Ok(outcome),
        stamp,
    }
}

fn abort() -> Outcome {
    Outcome::Abort(gave_up(9))
}

#[test]
fn a_use_is_opened_started_done_and_committed() {
    let mut rig = Rig::member(7, &RING);
    let (call, outputs) = rig.reduce(1);
    let (op, none) = (name(1, 0), serial(0));
    assert_eq!(
        outputs,
        [open(op, 1, none), start(call, op, none, view(1, &RING))]
    );
    let done = Done {
        op,
        quoted: none,
        result: Digest(9),
    };
    assert_eq!(rig.done(op, none), [PeerOutput::Send(Up::Done(done))]);
    assert_eq!(rig.done(op, none), []);
    let verdict = verdict(op, 6, Outcome::Commit, stamp(1, 1, &RING));
    let outputs = rig.message(verdict);
    assert_eq!(
        outputs,
        [finish(call, op, none, Outcome::Commit, stamp(1, 1, &RING))]
    );
    // The next use has the same name, and quotes that verdict.
    let (call, outputs) = rig.reduce(1);
    let group = view(1, &RING);
    assert_eq!(
        outputs,
        [open(op, 1, serial(6)), start(call, op, serial(6), group)]
    );
}

#[test]
fn a_commit_that_was_known_when_the_use_was_opened_is_not_about_it() {
    let mut rig = Rig::member(7, &RING);
    let op = name(1, 0);
    let commit = verdict(op, 6, Outcome::Commit, stamp(1, 1, &RING));
    rig.reduce(1);
    rig.done(op, serial(0));
    rig.message(commit.clone());
    let (call, _) = rig.reduce(1);
    // Sent again after a reconnection.
    assert_eq!(rig.message(commit), []);
    rig.done(op, serial(6));
    let outputs = rig.message(verdict(op, 7, Outcome::Commit, stamp(1, 1, &RING)));
    assert_eq!(
        outputs,
        [finish(
            call,
            op,
            serial(6),
            Outcome::Commit,
            stamp(1, 1, &RING)
        )]
    );
}

#[test]
fn reports_of_the_engine_on_ended_uses_are_ignored() {
    let mut rig = Rig::member(7, &RING);
    let op = name(1, 0);
    rig.reduce(1);
    rig.done(op, serial(0));
    rig.message(verdict(op, 6, Outcome::Commit, stamp(1, 1, &RING)));
    let cause = RequestCause::Cancelled;
    let failure = PeerInput::OpFailed {
        op,
        quoted: serial(0),
        cause,
    };
    assert_eq!(rig.give(failure.clone()), []);
    rig.reduce(1);
    assert_eq!(rig.give(failure), []);
    assert_eq!(rig.done(op, serial(0)), []);
}

#[test]
fn aborted_uses_count_until_the_next_round() {
    let mut rig = Rig::member(7, &RING);
    let (call, _) = rig.reduce(1);
    let op = name(1, 0);
    let outputs = rig.message(verdict(op, 6, abort(), stamp(1, 1, &RING)));
    assert_eq!(
        outputs,
        [finish(call, op, serial(0), abort(), stamp(1, 1, &RING))]
    );
    // Sent again: nothing of that name is open.
    assert_eq!(rig.message(verdict(op, 6, abort(), stamp(1, 1, &RING))), []);
    let (_, outputs) = rig.reduce(1);
    assert_eq!(outputs[0], open(name(1, 1), 1, serial(6)));
    assert_eq!(rig.message(verdict(op, 6, abort(), stamp(1, 1, &RING))), []);
    // A remembered abort may be older than what the late opener quotes.
    assert_eq!(
        rig.message(verdict(name(1, 1), 5, abort(), stamp(1, 1, &RING)))
            .len(),
        1
    );
    let (_, outputs) = rig.reduce(2);
    assert_eq!(outputs[0], open(name(2, 0), 1, serial(6)));
    rig.message(verdict(name(2, 0), 7, abort(), stamp(1, 1, &RING)));

    rig.vote(UnanimousCall::UpdateTopology);
    let update = UnanimousCall::UpdateTopology;
    rig.message(completed(
        update,
        FIRST + 1,
        0,
        stamp(1, 1, &RING),
        1,
        &RING,
    ));
    let (_, outputs) = rig.reduce(1);
    let op = OpName {
        round: Round(FIRST + 2),
        ..name(1, 0)
    };
    assert_eq!(outputs[0], open(op, 1, serial(7)));
}

#[test]
fn a_loss_is_shown_by_the_abort_and_the_doomed_use_is_not_started() {
    let mut rig = Rig::member(7, &[5, 7, 6]);
    let (_, outputs) = rig.reduce(1);
    assert_eq!(outputs.len(), 2);
    rig.message(Down::Group(view(2, &RING)));
    assert_eq!(rig.peer.attributes().group_world_size, 3);
    // Opened with the world size that the user was shown: the master aborts it for all.
    let (call, outputs) = rig.reduce(2);
    assert_eq!(outputs, [open(name(2, 0), 1, serial(0))]);
    let outputs = rig.message(verdict(name(2, 0), 6, abort(), stamp(2, 2, &RING)));
    let group = PeerOutput::Group {
        group: view(2, &RING),
        shown: Epoch(2),
    };
    let end = finish(call, name(2, 0), serial(0), abort(), stamp(2, 2, &RING));
    assert_eq!(outputs, [end, group]);
    assert_eq!(rig.peer.attributes().group_world_size, 2);
    let (call, outputs) = rig.reduce(2);
    let (op, quoted) = (name(2, 1), serial(6));
    assert_eq!(
        outputs,
        [open(op, 2, quoted), start(call, op, quoted, view(2, &RING))]
    );
}

#[test]
fn a_failure_is_shown_when_the_user_comes_for_it() {
    let mut rig = Rig::member(7, &[5, 7, 6]);
    rig.late = true;
    let (failed, _) = rig.reduce(1);
    rig.message(Down::Group(view(2, &RING)));
    let after = stamp(2, 2, &RING);
    rig.message(verdict(name(1, 0), 6, abort(), after));
    // Nobody computes with a world size it has not been shown: this use is doomed.
    assert_eq!(rig.peer.attributes().group_world_size, 3);
    let (_, outputs) = rig.reduce(2);
    assert_eq!(outputs, [open(name(2, 0), 1, serial(6))]);
    rig.give(PeerInput::Shown {
        call: failed,
        stamp: after,
    });
    assert_eq!(rig.peer.attributes().group_world_size, 2);
    let (_, outputs) = rig.reduce(3);
    assert_eq!(outputs[0], open(name(3, 0), 2, serial(6)));
}

#[test]
fn a_use_that_the_master_has_no_room_for_fails_here_alone() {
    let mut rig = Rig::member(7, &RING);
    let (call, _) = rig.reduce(1);
    let (op, quoted) = (name(1, 0), serial(0));
    let outputs = rig.message(Down::TooMany {
        op,
        quoted,
        held: 2048,
    });
    assert!(matches!(
        &outputs[..],
        [PeerOutput::Finish { call: ended, outcome: Err(Error::Usage(_)), .. }] if *ended == call
    ));
    // As if it had not been called: the next use has the same name.
    let (_, outputs) = rig.reduce(1);
    assert_eq!(outputs[0], open(op, 1, serial(0)));
}

#[test]
fn a_use_opened_ahead_of_the_view_starts_when_the_view_comes() {
    let mut rig = Rig::member(7, &[5, 7, 6]);
    rig.reduce(1);
    // After a reconnection verdicts come before the present view.
    rig.message(verdict(name(1, 0), 6, abort(), stamp(2, 2, &RING)));
    let (call, outputs) = rig.reduce(1);
    let (op, quoted) = (name(1, 1), serial(6));
    assert_eq!(outputs, [open(op, 2, quoted)]);
    let outputs = rig.message(Down::Group(view(2, &RING)));
    assert_eq!(
        outputs.last(),
        Some(&start(call, op, quoted, view(2, &RING)))
    );
}

#[test]
fn a_commit_does_not_change_the_attributes() {
    let mut rig = Rig::member(7, &[5, 7, 6]);
    let (call, _) = rig.reduce(1);
    let op = name(1, 0);
    rig.done(op, serial(0));
    // All survivors were done when the third was lost.
    rig.message(Down::Group(view(2, &RING)));
    let late = Stamp {
        pending: true,
        ..stamp(2, 2, &RING)
    };
    let outputs = rig.message(verdict(op, 6, Outcome::Commit, late));
    let shown = Stamp {
        pending: true,
        ..stamp(1, 1, &[5, 7, 6])
    };
    assert_eq!(
        outputs,
        [finish(call, op, serial(0), Outcome::Commit, shown)]
    );
    assert_eq!(rig.peer.attributes().group_world_size, 3);
}

#[test]
fn limits_and_cancels_ask_and_the_verdict_decides() {
    let mut rig = Rig::member(7, &RING);
    let tag = Tag(1);
    let descriptor = DESCRIPTOR;
    let limit = Some(Duration::from_millis(100));
    let (call, _) = rig.call_within(Request::Reduce { tag, descriptor }, limit);
    let (op, quoted) = (name(1, 0), serial(0));
    let outputs = rig.pass(Duration::from_millis(100));
    let request = AbortRequest {
        op,
        quoted,
        cause: RequestCause::TimedOut,
    };
    assert_eq!(outputs, [PeerOutput::Send(Up::AbortRequest(request))]);
    let cause = RequestCause::Cancelled;
    assert_eq!(rig.give(PeerInput::Cancel { call, cause }), []);
    // The result may come after all, and everybody may have it.
    assert_eq!(sent(&rig.done(op, quoted)).len(), 1);
    let outputs = rig.message(verdict(op, 6, Outcome::Commit, stamp(1, 1, &RING)));
    assert_eq!(
        outputs,
        [finish(
            call,
            op,
            quoted,
            Outcome::Commit,
            stamp(1, 1, &RING)
        )]
    );
}

#[test]
fn a_failure_in_the_engine_asks_for_an_abort_once() {
    let mut rig = Rig::member(7, &RING);
    rig.reduce(1);
    let cause = RequestCause::LaneDied {
        peer: MemberId(5),
        cause: "reset".into(),
    };
    let op = name(1, 0);
    let quoted = serial(0);
    let failure = PeerInput::OpFailed {
        op,
        quoted,
        cause: cause.clone(),
    };
    let request = AbortRequest { op, quoted, cause };
    let request = PeerOutput::Send(Up::AbortRequest(request));
    assert_eq!(rig.give(failure.clone()), [request]);
    assert_eq!(rig.give(failure), []);
}

#[test]
fn a_commit_of_what_is_not_here_ends_the_membership() {
    let mut rig = Rig::member(7, &RING);
    let (call, _) = rig.reduce(1);
    let outputs = rig.message(verdict(name(1, 0), 6, Outcome::Commit, stamp(1, 1, &RING)));
    let finished: Vec<&PeerOutput> = outputs
        .iter()
        .filter(|output| matches!(output, PeerOutput::Finish { .. }))
        .collect();
    assert!(matches!(finished[..], [PeerOutput::Finish {
        call: last,
        outcome: Err(Error::Internal(_)),
        ..
    }] if *last == call));
    assert!(!rig.peer.is_member());
}

#[test]
fn calls_that_cannot_be_made_are_refused_here() {
    let refused = |rig: &mut Rig, tag: u64, error: Error| {
        let (call, outputs) = rig.reduce(tag);
        assert_eq!(outputs, [complete(call, Err(error))]);
    };
    refused(&mut Rig::new(), 1, UsageError::NotConnected.into());
    refused(&mut Rig::member(7, &[7]), 1, Error::TooFewPeers);
    let mut rig = Rig::member(7, &RING);
    rig.reduce(1);
    refused(&mut rig, 1, UsageError::InUse(key(1)).into());
    let mut rig = Rig::member(7, &RING);
    rig.vote(UnanimousCall::UpdateTopology);
    let update = WaitsIn::Call(UnanimousCall::UpdateTopology);
    refused(&mut rig, 1, UsageError::CallOpen(update).into());
    let mut rig = Rig::member(7, &RING);
    let descriptor = ReduceDescriptor {
        count: u64::MAX,
        ..DESCRIPTOR
    };
    let tag = Tag(1);
    let (_, outputs) = rig.call(Request::Reduce { tag, descriptor });
    assert!(matches!(
        outputs[..],
        [PeerOutput::Complete {
            result: Err(Error::Usage(UsageError::Argument { .. })),
            ..
        }]
    ));
}

#[test]
fn quantisation_that_makes_no_sense_is_refused_locally() {
    use crate::types::{DataType, QuantizationAlgorithm, QuantizedType};
    let mut rig = Rig::member(7, &RING);
    let quantization = ReduceOp::Max
        .quantized(QuantizationAlgorithm::ZeroPointScale, QuantizedType::I8)
        .quantization;
    for (data_type, op) in [
        (DataType::F32, ReduceOp::Max),
        (DataType::I32, ReduceOp::Sum),
    ] {
        let descriptor = ReduceDescriptor {
            data_type,
            op,
            quantization,
            ..DESCRIPTOR
        };
        let tag = Tag(1);
        let (_, outputs) = rig.call(Request::Reduce { tag, descriptor });
        assert!(matches!(
            outputs[..],
            [PeerOutput::Complete {
                result: Err(Error::Usage(UsageError::Argument {
                    name: "quantization",
                    ..
                })),
                ..
            }]
        ));
    }
}

#[test]
fn open_and_remembered_uses_are_limited() {
    let mut rig = Rig::member(7, &RING);
    for tag in 0..1024 {
        assert_eq!(rig.reduce(tag).1.len(), 2);
    }
    let error = |open| UsageError::TooMany { open, limit: 1024 };
    let (call, outputs) = rig.reduce(1024);
    assert_eq!(outputs, [complete(call, Err(error(1024).into()))]);
    // One commits and leaves room; one aborts and does not, but for its own key.
    rig.done(name(0, 0), serial(0));
    rig.message(verdict(name(0, 0), 1, Outcome::Commit, stamp(1, 1, &RING)));
    rig.message(verdict(name(1, 0), 2, abort(), stamp(1, 1, &RING)));
    assert_eq!(rig.reduce(1024).1.len(), 2);
    let (call, outputs) = rig.reduce(1025);
    assert_eq!(outputs, [complete(call, Err(error(1024).into()))]);
    assert_eq!(rig.reduce(1).1.len(), 2);
}

#[test]
fn who_is_waited_for_is_told() {
    let mut rig = Rig::member(7, &RING);
    rig.reduce(1);
    let message = Down::Waiting {
        op: name(1, 0),
        not_opened: vec![MemberId(5)],
        not_done: vec![MemberId(7)],
    };
    assert_eq!(rig.message(message), []);
    let waits = "all-reduce with tag 1".into();
    let missing = vec![MemberId(5)];
    assert_eq!(rig.events.last(), Some(&Event::Waiting { waits, missing }));
}
