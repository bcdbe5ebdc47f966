//! The scenarios of PCCL 1.0 by their numbers, and those that it had none for, over the C interface.

mod support;

use support::{posix, program, run, shared_library, test_source};

macro_rules! scenarios {
    ($source:literal: $($name:ident => $argument:literal),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                if posix() {
                    run(&program(&test_source($source), &[]), &[$argument]);
                }
            }
        )*
    };
}

scenarios! {
    "scenarios.c":
    net_27_sum_of_2_large => "27",
    net_28_sum_of_2_large_in_place => "28",
    net_29_sum_of_3_with_2_elements => "29",
    net_30_sum_of_3_with_2_elements_in_place => "30",
    net_31_sum_of_3_with_3_elements => "31",
    net_32_sum_of_3_with_3_elements_in_place => "32",
    net_33_sum_of_4_with_2_elements => "33",
    net_34_sum_of_4_with_2_elements_in_place => "34",
    net_35_quantised_sum_of_2 => "35",
    net_36_average_of_2 => "36",
    net_37_minimum_of_2 => "37",
    net_38_maximum_of_2 => "38",
    net_39_no_admission_while_a_collective_is_open => "39",
    net_40_no_synchronisation_while_a_collective_is_open => "40",
    net_41_sum_of_3_with_uneven_slices => "41",
    net_42_two_tags_at_once => "42",
    net_43_a_tag_is_in_use_until_awaited => "43",
    net_44_a_newcomer_is_accepted => "44",
    net_45_a_newcomer_of_another_group_is_accepted => "45",
}

scenarios! {
    "more.c":
    net_buffers_are_the_same_or_apart => "buffers",
    net_formats_that_mean_nothing => "formats",
    net_a_mismatch_is_an_argument_error_for_all => "mismatch",
    net_limits_and_cancelling => "limits",
    net_every_algorithm_that_is_asked_for => "algorithms",
    net_many_with_retry_counts_right => "many",
    net_the_query_for_newcomers_runs_beside_collectives => "background",
    net_state_reaches_who_lacks_it_and_a_rule_breaker_comes_back => "state",
    net_destroyed_with_calls_open => "odd_ends",
    net_a_killed_member_fails_the_operation_and_no_more => "killed",
    net_destroyed_while_it_joins => "destroyed_while_joining",
    net_signals_are_the_programs => "signals",
    net_few_descriptors_give_codes => "descriptors",
}

macro_rules! limits {
    ($($name:ident => $argument:literal),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                if std::env::consts::OS == "linux" {
                    run(&program(&test_source("limits.c"), &[]), &[$argument]);
                } else {
                    println!("left out: what a process has is looked up in the way of Linux");
                }
            }
        )*
    };
}

limits! {
    net_few_descriptors_for_everything_give_codes => "descriptors",
    net_few_threads_give_codes => "threads",
    net_little_memory_gives_codes => "memory",
    net_threads_are_named_and_nothing_of_the_process_changes => "nothing_changed",
}

#[test]
fn a_library_that_was_closed_is_there_for_threads_that_called_it() {
    if std::env::consts::OS == "linux" {
        let library = shared_library();
        let program = program(&test_source("opened.c"), &["-ldl", "-Wl,--as-needed"]);
        run(&program, &[&library.to_string_lossy()]);
    } else {
        println!("left out: how libraries are opened and closed differs on this system");
    }
}

#[test]
fn net_null_and_nonsense_have_documented_codes() {
    if posix() {
        run(&program(&test_source("arguments.c"), &[]), &[]);
    }
}

#[test]
fn net_absurd_counts_odd_pointers_and_the_end_in_the_middle() {
    if posix() {
        run(&program(&test_source("hostile.c"), &[]), &[]);
    }
}

#[test]
fn net_the_c_side_is_clean_under_sanitizers() {
    if std::env::consts::OS != "linux" {
        println!("left out: the sanitizers are tried on Linux only");
        return;
    }
    let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    run(&program(&test_source("arguments.c"), &options), &[]);
    run(&program(&test_source("scenarios.c"), &options), &["43"]);
}
