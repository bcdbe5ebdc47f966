//! Registration, edges of newcomers, admission, refusal. (Rules 12, 15, 18)

use super::harness::*;
use crate::config::{MasterConfig, MasterLimits, Timing};
use crate::event::Event;
use crate::ids::{Epoch, MemberId, PeerGroup, Round};
use crate::wire::control::{ControlHello, ControlReply, Down, Registration, Up};
use crate::wire::reason::{EvictReason, RefuseReason};

#[test]
fn the_founder_is_admitted_at_once() {
    let mut world = World::new();
    let id = world.register(0);
    let (vote, stamp, group) = world.completed(id);
    assert_eq!((vote.call, vote.round, vote.tries), (UPDATE, Round(0), 0));
    assert_eq!(stamp.attributes.global_world_size, 1);
    assert_eq!(stamp.epoch, Epoch(1));
    assert_eq!(group.epoch, Epoch(1));
    assert_eq!(group.ring[0].id, MemberId(1));
    assert_eq!(group.ring[0].addresses, ["10.0.0.1:4000".parse().unwrap()]);
}

#[test]
fn a_newcomer_counts_as_pending_when_an_edge_is_proven_and_is_admitted_by_the_vote_of_all() {
    let mut world = World::new();
    let a = world.register(0);
    world.clear();
    let b = world.register(0);
    assert!(matches!(&world.take(a)[..], [Down::Expect { peers }] if peers[0].id == b));
    assert_eq!(world.dials(b), [a]);
    world.vote(a, PENDING);
    assert!(!world.completed(a).1.pending);
    world.up(a, Up::LanesOpen { peer: b });
    world.vote(a, PENDING);
    assert!(world.completed(a).1.pending);
    world.clear();
    world.vote(a, UPDATE);
    for id in [a, b] {
        let (vote, stamp, group) = world.completed(id);
        assert_eq!((vote.call, vote.round), (UPDATE, Round(1)));
        assert_eq!(stamp.attributes.group_world_size, 2);
        assert!(!stamp.pending);
        assert_eq!(group.epoch, Epoch(2));
        assert_eq!(group.ring.iter().map(|m| m.id).collect::<Vec<_>>(), [a, b]);
    }
    assert_eq!(world.round(), Round(2));
    assert!(world.master.edges.len() == 0 && world.master.pending.is_empty());
}

#[test]
fn an_expectation_ends_with_the_admission() {
    let mut world = World::new();
    let a = world.register(0);
    let b = world.join(0);
    world.clear();
    world.vote(a, UPDATE);
    let last = world.take(a).pop();
    assert_eq!(last, Some(Down::Expect { peers: vec![] }));
    assert!(matches!(
        &world.take(b)[..],
        [Down::Completed { .. }, Down::Expect { .. }]
    ));
}

#[test]
fn an_update_without_a_pending_newcomer_leaves_view_and_epoch() {
    let (mut world, ids) = World::of(2);
    let (view, epoch) = (world.master.world.view, world.epoch(0));
    let c = world.register(0);
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    let (_, stamp, group) = world.completed(ids[0]);
    assert_eq!((stamp.view, stamp.epoch, group.epoch), (view, epoch, epoch));
    // The newcomer goes on trying, and is admitted by the next round.
    for peer in [ids[0], ids[1]] {
        world.up(c, Up::LanesOpen { peer });
    }
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    assert_eq!(world.ring(0).len(), 3);
}

#[test]
fn the_other_end_dials_when_the_newcomer_cannot_and_the_newcomer_is_refused_when_neither_can() {
    let (mut world, ids) = World::of(2);
    let c = world.register(0);
    world.clear();
    let cause = || "refused".to_owned();
    world.up(
        c,
        Up::CannotDial {
            peer: ids[0],
            cause: cause(),
        },
    );
    assert!(matches!(&world.take(ids[0])[..], [Down::Dial { peers }] if peers[0].id == c));
    world.up(
        c,
        Up::CannotDial {
            peer: ids[1],
            cause: cause(),
        },
    );
    for (i, id) in ids.iter().enumerate() {
        assert!(world.take(c).is_empty() || i > 0);
        world.up(
            *id,
            Up::CannotDial {
                peer: c,
                cause: cause(),
            },
        );
    }
    let from = ids.clone();
    assert_eq!(
        world.evicted(c),
        EvictReason::Unreachable { from: from.clone() }
    );
    assert!(world.seats[&c].closed);
    let refused = |event: &Event| matches!(event, Event::Refused { reason: RefuseReason::Unreachable { from: f }, .. } if *f == from);
    assert!(world.events.iter().any(refused));
    // Nobody else paid.
    assert_eq!(world.epoch(0), Epoch(2));
    assert_eq!(world.ring(0), ids);
}

