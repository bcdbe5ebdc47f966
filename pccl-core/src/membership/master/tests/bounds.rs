//! Nothing grows: not with operations, failures, churn, nor with nonsense.

use std::time::Duration;

use super::harness::*;
use crate::ids::{ConnId, Digest, MemberId, PeerGroup, Round, Serial, Tag};
use crate::membership::master::MasterInput;
use crate::types::{OpKey, OpKind, UnanimousCall};
use crate::wire::control::{
    AbortRequest, ControlHello, Done, Down, OpName, Open, Outcome, Registration, Up, VoteName,
};
use crate::wire::reason::{AbortReason, RequestCause, TEXT_LIMIT};

fn last_serial(world: &mut World, id: MemberId) -> Serial {
    let verdicts = world.take(id).into_iter().filter_map(|m| match m {
        Down::Verdict(v) => Some(v.serial),
        _ => None,
    });
    verdicts.max().unwrap_or_default()
}

#[test]
fn ten_thousand_operations_with_fresh_tags_leave_nothing() {
    let (mut world, ids) = World::of(3);
    let mut quoted = [Serial::default(); 3];
    for tag in 0..10_000 {
        for (i, id) in ids.iter().enumerate() {
            let open = world.open_message(tag, 0, quoted[i]);
            world.up(*id, Up::Open(open));
        }
        for (i, id) in ids.iter().enumerate() {
            let op = world.name(tag, 0);
            let (quoted, result) = (quoted[i], Digest(3));
            match tag % 5 {
                0 if i == 0 => {
                    let cause = RequestCause::TimedOut;
                    world.up(*id, Up::AbortRequest(AbortRequest { op, quoted, cause }));
                }
                _ => world.up(*id, Up::Done(Done { op, quoted, result })),
            }
        }
        for (i, id) in ids.iter().enumerate() {
            quoted[i] = quoted[i].max(last_serial(&mut world, *id));
        }
        world.events.clear();
        let uses = world.master.groups[&PeerGroup(0)].uses.len();
        assert!(uses <= 1, "{uses} uses after {tag} operations");
    }
    assert!(world.master.timers.len() <= 4);
    assert!(world.master.nodes.values().all(|n| n.unacked.len() <= 1));
}

#[test]
fn what_members_write_is_kept_and_passed_on_up_to_a_limit() {
    let (mut world, ids) = World::of(2);
    for id in &ids {
        world.open(*id, 1, 0);
    }
    let what = "\u{e9}".repeat(1 << 20);
    world.give_up(ids[0], 1, 0, RequestCause::Internal { what });
    let Outcome::Abort(AbortReason::Requested { cause, .. }) = world.outcome(ids[1]) else {
        panic!();
    };
    let RequestCause::Internal { what } = cause else {
        panic!("{cause}");
    };
    assert!(what.len() <= TEXT_LIMIT + 3 && what.ends_with("\u{e9}..."));
}

#[test]
fn remembered_aborts_are_limited_and_a_call_beyond_fails_for_its_caller_alone() {
    let (mut world, ids) = World::of(2);
    let limit = world.master.config.limits.uses as u64 * 2;
    for tag in 0..limit {
        world.open(ids[0], tag, 0);
        world.give_up(ids[0], tag, 0, RequestCause::Cancelled);
    }
    assert!(!world.seats[&ids[0]].closed);
    world.clear();
    world.open(ids[0], limit, 0);
    assert!(matches!(
        world.take(ids[0])[..],
        [Down::TooMany { held, .. }] if u64::from(held) == limit
    ));
    assert_eq!(world.ring(0), ids);
}

#[test]
fn failed_tries_are_kept_in_a_limited_number() {
    let (mut world, ids) = World::of(2);
    for tries in 0..500 {
        let vote = world.ballot(UPDATE, tries);
        world.up(ids[0], Up::Vote(vote));
        world.up(
            ids[0],
            Up::Withdraw {
                vote,
                cause: RequestCause::TimedOut,
            },
        );
    }
    world.clear();
    world.vote(ids[1], UPDATE);
    assert!(matches!(&world.take(ids[1])[..], [Down::Failed { vote, .. }] if vote.tries == 0));
}

