//! Losses: when, and what becomes of what was open. (Rules 5, 13, 16)

use std::time::Duration;

use super::harness::*;
use crate::config::Timing;
use crate::ids::{Epoch, MemberId, Serial};
use crate::membership::master::MasterInput;
use crate::wire::control::{Down, Outcome, Up};
use crate::wire::reason::{AbortReason, EvictReason, LossCause};

fn is_member(world: &World, id: MemberId) -> bool {
    world.master.nodes.contains_key(&id)
}

fn closed(world: &mut World, by: MemberId, peer: MemberId) {
    world.up(
        by,
        Up::LanesClosed {
            peer,
            cause: "reset".into(),
        },
    );
}

#[test]
fn a_loss_aborts_what_not_all_survivors_are_done_with() {
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    world.open(ids[0], 2, 0);
    world.done(ids[0], 1, 0);
    world.up(ids[2], Up::Leave);
    assert_eq!(world.take(ids[2]), [Down::Goodbye]);
    let got = world.take(ids[0]);
    let [
        Down::Group(view),
        Down::Verdict(first),
        Down::Verdict(second),
    ] = &got[..]
    else {
        panic!("{got:?}");
    };
    assert_eq!(view.epoch, Epoch(3));
    assert_eq!(view.ring.iter().map(|m| m.id).collect::<Vec<_>>(), ids[..2]);
    for verdict in [first, second] {
        let Outcome::Abort(AbortReason::MemberLost { member, cause, .. }) = &verdict.outcome else {
            panic!();
        };
        assert_eq!((*member, *cause), (ids[2], LossCause::Left));
        assert_eq!(verdict.stamp, first.stamp);
        assert_eq!(verdict.stamp.epoch, Epoch(3));
        assert_eq!(verdict.stamp.attributes.global_world_size, 2);
    }
    // Rule 16: the first use of a tag under the old epoch fails for everybody.
    world.clear();
    let mut open = world.open_message(2, 0, Serial::default());
    open.epoch = Epoch(2);
    world.up(ids[1], Up::Open(open));
    assert_eq!(world.verdict(ids[1]), *second);
}

#[test]
fn a_loss_commits_what_all_survivors_are_done_with() {
    let (mut world, ids) = World::of(3);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    for id in &ids[..2] {
        world.done(*id, 1, 0);
    }
    world.clear();
    world.up(ids[2], Up::Leave);
    let got = world.take(ids[0]);
    let [Down::Group(_), Down::Verdict(verdict)] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!(verdict.outcome, Outcome::Commit);
    assert_eq!(verdict.stamp.attributes.group_world_size, 2);
}

#[test]
fn a_loss_in_one_group_leaves_the_operations_of_others() {
    let (mut world, ids) = World::of_groups(&[2, 2]);
    let mut open = world.open_message(1, 0, Serial::default());
    open.epoch = world.epoch(1);
    world.up(ids[2], Up::Open(open));
    world.up(ids[1], Up::Leave);
    assert!(world.take(ids[2]).is_empty());
    assert_eq!(world.epoch(1), Epoch(1));
    // But everybody's next stamp counts right.
    world.done(ids[2], 1, 0);
    world.up(ids[3], Up::Leave);
    let verdicts = world.take(ids[2]).into_iter().filter_map(|m| match m {
        Down::Verdict(verdict) => Some(verdict),
        _ => None,
    });
    let stamps: Vec<u32> = verdicts
        .map(|v| v.stamp.attributes.global_world_size)
        .collect();
    assert_eq!(stamps, [2]);
}

#[test]
fn a_closed_connection_alone_has_the_peer_time_out() {
    let (mut world, ids) = World::of(3);
    let patience = Timing::default().peer_timeout;
    world.cut(ids[2]);
    world.wait_alive(patience - Duration::from_millis(1), &ids[..2]);
    assert!(is_member(&world, ids[2]));
    world.wait_alive(Duration::from_millis(1), &ids[..2]);
    assert!(!is_member(&world, ids[2]));
    let cause = LossCause::Disconnected;
    let lost = |e: &crate::event::Event| matches!(e, crate::event::Event::Lost { member, cause: c, .. } if *member == ids[2] && *c == cause);
    assert!(world.events.iter().any(lost));
    // What it is told if it comes back.
    let replies = world.attach(ids[2], None);
    let reason = EvictReason::Lost(cause);
    assert_eq!(replies, [evicted(1, reason)]);
}

#[test]
fn a_member_that_another_one_saw_go_has_three_round_trips_and_20_ms() {
    let (mut world, ids) = World::of(3);
    world.cut(ids[2]);
    closed(&mut world, ids[0], ids[2]);
    // No round trip is known: a hundred milliseconds each.
    world.wait(Duration::from_millis(319));
    assert!(is_member(&world, ids[2]));
    world.wait(Duration::from_millis(1));
    assert!(!is_member(&world, ids[2]));
    let died = |e: &crate::event::Event| {
        matches!(
            e,
            crate::event::Event::Lost {
                cause: LossCause::Died,
                ..
            }
        )
    };
    assert!(world.events.iter().any(died));
}

