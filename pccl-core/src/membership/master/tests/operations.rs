//! OPEN, DONE, verdicts and how long they are kept. (Rules 1, 2, 4, 5)

use super::harness::*;
use crate::ids::{Epoch, MemberId, Serial};
use crate::membership::master::MasterInput;
use crate::types::OpKind;
use crate::wire::control::{Done, Down, Open, Outcome, Up};
use crate::wire::reason::{AbortReason, EvictReason, Missing, RequestCause};

fn quoting(counter: u64) -> Serial {
    Serial {
        incarnation: crate::ids::Incarnation(1),
        counter,
    }
}

#[test]
fn all_done_is_a_commit_with_one_stamp_for_all() {
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    for id in &ids[..2] {
        world.done(*id, 1, 0);
        assert!(world.take(*id).is_empty());
    }
    world.done(ids[2], 1, 0);
    let first = world.verdict(ids[0]);
    assert_eq!(first.outcome, Outcome::Commit);
    assert_eq!(first.serial, quoting(1));
    assert_eq!(first.stamp.attributes.group_world_size, 3);
    for id in &ids[1..] {
        assert_eq!(world.verdict(*id), first);
    }
}

#[test]
fn descriptors_that_differ_abort_and_name_both() {
    let (mut world, ids) = World::of(3);
    world.open(ids[0], 1, 0);
    let open = Open {
        what: body(9),
        ..world.open_message(1, 0, Serial::default())
    };
    world.up(ids[1], Up::Open(open));
    let Outcome::Abort(AbortReason::Mismatch { versions }) = world.outcome(ids[0]) else {
        panic!();
    };
    assert!(versions[0].0.contains("Sum of 8 x F32"));
    assert_eq!(versions[0].1, [ids[0]]);
    assert!(versions[1].0.contains("Sum of 9 x F32"));
    assert_eq!(versions[1].1, [ids[1]]);
    // Who comes later gets the same.
    world.open(ids[2], 1, 0);
    assert!(matches!(
        world.outcome(ids[2]),
        Outcome::Abort(AbortReason::Mismatch { .. })
    ));
}

#[test]
fn results_that_differ_abort_and_name_the_odd_ones() {
    let (mut world, ids) = World::of(3);
    for (id, result) in ids.iter().zip([1, 2, 1]) {
        world.open(*id, 1, 0);
        world.done_with(*id, 1, 0, result);
    }
    let odd = vec![ids[1]];
    let outcome = Outcome::Abort(AbortReason::Diverged { odd });
    // The third opened only after the others were done.
    assert_eq!(world.outcome(ids[0]), outcome);
    for id in &ids {
        world.clear();
        world.open(*id, 2, 0);
    }
    for (id, result) in ids.iter().zip([1, 2, 3]) {
        world.done_with(*id, 2, 0, result);
    }
    let odd = ids.clone();
    assert_eq!(
        world.outcome(ids[0]),
        Outcome::Abort(AbortReason::Diverged { odd })
    );
}

#[test]
fn who_had_not_called_or_not_finished_is_named_when_time_is_up() {
    fn missing(world: &mut World, id: MemberId) -> Missing {
        match world.outcome(id) {
            Outcome::Abort(AbortReason::Requested { missing, .. }) => *missing,
            other => panic!("{other:?}"),
        }
    }
    let (mut world, ids) = World::of(2);
    world.open(ids[0], 1, 0);
    world.give_up(ids[0], 1, 0, RequestCause::TimedOut);
    assert_eq!(missing(&mut world, ids[0]), Missing::Calls(vec![ids[1]]));
    for id in &ids {
        world.open(*id, 2, 0);
    }
    world.done(ids[1], 2, 0);
    world.give_up(ids[1], 2, 0, RequestCause::Cancelled);
    for id in &ids {
        assert_eq!(missing(&mut world, *id), Missing::Results(vec![ids[0]]));
    }
    // Somebody who leaves is the whole reason.
    world.open(ids[0], 3, 0);
    world.give_up(ids[0], 3, 0, RequestCause::Destroyed);
    assert_eq!(missing(&mut world, ids[0]), Missing::Nobody);
}

