//! Synchronisations. (Rules 21, 22)

use std::sync::Arc;

use super::harness::*;
use crate::event::Event;
use crate::ids::{ContentDigest, Digest, Epoch, MemberId, Serial};
use crate::types::{DataType, OpKey, OpKind, StateEntry, StateOffer, SyncStrategy};
use crate::wire::control::{
    AbortRequest, Done, Down, OpBody, OpName, OpReport, Open, Outcome, Report, SyncPlan, Up,
};
use crate::wire::reason::{AbortReason, EvictReason, RequestCause};

fn offer(revision: u64, digest: u128) -> StateOffer {
    StateOffer {
        revision,
        strategy: SyncStrategy::EnforcePopular,
        entries: Arc::new(vec![StateEntry {
            key: "w".into(),
            data_type: DataType::F32,
            count: 4,
            allow_content_inequality: false,
            digest: ContentDigest::fast(digest),
        }]),
        torn: false,
    }
}

fn name(world: &World, attempt: u32) -> OpName {
    let key = OpKey {
        kind: OpKind::Sync,
        tag: crate::ids::Tag(0),
    };
    OpName {
        key,
        ..world.name(0, attempt)
    }
}

fn message(world: &World, attempt: u32, offer: StateOffer) -> Open {
    Open {
        op: name(world, attempt),
        what: OpBody::Sync(offer),
        ..world.open_message(0, attempt, Serial::default())
    }
}

fn open(world: &mut World, id: MemberId, offer: StateOffer) {
    let open = message(world, 0, offer);
    world.up(id, Up::Open(open));
}

fn finish(world: &mut World, id: MemberId, quoted: Serial) {
    let (op, result) = (name(world, 0), Digest(1));
    world.up(id, Up::Done(Done { op, quoted, result }));
}