#[test]
fn a_newcomer_of_which_nothing_is_heard_is_refused_after_the_dial_deadlines() {
    let (mut world, ids) = World::of(2);
    let c = world.register(0);
    let limit = Timing::default().dial() + Timing::default().peer_timeout;
    let alive = [ids[0], ids[1], c];
    world.wait_alive(limit, &alive);
    // One direction has had its time; the other one is being tried.
    assert!(world.dials(ids[0]).contains(&c));
    assert!(!world.seats[&c].closed);
    world.wait_alive(limit, &alive);
    assert!(world.seats[&c].closed);
    assert!(!world.seats[&ids[0]].closed);
}

#[test]
fn a_newcomer_with_two_edges_that_are_no_neighbours_gets_another_order() {
    let (mut world, ids) = World::of(4);
    let ring = world.order(0);
    let c = world.register(0);
    world.clear();
    // Edges to two members that are not neighbours; no other works in either direction.
    for peer in [ring[0], ring[2]] {
        world.up(c, Up::LanesOpen { peer });
    }
    for peer in [ring[1], ring[3]] {
        world.up(
            c,
            Up::CannotDial {
                peer,
                cause: String::new(),
            },
        );
        world.up(
            peer,
            Up::CannotDial {
                peer: c,
                cause: String::new(),
            },
        );
    }
    assert!(!world.seats[&c].closed);
    assert!(world.master.pending.contains(&c));
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    assert_eq!(world.ring(0).len(), 5);
    assert!(topology_holds(&world.order(0), c, [ring[0], ring[2]]));
}

fn topology_holds(order: &[MemberId], id: MemberId, beside: [MemberId; 2]) -> bool {
    beside
        .iter()
        .all(|other| crate::topology::ring::adjacent(order, id, *other))
}

#[test]
fn a_newcomer_may_get_its_place_beside_one_that_registered_later() {
    let (mut world, ids) = World::of(2);
    let (c, d) = (world.register(0), world.register(0));
    let no = |world: &mut World, a: MemberId, b: MemberId| {
        for (from, peer) in [(a, b), (b, a)] {
            let cause = String::new();
            world.up(from, Up::CannotDial { peer, cause });
        }
    };
    world.up(c, Up::LanesOpen { peer: ids[0] });
    no(&mut world, c, ids[1]);
    assert!(
        !world.seats[&c].closed,
        "the edge to the other newcomer is being tried"
    );
    world.up(d, Up::LanesOpen { peer: c });
    world.up(d, Up::LanesOpen { peer: ids[0] });
    assert!(world.master.pending.is_empty());
    world.up(d, Up::LanesOpen { peer: ids[1] });
    assert_eq!(world.master.pending, [c, d].into());
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    assert_eq!(world.order(0), [ids[0], c, d, ids[1]]);
}

#[test]
fn a_newcomer_is_refused_when_the_one_that_it_depended_on_is() {
    let (mut world, ids) = World::of(2);
    let (c, d) = (world.register(0), world.register(0));
    let no = |world: &mut World, a: MemberId, b: MemberId| {
        for (from, peer) in [(a, b), (b, a)] {
            let cause = String::new();
            world.up(from, Up::CannotDial { peer, cause });
        }
    };
    world.up(c, Up::LanesOpen { peer: ids[0] });
    no(&mut world, c, ids[1]);
    world.up(d, Up::LanesOpen { peer: c });
    no(&mut world, d, ids[0]);
    assert!(!world.seats[&c].closed && !world.seats[&d].closed);
    no(&mut world, d, ids[1]);
    assert!(world.seats[&d].closed);
    // What is left is a star.
    assert!(!world.seats[&c].closed);
    assert_eq!(world.master.pending, [c].into());
}

#[test]
fn who_reaches_one_member_only_is_admitted_to_a_star_and_others_after_it() {
    let (mut world, ids) = World::of(3);
    let no = |world: &mut World, a: MemberId, b: MemberId| {
        for (from, peer) in [(a, b), (b, a)] {
            let cause = String::new();
            world.up(from, Up::CannotDial { peer, cause });
        }
    };
    let c = world.register(0);
    world.up(c, Up::LanesOpen { peer: ids[1] });
    no(&mut world, c, ids[0]);
    assert!(!world.seats[&c].closed && world.master.pending.is_empty());
    no(&mut world, c, ids[2]);
    assert_eq!(world.master.pending, [c].into());
    for id in &ids {
        world.vote(*id, UPDATE);
    }
    let choice = world.completed(c).2.choice;
    assert_eq!((choice.ring, choice.direct), (false, false));
    assert_eq!(choice.hub, Some(ids[1]));
    // One that reaches the same hub, and one that reaches another member only.
    let (d, e) = (world.register(0), world.register(0));
    no(&mut world, e, d);
    for (newcomer, hub) in [(d, ids[1]), (e, ids[0])] {
        world.up(newcomer, Up::LanesOpen { peer: hub });
        for other in [ids[0], ids[1], ids[2], c] {
            if other != hub {
                no(&mut world, newcomer, other);
            }
        }
    }
    assert_eq!(world.master.pending, [d].into());
    assert!(world.seats[&e].closed && !world.seats[&d].closed);
    // Without the hub, nobody has a plan with the others but those it had before.
    for id in ids.iter().chain([&c]) {
        world.vote(*id, UPDATE);
    }
    assert_eq!(world.ring(0).len(), 5);
}

