use super::campaign::{Campaign, describe, find};
use super::world::run;
use crate::planted::Bug;

/// Worlds that a test visits; together with the others some thousands in every run of the tests.
const SEEDS: u64 = 600;

fn visit(first: u64) {
    let mut campaign = Campaign::default();
    for seed in first..first + SEEDS {
        campaign.add(seed);
        if let Some(failed) = campaign.failed.first() {
            panic!("{}", describe(failed.seed));
        }
    }
}

/// Most planted bugs are found within some dozens of worlds, all but one within some hundreds.
const HIDING: u64 = 3_000;

/// Plants every other bug, beginning with one or the other. Left out is one that takes ten thousand
/// worlds; `pccl-sim --planted` finds it.
fn plant_and_find(first: usize) {
    for &bug in Bug::ALL.iter().skip(first).step_by(2) {
        if bug != Bug::AttributesGoBack {
            let found = find(bug, 0, HIDING);
            assert!(found.is_some(), "{bug:?} hides in {HIDING} worlds");
        }
    }
}

// In parts, so that they run side by side.

#[test]
fn no_world_of_the_first_part_breaks_an_invariant() {
    visit(0);
}

#[test]
fn no_world_of_the_second_part_breaks_an_invariant() {
    visit(SEEDS);
}

#[test]
fn no_world_of_the_third_part_breaks_an_invariant() {
    visit(2 * SEEDS);
}

#[test]
fn no_world_of_the_fourth_part_breaks_an_invariant() {
    visit(3 * SEEDS);
}

#[test]
fn a_seed_gives_the_same_world_twice() {
    for seed in 0..50 {
        let (first, second) = (run(seed, 0), run(seed, 20));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.violation, second.violation, "seed {seed}");
    }
}

#[test]
fn planted_bugs_of_the_first_half_are_found() {
    plant_and_find(0);
}

#[test]
fn planted_bugs_of_the_second_half_are_found() {
    plant_and_find(1);
}
