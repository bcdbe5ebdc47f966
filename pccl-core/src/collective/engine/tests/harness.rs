//! Some engines and the pipes between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::collective::buffers::OwnedBuffers;
use crate::collective::engine::{Engine, EngineConfig, EngineEvent, OpStats, StartReduce};
use crate::ids::{CallId, Digest, Epoch, LaneId, MemberId, Round, Serial, Tag, Time, Token};
use crate::types::{Algorithm, Choice, OpKey, OpKind, ReduceDescriptor};
use crate::wire::control::{GroupView, MemberInfo, OpName};
use crate::wire::lane::DataHeader;
use crate::wire::reason::RequestCause;

/// Random numbers from a seed.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// One of some numbers.
    pub(super) fn one_of<T: Copy>(&mut self, choice: &[T]) -> T {
        choice[self.below(choice.len())]
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// One direction of a lane.
pub(super) struct Pipe {
    pub(super) lane: LaneId,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) bytes: VecDeque<u8>,
    pub(super) open: bool,
}

/// An operation at one engine.
pub(super) struct Running {
    pub(super) buffers: OwnedBuffers,
    pub(super) original: Vec<u8>,
    pub(super) in_place: bool,
    pub(super) done: Option<Digest>,
    pub(super) failed: Option<RequestCause>,
}

/// Engines in a ring.
pub(super) struct Net {
    pub(super) engines: Vec<Engine>,
    pub(super) pipes: Vec<Pipe>,
    /// Lanes (by engine) that have something to send, as far as the engine has said.
    writable: BTreeSet<(usize, LaneId)>,
    pub(super) running: BTreeMap<(usize, CallId), Running>,
    pub(super) events: Vec<(usize, EngineEvent)>,
    pub(super) rng: Rng,
    pub(super) now: Time,
    /// Bytes that a pipe holds at most.
    pub(super) capacity: usize,
    /// Most bytes written or read at once.
    pub(super) chunk: usize,
    pub(super) group: GroupView,
    next_call: u64,
    tags: BTreeMap<(usize, u64), CallId>,
}

impl Net {
    /// A ring of engines with these settings, and so many lanes from each to the next.
    pub(super) fn new(seed: u64, configs: &[EngineConfig], lanes: &[usize]) -> Self {
        Self::by(None, 0, seed, configs, lanes)
    }

    /// Engines with the edges of an algorithm, by which all goes that asks for nothing else, and so
    /// many lanes on the first edges of each.
    pub(super) fn by(
        algorithm: Option<Algorithm>,
        hub: usize,
        seed: u64,
        configs: &[EngineConfig],
        lanes: &[usize],
    ) -> Self {
        let n = configs.len();
        let algorithm = algorithm.unwrap_or(Algorithm::Ring);
        let choice = Choice {
            ring: algorithm == Algorithm::Ring,
            direct: algorithm == Algorithm::Direct,
            hub: (algorithm == Algorithm::Star).then(|| member(hub)),
            ..Choice::RING
        };
        let ring = (0..n as u64).map(|i| MemberInfo {
            id: member(i as usize),
            name: String::new(),
            addresses: Vec::new(),
            token: Token(0),
            key: None,
        });
        let mut net = Self {
            engines: configs.iter().map(|c| Engine::new(*c, Time(0))).collect(),
            pipes: Vec::new(),
            writable: BTreeSet::new(),
            running: BTreeMap::new(),
            events: Vec::new(),
            rng: Rng::new(seed),
            now: Time(0),
            capacity: 4096,
            chunk: 2000,
            group: GroupView {
                epoch: Epoch(1),
                ring: ring.collect(),
                choice,
            },
            next_call: 0,
            tags: BTreeMap::new(),
        };
        for (a, b) in (0..n).flat_map(|b| (0..b).map(move |a| (a, b))) {
            let next = b == a + 1 || (a, b + 1) == (0, n);
            let edge = match algorithm {
                Algorithm::Ring => next,
                Algorithm::Star => a == hub || b == hub,
                Algorithm::Direct => true,
            };
            let most = if next && b != a + 1 {
                lanes[b]
            } else {
                lanes[a]
            };
            for _ in 0..if edge { most } else { 0 } {
                net.add_lane(a, b);
            }
        }
        net
    }

