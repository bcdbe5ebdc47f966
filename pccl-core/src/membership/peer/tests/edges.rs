//! Lanes: who dials, how many, again, no more; whom to let in.

use super::*;
use crate::wire::lane::PeerRefusal;

fn closes(outputs: &[PeerOutput]) -> Vec<LaneId> {
    let lane = |output: &PeerOutput| match output {
        PeerOutput::CloseLane { lane } => Some(*lane),
        _ => None,
    };
    outputs.iter().filter_map(lane).collect()
}

fn admitted(outputs: &[PeerOutput]) -> Option<Vec<u64>> {
    outputs.iter().find_map(|output| match output {
        PeerOutput::Admit { peers, .. } => Some(peers.iter().map(|(id, _)| id.0).collect()),
        _ => None,
    })
}

#[test]
fn neighbours_with_smaller_numbers_are_dialled_and_others_awaited() {
    let (mut rig, _) = Rig::newcomer(7);
    let ring = [1, 7, 9, 5];
    let update = UnanimousCall::UpdateTopology;
    let outputs = rig.message(completed(update, FIRST, 0, stamp(1, 1, &ring), 1, &ring));
    assert_eq!(dialled(&outputs), [1]);
    assert_eq!(admitted(&outputs), Some(vec![1, 5, 9]));
    let (_, outputs) = rig.lane_open(9, false, 1);
    assert_eq!(
        outputs,
        [PeerOutput::Send(Up::LanesOpen { peer: MemberId(9) })]
    );
}

#[test]
fn the_first_lane_tells_how_many_there_are_to_be() {
    let mut rig = Rig::member(7, &[5, 7]);
    let (_, outputs) = rig.lane_open(5, true, 4);
    assert_eq!(
        outputs[0],
        PeerOutput::Send(Up::LanesOpen { peer: MemberId(5) })
    );
    assert_eq!(dialled(&outputs), [5, 5, 5]);
    for _ in 0..3 {
        assert_eq!(rig.lane_open(5, true, 4).1, []);
    }

    // No wish goes beyond 64.
    let mut rig = Rig::member(7, &[5, 7]);
    assert_eq!(dialled(&rig.lane_open(5, true, 1000).1).len(), 63);
    for _ in 0..63 {
        assert_eq!(rig.lane_open(5, true, 1000).1, []);
    }
    let (lane, outputs) = rig.lane_open(5, false, 1000);
    assert_eq!(closes(&outputs), [lane]);
}

#[test]
fn dead_lanes_are_dialled_again_and_the_last_one_is_reported() {
    let mut rig = Rig::member(7, &[5, 7]);
    let first = rig.lane_open(5, true, 2).0;
    let second = rig.lane_open(5, true, 2).0;
    rig.pass_with_master(Duration::from_secs(5));
    // It had lasted: the first retry is at once.
    assert_eq!(rig.lane_closed(first, false).len(), 1);
    let (third, _) = rig.lane_open(5, true, 2);
    rig.pass_with_master(Duration::from_secs(5));
    assert_eq!(dialled(&rig.lane_closed(second, false)), [5]);
    let outputs = rig.lane_closed(third, false);
    let peer = MemberId(5);
    let cause = "reset".into();
    assert_eq!(sent(&outputs), [&Up::LanesClosed { peer, cause }]);
    let (_, outputs) = rig.lane_open(5, true, 2);
    assert_eq!(sent(&outputs), [&Up::LanesOpen { peer }]);
    assert_eq!(rig.lane_closed(first, false), []);
}

#[test]
fn a_lane_that_dies_at_once_is_not_made_again_in_a_tight_loop() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.peer.settings.pool = 1;
    let mut waits = Vec::new();
    for _ in 0..20 {
        let (lane, outputs) = rig.lane_open(5, true, 1);
        assert_eq!(dialled(&outputs), Vec::<u64>::new());
        let mut outputs = rig.lane_closed(lane, false);
        let start = rig.now;
        for _ in 0..100 {
            if dialled(&outputs).is_empty() {
                rig.message(Down::Heartbeat);
                let due = rig.peer.next_deadline().unwrap();
                outputs = rig.pass(due.since(rig.now));
            }
        }
        assert_eq!(dialled(&outputs), [5]);
        waits.push(rig.now.since(start));
    }
    assert!(
        waits[1..].iter().all(|wait| *wait > Duration::ZERO),
        "{waits:?}"
    );
    assert!(
        waits.iter().all(|wait| *wait <= Duration::from_secs(1)),
        "{waits:?}"
    );
}