#[test]
fn a_measured_round_trip_makes_that_shorter() {
    let (mut world, ids) = World::of(3);
    // Everybody was asked when it registered.
    world.wait(Duration::from_millis(2));
    world.up(ids[2], Up::Pong);
    world.cut(ids[2]);
    closed(&mut world, ids[0], ids[2]);
    // Three times 2 ms and four deviations of 1 ms, and 20 ms.
    world.wait(Duration::from_millis(37));
    assert!(is_member(&world, ids[2]));
    world.wait(Duration::from_millis(1));
    assert!(!is_member(&world, ids[2]));
}

#[test]
fn who_goes_when_the_master_stood_still_has_the_whole_time_to_come_back() {
    let (mut world, ids) = World::of(3);
    let limit = Timing::default().peer_timeout;
    world.now = world.now + limit;
    world.input(MasterInput::Tick);
    world.cut(ids[2]);
    closed(&mut world, ids[0], ids[2]);
    world.wait_alive(limit - Duration::from_millis(1), &ids[..2]);
    assert!(is_member(&world, ids[2]));
    world.wait(Duration::from_millis(1));
    assert!(!is_member(&world, ids[2]));
}

#[test]
fn an_answer_to_nothing_measures_nothing() {
    let (mut world, ids) = World::of(3);
    world.wait(Duration::from_millis(2));
    world.up(ids[2], Up::Pong);
    for _ in 0..20 {
        world.up(ids[2], Up::Pong);
    }
    world.cut(ids[2]);
    closed(&mut world, ids[0], ids[2]);
    world.wait(Duration::from_millis(25));
    assert!(is_member(&world, ids[2]));
}

#[test]
fn word_of_the_lanes_may_come_first() {
    let (mut world, ids) = World::of(3);
    closed(&mut world, ids[0], ids[2]);
    world.wait(Duration::from_millis(10));
    world.cut(ids[2]);
    world.wait(Duration::from_millis(320));
    assert!(!is_member(&world, ids[2]));
}

#[test]
fn an_old_report_does_not_count() {
    let (mut world, ids) = World::of(3);
    closed(&mut world, ids[0], ids[2]);
    world.wait_alive(Duration::from_secs(2), &ids);
    world.cut(ids[2]);
    world.wait(Duration::from_secs(2));
    assert!(is_member(&world, ids[2]));
}

#[test]
fn a_report_taken_back_does_not_count() {
    let (mut world, ids) = World::of(3);
    world.cut(ids[2]);
    closed(&mut world, ids[0], ids[2]);
    world.up(ids[0], Up::LanesOpen { peer: ids[2] });
    world.wait(Duration::from_secs(2));
    assert!(is_member(&world, ids[2]));
}

#[test]
fn reports_of_other_groups_and_of_strangers_do_not_count() {
    let (mut world, ids) = World::of_groups(&[2, 1]);
    let newcomer = world.register(0);
    world.cut(ids[0]);
    closed(&mut world, ids[2], ids[0]);
    closed(&mut world, newcomer, ids[0]);
    world.wait(Duration::from_secs(2));
    assert!(is_member(&world, ids[0]));
}

#[test]
fn who_comes_back_in_time_is_not_lost() {
    let (mut world, ids) = World::of(3);
    world.cut(ids[2]);
    closed(&mut world, ids[0], ids[2]);
    world.wait(Duration::from_millis(200));
    let report = world.report();
    world.attach(ids[2], Some(report));
    world.wait_alive(Duration::from_secs(8), &ids);
    assert_eq!(world.ring(0), ids);
}

#[test]
fn leaving_cancels_for_all_and_names_the_leaver() {
    let (mut world, ids) = World::of(2);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    world.up(ids[1], Up::Leave);
    let got = world.take(ids[0]);
    let Some(Down::Verdict(verdict)) = got.last() else {
        panic!("{got:?}");
    };
    assert!(matches!(
        &verdict.outcome,
        Outcome::Abort(AbortReason::MemberLost { member, cause: LossCause::Left, .. })
            if *member == ids[1]
    ));
    assert_eq!(verdict.stamp.attributes.group_world_size, 1);
}

#[test]
fn an_operator_evicts() {
    let (mut world, ids) = World::of(2);
    world.input(MasterInput::Evict { member: ids[1] });
    assert_eq!(world.evicted(ids[1]), EvictReason::Operator);
    assert_eq!(world.ring(0), ids[..1]);
    world.input(MasterInput::Evict {
        member: MemberId(99),
    });
    assert_eq!(world.ring(0), ids[..1]);
}

#[test]
fn a_group_that_is_gone_forgets_what_it_had() {
    let (mut world, ids) = World::of_groups(&[1, 1]);
    world.up(ids[1], Up::Leave);
    assert_eq!(world.master.groups.len(), 1);
    let again = world.join(1);
    world.vote(ids[0], UPDATE);
    assert!(world.epoch(1) > Epoch(1));
    assert_eq!(world.ring(1), [again]);
}
