//! The control connection: heartbeats, reconnection, reports, old masters, the master limit.

use super::*;
use crate::wire::control::{OpBody, OpReport, Open, Report, VoteReport};
use crate::wire::reason::{EvictReason, RefuseReason};

fn report(rig: &mut Rig) -> Report {
    let outputs = rig.broken();
    match hello(&outputs) {
        Some(ControlHello::Attach {
            run: RUN,
            report: Some(report),
            ..
        }) => (**report).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn heartbeats_go_out_every_interval_and_acknowledge_verdicts() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.lane_open(5, true, 1);
    rig.reduce(1);
    rig.message(verdict(
        name(1, 0),
        6,
        Outcome::Abort(gave_up(5)),
        stamp(1, 1, &[5, 7]),
    ));
    rig.give(PeerInput::Heard(vec![
        MemberId(5),
        MemberId(5),
        MemberId(99),
    ]));
    let heard = vec![MemberId(5)];
    let quoted = serial(6);
    assert_eq!(
        rig.pass(HEARTBEAT),
        [PeerOutput::Send(Up::Heartbeat { quoted, heard })]
    );
    let heard = Vec::new();
    assert_eq!(
        rig.pass(HEARTBEAT),
        [PeerOutput::Send(Up::Heartbeat { quoted, heard })]
    );
}

#[test]
fn a_ping_is_answered_at_once_by_newcomers_too() {
    for mut rig in [Rig::member(7, &[5, 7]), Rig::newcomer(7).0] {
        assert_eq!(rig.message(Down::Ping), [PeerOutput::Send(Up::Pong)]);
    }
}

#[test]
fn a_silent_master_is_dialled_again() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.pass_with_master(PEER_TIMEOUT * 3);
    rig.message(Down::Heartbeat);
    let outputs = rig.pass(PEER_TIMEOUT);
    assert!(matches!(
        outputs[outputs.len() - 2..],
        [
            PeerOutput::CloseMaster,
            PeerOutput::DialMaster {
                hello: ControlHello::Attach {
                    report: Some(_),
                    ..
                }
            }
        ]
    ));
}

#[test]
fn a_member_brings_its_state_and_a_newcomer_none() {
    let mut rig = Rig::member(7, &[5, 7]);
    let (lane, _) = rig.lane_open(5, false, 1);
    rig.lane_closed(lane, false);
    rig.reduce(1);
    rig.reduce(0);
    rig.done(name(0, 0), serial(0));
    let call = rig.reduce(2).0;
    let cause = RequestCause::Cancelled;
    rig.give(PeerInput::Cancel {
        call,
        cause: cause.clone(),
    });
    rig.vote(UnanimousCall::ArePeersPending);
    let op = |tag, done, abort| OpReport {
        open: Open {
            op: name(tag, 0),
            epoch: Epoch(1),
            quoted: serial(0),
            what: OpBody::Reduce {
                descriptor: DESCRIPTOR,
                digest: DESCRIPTOR.digest(),
            },
        },
        done,
        abort,
    };
    let expected = Report {
        incarnation: Incarnation(2),
        known: Epoch(1),
        shown: Epoch(1),
        round: Round(FIRST + 1),
        queries: Round(0),
        quoted: serial(0),
        ops: vec![
            op(1, None, None),
            op(0, Some(Digest(9)), None),
            op(2, None, Some(cause)),
        ],
        vote: Some(VoteReport {
            vote: vote_name(UnanimousCall::ArePeersPending, 0, 0),
            withdrawn: None,
        }),
        closed: vec![MemberId(5)],
    };
    assert_eq!(report(&mut rig), expected);

    let (mut rig, _) = Rig::newcomer(7);
    let outputs = rig.broken();
    let attach = ControlHello::Attach {
        run: RUN,
        id: MemberId(7),
        token: token(7),
        report: None,
    };
    assert_eq!(hello(&outputs), Some(&attach));
}

#[test]
fn what_happened_after_the_report_is_told_once_attached() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.reduce(1);
    let (lane, _) = rig.lane_open(5, true, 2);
    let second = rig.lane_open(5, true, 2).0;
    report(&mut rig);
    // While the hello is on its way, calls are taken in, and nothing is sent.
    let (call, outputs) = rig.reduce(2);
    assert_eq!(sent(&outputs), Vec::<&Up>::new());
    rig.done(name(1, 0), serial(0));
    rig.done(name(2, 0), serial(0));
    let cause = RequestCause::Cancelled;
    rig.give(PeerInput::Cancel { call, cause });
    rig.vote(UnanimousCall::ArePeersPending);
    rig.lane_closed(lane, false);
    rig.lane_closed(second, false);
    let outputs = rig.reply(attached(2));
    let told: Vec<String> = sent(&outputs).iter().map(|up| format!("{up:?}")).collect();
    let kinds: Vec<&str> = told
        .iter()
        .filter_map(|up| up.split(['(', ' ']).next())
        .collect();
    let expected = [
        "Done",
        "Open",
        "Done",
        "AbortRequest",
        "Vote",
        "LanesClosed",
    ];
    assert_eq!(kinds, expected, "{told:?}");
    // Nothing twice.
    assert_eq!(rig.pass(HEARTBEAT / 2), []);
}