#[test]
fn an_edge_gets_as_many_lanes_as_its_path_can_use_unless_somebody_asks() {
    for (round_trip, own, wanted, lanes) in [
        (0, 0, 0, 1),
        (100, 0, 0, 4),
        (100, 2, 0, 2),
        (100, 0, 3, 3),
        (100, 3, 5, 5),
    ] {
        let mut rig = Rig::member(7, &[5, 7]);
        rig.peer.settings.pool = own;
        rig.round_trip = Duration::from_millis(round_trip);
        let (_, outputs) = rig.lane_open(5, true, wanted);
        assert_eq!(
            1 + dialled(&outputs).len(),
            lanes,
            "{round_trip} {own} {wanted}"
        );
    }
}

#[test]
fn an_orderly_close_is_not_reported() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.peer.settings.pool = 1;
    let lane = rig.lane_open(5, true, 1).0;
    let outputs = rig.lane_closed(lane, true);
    assert_eq!(outputs, []);
    assert_eq!(
        dialled(&rig.pass_with_master(Duration::from_secs(1))).len(),
        1
    );
}

#[test]
fn two_failed_dials_are_reported_and_dialling_goes_on() {
    let mut rig = Rig::member(7, &[5, 7]);
    let outputs = rig.dial_failed(5);
    assert_eq!(
        outputs,
        [PeerOutput::DialPeer {
            peer: info(5),
            run: RUN,
            own: MemberId(7),
            token: token(7),
        }]
    );
    let cannot = Up::CannotDial {
        peer: MemberId(5),
        cause: "refused".into(),
    };
    assert_eq!(sent(&rig.dial_failed(5)), [&cannot]);
    for _ in 0..10 {
        let outputs = rig.pass_with_master(Duration::from_secs(1));
        assert_eq!(dialled(&outputs), [5]);
        assert_eq!(sent(&rig.dial_failed(5)), Vec::<&Up>::new());
    }
    // The other end manages: that takes it back.
    let (_, outputs) = rig.lane_open(5, false, 2);
    assert_eq!(sent(&outputs), [&Up::LanesOpen { peer: MemberId(5) }]);
    // More lanes are tried a few times, then it stays with what there is.
    let mut outputs = outputs;
    let mut dials = 0;
    for _ in 0..20 {
        for _ in dialled(&outputs) {
            dials += 1;
            rig.dial_failed(5);
        }
        outputs = rig.pass_with_master(Duration::from_secs(1));
    }
    assert_eq!(dials, 3);
}

#[test]
fn a_peer_with_an_older_view_is_given_the_dial_deadline() {
    let mut rig = Rig::member(7, &[5, 7]);
    let mut told = Vec::new();
    let start = rig.now;
    while told.is_empty() {
        let outputs = rig.give(PeerInput::DialFailed {
            peer: MemberId(5),
            cause: "unknown".into(),
            refusal: Some(PeerRefusal::Unknown),
        });
        told.extend(sent(&outputs).into_iter().cloned());
        rig.pass_with_master(Duration::from_secs(1));
    }
    assert!(rig.now.since(start) >= PEER_TIMEOUT * 2);
    assert!(matches!(told[..], [Up::CannotDial { .. }]));
}

#[test]
fn the_other_end_dials_when_the_master_asks_it_to() {
    let mut rig = Rig::member(7, &[7, 9]);
    rig.peer.settings.pool = 1;
    assert_eq!(
        rig.pass_with_master(PEER_TIMEOUT * 5)
            .iter()
            .filter(|output| matches!(output, PeerOutput::DialPeer { .. }))
            .count(),
        0
    );
    let outputs = rig.message(Down::Dial {
        peers: vec![info(9)],
    });
    assert_eq!(dialled(&outputs), [9]);
    let (lane, outputs) = rig.lane_open(9, true, 1);
    assert_eq!(dialled(&outputs), Vec::<u64>::new());
    rig.pass_with_master(PEER_TIMEOUT * 5);
    // It stays this end's part.
    assert_eq!(dialled(&rig.lane_closed(lane, false)), [9]);
}

