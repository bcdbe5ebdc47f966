//! Edges between members. (Rule 12)

use super::harness::*;
use crate::event::Event;
use crate::ids::{Epoch, MemberId, PeerGroup};
use crate::topology::ring;
use crate::wire::control::{Down, Outcome, Up};
use crate::wire::reason::{AbortReason, EvictReason};

fn cannot(world: &mut World, from: MemberId, peer: MemberId) {
    let cause = "refused".to_owned();
    world.up(from, Up::CannotDial { peer, cause });
}

#[test]
fn the_smaller_end_is_asked_to_dial_when_the_larger_cannot() {
    let (mut world, ids) = World::of(3);
    cannot(&mut world, ids[2], ids[0]);
    assert!(matches!(&world.take(ids[0])[..], [Down::Dial { peers }] if peers[0].id == ids[2]));
    world.up(ids[0], Up::LanesOpen { peer: ids[2] });
    assert_eq!(world.master.edges.len(), 0);
    assert_eq!(world.epoch(0), Epoch(2));
}

#[test]
fn a_broken_edge_changes_the_order_and_aborts_what_is_open() {
    let (mut world, ids) = World::of(5);
    let order = world.order(0);
    let (a, b) = (order[1], order[2]);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    world.clear();
    cannot(&mut world, a, b);
    cannot(&mut world, b, a);
    let after = world.order(0);
    assert_eq!(after.len(), 5);
    assert!(!ring::adjacent(&after, a, b));
    let got = world.take(ids[0]);
    let verdict = got.iter().find_map(|m| match m {
        Down::Verdict(v) => Some(v.clone()),
        _ => None,
    });
    let verdict = verdict.unwrap();
    assert!(matches!(
        verdict.outcome,
        Outcome::Abort(AbortReason::EdgeBroken { .. })
    ));
    assert_eq!(verdict.stamp.epoch, Epoch(3));
    assert!(
        world
            .events
            .iter()
            .any(|e| matches!(e, Event::EdgeBroken { .. }))
    );
    // It mends: the edge may be used again.
    world.up(a, Up::LanesOpen { peer: b });
    assert_eq!(world.master.edges.len(), 0);
}

#[test]
fn without_a_ring_all_goes_through_a_hub_and_nobody_is_evicted() {
    let (mut world, ids) = World::of(3);
    cannot(&mut world, ids[1], ids[0]);
    cannot(&mut world, ids[0], ids[1]);
    assert_eq!(world.ring(0), ids);
    assert_eq!(world.epoch(0), Epoch(3), "one change, one epoch");
    let view = world.master.group_view(PeerGroup(0));
    assert_eq!((view.choice.ring, view.choice.direct), (false, false));
    assert_eq!(view.choice.hub, Some(ids[2]));
}

#[test]
fn without_any_plan_the_newer_end_is_evicted_and_nobody_else() {
    let (mut world, ids) = World::of(2);
    cannot(&mut world, ids[1], ids[0]);
    cannot(&mut world, ids[0], ids[1]);
    let from = vec![ids[0]];
    assert_eq!(world.evicted(ids[1]), EvictReason::Unreachable { from });
    assert_eq!(world.ring(0), ids[..1]);
    assert_eq!(world.epoch(0), Epoch(3), "one change, one epoch");
}

/// The ring of five does not need it: the choice changes, with the epoch, and nobody pays.
#[test]
fn an_edge_that_only_the_direct_exchange_used_changes_the_choice_and_evicts_nobody() {
    let (mut world, ids) = World::of(5);
    let order = world.order(0);
    let before = world.master.group_view(PeerGroup(0)).choice;
    assert!(before.ring && before.direct && before.hub == Some(order[0]));
    for id in &ids {
        world.open(*id, 1, 0);
    }
    world.clear();
    cannot(&mut world, order[2], order[0]);
    cannot(&mut world, order[0], order[2]);
    assert_eq!((world.order(0), world.epoch(0)), (order.clone(), Epoch(3)));
    let view = world.master.group_view(PeerGroup(0));
    assert!(view.choice.ring && !view.choice.direct);
    assert_eq!(view.choice.hub, Some(order[1]));
    // What was open may have needed the edge: it fails for all, with that reason.
    for id in &ids {
        let inbox = world.take(*id);
        let Some(Down::Verdict(verdict)) = inbox.last() else {
            panic!("{inbox:?}");
        };
        let reason = AbortReason::EdgeBroken {
            a: order[0],
            b: order[2],
        };
        assert_eq!(verdict.outcome, Outcome::Abort(reason));
    }
    // A lane there in the end makes the direct exchange possible again, from the next round on.
    world.up(order[2], Up::LanesOpen { peer: order[0] });
    assert_eq!(world.epoch(0), Epoch(3));
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    assert_eq!(world.completed(ids[0]).2.epoch, Epoch(4));
    assert!(world.master.group_view(PeerGroup(0)).choice.direct);
}