#[test]
fn proofs_and_failures_of_edges_are_repeated_to_a_new_connection() {
    let mut rig = Rig::member(7, &[5, 7, 6]);
    rig.lane_open(5, true, 1);
    rig.dial_failed(6);
    rig.dial_failed(6);
    report(&mut rig);
    let outputs = rig.reply(attached(2));
    let peer = MemberId(5);
    let cannot = Up::CannotDial {
        peer: MemberId(6),
        cause: "refused".into(),
    };
    assert_eq!(sent(&outputs), [&Up::LanesOpen { peer }, &cannot]);
}

#[test]
fn the_master_is_dialled_at_once_and_then_with_jitter_up_to_a_heartbeat() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.pass_with_master(PEER_TIMEOUT * 2);
    assert!(hello(&rig.broken()).is_some());
    let start = rig.now;
    let mut dials = 0;
    while rig.now.since(start) < MASTER_LIMIT - Duration::from_secs(2) {
        let error = unreachable(ConnectPhase::Dial, "refused");
        assert_eq!(rig.give(PeerInput::Master(MasterLink::Failed(error))), []);
        let due = rig.peer.next_deadline().unwrap();
        let wait = due.since(rig.now);
        assert!(wait > Duration::ZERO && wait <= HEARTBEAT);
        assert!(hello(&rig.pass(wait)).is_some());
        dials += 1;
    }
    assert!((30..100).contains(&dials), "{dials}");
}

#[test]
fn a_connection_that_breaks_at_once_is_not_made_again_in_a_tight_loop() {
    let mut rig = Rig::member(7, &[5, 7]);
    assert!(hello(&rig.broken()).is_some());
    rig.reply(attached(2));
    assert_eq!(hello(&rig.broken()), None);
    let wait = rig.peer.next_deadline().unwrap().since(rig.now);
    assert!(hello(&rig.pass(wait)).is_some());
}

#[test]
fn after_the_master_limit_the_peer_has_left_and_all_calls_fail() {
    let mut rig = Rig::member(7, &[5, 7]);
    let lane = rig.lane_open(5, true, 1).0;
    let (op, _) = rig.reduce(1);
    let (query, _) = rig.vote(UnanimousCall::ArePeersPending);
    rig.broken();
    let mut outputs = rig.pass(MASTER_LIMIT);
    // Dials that nobody answers are given up in between.
    outputs.retain(|output| !matches!(output, PeerOutput::DialMaster { .. }));
    outputs.retain(|output| !matches!(output, PeerOutput::CloseMaster));
    let error = || Error::MasterLost {
        address: ADDRESS.into(),
        waited: MASTER_LIMIT,
    };
    let expected = [
        PeerOutput::Admit {
            own: None,
            peers: Vec::new(),
            readers: Vec::new(),
            keys: Vec::new(),
        },
        PeerOutput::Finish {
            call: op,
            op: name(1, 0),
            quoted: serial(0),
            outcome: Err(error()),
            stamp: alone(),
        },
        PeerOutput::CloseLane { lane },
        PeerOutput::Group {
            group: GroupView::default(),
            shown: Epoch(0),
        },
        complete(query, Err(error())),
    ];
    assert_eq!(outputs, expected);
    assert_eq!(rig.peer.attributes(), Attributes::ALONE);
    assert_eq!(rig.peer.member_id(), None);
    assert_eq!(rig.peer.next_deadline(), None);
    assert_eq!(rig.reduce(1).1, [complete(CallId(4), Err(error()))]);
}

#[test]
fn a_master_that_owes_a_verdict_for_the_master_limit_counts_as_lost() {
    let mut rig = Rig::member(7, &[5, 7]);
    let (call, _) = rig.reduce(1);
    let cause = RequestCause::Cancelled;
    rig.give(PeerInput::Cancel { call, cause });
    let almost = MASTER_LIMIT - HEARTBEAT;
    let outputs = rig.pass_with_master(almost);
    assert!(
        outputs
            .iter()
            .all(|out| matches!(out, PeerOutput::Send(Up::Heartbeat { .. })))
    );
    let outputs = rig.pass_with_master(HEARTBEAT);
    assert!(outputs.iter().any(|output| matches!(
        output,
        PeerOutput::Finish {
            outcome: Err(Error::MasterLost { .. }),
            ..
        }
    )));
}

#[test]
fn an_older_master_is_not_obeyed_and_a_newer_one_is() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.pass_with_master(PEER_TIMEOUT * 2);
    report(&mut rig);
    let outputs = rig.reply(attached(1));
    assert_eq!(outputs, [PeerOutput::CloseMaster]);
    let wait = rig.peer.next_deadline().unwrap().since(rig.now);
    assert!(hello(&rig.pass(wait)).is_some());
    rig.reply(attached(3));
    rig.pass_with_master(PEER_TIMEOUT * 2);
    assert_eq!(report(&mut rig).incarnation, Incarnation(3));
}