#[test]
fn a_request_aborts_for_all_and_is_remembered_for_who_has_not_opened() {
    let (mut world, ids) = World::of(3);
    world.open(ids[0], 1, 0);
    world.open(ids[1], 1, 0);
    world.give_up(ids[0], 1, 0, RequestCause::TimedOut);
    let verdict = world.verdict(ids[0]);
    let reason = AbortReason::Requested {
        by: ids[0],
        cause: RequestCause::TimedOut,
        missing: Box::new(Missing::Calls(vec![ids[2]])),
    };
    assert_eq!(verdict.outcome, Outcome::Abort(reason));
    assert_eq!(world.verdict(ids[1]), verdict);
    assert!(world.take(ids[2]).is_empty());
    // The others go on with the next attempt; the third slips no step.
    world.open(ids[0], 1, 1);
    world.open(ids[1], 1, 1);
    world.open(ids[2], 1, 0);
    assert_eq!(world.verdict(ids[2]), verdict, "with its first stamp");
    world.open(ids[2], 1, 1);
    for id in &ids {
        world.done(*id, 1, 1);
    }
    assert_eq!(world.outcome(ids[2]), Outcome::Commit);
}

#[test]
fn a_request_after_the_commit_changes_nothing() {
    let (mut world, ids) = World::of(2);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    for id in &ids {
        world.done(*id, 1, 0);
    }
    world.clear();
    world.give_up(ids[0], 1, 0, RequestCause::TimedOut);
    assert!(world.take(ids[0]).is_empty());
}

#[test]
fn an_open_under_a_stale_epoch_aborts_for_all_those_of_the_new_epoch_included() {
    let (mut world, ids) = World::of(3);
    let stale = world.open_message(1, 0, Serial::default());
    world.up(ids[2], Up::Leave);
    world.clear();
    // One has been shown the new epoch already, by another verdict.
    world.open(ids[0], 1, 0);
    world.up(ids[1], Up::Open(stale));
    let reason = AbortReason::StaleEpoch {
        opened: Epoch(2),
        present: Epoch(3),
    };
    let verdict = world.verdict(ids[0]);
    assert_eq!(verdict.outcome, Outcome::Abort(reason));
    assert_eq!(verdict.stamp.attributes.group_world_size, 2);
    assert_eq!(world.verdict(ids[1]), verdict);
}

#[test]
fn a_stale_open_is_remembered_for_those_that_have_not_opened() {
    let (mut world, ids) = World::of(3);
    let stale = world.open_message(1, 0, Serial::default());
    world.up(ids[2], Up::Leave);
    world.clear();
    world.up(ids[0], Up::Open(stale));
    let verdict = world.verdict(ids[0]);
    world.open(ids[1], 1, 0);
    assert_eq!(world.verdict(ids[1]), verdict);
}

#[test]
fn two_committed_uses_of_a_name_are_told_apart_by_the_quoted_serial() {
    let (mut world, ids) = World::of(2);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    for id in &ids {
        world.done(*id, 1, 0);
    }
    world.clear();
    // The first goes on to the next use of the same name; the second missed the verdict, and
    // brings the first use again.
    let next = world.open_message(1, 0, quoting(1));
    world.up(ids[0], Up::Open(next.clone()));
    assert!(world.take(ids[0]).is_empty());
    let before = world.open_message(1, 0, Serial::default());
    world.up(ids[1], Up::Open(before));
    assert_eq!(world.verdict(ids[1]).serial, quoting(1));
    world.up(ids[1], Up::Open(next));
    for id in &ids {
        let (op, quoted) = (world.name(1, 0), quoting(1));
        let result = crate::ids::Digest(5);
        world.up(*id, Up::Done(Done { op, quoted, result }));
    }
    for id in &ids {
        let verdict = world.verdict(*id);
        assert_eq!(
            (verdict.serial, verdict.outcome),
            (quoting(2), Outcome::Commit)
        );
    }
}

#[test]
fn a_commit_is_forgotten_once_all_have_acknowledged_it() {
    let (mut world, ids) = World::of(2);
    for id in &ids {
        world.open(*id, 1, 0);
        world.done(*id, 1, 0);
    }
    // The second opened after the first was done; both are done now.
    let kept = |world: &World| world.master.status().groups[0].kept_verdicts;
    assert_eq!(kept(&world), 1);
    let heard = vec![];
    let quoted = quoting(1);
    world.up(ids[0], Up::Heartbeat { quoted, heard });
    assert_eq!(kept(&world), 1);
    let open = world.open_message(2, 0, quoting(1));
    world.up(ids[1], Up::Open(open));
    assert_eq!(kept(&world), 0);
}

