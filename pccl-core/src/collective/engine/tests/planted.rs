//! The tests of this module would find the bugs that can be planted in the engine.

use std::panic::catch_unwind;

use super::harness::{Net, config};
use super::{algorithms, faults, flow, lanes, reduce};
use crate::planted::{Bug, plant};
use crate::types::{DataType, ReduceDescriptor, ReduceOp};

/// Whether `test` fails with the bug.
fn finds(test: fn(), bug: Bug) -> bool {
    plant(Some(bug));
    let failed = catch_unwind(test).is_err();
    plant(None);
    failed
}

fn nobody_is_done_alone() {
    let mut net = Net::new(1, &[config(64); 2], &[1; 2]);
    let nothing = ReduceDescriptor {
        count: 0,
        data_type: DataType::F32,
        op: ReduceOp::Sum,
        quantization: None,
        algorithm: None,
    };
    net.start(0, 1, nothing, Vec::new(), false);
    net.settle();
    assert!(net.running.values().all(|op| op.done.is_none()));
}

#[test]
fn planted_bugs_are_found() {
    let tests: [(fn(), Bug); 8] = [
        (nobody_is_done_alone, Bug::DoneWithoutOpens),
        (reduce::sums_of_f32_are_right, Bug::OrderOfArrival),
        (
            algorithms::sums_in_groups_of_two_to_five_are_right,
            Bug::OrderOfArrival,
        ),
        (
            flow::wide_partials_get_around_with_the_smallest_room,
            Bug::WindowIgnored,
        ),
        (
            faults::an_abort_at_any_moment_restores_the_buffers_and_leaves_the_lanes_usable,
            Bug::NotRestored,
        ),
        (
            faults::a_changed_byte_never_makes_a_wrong_result,
            Bug::CrcIgnored,
        ),
        (
            faults::a_cut_lane_fails_what_it_carried_and_the_rest_goes_on,
            Bug::DeadLaneIgnored,
        ),
        (
            lanes::who_was_stopped_himself_does_not_blame_others,
            Bug::GapIgnored,
        ),
    ];
    nobody_is_done_alone();
    for (test, bug) in tests {
        assert!(finds(test, bug), "{bug:?} is not found");
    }
}