#[test]
fn limits_of_calls_do_not_run_while_the_master_is_away() {
    let mut rig = Rig::member(7, &[5, 7]);
    let limit = Some(Duration::from_secs(2));
    let tag = Tag(1);
    let descriptor = DESCRIPTOR;
    rig.call_within(Request::Reduce { tag, descriptor }, limit);
    rig.call_within(Request::Vote(UnanimousCall::ArePeersPending), limit);
    rig.pass_with_master(Duration::from_secs(1));
    rig.broken();
    // The dial hangs; meanwhile both limits would have passed.
    let outputs = rig.pass(Duration::from_millis(1900));
    assert!(hello(&outputs).is_some());
    assert_eq!(sent(&outputs), Vec::<&Up>::new());
    assert_eq!(sent(&rig.reply(attached(2))), Vec::<&Up>::new());
    let outputs = rig.pass_with_master(Duration::from_millis(999));
    assert!(
        sent(&outputs)
            .iter()
            .all(|up| matches!(up, Up::Heartbeat { .. }))
    );
    let outputs = rig.pass(Duration::from_millis(1));
    assert!(
        sent(&outputs)
            .iter()
            .any(|up| matches!(up, Up::AbortRequest(_)))
    );
    assert!(
        sent(&outputs)
            .iter()
            .any(|up| matches!(up, Up::Withdraw { .. }))
    );
}

#[test]
fn a_peer_that_stood_still_does_not_blame_the_master() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.now = rig.now + PEER_TIMEOUT * 20;
    let outputs = rig.give(PeerInput::Tick);
    assert!(
        matches!(outputs[..], [PeerOutput::Send(Up::Heartbeat { .. })]),
        "{outputs:?}"
    );
    let gap_ms = (PEER_TIMEOUT * 20 - HEARTBEAT).as_millis() as u64;
    assert_eq!(rig.events.last(), Some(&Event::Stalled { gap_ms }));

    // Nor does the time that it stood still count towards the master limit.
    rig.broken();
    rig.now = rig.now + MASTER_LIMIT * 2;
    rig.give(PeerInput::Tick);
    assert!(rig.peer.is_member());
}

#[test]
fn a_tick_that_is_a_little_late_is_no_stall() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.now = rig.peer.next_deadline().unwrap() + HEARTBEAT;
    rig.give(PeerInput::Tick);
    assert!(
        !rig.events
            .iter()
            .any(|event| matches!(event, Event::Stalled { .. }))
    );
}

#[test]
fn answers_to_coming_back_that_end_the_membership() {
    let run = |reply: ControlReply| {
        let mut rig = Rig::member(7, &[5, 7]);
        let (call, _) = rig.vote(UnanimousCall::UpdateTopology);
        report(&mut rig);
        let outputs = rig.reply(reply);
        assert!(!rig.peer.is_member());
        match outputs.last() {
            Some(PeerOutput::Complete {
                call: last,
                result: Err(error),
            }) if *last == call => error.clone(),
            other => panic!("{other:?}"),
        }
    };
    let address = || ADDRESS.into();
    let evicted = run(ControlReply::Evicted {
        run: RUN,
        incarnation: Incarnation(2),
        reason: EvictReason::UnknownMember,
    });
    assert_eq!(evicted, Error::Evicted(EvictReason::UnknownMember));
    let stopping = run(ControlReply::Refused(RefuseReason::Stopping));
    assert_eq!(stopping, Error::MasterStopped { address: address() });
    let reason = RefuseReason::Version { supported: (2, 3) };
    let refused = run(ControlReply::Refused(reason.clone()));
    let address = address();
    assert_eq!(refused, Error::Refused { address, reason });
}

#[test]
fn an_outdated_master_evicts_nobody() {
    let mut rig = Rig::member(7, &[5, 7]);
    report(&mut rig);
    rig.reply(ControlReply::Evicted {
        run: RUN,
        incarnation: Incarnation(1),
        reason: EvictReason::UnknownMember,
    });
    assert!(rig.peer.is_member());
}

#[test]
fn nothing_is_read_from_a_connection_that_was_replaced() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.broken();
    assert_eq!(rig.message(Down::Evicted(EvictReason::Operator)), []);
    assert_eq!(rig.message(Down::Group(view(2, &[7]))), []);
    assert!(rig.peer.is_member());
}

#[test]
fn parameters_of_zero_do_not_make_the_machine_spin() {
    let mut rig = Rig::new();
    rig.call(Request::Connect);
    rig.reply(ControlReply::Registered {
        run: RUN,
        incarnation: Incarnation(2),
        id: MemberId(7),
        token: token(7),
        parameters: RunParameters {
            heartbeat_ms: 0,
            peer_timeout_ms: 0,
            master_limit_ms: 0,
            digests: Default::default(),
        },
    });
    let outputs = rig.pass(Duration::from_millis(20));
    assert!(matches!(
        outputs.last(),
        Some(PeerOutput::Complete { result: Err(_), .. })
    ));
}
