//! Registration, edges of newcomers, admission, refusal. (Rules 12, 15, 18)

use super::harness::*;
use crate::ids::{Epoch, MemberId, Round};
use crate::wire::control::Down;

#[test]
fn the_founder_is_admitted_at_once() {
    let mut world = World::new();
    let id = world.register(0);
    let (vote, stamp, group) = world.completed(id);
    assert_eq!((vote.call, vote.round, vote.tries), (UPDATE, Round(0), 0));
    assert_eq!(stamp.attributes.global_world_size, 1);
    assert_eq!(group.epoch, Epoch(1));
    assert_eq!(group.ring[0].id, MemberId(1));
}

#[test]
fn a_newcomer_waits_for_the_vote_of_all() {
    let mut world = World::new();
    let a = world.register(0);
    world.clear();
    let b = world.register(0);
    assert!(matches!(&world.take(a)[..], [Down::Expect { peers }] if peers[0].id == b));
    assert_eq!(world.dials(b), [a]);
}
