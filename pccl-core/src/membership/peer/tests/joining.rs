//! Connecting, being admitted, being turned down, joining again.

use super::*;
use crate::error::UsageError;
use crate::wire::control::Registration;
use crate::wire::reason::{EvictReason, RefuseReason, WaitsIn};

fn register() -> PeerOutput {
    PeerOutput::DialMaster {
        hello: ControlHello::Register(Registration {
            group: PeerGroup(3),
            name: "test".into(),
            port: 1000,
            addresses: Vec::new(),
            arithmetic: crate::types::ARITHMETIC_VERSION,
        }),
    }
}

fn admits(own: u64, peers: &[u64]) -> PeerOutput {
    PeerOutput::Admit {
        own: Some((RUN, MemberId(own), token(own))),
        peers: peers.iter().map(|id| (MemberId(*id), token(*id))).collect(),
        readers: Vec::new(),
        keys: Vec::new(),
    }
}

#[test]
fn connect_registers_and_returns_when_admitted() {
    let mut rig = Rig::new();
    assert_eq!(rig.peer.next_deadline(), None);
    let (call, outputs) = rig.call(Request::Connect);
    assert_eq!(outputs, [register()]);
    assert_eq!(rig.reply(registered(7)), [admits(7, &[])]);
    assert!(!rig.peer.is_member());
    assert_eq!(rig.peer.member_id(), Some(MemberId(7)));

    let ring = [5, 7];
    let update = UnanimousCall::UpdateTopology;
    let outputs = rig.message(completed(update, FIRST, 2, stamp(1, 1, &ring), 1, &ring));
    let dial = PeerOutput::DialPeer {
        peer: info(5),
        run: RUN,
        own: MemberId(7),
        token: token(7),
    };
    let group = PeerOutput::Group {
        group: view(1, &ring),
        shown: Epoch(1),
    };
    let done = complete(call, Ok(Answer::Done(stamp(1, 1, &ring))));
    assert_eq!(outputs, [group, admits(7, &[5]), dial, done]);
    assert!(rig.peer.is_member());
    assert_eq!(rig.peer.attributes().group_world_size, 2);
    assert_eq!(
        rig.call(Request::Connect).1,
        [complete(
            CallId(2),
            Err(UsageError::AlreadyConnected.into())
        )]
    );
}

#[test]
fn without_a_limit_the_first_failed_dial_ends_connect() {
    let mut rig = Rig::new();
    let (call, _) = rig.call(Request::Connect);
    let error = unreachable(ConnectPhase::Dial, "refused");
    let outputs = rig.give(PeerInput::Master(MasterLink::Failed(error.clone())));
    assert_eq!(outputs, [complete(call, Err(error))]);
    assert_eq!(rig.peer.next_deadline(), None);
    // And it can be called again.
    assert_eq!(rig.call(Request::Connect).1, [register()]);
}

#[test]
fn with_a_limit_dials_are_repeated_until_it_passes() {
    let mut rig = Rig::new();
    let limit = Duration::from_secs(10);
    let (call, _) = rig.call_within(Request::Connect, Some(limit));
    let error = unreachable(ConnectPhase::Dial, "refused");
    let failure = PeerInput::Master(MasterLink::Failed(error.clone()));
    // The first retry is at once.
    assert_eq!(rig.give(failure.clone()), [register()]);
    let start = rig.now;
    let mut dials = 0;
    loop {
        let before = rig.now;
        let mut outputs = rig.give(failure.clone());
        assert_eq!(outputs, []);
        while outputs.is_empty() {
            let due = rig.peer.next_deadline().unwrap();
            outputs = rig.pass(due.since(rig.now));
        }
        if outputs == [complete(call, Err(error.clone()))] {
            break;
        }
        assert_eq!(outputs, [register()]);
        assert!(rig.now.since(before) <= Duration::from_secs(1));
        dials += 1;
    }
    assert_eq!(rig.now.since(start), limit);
    assert!((10..40).contains(&dials), "{dials}");
}

#[test]
fn an_address_that_cannot_be_used_is_not_tried_again() {
    let mut rig = Rig::new();
    let (call, _) = rig.call_within(Request::Connect, Some(Duration::from_secs(10)));
    let error = Error::Usage(UsageError::Address {
        address: ADDRESS.into(),
        cause: "no port".into(),
    });
    let outputs = rig.give(PeerInput::Master(MasterLink::Failed(error.clone())));
    assert_eq!(outputs, [complete(call, Err(error))]);
}