    pub(super) fn add_lane(&mut self, a: usize, b: usize) -> LaneId {
        let lane = LaneId(self.pipes.len() as u64);
        for (from, to) in [(a, b), (b, a)] {
            self.pipes.push(Pipe {
                lane,
                from,
                to,
                bytes: VecDeque::new(),
                open: true,
            });
            self.engines[from].lane_open(lane, member(to), self.now);
            self.drain(from);
        }
        lane
    }

    /// Cuts a lane: what is in it is lost.
    pub(super) fn cut(&mut self, lane: LaneId) {
        for index in 0..self.pipes.len() {
            let pipe = &mut self.pipes[index];
            if pipe.lane == lane && pipe.open {
                pipe.open = false;
                pipe.bytes.clear();
                let from = pipe.from;
                self.engines[from].lane_closed(lane, false, "cut", self.now);
                self.drain(from);
            }
        }
    }

    /// A lane breaks, and only one end is told.
    pub(super) fn cut_at_one_end(&mut self, lane: LaneId, at: usize) {
        for pipe in self.pipes.iter_mut().filter(|pipe| pipe.lane == lane) {
            pipe.open = false;
            pipe.bytes.clear();
        }
        self.engines[at].lane_closed(lane, false, "cut", self.now);
        self.drain(at);
    }

    pub(super) fn start(
        &mut self,
        at: usize,
        tag: u64,
        descriptor: ReduceDescriptor,
        contribution: Vec<u8>,
        in_place: bool,
    ) -> CallId {
        self.next_call += 1;
        let call = CallId(self.next_call);
        let original = contribution.clone();
        let mut buffers = match in_place {
            true => OwnedBuffers::in_place(contribution),
            false => OwnedBuffers::new(contribution),
        };
        let start = StartReduce {
            call,
            op: name(tag),
            quoted: Serial::default(),
            descriptor,
            group: self.group.clone(),
            own: member(at),
        };
        let lent = buffers.lend();
        self.running.insert(
            (at, call),
            Running {
                buffers,
                original,
                in_place,
                done: None,
                failed: None,
            },
        );
        self.tags.insert((at, tag), call);
        self.engines[at].start(start, lent, self.now);
        self.drain(at);
        call
    }

    /// Ends a call; the result, or what an in-place buffer held before.
    pub(super) fn finish(&mut self, at: usize, call: CallId, commit: bool) -> (Running, OpStats) {
        let stats = self.engines[at].finish(call, commit);
        self.drain(at);
        (self.running.remove(&(at, call)).unwrap(), stats)
    }

    /// Moves some bytes, somewhere; says whether any could move.
    pub(super) fn step(&mut self) -> bool {
        let start = self.rng.below(self.pipes.len());
        let write_first = self.rng.below(2) == 0;
        for i in 0..self.pipes.len() {
            let index = (start + i) % self.pipes.len();
            for write in [write_first, !write_first] {
                if (write && self.write(index)) || (!write && self.read(index)) {
                    return true;
                }
            }
        }
        false
    }

    /// All that can be written now arrives, and nothing else.
    pub(super) fn hop(&mut self) {
        for index in 0..self.pipes.len() {
            while self.write(index) {}
        }
        for index in 0..self.pipes.len() {
            while self.read(index) {}
        }
    }

    /// Some random steps, at most `most`.
    pub(super) fn steps(&mut self, most: usize) {
        for _ in 0..self.rng.below(most) {
            self.step();
        }
    }

