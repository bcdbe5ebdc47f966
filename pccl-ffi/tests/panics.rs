//! A bug in any of the library's threads ends in results, over the C interface: a panic is planted in
//! one process, and the calls of that process and of others are looked at.

#![cfg(feature = "testing")]

mod support;

use std::process::Command;

use support::{posix, program, run_and_read, test_source};

/// What comes of a panic.
#[derive(Clone, Copy, PartialEq)]
enum Comes {
    /// A call of the process that has it is `pcclInternalError`.
    Internal,
    /// Some call of some process fails.
    Failure,
    /// Nothing: it is the end of one thread or connection, and the work is done otherwise.
    Nothing,
}

fn planted(who: &str, order: &str, place: &str, comes: Comes) {
    if !posix() {
        return;
    }
    let program = program(&test_source("panics.c"), &[]);
    let mut command = Command::new(program);
    let said = run_and_read(command.args([who, order, place]));
    let (name, _) = place.split_once(':').unwrap_or((place, ""));
    assert!(said.contains(&format!("planted in {name}")), "{said}");
    // A call, its result, the words; some with the mark of the process that has the panic.
    let is_call = |line: &&str| {
        let result = line.split(' ').nth(1);
        result.is_some_and(|word| word.starts_with("pccl") && !word.contains(['-', ':']))
    };
    let calls: Vec<&str> = said.lines().filter(is_call).collect();
    let failed = |line: &&&str| !line.contains("pcclSuccess");
    let mut failures = calls.iter().filter(failed);
    let internal = |line: &&str| line.starts_with('*') && line.contains("pcclInternalError");
    let as_it_must = match comes {
        Comes::Internal => failures.any(internal),
        Comes::Failure => failures.next().is_some(),
        Comes::Nothing => calls.len() > 10 && failures.next().is_none(),
    };
    assert!(as_it_must, "{said}");
}

macro_rules! panics {
    ($($name:ident => $who:literal $order:literal $place:literal $comes:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                planted($who, $order, $place, Comes::$comes);
            }
        )*
    };
}

panics! {
    net_in_the_control_thread_while_joining => "peer" "second" "Control:2" Internal,
    net_in_the_control_thread_in_the_middle => "peer" "first" "Control:60" Internal,
    net_in_the_task_that_binds => "peer" "first" "Prepare:1" Internal,
    net_in_the_task_that_accepts_members => "peer" "first" "Listener:1" Internal,
    net_in_the_task_that_dials_a_member => "peer" "second" "DialMember:1" Internal,
    net_in_the_task_that_dials_the_master => "peer" "second" "DialMaster:1" Internal,
    net_in_the_task_that_reads_the_master => "peer" "first" "ReadMaster:12" Internal,
    net_in_the_task_that_writes_to_the_master => "peer" "second" "Write:5" Internal,
    // Word of its lanes may be faster than word of its end.
    net_in_the_data_thread => "peer" "first" "Data:50" Failure,
    net_in_the_data_thread_with_a_buffer_half_done => "peer" "second" "Fold:3" Failure,
    net_in_the_thread_that_synchronises => "peer" "second" "Sync:1" Internal,
    net_in_a_thread_that_digests => "peer" "first" "Digest:1" Nothing,
    net_in_a_thread_that_fetches => "peer" "second" "Fetch:3" Nothing,
    net_in_a_thread_that_serves => "peer" "first" "Serve:1" Nothing,
    net_in_the_master => "master" "first" "Master:30" Failure,
    net_in_the_task_of_the_master_that_accepts => "master" "first" "Accept:2" Failure,
    net_in_the_task_of_the_master_that_greets => "master" "first" "Greet:2" Nothing,
    net_in_the_task_of_the_master_that_reads_a_peer => "master" "first" "ReadPeer:9" Nothing,
    net_in_the_task_of_the_master_that_writes => "master" "first" "Write:9" Nothing,
}