#[test]
fn a_dial_that_is_not_answered_is_given_up() {
    let mut rig = Rig::new();
    let (call, _) = rig.call(Request::Connect);
    let error = unreachable(ConnectPhase::Handshake, "no answer");
    let outputs = rig.pass(Duration::from_secs(10));
    assert_eq!(
        outputs,
        [PeerOutput::CloseMaster, complete(call, Err(error))]
    );
}

#[test]
fn the_limit_of_connect_holds_while_a_dial_is_open() {
    let mut rig = Rig::new();
    let (call, _) = rig.call_within(Request::Connect, Some(Duration::from_secs(1)));
    let cause = "no answer within the time limit of the call";
    let error = unreachable(ConnectPhase::Dial, cause);
    let outputs = rig.pass(Duration::from_secs(1));
    assert_eq!(
        outputs,
        [PeerOutput::CloseMaster, complete(call, Err(error))]
    );
}

#[test]
fn a_refused_registration_fails_connect_at_once() {
    let mut rig = Rig::new();
    let (call, _) = rig.call_within(Request::Connect, Some(Duration::from_secs(10)));
    let reason = RefuseReason::Full { limit: 3 };
    let outputs = rig.reply(ControlReply::Refused(reason.clone()));
    let address = ADDRESS.into();
    let error = Error::Refused { address, reason };
    assert_eq!(
        outputs,
        [PeerOutput::CloseMaster, complete(call, Err(error))]
    );
}

#[test]
fn an_answer_to_another_question_counts_as_a_failed_dial() {
    for reply in [attached(2), ControlReply::Status("{}".into())] {
        let mut rig = Rig::new();
        let (call, _) = rig.call(Request::Connect);
        let error = unreachable(ConnectPhase::Handshake, "an answer to another question");
        let outputs = rig.reply(reply);
        assert_eq!(
            outputs,
            [PeerOutput::CloseMaster, complete(call, Err(error))]
        );
    }
}

#[test]
fn once_registered_connect_waits_without_limit() {
    let (mut rig, _) = Rig::newcomer(7);
    let outputs = rig.pass_with_master(Duration::from_secs(1000));
    assert!(
        outputs
            .iter()
            .all(|output| matches!(output, PeerOutput::Send(Up::Heartbeat { .. })))
    );
    assert!(!outputs.is_empty());
}

#[test]
fn a_registered_newcomer_gives_up_at_its_limit_and_when_cancelled() {
    let mut rig = Rig::new();
    let (call, _) = rig.call_within(Request::Connect, Some(Duration::from_millis(300)));
    rig.reply(registered(7));
    let outputs = rig.pass(Duration::from_millis(300));
    let rest = [
        PeerOutput::Send(Up::Leave),
        PeerOutput::CloseMaster,
        no_admit(),
        complete(call, Err(Error::NotAdmitted(RequestCause::TimedOut))),
    ];
    assert_eq!(outputs[1..], rest);

    let (mut rig, call) = Rig::newcomer(7);
    let cause = RequestCause::Cancelled;
    let outputs = rig.give(PeerInput::Cancel { call, cause });
    let rest = [
        PeerOutput::Send(Up::Leave),
        PeerOutput::CloseMaster,
        no_admit(),
        complete(call, Err(Error::NotAdmitted(RequestCause::Cancelled))),
    ];
    assert_eq!(outputs, rest);
}

fn no_admit() -> PeerOutput {
    PeerOutput::Admit {
        own: None,
        peers: Vec::new(),
        readers: Vec::new(),
        keys: Vec::new(),
    }
}

#[test]
fn a_newcomer_without_a_plan_is_shown_as_refused() {
    let (mut rig, call) = Rig::newcomer(7);
    let from = vec![MemberId(5)];
    let outputs = rig.message(Down::Evicted(EvictReason::Unreachable {
        from: from.clone(),
    }));
    let error = Error::Refused {
        address: ADDRESS.into(),
        reason: RefuseReason::Unreachable { from },
    };
    assert_eq!(outputs.last(), Some(&complete(call, Err(error))));
}

#[test]
fn a_newcomer_ignores_failed_tries_and_views_until_it_is_admitted() {
    let (mut rig, call) = Rig::newcomer(7);
    let update = UnanimousCall::UpdateTopology;
    assert_eq!(rig.message(failed(update, FIRST, 0, stamp(1, 1, &[5]))), []);
    assert_eq!(rig.message(Down::Group(view(9, &[5, 7]))), []);
    let query = UnanimousCall::ArePeersPending;
    assert_eq!(
        rig.message(completed(query, 0, 0, stamp(1, 1, &[5]), 1, &[5])),
        []
    );
    let outputs = rig.message(completed(
        UnanimousCall::OptimizeTopology,
        FIRST,
        1,
        stamp(2, 2, &[5, 7]),
        2,
        &[5, 7],
    ));
    let done = complete(call, Ok(Answer::Done(stamp(2, 2, &[5, 7]))));
    assert_eq!(outputs.last(), Some(&done));
}