#[test]
fn an_edge_that_was_asked_for_long_ago_has_its_time_anew_when_it_closes() {
    let mut rig = Rig::member(7, &[5, 7]);
    rig.message(Down::Dial {
        peers: vec![info(9)],
    });
    let lane = rig.lane_open(9, true, 1).0;
    rig.pass_with_master(PEER_TIMEOUT * 5);
    let mut outputs = rig.lane_closed(lane, true);
    outputs.extend(rig.pass(Duration::from_millis(1)));
    assert_eq!(sent(&outputs), Vec::<&Up>::new());
    let stalled = |output: &PeerOutput| matches!(output, PeerOutput::Event(Event::Stalled { .. }));
    assert!(!outputs.iter().any(stalled), "{outputs:?}");
}

#[test]
fn a_newcomer_probes_with_one_lane_and_keeps_what_the_plan_needs() {
    let (mut rig, _) = Rig::newcomer(7);
    let outputs = rig.message(Down::Dial {
        peers: vec![info(1), info(2), info(3), info(7)],
    });
    assert_eq!(dialled(&outputs), [1, 2, 3]);
    assert_eq!(admitted(&outputs), Some(vec![1, 2, 3]));
    let one = rig.lane_open(1, true, 2).0;
    let two = rig.lane_open(2, true, 2).0;
    let three = rig.lane_open(3, true, 2).0;
    let ring = [1, 7, 2, 3];
    let update = UnanimousCall::UpdateTopology;
    let outputs = rig.message(completed(update, FIRST, 0, stamp(1, 1, &ring), 1, &ring));
    assert_eq!(closes(&outputs), [three]);
    assert_eq!(dialled(&outputs), [1, 2]);
    // What closes because it was closed here is nothing.
    assert_eq!(rig.lane_closed(three, true), []);
    let outputs = rig.message(Down::Group(view(2, &[7, 2, 3])));
    assert_eq!(closes(&outputs), [one]);
    assert_eq!(dialled(&outputs), [3]);
    let outputs = rig.message(Down::Group(view(3, &[7])));
    assert_eq!(closes(&outputs), [two]);
    assert_eq!(admitted(&outputs), Some(vec![]));
    // A dial that succeeds too late is closed.
    let (lane, outputs) = rig.lane_open(3, true, 2);
    assert_eq!(closes(&outputs), [lane]);
}

#[test]
fn a_probe_without_an_answer_ends_at_the_dial_deadline() {
    let (mut rig, _) = Rig::newcomer(7);
    rig.message(Down::Dial {
        peers: vec![info(1)],
    });
    let outputs = rig.pass_with_master(PEER_TIMEOUT * 2);
    let cannot = |up: &&Up| matches!(up, Up::CannotDial { .. });
    assert_eq!(sent(&outputs).into_iter().filter(cannot).count(), 1);
    let outputs = rig.pass_with_master(PEER_TIMEOUT * 2);
    assert_eq!(dialled(&outputs), Vec::<u64>::new());
    assert_eq!(sent(&outputs).into_iter().filter(cannot).count(), 0);
}

#[test]
fn expected_newcomers_may_dial_until_they_are_expected_no_more() {
    let mut rig = Rig::member(7, &[5, 7]);
    let outputs = rig.message(Down::Expect {
        peers: vec![info(8), info(9)],
    });
    assert_eq!(admitted(&outputs), Some(vec![5, 8, 9]));
    assert_eq!(dialled(&outputs), Vec::<u64>::new());
    let (lane, outputs) = rig.lane_open(8, false, 2);
    assert_eq!(
        outputs,
        [PeerOutput::Send(Up::LanesOpen { peer: MemberId(8) })]
    );
    let outputs = rig.message(Down::Expect {
        peers: vec![info(9)],
    });
    assert_eq!(closes(&outputs), [lane]);
    assert_eq!(admitted(&outputs), Some(vec![5, 9]));
    // Nobody else gets in.
    let (lane, outputs) = rig.lane_open(8, false, 2);
    assert_eq!(closes(&outputs), [lane]);
}

#[test]
fn lanes_that_the_other_end_dialled_are_its_own_to_close() {
    let mut rig = Rig::member(7, &[7, 8, 5, 9]);
    let lane = rig.lane_open(9, false, 2).0;
    let outputs = rig.message(Down::Group(view(2, &[7, 8, 9, 5])));
    assert_eq!(closes(&outputs), []);
    let outputs = rig.message(Down::Group(view(3, &[7, 8, 5])));
    assert_eq!(closes(&outputs), [lane]);
}

#[test]
fn a_view_that_is_not_newer_changes_nothing() {
    let mut rig = Rig::member(7, &[5, 7, 8]);
    assert_eq!(rig.message(Down::Group(view(1, &[5, 7]))), []);
    assert_eq!(rig.peer.group(), &view(1, &[5, 7, 8]));
}
