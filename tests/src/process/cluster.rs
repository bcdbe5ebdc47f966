//! A master and its peers, each in a process of its own.

use std::time::{Duration, Instant};

use super::tensor::Job;
use super::worker::{Line, Worker};

/// A run under test.
#[derive(Debug)]
pub struct Cluster {
    /// The master.
    pub master: Worker,
    /// Its address.
    pub address: String,
    /// What peers are given to join: the address, or a ticket.
    join: String,
    /// The peers that live.
    pub peers: Vec<Worker>,
    program: String,
    started: u32,
}

impl Cluster {
    /// A master with this peer time-out, and no peers. `program` is the worker.
    pub fn start(program: &str, peer_timeout: Duration) -> Self {
        Self::start_with(program, peer_timeout, &[])
    }

    /// The same with tickets: all that is said is inside TLS.
    pub fn start_secured(program: &str, peer_timeout: Duration) -> Self {
        Self::start_with(program, peer_timeout, &["ticket".to_owned()])
    }

    fn start_with(program: &str, peer_timeout: Duration, more: &[String]) -> Self {
        let milliseconds = peer_timeout.as_millis().to_string();
        let arguments = [&["master".to_owned(), milliseconds], more].concat();
        let mut master = Worker::start(program, "master", &arguments);
        let line = master.expect("listens ", Instant::now() + LIMIT);
        let word = |n: usize| line.words().get(n).copied().unwrap_or_default().to_owned();
        let (address, join) = (word(1), word(2));
        Self {
            master,
            address,
            join,
            peers: Vec::new(),
            program: program.to_owned(),
            started: 0,
        }
    }

    /// A new process for place `place` of the run, which knows the master and waits for commands.
    /// Places differ in the number of lanes and the size of segments. `identity` is what its
    /// contributions show.
    pub fn spawn(&mut self, place: usize, identity: u32) -> Worker {
        self.started += 1;
        let (pool, segment) = MIXED[place % MIXED.len()];
        let name = format!("peer{}-place{place}-identity{identity}", self.started);
        let arguments = [
            "peer".into(),
            self.join.clone(),
            identity.to_string(),
            pool.to_string(),
            segment.to_string(),
            name.clone(),
        ];
        Worker::start(&self.program, &name, &arguments)
    }

    /// Starts `size` peers and waits until they are all members.
    pub fn fill(&mut self, size: usize) {
        for place in 0..size {
            let peer = self.spawn(place, place as u32);
            self.peers.push(peer);
        }
        self.tell_all(&format!("join {size}"));
        self.expect_all("grown ", LIMIT);
    }

    /// Gives all peers the same command.
    pub fn tell_all(&mut self, command: &str) {
        for peer in &mut self.peers {
            peer.tell(command);
        }
    }

    /// Waits until all peers have said something that begins with `start`.
    pub fn expect_all(&mut self, start: &str, limit: Duration) -> Vec<Line> {
        let deadline = Instant::now() + limit;
        let peers = self.peers.iter_mut();
        peers.map(|peer| peer.expect(start, deadline)).collect()
    }

    /// Everything that the peers said and nobody has asked for.
    pub fn said(&mut self) -> Vec<Vec<Line>> {
        self.peers.iter_mut().map(Worker::said).collect()
    }

    /// Lets all peers reduce these, each until it is committed, and returns what each call came to,
    /// peer by peer. See [`outcomes`].
    pub fn reduce(&mut self, step: u64, jobs: &[Job], limit: Duration) -> Vec<Vec<String>> {
        self.said();
        self.tell_all(&reduce(step, jobs));
        self.expect_all(&format!("reduced {step}"), limit);
        let said = self.said();
        said.iter().map(|lines| outcomes(lines)).collect()
    }
}

/// The command that makes a peer reduce these, all at once, each until it is committed.
pub fn reduce(step: u64, jobs: &[Job]) -> String {
    let mut command = format!("reduce {step}");
    for job in jobs {
        command += &format!(" {job}");
    }
    command
}

/// How the calls ended, tag by tag and in order within a tag: the same for all members.
pub fn outcomes(lines: &[Line]) -> Vec<String> {
    let calls = lines.iter().filter(|l| l.text.starts_with("call "));
    let mut calls: Vec<String> = calls.map(|l| l.text.clone()).collect();
    // Stable, so that the calls of one tag keep their order.
    calls.sort_by_key(|text| {
        text.split(' ')
            .take(3)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    calls
}

/// Time in which everything ends that is not meant to wait, on a machine that is busy with other
/// things.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Lanes and segment sizes of the places: all differ, one is automatic, one is odd.
const MIXED: [(u16, u32); 4] = [(1, 256 << 10), (0, 64 << 10), (4, 24 << 10), (3, 1 << 20)];
