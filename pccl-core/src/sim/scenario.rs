//! What a seed means: sizes, rates, and which faults strike. Each seed draws its own mix, so that
//! some worlds are calm, some lose connections only, and some are wild in everything.

use std::time::Duration;

use super::rng::Rng;
use crate::config::Timing;
use crate::ids::PeerGroup;

/// All parameters of one simulated world.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where it all comes from.
    pub seed: u64,
    /// Nothing goes wrong, and the users' programs agree: then nothing may fail.
    pub calm: bool,
    /// Time limits of the run.
    pub timing: Timing,
    /// One entry per peer of the first hour.
    pub peers: Vec<PeerShape>,
    /// Hosts of peers; two more belong to masters.
    pub peer_hosts: usize,
    /// One-way delays between hosts, row by row.
    pub latency: Vec<Duration>,
    /// Added to each packet's delay, evenly from zero.
    pub jitter: Duration,
    /// Packets (per mille) that are lost once and sent again.
    pub lossy: u32,
    /// Writes (per mille) that arrive in several pieces.
    pub split: u32,
    /// Bytes that a connection's kernels hold per direction.
    pub socket_buffer: usize,
    /// Longest delay between two threads of a process.
    pub thread_delay: Duration,
    /// After this long without an acknowledgement a kernel gives up.
    pub user_timeout: Duration,
    /// Chunks on lanes (per mille) with a flipped bit while faults last.
    pub flip: u32,
    /// Ordered pairs of hosts of which the second cannot be dialled from the first.
    pub undialable: Vec<(usize, usize)>,
    /// Pairs of hosts with no path between them at all, for good.
    pub severed: Vec<(usize, usize)>,
    /// What the users do.
    pub program: Program,
    /// Whether another peer comes when a member has begun to fetch the state.
    pub second_joiner: bool,
    /// Whether a user cancels the first fetch that has begun.
    pub cut_fetch: bool,
    /// What goes wrong.
    pub mix: FaultMix,
}

/// One peer.
#[derive(Clone, Debug)]
pub struct PeerShape {
    /// Its group.
    pub group: PeerGroup,
    /// When its process starts.
    pub start: Duration,
    /// Connections per edge it wants.
    pub pool: u16,
    /// Bytes of a frame's payload at most.
    pub segment: u32,
}

/// What the users' programs look like; the same for all.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Steps until a member leaves.
    pub steps: u64,
    /// Whether members synchronise their state each step; otherwise they agree on the step by an
    /// all-reduce.
    pub sync: bool,
    /// Whether members ask for newcomers before they update; otherwise they update each step.
    pub poll: bool,
    /// All-reduces in a step, at most.
    pub width: u64,
    /// Whether all-reduces of a step run at the same time.
    pub concurrent: bool,
    /// Elements of a tensor, at most.
    pub elements: u64,
    /// Times a failed all-reduce is tried again before the step starts over.
    pub retries: u32,
    /// Calls (per mille) with a time limit.
    pub limited: u32,
    /// Shortest and longest time limit.
    pub limits: (Duration, Duration),
    /// Calls (per mille) that the user cancels.
    pub cancelled: u32,
    /// Steps (per mille) in which a member's program differs from the others'.
    pub deviating: u32,
    /// Results (per mille) that a member computes wrongly.
    pub wrong: u32,
    /// Longest pause of a user between calls.
    pub think: Duration,
}

/// Kinds of faults that strike at a moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A process is killed, and perhaps started again.
    Crash,
    /// A machine goes away without a word.
    PowerCut,
    /// A control connection breaks.
    BreakControl,
    /// One lane breaks.
    BreakLane,
    /// All lanes of a peer break.
    BreakLanes,
    /// A path is cut in one direction for a while.
    CutOneWay,
    /// A path is cut in both directions for a while.
    CutBothWays,
    /// A host is cut off from all others for a while.
    Isolate,
    /// The hosts are parted in two for a while.
    Partition,
    /// A process is stopped for a while.
    Stall,
    /// The master is stopped for a while.
    StallMaster,
    /// A machine sleeps for a while, packets and all.
    Suspend,
    /// A clock jumps forward.
    Jump,
    /// An operator evicts a member.
    Evict,
    /// A second master comes up, and some peers meet it.
    SecondMaster,
    /// The master is killed, and a fresh one takes its place.
    RestartMaster,
    /// A user leaves, at once or between two calls.
    Leave,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Crash,
        Self::PowerCut,
        Self::BreakControl,
        Self::BreakLane,
        Self::BreakLanes,
        Self::CutOneWay,
        Self::CutBothWays,
        Self::Isolate,
        Self::Partition,
        Self::Stall,
        Self::StallMaster,
        Self::Suspend,
        Self::Jump,
        Self::Evict,
        Self::SecondMaster,
        Self::RestartMaster,
        Self::Leave,
    ];
}