#[test]
fn churn_leaves_nothing() {
    let (mut world, ids) = World::of(2);
    let before = (world.master.timers.len(), world.master.groups.len());
    for i in 0..1_500u32 {
        let id = world.join(i % 3);
        if i % 2 == 0 {
            for id in &ids {
                world.vote(*id, UPDATE);
            }
            if world.seats[&id].conn.is_some() {
                world.up(id, Up::Leave);
            }
        } else {
            world.input(MasterInput::Evict { member: id });
        }
        world.clear();
        world.seats.remove(&id);
    }
    assert_eq!(world.master.nodes.len(), 2);
    assert_eq!(
        (world.master.timers.len(), world.master.groups.len()),
        before
    );
    assert_eq!(world.master.edges.len(), 0);
    assert_eq!(world.master.connections.len(), 2);
    assert!(
        world
            .master
            .nodes
            .values()
            .all(|node| node.edges.is_empty())
    );
}

/// A small generator; the seeds that are run are part of the test.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn nonsense(dice: &mut Dice, world: &World) -> Up {
    let peer = MemberId(dice.below(12));
    let kind = if dice.below(6) == 0 {
        OpKind::Sync
    } else {
        OpKind::Collective
    };
    let op = OpName {
        round: Round(world.round().0 + u64::from(dice.below(40) == 0)),
        key: OpKey {
            kind,
            tag: Tag(dice.below(3)),
        },
        attempt: dice.below(3) as u32,
    };
    let quoted = Serial {
        incarnation: crate::ids::Incarnation(1),
        counter: dice.below(1 + world.master.last_verdict),
    };
    let cause = || "x".to_owned();
    let vote = VoteName {
        call: [UPDATE, PENDING, UnanimousCall::OptimizeTopology][dice.below(3) as usize],
        round: Round(world.round().0.saturating_sub(dice.below(2))),
        tries: dice.below(3) as u32,
    };
    match dice.below(12) {
        0 => Up::Heartbeat {
            quoted,
            heard: vec![peer],
        },
        1..=4 => Up::Open(Open {
            op,
            epoch: crate::ids::Epoch(world.epoch_or_zero().0.saturating_sub(dice.below(20) / 19)),
            quoted,
            what: body(8 + dice.below(30) / 29),
        }),
        5 => Up::Done(Done {
            op,
            quoted,
            result: Digest(dice.below(20) as u128 / 19),
        }),
        6 => Up::AbortRequest(AbortRequest {
            op,
            quoted,
            cause: RequestCause::LaneDied {
                peer,
                cause: cause(),
            },
        }),
        7 => Up::Vote(vote),
        8 => Up::Withdraw {
            vote,
            cause: RequestCause::Cancelled,
        },
        9 => Up::LanesClosed {
            peer,
            cause: cause(),
        },
        10 => Up::LanesOpen { peer },
        _ => Up::CannotDial {
            peer,
            cause: cause(),
        },
    }
}

#[test]
fn no_order_of_messages_makes_it_panic_or_hang_or_lose_count() {
    for seed in 1..=20 {
        let mut dice = Dice(seed * 0x9e37_79b9);
        let mut world = World::new();
        for step in 0..400u64 {
            let here: Vec<MemberId> = world
                .seats
                .iter()
                .filter(|(_, s)| s.conn.is_some())
                .map(|(id, _)| *id)
                .collect();
            let some = here
                .get(dice.below(1 + here.len() as u64) as usize)
                .copied();
            match (dice.below(20), some) {
                (0, _) | (_, None) if here.len() < 8 => {
                    let hello = ControlHello::Register(Registration {
                        group: PeerGroup(dice.below(2) as u32),
                        name: "n".into(),
                        port: 1,
                        addresses: vec![],
                        arithmetic: 1,
                    });
                    world.hello(hello);
                }
                (1, Some(id)) => world.cut(id),
                (2, Some(id)) => {
                    let report = world.epoch_or_zero().0 % 2;
                    let report = (report == 0).then(|| world.report_of_nothing());
                    world.attach(id, report);
                }
                (3, Some(id)) => world.up(id, Up::Leave),
                (4, _) => world.wait(Duration::from_millis(dice.below(3_000))),
                (5, _) => {
                    let conn = ConnId(dice.below(step + 1));
                    let message = nonsense(&mut dice, &world);
                    let known = world.seats.values().any(|s| s.conn == Some(conn));
                    if !known {
                        world.input(MasterInput::Message { conn, message });
                    }
                }
                (_, Some(id)) => {
                    let message = nonsense(&mut dice, &world);
                    world.up(id, message);
                }
                _ => {}
            }
            world.check();
        }
    }
}
