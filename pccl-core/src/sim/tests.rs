use super::campaign::{Campaign, describe};
use super::world::run;

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
