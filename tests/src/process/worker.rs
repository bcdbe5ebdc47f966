//! One process under test.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Something that a worker said, and when it arrived here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// When it was read.
    pub at: Instant,
    /// What.
    pub text: String,
}

impl Line {
    /// The words of the line.
    pub fn words(&self) -> Vec<&str> {
        self.text.split(' ').collect()
    }
}

/// A process that is driven over its standard input and output. Dropping it kills it.
#[derive(Debug)]
pub struct Worker {
    /// What the test calls it.
    pub name: String,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<Line>,
    /// Read, and asked for by nobody yet.
    waiting: VecDeque<Line>,
    /// Last lines, for the report of a failure.
    history: VecDeque<String>,
}

impl Worker {
    /// Starts `program` (the worker of this package) with these arguments.
    pub fn start(program: &str, name: &str, arguments: &[String]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            // What is freed shall go back to the system, so that resident memory is what is held.
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_MMAP_THRESHOLD_", "65536")
            .env("MALLOC_TRIM_THRESHOLD_", "65536")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{program} does not start: {e}"));
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            panic!("{name} has no pipes");
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for text in BufReader::new(stdout).lines().map_while(Result::ok) {
                let at = Instant::now();
                if sender.send(Line { at, text }).is_err() {
                    return;
                }
            }
        });
        Self {
            name: name.to_owned(),
            child,
            stdin,
            lines,
            waiting: VecDeque::new(),
            history: VecDeque::new(),
        }
    }

    /// Number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives a command. One that the process does not live to read is lost.
    pub fn tell(&mut self, command: &str) {
        self.note(format!("> {command}"));
        let _ = writeln!(self.stdin, "{command}");
    }

    /// Waits until the worker says something that begins with `start`. What it says before stays
    /// for [`Worker::said`]. Panics at the deadline, or when the worker ends.
    pub fn expect(&mut self, start: &str, deadline: Instant) -> Line {
        if let Some(at) = self.waiting.iter().position(|l| l.text.starts_with(start))
            && let Some(line) = self.waiting.remove(at)
        {
            return line;
        }
        loop {
            match self.next(deadline) {
                Ok(line) if line.text.starts_with(start) => return line,
                Ok(line) => self.waiting.push_back(line),
                Err(why) => self.fail(&format!("{why} before it said {start:?}")),
            }
        }
    }

    /// As [`Worker::expect`], but the line stays for [`Worker::said`].
    pub fn see(&mut self, start: &str, deadline: Instant) {
        let line = self.expect(start, deadline);
        self.waiting.push_back(line);
    }

    /// Everything said so far that nobody has asked for.
    pub fn said(&mut self) -> Vec<Line> {
        while let Ok(line) = self.lines.try_recv() {
            self.took(&line);
            self.waiting.push_back(line);
        }
        self.waiting.drain(..).collect()
    }

    /// Ends the process without a warning, at once. What it had said is read to the end.
    pub fn kill(&mut self) -> Instant {
        self.note("> killed".into());
        let _ = self.child.kill();
        let at = Instant::now();
        let _ = self.child.wait();
        while let Ok(line) = self.next(at + Duration::from_secs(10)) {
            self.waiting.push_back(line);
        }
        at
    }

    /// Stops the process where it stands, until [`Worker::resume`].
    pub fn stop(&mut self) {
        self.signal("-STOP");
    }

    /// Lets a stopped process go on.
    pub fn resume(&mut self) {
        self.signal("-CONT");
    }

    /// Fails the test, with the last lines that were exchanged.
    pub fn fail(&self, why: &str) -> ! {
        let history: Vec<_> = self.history.iter().map(String::as_str).collect();
        panic!("{}: {why}\nlast lines:\n{}", self.name, history.join("\n"))
    }

    fn signal(&mut self, signal: &str) {
        self.note(format!("> {signal}"));
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.is_ok_and(|s| s.success()), "kill {signal} {pid}");
    }

    fn next(&mut self, deadline: Instant) -> Result<Line, &'static str> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => {
                self.took(&line);
                Ok(line)
            }
            Err(RecvTimeoutError::Timeout) => Err("the time passed"),
            Err(RecvTimeoutError::Disconnected) => Err("it ended"),
        }
    }

    fn took(&mut self, line: &Line) {
        self.note(line.text.clone());
        if line.text.starts_with("harm ") {
            self.fail(&line.text);
        }
    }

    fn note(&mut self, text: String) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(text);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lines kept for the report of a failure.
const HISTORY: usize = 60;