/// Points in a process's life at which a fault does most harm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Moment {
    /// It has sent an OPEN to the master.
    Opened,
    /// It has sent a DONE to the master.
    Done,
    /// The master has a DONE from it, the last that was missing.
    AllDone,
    /// It has sent a vote.
    Voted,
    /// A verdict is about to be read.
    Verdict,
    /// A round's result is about to be read.
    Completed,
    /// A change of its group is about to be read.
    Group,
    /// It has registered.
    Registered,
    /// It has come back to the master.
    Attached,
    /// It has a lane half way through a frame.
    MidFrame,
    /// It has just begun to connect a lane.
    Dialled,
}

impl Moment {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Opened,
        Self::Done,
        Self::AllDone,
        Self::Voted,
        Self::Verdict,
        Self::Completed,
        Self::Group,
        Self::Registered,
        Self::Attached,
        Self::MidFrame,
        Self::Dialled,
    ];
}

/// Which faults strike, how many, and when.
#[derive(Clone, Debug)]
pub struct FaultMix {
    /// Kinds that strike, with weights.
    pub kinds: Vec<(Kind, u32)>,
    /// Faults at most.
    pub budget: u32,
    /// Faults at random times.
    pub scattered: u32,
    /// Chance (per mille) of a fault at each moment, in the order of [`Moment::ALL`].
    pub moments: Vec<u32>,
    /// Killed processes (per mille) that start again.
    pub restart: u32,
    /// When all faults end.
    pub horizon: Duration,
}

impl Scenario {
    /// The world of a seed.
    pub fn of(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let calm = rng.chance(60);
        let wild = !calm && rng.chance(300);
        let timeout = Duration::from_secs(rng.pick(&[1, 1, 2, 5]).unwrap_or(1));
        let timing = Timing::from_peer_timeout(timeout);
        let most = if rng.chance(200) { 6 } else { 4 };
        let count = rng.range(2, most) as usize;
        let two_groups = count >= 3 && rng.chance(250);
        let mut peers = peers(rng, count, two_groups, timing);
        let spare = 2;
        let peer_hosts = count + spare;
        let (latency, jitter) = latencies(rng, peer_hosts + 2, calm);
        let (undialable, severed) = if calm || rng.chance(750) {
            (Vec::new(), Vec::new())
        } else {
            firewalls(rng, peer_hosts)
        };
        let mut program = program(rng, calm, timing);
        let mix = if calm || rng.chance(80) {
            FaultMix::none()
        } else {
            mix(rng, wild, timing)
        };
        let mut socket_buffer = rng.pick(&[512, 4096, 65_536]).unwrap_or(4096) as usize;
        if rng.chance(15) {
            // More than the room of a slice, which only a look at large tensors puts to the test.
            program.elements = BIG;
            program.steps = 2;
            socket_buffer = 1 << 20;
            peers.iter_mut().for_each(|peer| peer.segment = 16_384);
        }
        Self {
            seed,
            calm,
            timing,
            peers,
            peer_hosts,
            latency,
            jitter,
            lossy: if rng.chance(200) { 5 } else { 0 },
            split: rng.pick(&[0, 50, 400]).unwrap_or(0),
            socket_buffer,
            thread_delay: Duration::from_micros(rng.pick(&[10, 100, 3000]).unwrap_or(10)),
            user_timeout: timing.peer_timeout,
            flip: if !calm && rng.chance(120) {
                rng.range(1, 20) as u32
            } else {
                0
            },
            undialable,
            severed,
            program,
            // Apart from the others, so that all other worlds stay what they were.
            second_joiner: Rng::new(!seed).chance(300),
            cut_fetch: program.cancelled > 0 && Rng::new(!seed ^ 1).chance(700),
            mix,
        }
    }

    /// Host of the first or second master.
    pub fn master_host(&self, which: usize) -> usize {
        self.peer_hosts + which
    }

    /// Hosts in all.
    pub fn hosts(&self) -> usize {
        self.peer_hosts + 2
    }

    /// Whether nothing but differing programs and wrong results disturbs this world.
    pub(super) fn undisturbed(&self) -> bool {
        let program = &self.program;
        let network = self.flip == 0 && self.undialable.is_empty() && self.severed.is_empty();
        let calls = program.limited == 0 && program.cancelled == 0 && program.wrong == 0;
        self.mix.budget == 0 && network && calls
    }

    /// Longest that any call may wait once faults have stopped: the master limit, after which a
    /// peer that missed its master leaves; then the others' detection of that; then the deadlines
    /// of dialling and of the rounds that follow.
    pub fn call_bound(&self) -> Duration {
        self.timing.master_limit + self.timing.peer_timeout * 14
    }

    /// Longest that all users may take to finish their programs once faults have stopped.
    pub fn total_bound(&self) -> Duration {
        self.call_bound() * 4 + self.timing.peer_timeout * 100
    }
}

