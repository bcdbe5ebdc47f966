//! Coming back. (Rules 2, 3, 13, 15)

use super::harness::*;
use crate::ids::{ConnId, Digest, Epoch, Incarnation, MemberId, RunId, Serial, Token};
use crate::membership::master::MasterInput;
use crate::wire::control::{
    ControlHello, ControlReply, Down, OpReport, Outcome, Report, Up, VoteReport,
};
use crate::wire::reason::{AbortReason, EvictReason, RequestCause};

fn op(world: &World, tag: u64, quoted: u64, done: bool) -> OpReport {
    let serial = Serial {
        incarnation: Incarnation(1),
        counter: quoted,
    };
    let quoted = if quoted == 0 {
        Serial::default()
    } else {
        serial
    };
    OpReport {
        open: world.open_message(tag, 0, quoted),
        done: done.then_some(Digest(5)),
        abort: None,
    }
}

#[test]
fn an_undecided_operation_is_read_from_the_report() {
    let (mut world, ids) = World::of(2);
    world.open(ids[0], 1, 0);
    world.done(ids[0], 1, 0);
    // Its OPEN and DONE were lost with the connection.
    world.cut(ids[1]);
    let report = Report {
        ops: vec![op(&world, 1, 0, true)],
        ..world.report()
    };
    world.attach(ids[1], Some(report));
    for id in &ids {
        assert_eq!(world.outcome(*id), Outcome::Commit);
    }
}