#[test]
fn quoting_later_verdicts_does_not_acknowledge_an_abort_that_is_met_late() {
    let (mut world, ids) = World::of(3);
    let heartbeat = |world: &mut World, id, counter| {
        let quoted = quoting(counter);
        world.up(
            id,
            Up::Heartbeat {
                quoted,
                heard: vec![],
            },
        );
    };
    let kept = |world: &World| world.master.status().groups[0].kept_verdicts;
    world.open(ids[0], 1, 0);
    world.give_up(ids[0], 1, 0, RequestCause::Cancelled);
    for id in &ids {
        world.open(*id, 2, 0);
    }
    for id in &ids {
        world.done(*id, 2, 0);
    }
    for id in &ids {
        heartbeat(&mut world, *id, 2);
    }
    world.open(ids[1], 1, 0);
    world.open(ids[2], 1, 0);
    heartbeat(&mut world, ids[1], 2);
    heartbeat(&mut world, ids[2], 2);
    assert_eq!(kept(&world), 1, "what it quotes it had before");
    for id in &ids {
        world.open(*id, 3, 0);
    }
    for id in &ids {
        world.done(*id, 3, 0);
    }
    for id in &ids {
        heartbeat(&mut world, *id, 3);
    }
    assert_eq!(kept(&world), 0);
}

#[test]
fn a_completed_round_forgets_all_verdicts() {
    let (mut world, ids) = World::of(2);
    world.open(ids[0], 1, 0);
    world.give_up(ids[0], 1, 0, RequestCause::Cancelled);
    assert_eq!(world.master.status().groups[0].kept_verdicts, 1);
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    assert_eq!(world.master.status().groups[0].kept_verdicts, 0);
    assert!(
        world
            .master
            .nodes
            .values()
            .all(|node| node.unacked.is_empty())
    );
}

#[test]
fn what_no_correct_member_sends_puts_only_its_sender_out() {
    let breaches: [fn(&World) -> Open; 2] = [
        |world| {
            let mut open = world.open_message(1, 0, Serial::default());
            open.op.round.0 += 1;
            open
        },
        |world| {
            let mut open = world.open_message(1, 0, Serial::default());
            open.op.key.kind = OpKind::Sync;
            open
        },
    ];
    for breach in breaches {
        let (mut world, ids) = World::of(3);
        let open = breach(&world);
        world.up(ids[1], Up::Open(open));
        assert!(matches!(
            world.evicted(ids[1]),
            EvictReason::Protocol { .. }
        ));
        assert_eq!(world.ring(0), [ids[0], ids[2]]);
    }
}

#[test]
fn messages_about_unknown_uses_are_ignored() {
    let (mut world, ids) = World::of(2);
    world.done(ids[0], 1, 0);
    world.give_up(ids[0], 1, 0, RequestCause::TimedOut);
    world.open(ids[1], 1, 0);
    world.done(ids[0], 1, 0);
    world.give_up(ids[0], 1, 0, RequestCause::TimedOut);
    assert!(world.take(ids[0]).is_empty() && world.take(ids[1]).is_empty());
}

#[test]
fn groups_do_not_share_operations() {
    let (mut world, ids) = World::of_groups(&[2, 2]);
    for id in &ids[..2] {
        world.open(*id, 1, 0);
    }
    let mut open = world.open_message(1, 0, Serial::default());
    open.what = body(77);
    open.epoch = world.epoch(1);
    for id in &ids[2..] {
        world.up(*id, Up::Open(open.clone()));
    }
    for id in &ids {
        world.done(*id, 1, 0);
    }
    for id in &ids {
        assert_eq!(world.outcome(*id), Outcome::Commit);
    }
}

#[test]
fn a_lane_that_died_waits_for_a_word_from_the_other_end_which_is_asked() {
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
        world.up(*id, Up::Pong);
    }
    world.clear();
    let (peer, cause) = (ids[2], "reset".to_owned());
    world.give_up(ids[0], 1, 0, RequestCause::LaneDied { peer, cause });
    assert_eq!(world.seats[&peer].inbox, [Down::Ping]);
    assert!(world.take(ids[1]).is_empty());
    world.up(peer, Up::Pong);
    assert!(matches!(
        world.outcome(ids[1]),
        Outcome::Abort(AbortReason::Requested { by, .. }) if by == ids[0]
    ));
}

#[test]
fn a_lane_that_died_before_word_of_a_killed_member_does_not_hide_the_loss() {
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    let peer = ids[2];
    let cause = "reset".to_owned();
    world.give_up(ids[0], 1, 0, RequestCause::LaneDied { peer, cause });
    world.cut(peer);
    let cause = "reset".to_owned();
    world.up(ids[0], Up::LanesClosed { peer, cause });
    world.wait(std::time::Duration::from_millis(400));
    let got = world.take(ids[1]);
    let [Down::Group(_), Down::Verdict(verdict)] = &got[..] else {
        panic!("{got:?}");
    };
    assert!(matches!(
        &verdict.outcome,
        Outcome::Abort(AbortReason::MemberLost { member, .. }) if *member == peer
    ));
}