/// What a small group does not know of its edges it finds out in the background, after a round.
#[test]
fn edges_of_which_nothing_is_known_are_tried_after_a_round() {
    let (mut world, ids) = World::of(3);
    let d = world.register(0);
    for peer in [ids[0], ids[1]] {
        world.up(d, Up::LanesOpen { peer });
    }
    assert!(world.master.pending.is_empty(), "it may try the third edge");
    let moment = crate::config::Timing::default().heartbeat;
    world.wait_alive(moment, &[ids[0], ids[1], ids[2], d]);
    assert!(world.master.pending.contains(&d), "but not for long");
    world.clear();
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    assert_eq!(world.dials(d), [ids[2]]);
    let choice = world.completed(d).2.choice;
    assert!(choice.ring && !choice.direct && choice.hub.is_some());
    world.up(d, Up::LanesOpen { peer: ids[2] });
    for id in ids.iter().chain([&d]) {
        world.vote(*id, UPDATE);
    }
    assert!(world.completed(d).2.choice.direct);
}

#[test]
fn a_member_that_reaches_nobody_is_evicted_even_if_it_is_the_oldest() {
    let (mut world, ids) = World::of(5);
    for id in &ids[1..] {
        cannot(&mut world, *id, ids[0]);
        cannot(&mut world, ids[0], *id);
        if world.seats[&ids[0]].closed {
            break;
        }
    }
    assert_eq!(world.ring(0).len(), 4);
    assert!(world.seats[&ids[0]].closed);
}

#[test]
fn an_edge_whose_lanes_do_not_come_back_is_broken_in_the_end() {
    let (mut world, ids) = World::of(2);
    let timing = crate::config::Timing::default();
    let limit = timing.dial() + timing.peer_timeout;
    for (by, peer) in [(ids[0], ids[1]), (ids[1], ids[0])] {
        world.up(
            by,
            Up::LanesClosed {
                peer,
                cause: "reset".into(),
            },
        );
    }
    world.wait_alive(limit, &ids);
    assert!(world.dials(ids[0]).contains(&ids[1]));
    world.wait_alive(limit, &ids);
    assert!(
        world.seats[&ids[1]].closed,
        "no ring of two without their edge"
    );
    assert_eq!(world.ring(0), ids[..1]);
}

#[test]
fn lanes_that_come_back_end_the_trouble() {
    let (mut world, ids) = World::of(2);
    let peer = ids[1];
    world.up(
        ids[0],
        Up::LanesClosed {
            peer,
            cause: "reset".into(),
        },
    );
    assert_eq!(world.master.edges.len(), 1);
    world.up(ids[1], Up::LanesOpen { peer: ids[0] });
    assert_eq!(world.master.edges.len(), 0);
    world.wait_alive(std::time::Duration::from_secs(60), &ids);
    assert_eq!(world.ring(0), ids);
}

#[test]
fn a_dead_member_is_no_broken_edge() {
    let (mut world, ids) = World::of(3);
    world.cut(ids[2]);
    cannot(&mut world, ids[0], ids[2]);
    cannot(&mut world, ids[1], ids[2]);
    assert!(
        !world
            .events
            .iter()
            .any(|e| matches!(e, Event::EdgeBroken { .. }))
    );
    // When it is back, it is asked to dial in its turn.
    world.clear();
    let report = world.report();
    world.attach(ids[2], Some(report));
    assert!(!world.seats[&ids[2]].closed);
}

#[test]
fn nonsense_about_edges_is_ignored() {
    let (mut world, ids) = World::of_groups(&[2, 1]);
    for peer in [ids[0], ids[2], MemberId(99)] {
        cannot(&mut world, ids[0], peer);
        world.up(ids[0], Up::LanesOpen { peer });
        world.up(
            ids[0],
            Up::LanesClosed {
                peer,
                cause: String::new(),
            },
        );
    }
    assert_eq!(world.master.edges.len(), 0);
    assert_eq!(world.ring(0), ids[..2]);
}