#[test]
fn a_newcomer_that_goes_away_is_not_pending_until_it_is_back() {
    let (mut world, ids) = World::of(2);
    let c = world.join(0);
    assert!(world.master.pending.contains(&c));
    world.cut(c);
    assert!(world.master.pending.is_empty());
    world.clear();
    assert!(matches!(
        world.attach(c, None)[..],
        [ControlReply::Attached { .. }]
    ));
    assert!(world.master.pending.contains(&c));
    assert!(matches!(&world.take(c)[..], [Down::Expect { peers }] if peers.len() == 2));
    world.cut(c);
    world.wait_alive(Timing::default().peer_timeout, &ids);
    assert!(!world.master.nodes.contains_key(&c));
    assert_eq!(world.master.edges.len(), 0);
}

#[test]
fn a_member_that_joins_while_edges_are_tried_is_tried_too() {
    let mut world = World::new();
    let a = world.register(0);
    let b = world.register(0);
    let c = world.register(0);
    assert_eq!(world.dials(c), [a, b]);
    world.up(b, Up::LanesOpen { peer: a });
    world.vote(a, UPDATE);
    assert_eq!(world.ring(0), [a, b]);
    world.up(c, Up::LanesOpen { peer: a });
    assert!(world.master.pending.is_empty());
    world.up(b, Up::LanesOpen { peer: c });
    assert!(world.master.pending.contains(&c));
}

#[test]
fn when_all_members_are_gone_those_that_wait_are_admitted_without_a_vote() {
    let mut world = World::new();
    let a = world.register(0);
    let b = world.join(0);
    let c = world.join(1);
    world.clear();
    world.up(a, Up::Leave);
    for id in [b, c] {
        let (vote, stamp, _) = world.completed(id);
        assert_eq!((vote.call, vote.round), (UPDATE, Round(1)));
        assert_eq!(stamp.attributes.global_world_size, 2);
        assert_eq!(stamp.attributes.peer_groups, 2);
    }
    assert!(world.epoch(0) > Epoch(2), "the group's epochs go on");
}

#[test]
fn a_group_without_members_is_founded_by_the_vote_of_the_others() {
    let (mut world, ids) = World::of(1);
    let b = world.register(1);
    assert!(world.master.pending.contains(&b));
    assert!(world.take(b).is_empty());
    world.vote(ids[0], UPDATE);
    let (_, stamp, group) = world.completed(b);
    assert_eq!(stamp.attributes.group_world_size, 1);
    assert_eq!(group.ring.len(), 1);
    let (_, stamp, _) = world.completed(ids[0]);
    assert_eq!(stamp.attributes.global_world_size, 2);
}

#[test]
fn only_so_many_edges_are_tried_in_a_large_group() {
    let mut world = World::new();
    let first = world.register(0);
    for _ in 0..99 {
        world.join(0);
    }
    world.vote(first, UPDATE);
    assert_eq!(world.ring(0).len(), 100);
    world.clear();
    let id = world.register(0);
    assert_eq!(world.dials(id).len(), 64);
    let ring = world.order(0);
    for peer in &ring[..2] {
        world.up(id, Up::LanesOpen { peer: *peer });
    }
    assert!(world.master.pending.contains(&id));
}

#[test]
fn a_full_run_and_another_arithmetic_are_refused() {
    let limits = MasterLimits {
        members: 1,
        ..MasterLimits::default()
    };
    let mut world = World::with(MasterConfig {
        limits,
        ..MasterConfig::default()
    });
    world.register(0);
    let registration = |arithmetic| {
        ControlHello::Register(Registration {
            group: PeerGroup(0),
            name: "x".into(),
            port: 1,
            addresses: vec![],
            arithmetic,
        })
    };
    let refusal = |replies: Vec<ControlReply>| match replies.first() {
        Some(ControlReply::Refused(reason)) => reason.clone(),
        other => panic!("{other:?}"),
    };
    let (_, replies) = world.hello(registration(2));
    assert_eq!(refusal(replies), RefuseReason::Arithmetic { run: 1 });
    let (_, replies) = world.hello(registration(1));
    assert_eq!(refusal(replies), RefuseReason::Full { limit: 1 });
}

#[test]
fn an_evicted_peer_registers_under_a_new_number() {
    let (mut world, ids) = World::of(2);
    world.input(crate::membership::master::MasterInput::Evict { member: ids[1] });
    assert_eq!(world.evicted(ids[1]), EvictReason::Operator);
    let again = world.join(0);
    assert!(again > ids[1]);
    world.vote(ids[0], UPDATE);
    assert_eq!(world.ring(0), [ids[0], again]);
}