#[test]
fn a_lane_that_died_beside_a_closed_connection_waits_for_the_loss() {
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    let peer = ids[2];
    world.up(
        ids[0],
        Up::LanesClosed {
            peer,
            cause: "reset".into(),
        },
    );
    let cause = "reset".to_owned();
    world.give_up(ids[0], 1, 0, RequestCause::LaneDied { peer, cause });
    assert!(world.take(ids[1]).is_empty());
    world.cut(peer);
    world.wait(std::time::Duration::from_millis(400));
    let got = world.take(ids[1]);
    let [Down::Group(_), Down::Verdict(verdict)] = &got[..] else {
        panic!("{got:?}");
    };
    assert!(matches!(
        &verdict.outcome,
        Outcome::Abort(AbortReason::MemberLost { member, .. }) if *member == peer
    ));
}

#[test]
fn a_lane_that_died_aborts_once_the_other_end_has_answered() {
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    let peer = ids[2];
    world.up(
        ids[0],
        Up::LanesClosed {
            peer,
            cause: "reset".into(),
        },
    );
    let cause = "reset".to_owned();
    world.give_up(ids[0], 1, 0, RequestCause::LaneDied { peer, cause });
    assert!(world.take(ids[1]).is_empty());
    let beat = || Up::Heartbeat {
        quoted: Serial::default(),
        heard: vec![],
    };
    // It may have sent this before it was killed.
    world.up(peer, beat());
    assert!(world.take(ids[1]).is_empty());
    world.wait(std::time::Duration::from_millis(320));
    world.up(peer, beat());
    assert!(matches!(
        world.outcome(ids[1]),
        Outcome::Abort(AbortReason::Requested { by, .. }) if by == ids[0]
    ));
}

#[test]
fn a_dead_member_is_lost_before_its_lanes_whatever_is_read_first() {
    // The first of several lanes to go is the first that the master hears of; then comes what the
    // dead member sent last, then the end of its connection, then word of the other lanes.
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    let peer = ids[2];
    let died = || RequestCause::LaneDied {
        peer,
        cause: "reset".to_owned(),
    };
    world.give_up(ids[0], 1, 0, died());
    world.up(
        peer,
        Up::Heartbeat {
            quoted: Serial::default(),
            heard: vec![],
        },
    );
    world.done(peer, 1, 0);
    world.give_up(ids[1], 1, 0, died());
    world.cut(peer);
    for id in &ids[..2] {
        let cause = "reset".into();
        world.up(*id, Up::LanesClosed { peer, cause });
        assert!(world.take(*id).is_empty());
    }
    world.wait(std::time::Duration::from_millis(320));
    for id in &ids[..2] {
        let got = world.take(*id);
        let [Down::Group(_), Down::Verdict(verdict)] = &got[..] else {
            panic!("{got:?}");
        };
        assert!(matches!(
            &verdict.outcome,
            Outcome::Abort(AbortReason::MemberLost { member, .. }) if *member == peer
        ));
    }
}

#[test]
fn one_dead_lane_that_both_ends_speak_of_aborts_at_once() {
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    let died = |peer| RequestCause::LaneDied {
        peer,
        cause: "reset".to_owned(),
    };
    world.give_up(ids[0], 1, 0, died(ids[2]));
    assert!(world.take(ids[1]).is_empty());
    world.give_up(ids[2], 1, 0, died(ids[0]));
    assert!(matches!(
        world.outcome(ids[1]),
        Outcome::Abort(AbortReason::Requested { by, .. }) if by == ids[0]
    ));
}

#[test]
fn a_lane_that_both_ends_speak_of_aborts_at_once() {
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    let closed = |peer| Up::LanesClosed {
        peer,
        cause: "reset".into(),
    };
    world.up(ids[2], closed(ids[0]));
    world.up(ids[0], closed(ids[2]));
    let (peer, cause) = (ids[2], "reset".to_owned());
    world.give_up(ids[0], 1, 0, RequestCause::LaneDied { peer, cause });
    assert!(matches!(world.outcome(ids[1]), Outcome::Abort(_)));
}

#[test]
fn a_stop_fails_everything_at_once() {
    let (mut world, ids) = World::of(2);
    world.open(ids[0], 1, 0);
    world.input(MasterInput::Stop);
    for id in &ids {
        assert_eq!(world.take(*id), [Down::Stopping]);
        assert!(world.seats[id].closed);
    }
    assert_eq!(world.exit.as_deref(), Some("stopped"));
    assert!(world.master.next_deadline().is_none());
}