#[test]
fn only_one_call_joins_and_others_need_a_membership() {
    let (mut rig, _) = Rig::newcomer(7);
    let (call, outputs) = rig.call(Request::Connect);
    let joining = WaitsIn::Call(UnanimousCall::UpdateTopology);
    assert_eq!(
        outputs,
        [complete(call, Err(UsageError::CallOpen(joining).into()))]
    );
    for request in [
        Request::Vote(UnanimousCall::UpdateTopology),
        Request::Reduce {
            tag: Tag(0),
            descriptor: DESCRIPTOR,
        },
    ] {
        let (call, outputs) = rig.call(request);
        assert_eq!(
            outputs,
            [complete(call, Err(UsageError::NotConnected.into()))]
        );
    }
}

#[test]
fn an_evicted_peer_registers_anew_by_connect_or_update_topology() {
    for request in [
        Request::Connect,
        Request::Vote(UnanimousCall::UpdateTopology),
    ] {
        let mut rig = Rig::member(7, &[5, 7]);
        rig.message(Down::Evicted(EvictReason::Operator));
        assert_eq!(rig.peer.attributes(), Attributes::ALONE);
        let evicted = Error::Evicted(EvictReason::Operator);
        for lost in [
            Request::Vote(UnanimousCall::ArePeersPending),
            Request::Reduce {
                tag: Tag(0),
                descriptor: DESCRIPTOR,
            },
        ] {
            let (call, outputs) = rig.call(lost);
            assert_eq!(outputs, [complete(call, Err(evicted.clone()))]);
        }
        let (call, outputs) = rig.call(request);
        assert_eq!(outputs, [register()]);
        assert_eq!(rig.reply(registered(9)), [admits(9, &[])]);
        // Numbers of views and epochs count anew, and so do those of verdicts.
        let ring = [5, 9];
        let update = UnanimousCall::UpdateTopology;
        let outputs = rig.message(completed(update, FIRST, 0, stamp(1, 1, &ring), 1, &ring));
        let done = complete(call, Ok(Answer::Done(stamp(1, 1, &ring))));
        assert_eq!(outputs.last(), Some(&done));
        assert_eq!(rig.peer.member_id(), Some(MemberId(9)));
    }
}

#[test]
fn joining_again_can_fail_and_be_tried_again() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.message(Down::Evicted(EvictReason::Operator));
    let update = Request::Vote(UnanimousCall::UpdateTopology);
    let (call, _) = rig.call(update.clone());
    let error = unreachable(ConnectPhase::Dial, "refused");
    let outputs = rig.give(PeerInput::Master(MasterLink::Failed(error.clone())));
    assert_eq!(outputs, [complete(call, Err(error))]);
    assert_eq!(rig.call(update).1, [register()]);
}

#[test]
fn who_calls_as_a_member_after_the_master_was_stopped_learns_that() {
    let update = || Request::Vote(UnanimousCall::UpdateTopology);
    let address = ADDRESS.to_owned();
    let stopped = || Error::MasterStopped {
        address: address.clone(),
    };
    let refused = || unreachable(ConnectPhase::Dial, "refused");
    let mut rig = Rig::member(7, &[5, 7]);
    rig.message(Down::Stopping);
    // As often as it is asked.
    for _ in 0..2 {
        let (call, outputs) = rig.call(update());
        assert!(hello(&outputs).is_some());
        let outputs = rig.give(PeerInput::Master(MasterLink::Failed(refused())));
        assert!(outputs.contains(&complete(call, Err(stopped()))));
    }
    let (call, _) = rig.call(update());
    let outputs = rig.reply(ControlReply::Refused(RefuseReason::Stopping));
    assert!(outputs.contains(&complete(call, Err(stopped()))));
    // Who asks to join is told what is in the way of that.
    let (call, _) = rig.call(Request::Connect);
    let outputs = rig.give(PeerInput::Master(MasterLink::Failed(refused())));
    assert!(outputs.contains(&complete(call, Err(refused()))));
    // And another master is joined by the same call.
    let (_, outputs) = rig.call(update());
    assert!(matches!(hello(&outputs), Some(ControlHello::Register(_))));
}