fn plan(world: &mut World, id: MemberId) -> SyncPlan {
    match &world.take(id)[..] {
        [Down::SyncPlan(plan), ..] => plan.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_outdated_fetch_from_the_up_to_date_and_the_revision_is_counted() {
    let (mut world, ids) = World::of(3);
    for (id, digest) in ids.iter().zip([7, 7, 9]) {
        assert!(world.take(*id).is_empty());
        open(&mut world, *id, offer(0, digest));
    }
    let outdated = plan(&mut world, ids[2]);
    assert_eq!(outdated.fetch[0].digest, Some(ContentDigest::fast(7)));
    assert_eq!(
        outdated.seeders.iter().map(|m| m.id).collect::<Vec<_>>(),
        ids[..2]
    );
    for id in &ids[..2] {
        let plan = plan(&mut world, *id);
        assert!(plan.fetch.is_empty());
        assert_eq!(plan.readers, [(ids[2], world.seats[&ids[2]].token)]);
    }
    for id in &ids {
        finish(&mut world, *id, Serial::default());
    }
    let verdict = world.verdict(ids[2]);
    assert_eq!(verdict.outcome, Outcome::Commit);
    assert_eq!(world.master.status().groups[0].expected_revision, Some(1));
    // Next time, that revision is expected: whoever offers another one fails.
    let quoted = verdict.serial;
    world.clear();
    for (id, revision) in ids.iter().zip([1, 1, 5]) {
        let open = Open {
            quoted,
            ..message(&world, 0, offer(revision, 7))
        };
        world.up(*id, Up::Open(open));
    }
    assert!(matches!(world.evicted(ids[2]), EvictReason::State { .. }));
    let got = world.take(ids[0]);
    assert!(
        matches!(&got[..], [Down::SyncPlan(_), Down::Group(_)]),
        "{got:?}"
    );
    for id in &ids[..2] {
        finish(&mut world, *id, quoted);
    }
    let verdict = world.verdict(ids[0]);
    assert_eq!(verdict.outcome, Outcome::Commit);
    assert_eq!(
        verdict.stamp.epoch,
        Epoch(3),
        "of the group without the one that failed"
    );
    assert_eq!(verdict.stamp.attributes.group_world_size, 2);
}

#[test]
fn who_differs_at_the_same_revision_is_named_from_the_second_time_on() {
    let (mut world, ids) = World::of(3);
    let mut quoted = Serial::default();
    for revision in 4..6 {
        world.clear();
        for (id, digest) in ids.iter().zip([7, 7, 9]) {
            let open = Open {
                quoted,
                ..message(&world, 0, offer(revision, digest))
            };
            world.up(*id, Up::Open(open));
        }
        let diverged = world.events.iter().filter_map(|event| match event {
            Event::Diverged {
                member,
                keys,
                holders,
                since,
                ..
            } => Some((*member, keys.clone(), holders.clone(), *since)),
            _ => None,
        });
        let expected = match revision {
            4 => vec![],
            _ => vec![(ids[2], vec!["w".to_owned()], ids[..2].to_vec(), 4)],
        };
        assert_eq!(diverged.collect::<Vec<_>>(), expected);
        world.clear();
        for id in &ids {
            finish(&mut world, *id, quoted);
        }
        quoted = world.verdict(ids[0]).serial;
    }
}

#[test]
fn nobody_is_evicted_when_nothing_can_be_elected() {
    let (mut world, ids) = World::of(2);
    let receive = StateOffer {
        strategy: SyncStrategy::ReceiveOnly,
        ..offer(0, 1)
    };
    for id in &ids {
        open(&mut world, *id, receive.clone());
    }
    for id in &ids {
        assert!(matches!(
            world.outcome(*id),
            Outcome::Abort(AbortReason::State { .. })
        ));
    }
    assert_eq!(world.ring(0), ids);
    assert_eq!(world.master.status().groups[0].expected_revision, None);
}

#[test]
fn lists_of_tensors_are_kept_once_and_never_without_bound() {
    for (differ, size) in [(false, 40), (true, 40), (true, 4)] {
        let (mut world, ids) = World::of(8);
        let list = |member: usize| {
            let tensor = |i: usize| StateEntry {
                key: format!("tensor {i:05}"),
                digest: ContentDigest::fast(if differ { member } else { 0 } as u128),
                ..offer(0, 0).entries[0].clone()
            };
            Arc::new((0..size).map(tensor).collect())
        };
        // Twice what one member offers.
        world.master.config.limits.lists = 2 * 40 * (size_of::<StateEntry>() + 12);
        for (i, id) in ids.iter().enumerate() {
            let offer = StateOffer {
                entries: list(i),
                ..offer(0, 0)
            };
            open(&mut world, *id, offer);
        }
        let got = world.take(ids[0]);
        match &got[..] {
            [Down::SyncPlan(_)] => assert!(!differ || size == 4),
            [Down::Verdict(verdict), ..] => {
                let text = format!("{:?}", verdict.outcome);
                assert!(differ && size == 40 && text.contains("3 members"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn lists_of_many_synchronisations_are_no_more_than_those_of_one() {
    let (mut world, ids) = World::of(2);
    world.master.config.limits.lists = 2 * (size_of::<StateEntry>() + 1);
    for tag in 0..4 {
        let mut open = message(&world, 0, offer(0, 7));
        open.op.key.tag = crate::ids::Tag(tag);
        world.up(ids[0], Up::Open(open));
        let refused = world.take(ids[0]);
        match &refused[..] {
            [] => assert!(tag < 2),
            [Down::Verdict(verdict)] => {
                assert!(tag >= 2);
                let state = matches!(verdict.outcome, Outcome::Abort(AbortReason::State { .. }));
                assert!(state, "{verdict:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_cannot_fetch_fails_alone() {
    let (mut world, ids) = World::of(3);
    for (id, digest) in ids.iter().zip([7, 7, 9]) {
        open(&mut world, *id, offer(0, digest));
    }
    world.clear();
    for id in &ids[..2] {
        finish(&mut world, *id, Serial::default());
    }
    let (op, quoted) = (name(&world, 0), Serial::default());
    let what = "timed out".to_owned();
    let cause = RequestCause::FetchFailed { what: what.clone() };
    world.up(ids[2], Up::AbortRequest(AbortRequest { op, quoted, cause }));
    assert_eq!(world.evicted(ids[2]), EvictReason::State { what });
    let got = world.take(ids[0]);
    let [Down::Group(_), Down::Verdict(verdict)] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!(verdict.outcome, Outcome::Commit);
}

#[test]
fn who_leaves_in_a_synchronisation_ends_it_for_all() {
    let (mut world, ids) = World::of(3);
    for (id, digest) in ids.iter().zip([7, 7, 9]) {
        open(&mut world, *id, offer(0, digest));
    }
    world.clear();
    world.up(ids[0], Up::Leave);
    let got = world.take(ids[2]);
    let [Down::Group(_), Down::Verdict(verdict)] = &got[..] else {
        panic!("{got:?}");
    };
    assert!(matches!(
        verdict.outcome,
        Outcome::Abort(AbortReason::MemberLost { .. })
    ));
}

#[test]
fn a_synchronisation_goes_on_while_a_seeder_is_left() {
    let (mut world, ids) = World::of(4);
    for (id, digest) in ids.iter().zip([7, 7, 7, 9]) {
        open(&mut world, *id, offer(0, digest));
    }
    world.clear();
    for lost in 0..2 {
        world.cut(ids[lost]);
        let patience = world.master.config.timing.peer_timeout;
        world.wait_alive(patience, &ids[lost + 1..]);
        let got = world.take(ids[3]);
        let plan = got.iter().find_map(|message| match message {
            Down::SyncPlan(plan) => Some(plan),
            _ => None,
        });
        let seeders = plan.unwrap().seeders.iter().map(|m| m.id);
        assert_eq!(seeders.collect::<Vec<_>>(), ids[lost + 1..3]);
    }
    world.clear();
    for id in &ids[2..] {
        finish(&mut world, *id, Serial::default());
    }
    let verdict = world.verdict(ids[3]);
    assert_eq!(verdict.outcome, Outcome::Commit);
    assert_eq!(verdict.stamp.attributes.group_world_size, 2);
}

#[test]
fn a_synchronisation_ends_with_the_last_seeder_unless_all_is_fetched() {
    for fetched in [false, true] {
        let (mut world, ids) = World::of(2);
        for (id, digest) in ids.iter().zip([7, 9]) {
            open(&mut world, *id, offer(0, digest));
        }
        if fetched {
            finish(&mut world, ids[1], Serial::default());
        }
        world.clear();
        world.cut(ids[0]);
        let patience = world.master.config.timing.peer_timeout;
        world.wait_alive(patience, &ids[1..]);
        let got = world.take(ids[1]);
        let outcome = got.iter().find_map(|message| match message {
            Down::Verdict(verdict) => Some(&verdict.outcome),
            _ => None,
        });
        match outcome {
            Some(Outcome::Commit) => assert!(fetched),
            Some(Outcome::Abort(AbortReason::MemberLost { .. })) => assert!(!fetched),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn who_comes_back_gets_its_plan_again_even_under_the_epoch_after_a_removal() {
    let (mut world, ids) = World::of(3);
    let kept = message(&world, 0, offer(0, 7));
    for (id, count) in ids.iter().zip([4, 4, 5]) {
        let mut offer = offer(0, 7);
        Arc::make_mut(&mut offer.entries)[0].count = count;
        open(&mut world, *id, offer);
    }
    let first = plan(&mut world, ids[1]);
    assert!(world.seats[&ids[2]].closed);
    world.cut(ids[1]);
    let report = Report {
        ops: vec![OpReport {
            open: kept,
            done: None,
            abort: None,
        }],
        ..world.report()
    };
    world.attach(ids[1], Some(report));
    assert_eq!(plan(&mut world, ids[1]), first);
    for id in &ids[..2] {
        finish(&mut world, *id, Serial::default());
    }
    assert_eq!(world.outcome(ids[1]), Outcome::Commit);
}

#[test]
fn a_member_alone_synchronises_with_itself() {
    let (mut world, ids) = World::of(1);
    open(&mut world, ids[0], offer(3, 7));
    assert_eq!(plan(&mut world, ids[0]).revision, 3);
    finish(&mut world, ids[0], Serial::default());
    assert_eq!(world.outcome(ids[0]), Outcome::Commit);
    assert_eq!(world.master.status().groups[0].expected_revision, Some(4));
}
