//! The C examples, run as a user would: a master and workers, one of which is killed.

// What a helper of the tests cannot do ends the test.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use pccl_core::config::{MasterConfig, PeerConfig, Security, TicketConfig};
use pccl_core::types::{DataType, SyncStrategy};
use pccl_core::{Communicator, Master, SharedState};
use support::{example_source, is_there, own_library, posix, program};

/// A program whose lines are read as they come; killed when dropped.
struct Program {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Program {
    fn start(program: &Path, wrapper: &[&str], arguments: &[&str]) -> Self {
        let mut words = wrapper.iter().map(Path::new).chain([program]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(arguments);
        own_library(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// Reads until a line has `text` in it.
    fn wait_for(&mut self, text: &str) -> String {
        let end = Instant::now() + LONGEST;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(cause) => panic!("no {text:?} ({cause}) after {:?}", self.seen.last()),
            }
        }
    }

    /// Waits for a good end, and gives all lines.
    fn finish(mut self) -> Vec<String> {
        let end = Instant::now() + LONGEST;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("no end after {:?}", self.seen.last()),
            }
        }
        assert!(
            self.child.wait().unwrap().success(),
            "{:?}",
            self.seen.last()
        );
        std::mem::take(&mut self.seen)
    }

    fn terminate(&self) {
        let id = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Step number to the rest of the line, of a worker's output.
fn steps(lines: &[String]) -> Vec<(u64, String)> {
    let step = |line: &String| {
        let (number, rest) = line.strip_prefix("step ")?.split_once(' ')?;
        Some((number.parse().ok()?, rest.to_owned()))
    };
    lines.iter().filter_map(step).collect()
}

#[test]
fn net_workers_survive_a_kill_and_a_newcomer_catches_up() {
    if !posix() {
        return;
    }
    let worker = program(&example_source("worker.c"), &[]);
    let master = program(&example_source("master.c"), &[]);
    let mut master = Program::start(&master, &[], &["127.0.0.1:0"]);
    let port = master.wait_for("listening on port");
    let port = port.rsplit(' ').next().unwrap();
    let address = format!("127.0.0.1:{port}");
    let start = |seed: &str| Program::start(&worker, &[], &[&address, "60", seed]);

    let mut first = start("1");
    let second = start("2");
    let mut victim = start("3");
    first.wait_for("of 3 workers");
    victim.wait_for("of 3 workers");
    // SIGKILL: it says goodbye to nobody.
    victim.child.kill().unwrap();
    first.wait_for("of 2 workers");
    let third = start("4");
    first.wait_for("of 3 workers");

    let all = [first, second, third].map(Program::finish);
    let reference = steps(&all[0]);
    assert_eq!(reference.last().map(|(step, _)| *step), Some(60));
    for lines in &all[1..] {
        let own = steps(lines);
        assert_eq!(own.last(), reference.last());
        for step in &own {
            // Those that took part in the same step have the same model.
            let same = reference.iter().find(|(number, _)| *number == step.0);
            assert!(same.is_none_or(|same| same == step), "{same:?} {step:?}");
        }
    }
    assert!(all[2].iter().any(|line| line.starts_with("took the state")));
    master.terminate();
    master.finish();
}

#[test]
fn net_a_worker_that_is_left_alone_before_the_average_goes_on_with_the_next_one() {
    if !posix() {
        return;
    }
    let worker = program(&example_source("worker.c"), &[]);
    let master = program(&example_source("master.c"), &[]);
    let mut master = Program::start(&master, &[], &["127.0.0.1:0"]);
    let port = master.wait_for("listening on port");
    let address = format!("127.0.0.1:{}", port.rsplit(' ').next().unwrap());
    let start = |seed: &str| Program::start(&worker, &[], &[&address, "20", seed]);

    let mut first = start("1");
    // Synchronises, and is gone before it averages: this revision cannot be synchronised again.
    let companion = Communicator::new(&address, PeerConfig::default()).unwrap();
    companion.connect(None).unwrap();
    while companion.attributes().group_world_size < 2 {
        companion.update_topology().unwrap();
    }
    let mut weights = vec![0; WEIGHTS * size_of::<f32>()];
    let mut state = SharedState::new(0);
    state
        .add("weights", DataType::F32, &mut weights, false)
        .unwrap();
    companion
        .sync_shared_state(&mut state, SyncStrategy::EnforcePopular)
        .unwrap();
    companion.leave().unwrap();
    first.wait_for("of 1 workers");

    let second = start("2");
    for worker in [first, second] {
        let last = steps(&worker.finish()).last().map(|(step, _)| *step);
        assert_eq!(last, Some(20));
    }
    master.terminate();
    master.finish();
}

/// Programs that know nothing of tickets: what the environment says wins over their address.
#[test]
fn net_workers_join_with_the_ticket_of_their_environment() {
    if !posix() {
        return;
    }
    let config = MasterConfig {
        security: Security::Ticket(TicketConfig::default()),
        ..MasterConfig::default()
    };
    let master = Master::start("127.0.0.1:0", config).unwrap();
    let ticket = master.ticket().unwrap();
    let worker = program(&example_source("worker.c"), &[]);
    let nowhere = "127.0.0.1:1";
    let variable = format!("PCCL_TICKET={ticket}");
    let start = |seed| Program::start(&worker, &["env", &variable], &[nowhere, "20", seed]);
    let mut first = start("1");
    let second = start("2");
    first.wait_for("of 2 workers");
    for worker in [first, second] {
        let lines = worker.finish();
        assert_eq!(steps(&lines).last().map(|(step, _)| *step), Some(20));
        assert!(!lines.iter().any(|line| line.contains(&ticket[..20])));
    }
}

/// A master and a worker under valgrind, another worker with sanitizers compiled in, all with the
/// default of every signal (SIGPIPE among them, which `Command` gives back to its children); one
/// more worker is killed while they run.
#[test]
fn net_the_examples_are_clean_under_valgrind_and_sanitizers_while_one_is_killed() {
    if std::env::consts::OS != "linux" || !is_there("valgrind") {
        println!("left out: valgrind is not here");
        return;
    }
    let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let sanitized = program(&example_source("worker.c"), &options);
    let worker = program(&example_source("worker.c"), &[]);
    let master = program(&example_source("master.c"), &[]);
    let valgrind = [
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
    ];
    let mut master = Program::start(&master, &valgrind, &["127.0.0.1:0"]);
    let port = master.wait_for("listening on port");
    let address = format!("127.0.0.1:{}", port.rsplit(' ').next().unwrap());
    let start =
        |program, wrapper: &[&str], seed| Program::start(program, wrapper, &[&address, "30", seed]);
    let mut first = start(&sanitized, &[], "1");
    let second = start(&worker, &valgrind, "2");
    // The slow one sets the pace: there is time for the third to come and be killed.
    first.wait_for("of 2 workers");
    let mut victim = start(&worker, &[], "3");
    first.wait_for("of 3 workers");
    victim.child.kill().unwrap();
    first.wait_for("of 2 workers");
    for worker in [first, second] {
        let last = steps(&worker.finish()).last().map(|(step, _)| *step);
        assert_eq!(last, Some(30));
    }
    master.terminate();
    master.finish();
}

/// As many as `worker.c` has.
const WEIGHTS: usize = 20_000;

/// No line takes longer, however busy the machine is.
const LONGEST: Duration = Duration::from_secs(100);
