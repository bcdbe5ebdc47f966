//! Signs of life. (Rule 14)

use std::time::Duration;

use super::harness::*;
use crate::config::Timing;
use crate::event::Event;
use crate::ids::Serial;
use crate::membership::master::MasterInput;
use crate::wire::control::{Down, Up};
use crate::wire::reason::{EvictReason, LossCause};

#[test]
fn everybody_gets_a_heartbeat_once_per_interval() {
    let (mut world, ids) = World::of(2);
    world.wait_alive(Duration::from_millis(4_500), &ids);
    let beats = world.seats[&ids[0]]
        .inbox
        .iter()
        .filter(|m| **m == Down::Heartbeat)
        .count();
    assert!((4..=5).contains(&beats), "{beats}");
}

#[test]
fn silence_for_the_peer_time_out_is_a_loss() {
    let (mut world, ids) = World::of(2);
    world.wait_alive(Duration::from_millis(4_999), &ids[..1]);
    assert_eq!(world.ring(0), ids);
    world.wait_alive(Duration::from_millis(1), &ids[..1]);
    assert_eq!(world.ring(0), ids[..1]);
    assert_eq!(world.evicted(ids[1]), EvictReason::Lost(LossCause::Silent));
}

#[test]
fn data_that_another_member_received_is_a_sign_of_life() {
    let (mut world, ids) = World::of(2);
    for _ in 0..10 {
        world.wait_alive(Duration::from_secs(1), &ids[..1]);
        let (quoted, heard) = (Serial::default(), vec![ids[1]]);
        world.up(ids[0], Up::Heartbeat { quoted, heard });
    }
    assert_eq!(world.ring(0), ids);
}

#[test]
fn after_a_gap_in_the_own_loop_all_deadlines_start_anew() {
    let (mut world, ids) = World::of(3);
    world.cut(ids[2]);
    // The process was stopped for a minute; then the first thing it sees is a tick.
    world.now = world.now + Duration::from_secs(60);
    world.input(MasterInput::Tick);
    assert_eq!(world.ring(0), ids);
    let stalled = |e: &Event| matches!(e, Event::Stalled { gap_ms } if *gap_ms > 58_000);
    assert!(world.events.iter().any(stalled));
    let patience = Timing::default().peer_timeout;
    world.wait(patience - Duration::from_millis(1));
    assert_eq!(world.ring(0), ids);
    world.wait(Duration::from_millis(1));
    assert!(world.ring(0).is_empty());
}

#[test]
fn a_gap_is_noticed_once_however_much_waits_to_be_read() {
    let (mut world, ids) = World::of(2);
    world.now = world.now + Duration::from_secs(60);
    for id in ids.iter().cycle().take(6) {
        let (quoted, heard) = (Serial::default(), Vec::new());
        world.up(*id, Up::Heartbeat { quoted, heard });
    }
    world.input(MasterInput::Tick);
    let stalled = |e: &&Event| matches!(e, Event::Stalled { .. });
    assert_eq!(world.events.iter().filter(stalled).count(), 1);
    let beat = |m: &Down| *m == Down::Heartbeat;
    assert!(world.seats[&ids[0]].inbox.iter().any(beat));
}

#[test]
fn being_a_little_late_is_no_gap() {
    let (mut world, ids) = World::of(1);
    for _ in 0..4 {
        let due = world.master.next_deadline().unwrap();
        world.now = due + Duration::from_millis(900);
        world.input(MasterInput::Tick);
    }
    assert!(
        !world
            .events
            .iter()
            .any(|e| matches!(e, Event::Stalled { .. }))
    );
    assert!(world.ring(0).is_empty() && world.seats[&ids[0]].closed);
}