impl FaultMix {
    fn none() -> Self {
        Self {
            kinds: Vec::new(),
            budget: 0,
            scattered: 0,
            moments: vec![0; Moment::ALL.len()],
            restart: 0,
            horizon: Duration::ZERO,
        }
    }
}

fn peers(rng: &mut Rng, count: usize, two_groups: bool, timing: Timing) -> Vec<PeerShape> {
    let late = rng.chance(400);
    (0..count)
        .map(|index| PeerShape {
            group: PeerGroup(u32::from(two_groups && index % 2 == 1)),
            start: if late && index >= 1 && rng.chance(500) {
                rng.duration(Duration::ZERO, timing.peer_timeout)
            } else {
                rng.duration(Duration::ZERO, Duration::from_millis(5))
            },
            pool: rng.range(1, 3) as u16,
            segment: rng.pick(&[16, 64, 256, 4096]).unwrap_or(64) as u32,
        })
        .collect()
}

fn latencies(rng: &mut Rng, hosts: usize, calm: bool) -> (Vec<Duration>, Duration) {
    let most = Duration::from_micros(rng.pick(&[100, 2_000, 30_000]).unwrap_or(100));
    let mut latency = vec![Duration::ZERO; hosts * hosts];
    for from in 0..hosts {
        for to in 0..from {
            let there = rng.duration(most / 10, most);
            latency[from * hosts + to] = there;
            latency[to * hosts + from] = there;
        }
    }
    let jitter = if calm {
        most / 10
    } else {
        most * rng.pick(&[0, 1, 3]).unwrap_or(0) as u32
    };
    (latency, jitter)
}

type Pairs = Vec<(usize, usize)>;

fn firewalls(rng: &mut Rng, hosts: usize) -> (Pairs, Pairs) {
    let mut undialable = Vec::new();
    let mut severed = Vec::new();
    match rng.below(3) {
        // A host behind a firewall that nobody can dial.
        0 => {
            let behind = rng.index(hosts);
            undialable.extend((0..hosts).filter(|h| *h != behind).map(|h| (h, behind)));
        }
        // Single directions.
        1 => {
            for from in 0..hosts {
                for to in 0..hosts {
                    if from != to && rng.chance(200) {
                        undialable.push((from, to));
                    }
                }
            }
        }
        // Two hosts that have no path between them.
        _ => {
            let a = rng.index(hosts);
            let b = rng.index(hosts);
            if a != b {
                severed.push((a, b));
            }
        }
    }
    (undialable, severed)
}

fn program(rng: &mut Rng, calm: bool, timing: Timing) -> Program {
    let troubled = |rng: &mut Rng, chance: u32, low: u64, high: u64| {
        if !calm && rng.chance(chance) {
            rng.range(low, high) as u32
        } else {
            0
        }
    };
    Program {
        steps: rng.range(2, 6),
        sync: rng.chance(600),
        poll: rng.chance(600),
        width: rng.range(1, 4),
        concurrent: rng.chance(700),
        elements: rng.pick(&[0, 3, 40, 200]).unwrap_or(40),
        retries: rng.range(1, 6) as u32,
        limited: troubled(rng, 250, 20, 300),
        limits: (Duration::from_millis(1), timing.peer_timeout * 2),
        cancelled: troubled(rng, 200, 20, 200),
        deviating: troubled(rng, 150, 30, 250),
        wrong: troubled(rng, 60, 20, 150),
        think: Duration::from_micros(rng.pick(&[0, 200, 20_000]).unwrap_or(0)),
    }
}

fn mix(rng: &mut Rng, wild: bool, timing: Timing) -> FaultMix {
    let mut kinds: Vec<Kind> = Kind::ALL.to_vec();
    rng.shuffle(&mut kinds);
    let few = rng.range(1, 4) as usize;
    let take = if wild { kinds.len() } else { few };
    let kinds = kinds
        .into_iter()
        .take(take)
        .map(|kind| (kind, rng.range(1, 10) as u32))
        .collect();
    let budget = if wild {
        rng.range(4, 12)
    } else {
        rng.range(1, 4)
    } as u32;
    let focus = rng.chance(500);
    let moments = Moment::ALL
        .iter()
        .map(|_| {
            if focus && rng.chance(700) {
                0
            } else {
                rng.pick(&[5, 30, 150]).unwrap_or(5) as u32
            }
        })
        .collect();
    FaultMix {
        kinds,
        budget,
        scattered: rng.below(3) as u32,
        moments,
        restart: rng.pick(&[0, 500, 1000]).unwrap_or(0) as u32,
        // In some worlds long enough for a master to be given up.
        horizon: match rng.chance(200) {
            true => rng.duration(timing.master_limit, timing.master_limit * 3),
            false => rng.duration(timing.peer_timeout, timing.peer_timeout * 12),
        },
    }
}

/// Elements of a tensor that counts as big: so many that partial sums of 16-bit floats do not fit the
/// room that each slice owns.
pub(super) const BIG: u64 = 150_000;