    /// Moves bytes until none can; panics if that takes for ever.
    pub(super) fn settle(&mut self) {
        for _ in 0..STEPS_LIMIT {
            if !self.step() {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Time passes at all engines.
    pub(super) fn tick(&mut self, by: Duration) {
        self.now = self.now + by;
        for at in 0..self.engines.len() {
            self.engines[at].tick(self.now);
            self.drain(at);
        }
    }

    /// Closes a lane in good order from one end, once both ends have nothing more on it.
    pub(super) fn close(&mut self, at: usize, lane: LaneId) {
        self.engines[at].close_lane(lane);
        self.drain(at);
    }

    /// Both sockets of a lane are closed, after a goodbye.
    pub(super) fn closed_in_order(&mut self, lane: LaneId) {
        for index in 0..self.pipes.len() {
            if self.pipes[index].lane == lane {
                self.pipes[index].open = false;
                let at = self.pipes[index].from;
                self.engines[at].lane_closed(lane, true, "closed", self.now);
                self.drain(at);
            }
        }
    }

    fn write(&mut self, index: usize) -> bool {
        let pipe = &mut self.pipes[index];
        let (at, lane) = (pipe.from, pipe.lane);
        let room = self.capacity.saturating_sub(pipe.bytes.len());
        if !pipe.open || room == 0 || !self.writable.contains(&(at, lane)) {
            return false;
        }
        let most = 1 + self.rng.below(room.min(self.chunk));
        let [header, payload] = self.engines[at].gather(lane);
        let before = pipe.bytes.len();
        pipe.bytes.extend(&header[..header.len().min(most)]);
        pipe.bytes
            .extend(&payload[..payload.len().min(most - header.len().min(most))]);
        let n = pipe.bytes.len() - before;
        if n == 0 {
            self.writable.remove(&(at, lane));
        } else {
            self.engines[at].sent(lane, n, self.now);
        }
        self.drain(at);
        n > 0
    }

    fn read(&mut self, index: usize) -> bool {
        let pipe = &mut self.pipes[index];
        if !pipe.open || pipe.bytes.is_empty() {
            return false;
        }
        let (at, lane) = (pipe.to, pipe.lane);
        let sink = self.engines[at].sink(lane);
        let most = 1 + self.rng.below(self.chunk);
        let n = most.min(sink.len()).min(pipe.bytes.len());
        if n == 0 {
            // Nobody reads here any more.
            pipe.bytes.clear();
            return false;
        }
        let (front, back) = pipe.bytes.as_slices();
        let first = n.min(front.len());
        sink[..first].copy_from_slice(&front[..first]);
        sink[first..n].copy_from_slice(&back[..n - first]);
        pipe.bytes.drain(..n);
        self.engines[at].received(lane, n, self.now);
        self.drain(at);
        true
    }

    pub(super) fn drain(&mut self, at: usize) {
        while let Some(lane) = self.engines[at].poll_writable() {
            assert!(self.writable.insert((at, lane)), "said twice");
        }
        while let Some(event) = self.engines[at].poll_event() {
            match &event {
                EngineEvent::Done { op, result, .. } => {
                    let running = self.of(at, op.key.tag.0);
                    assert_eq!(running.done.replace(*result), None);
                }
                EngineEvent::Failed { op, cause, .. } => {
                    let running = self.of(at, op.key.tag.0);
                    assert_eq!(running.failed.replace(cause.clone()), None);
                }
                EngineEvent::LaneFault { lane, .. } => {
                    // The driver closes the socket, which the other end notices.
                    for index in 0..self.pipes.len() {
                        let pipe = &mut self.pipes[index];
                        if pipe.lane == *lane && pipe.open {
                            pipe.open = false;
                            let from = pipe.from;
                            self.engines[from].lane_closed(*lane, false, "reset", self.now);
                            if from != at {
                                self.drain(from);
                            }
                        }
                    }
                }
                _ => {}
            }
            self.events.push((at, event));
        }
    }

    fn of(&mut self, at: usize, tag: u64) -> &mut Running {
        let call = self.tags[&(at, tag)];
        self.running.get_mut(&(at, call)).unwrap()
    }
}

pub(super) fn member(index: usize) -> MemberId {
    MemberId(index as u64 + 1)
}

pub(super) fn name(tag: u64) -> OpName {
    OpName {
        round: Round(1),
        key: OpKey {
            kind: OpKind::Collective,
            tag: Tag(tag),
        },
        attempt: 0,
    }
}

pub(super) fn config(segment: u32) -> EngineConfig {
    EngineConfig {
        segment,
        ..EngineConfig::default()
    }
}

/// A data frame as bytes, with the right checksum.
pub(super) fn frame(header: DataHeader, payload: &[u8]) -> Vec<u8> {
    let mut header = DataHeader {
        length: payload.len() as u32,
        ..header
    };
    let mut checksum = header.checksum();
    checksum.update(payload);
    header.crc = checksum.finalize();
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// Feeds bytes to a lane of an engine, as far as it takes them.
pub(super) fn feed(engine: &mut Engine, lane: LaneId, mut bytes: &[u8], now: Time) {
    while !bytes.is_empty() {
        let sink = engine.sink(lane);
        let n = sink.len().min(bytes.len());
        if n == 0 {
            return;
        }
        sink[..n].copy_from_slice(&bytes[..n]);
        engine.received(lane, n, now);
        bytes = &bytes[n..];
    }
}

/// Far more steps than any test needs.
const STEPS_LIMIT: usize = 20_000_000;