#[test]
fn a_missed_verdict_is_given_again_and_others_count_as_received() {
    let (mut world, ids) = World::of(2);
    for tag in [1, 2, 3] {
        for id in &ids {
            world.open(*id, tag, 0);
        }
        for id in &ids {
            world.done(*id, tag, 0);
        }
    }
    world.cut(ids[1]);
    world.clear();
    let kept = |world: &World| world.master.status().groups[0].kept_verdicts;
    let quoted = Serial {
        incarnation: Incarnation(1),
        counter: 3,
    };
    world.up(
        ids[0],
        Up::Heartbeat {
            quoted,
            heard: vec![],
        },
    );
    assert_eq!(kept(&world), 3);
    // Opened in another order than decided: they come in the order of the verdicts.
    let report = Report {
        ops: vec![op(&world, 3, 0, true), op(&world, 2, 0, true)],
        quoted: Serial {
            incarnation: Incarnation(1),
            counter: 1,
        },
        ..world.report()
    };
    world.attach(ids[1], Some(report));
    let serials: Vec<u64> = world
        .take(ids[1])
        .into_iter()
        .map(|m| match m {
            Down::Verdict(v) => v.serial.counter,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(serials, [2, 3]);
    assert_eq!(kept(&world), 2);
}

#[test]
fn a_request_to_abort_is_read_from_the_report() {
    let (mut world, ids) = World::of(2);
    world.open(ids[0], 1, 0);
    world.cut(ids[1]);
    let report = Report {
        ops: vec![OpReport {
            abort: Some(RequestCause::Cancelled),
            ..op(&world, 1, 0, false)
        }],
        ..world.report()
    };
    world.attach(ids[1], Some(report));
    assert!(matches!(
        world.outcome(ids[0]),
        Outcome::Abort(AbortReason::Requested { by, .. }) if by == ids[1]
    ));
}

#[test]
fn the_present_view_comes_before_verdicts_that_show_it() {
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    let report = Report {
        ops: vec![op(&world, 1, 0, false)],
        ..world.report()
    };
    world.cut(ids[1]);
    world.up(ids[2], Up::Leave);
    world.clear();
    world.attach(ids[1], Some(report));
    let got = world.take(ids[1]);
    assert!(matches!(
        &got[..],
        [Down::Group(view), Down::Verdict(_)] if view.epoch == Epoch(3)
    ));
}

#[test]
fn a_missed_round_is_told_before_the_present_view() {
    let (mut world, ids) = World::of(3);
    let mut report = world.report();
    report.vote = Some(VoteReport {
        vote: world.ballot(UPDATE, 0),
        withdrawn: None,
    });
    world.vote(ids[1], UPDATE);
    world.cut(ids[1]);
    world.vote(ids[0], UPDATE);
    world.vote(ids[2], UPDATE);
    world.up(ids[2], Up::Leave);
    world.clear();
    world.attach(ids[1], Some(report));
    let got = world.take(ids[1]);
    let [Down::Completed { stamp, group, .. }, Down::Group(view)] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!((stamp.epoch, group.ring.len()), (Epoch(2), 3));
    assert_eq!((view.epoch, view.ring.len()), (Epoch(3), 2));
}

#[test]
fn a_vote_that_was_lost_counts_from_the_report_and_can_be_taken_back_there() {
    let (mut world, ids) = World::of(2);
    world.vote(ids[0], UPDATE);
    world.cut(ids[1]);
    let vote = world.ballot(UPDATE, 0);
    let report = Report {
        vote: Some(VoteReport {
            vote,
            withdrawn: None,
        }),
        ..world.report()
    };
    world.attach(ids[1], Some(report));
    assert_eq!(world.completed(ids[0]).0, vote);
    // The next one is withdrawn while the connection is away.
    let vote = world.ballot(UPDATE, 0);
    world.cut(ids[1]);
    world.clear();
    let report = Report {
        vote: Some(VoteReport {
            vote,
            withdrawn: Some(RequestCause::TimedOut),
        }),
        ..world.report()
    };
    world.attach(ids[1], Some(report));
    assert!(matches!(&world.take(ids[1])[..], [Down::Failed { .. }]));
}

#[test]
fn a_newcomer_that_missed_its_admission_is_told_again_and_what_changed_since() {
    let (mut world, ids) = World::of(2);
    let c = world.join(0);
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    world.cut(c);
    world.clear();
    assert!(matches!(
        world.attach(c, None)[..],
        [ControlReply::Attached { .. }]
    ));
    let got = world.take(c);
    assert!(
        matches!(&got[..], [Down::Completed { vote, .. }] if vote.round.0 == 2),
        "{got:?}"
    );
    world.cut(c);
    world.up(ids[1], Up::Leave);
    world.clear();
    world.attach(c, None);
    let got = world.take(c);
    let [Down::Completed { group, .. }, Down::Group(view)] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!((group.ring.len(), view.ring.len()), (3, 2));
}

#[test]
fn a_new_connection_replaces_the_old_one_whose_input_is_dropped() {
    let (mut world, ids) = World::of(2);
    let old = world.seats[&ids[1]].conn.unwrap();
    let report = world.report();
    world.attach(ids[1], Some(report));
    let message = Up::Vote(world.ballot(UPDATE, 0));
    world.input(MasterInput::Message { conn: old, message });
    assert!(world.master.votes.cast.is_empty());
    let cause = "late".to_owned();
    world.input(MasterInput::Closed { conn: old, cause });
    world.vote(ids[1], UPDATE);
    assert_eq!(world.master.votes.cast.len(), 1);
}

#[test]
fn strangers_are_turned_away() {
    let (mut world, ids) = World::of(2);
    let attach = |run, id, token| ControlHello::Attach {
        run,
        id,
        token,
        report: None,
    };
    let unknown = [evicted(1, EvictReason::UnknownMember)];
    let token = world.seats[&ids[1]].token;
    for hello in [
        attach(RunId(8), ids[1], token),
        attach(RUN, MemberId(77), token),
        attach(RUN, ids[1], Token(1)),
    ] {
        world.seats.get_mut(&ids[1]).unwrap().conn = None;
        assert_eq!(world.hello(hello).1, unknown);
    }
    assert_eq!(world.ring(0), ids);
}

#[test]
fn a_higher_incarnation_ends_a_master_that_has_decided() {
    let (mut world, ids) = World::of(2);
    let report = Report {
        incarnation: Incarnation(9),
        ..world.report()
    };
    world.attach(ids[0], Some(report));
    assert!(world.exit.is_some());
    let mut world = World::new();
    let hello = ControlHello::Attach {
        run: RunId(8),
        id: MemberId(3),
        token: Token(0),
        report: Some(Box::new(Report {
            incarnation: Incarnation(9),
            known: Epoch(1),
            shown: Epoch(1),
            round: crate::ids::Round(1),
            queries: crate::ids::Round(0),
            quoted: Serial::default(),
            ops: vec![],
            vote: None,
            closed: vec![],
        })),
    };
    let (_, replies) = world.hello(hello.clone());
    assert_eq!(replies, [evicted(10, EvictReason::UnknownMember)]);
    assert!(world.exit.is_none());
    world.register(0);
    assert_eq!(world.master.status().incarnation, Incarnation(10));
    // Of another run, it is not believed later.
    let ControlHello::Attach {
        run,
        id,
        token,
        report: Some(mut report),
    } = hello
    else {
        panic!();
    };
    report.incarnation = Incarnation(99);
    world.hello(ControlHello::Attach {
        run,
        id,
        token,
        report: Some(report),
    });
    assert!(world.exit.is_none());
}

#[test]
fn another_address_is_another_epoch() {
    let (mut world, ids) = World::of(2);
    world.open(ids[0], 1, 0);
    world.cut(ids[1]);
    world.clear();
    let token = world.seats[&ids[1]].token;
    let report = Some(Box::new(world.report()));
    let (run, id) = (RUN, ids[1]);
    world.hello_from(
        at(2),
        ControlHello::Attach {
            run,
            id,
            token,
            report,
        },
    );
    let got = world.take(ids[0]);
    let [Down::Group(view), Down::Verdict(verdict)] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!(view.ring[1].addresses, ["10.0.0.2:4000".parse().unwrap()]);
    assert!(matches!(
        verdict.outcome,
        Outcome::Abort(AbortReason::StaleEpoch { .. })
    ));
}

#[test]
fn the_status_is_json() {
    let (mut world, _) = World::of(2);
    let (conn, replies) = world.hello(ControlHello::Status);
    assert!(conn > ConnId(0));
    let [ControlReply::Status(text)] = &replies[..] else {
        panic!("{replies:?}");
    };
    let json: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!(json["members"], 2);
    assert_eq!(json["groups"][0]["ring"][1]["id"], 2);
}
