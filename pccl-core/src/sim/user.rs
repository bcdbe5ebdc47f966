//! A user's program: the loop that training code runs around the library.
//!
//! What it does next depends only on the seed, the group, the step, and on how calls ended, which
//! the library promises to be the same for all. So the members' programs stay in step by
//! themselves, or the library is wrong. After a mismatch, or too many failures, a program goes back
//! to the beginning of its step, where all meet again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::oracle::Point;
use super::rng::{Rng, splitmix};
use super::scenario::{BIG, PeerShape, Scenario};
use crate::error::Error;
use crate::ids::{CallId, PeerGroup, Tag};
use crate::types::{
    Algorithm, DataType, Quantization, QuantizationAlgorithm, QuantizedType, ReduceDescriptor,
    ReduceOp, UnanimousCall,
};
use crate::wire::reason::EvictReason;

/// What a user does next.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Join.
    Connect { limit: Option<Duration> },
    /// A unanimous call.
    Vote {
        call: UnanimousCall,
        limit: Option<Duration>,
    },
    /// An all-reduce.
    Reduce(Reduce),
    /// A synchronisation of the user's state.
    Sync {
        limit: Option<Duration>,
        point: Point,
    },
    /// Does something else for a while.
    Think(Duration),
    /// Leaves.
    Leave,
    /// The program is over.
    Exit,
}

/// One all-reduce of a program.
#[derive(Clone, Debug)]
pub(super) struct Reduce {
    pub(super) tag: Tag,
    pub(super) descriptor: ReduceDescriptor,
    /// Algorithm that it asks for if the group can go by it.
    pub(super) wish: Option<Algorithm>,
    pub(super) bytes: Vec<u8>,
    pub(super) in_place: bool,
    pub(super) limit: Option<Duration>,
    pub(super) point: Point,
}

/// How a call ended, as far as the program cares.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Ended {
    /// It did what it should. Of a question: the answer; of an all-reduce: its result.
    Done(Option<bool>, Vec<u8>),
    /// It failed for all alike, with this group size from now on. `stateless`: nobody holds the
    /// revision that the group expects.
    Failed {
        mismatch: bool,
        stateless: bool,
        world: u32,
    },
    /// This peer is no member any more, or never was one.
    Out(Error),
}

/// State of the program.
#[derive(Clone, Debug)]
pub(super) struct User {
    seed: u64,
    group: PeerGroup,
    stage: Stage,
    /// The model that it trains.
    pub(super) state: State,
    /// Its own next choices, apart from the common program.
    rng: Rng,
    todo: Vec<Planned>,
    open: BTreeMap<CallId, Planned>,
    restart: bool,
    failures: u32,
    votes: u32,
    failed_now: bool,
    outs: u32,
    lonely: u32,
    /// Deviations only happen once a step, and not after faults have stopped.
    deviated: Option<u64>,
    pub(super) faithful: bool,
    wants_out: bool,
    went_out: bool,
    joined_once: bool,
}

/// What members share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    /// Steps done, and what stands for the parameters.
    pub(super) shared: (u64, u64),
    /// Revision of the last synchronisation.
    pub(super) synced: Option<u64>,
    /// Revision offered when a fetch broke off; until a later one is offered the content may be that
    /// of two. (Rule 22)
    pub(super) torn: Option<u64>,
}

impl State {
    /// Revision to offer: one more than that of the last synchronisation; of a newcomer, zero.
    pub(super) fn revision(&self) -> u64 {
        self.synced.map_or(0, |synced| synced.saturating_add(1))
    }

    /// Whether it may be neither elected nor passed on.
    pub(super) fn is_torn(&self) -> bool {
        self.torn.is_some_and(|torn| self.revision() <= torn)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Join,
    Ask,
    Update,
    Agree,
    Work,
    Idle,
    Leave,
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    place: u32,
    tag: Tag,
    descriptor: ReduceDescriptor,
    wish: Option<Algorithm>,
    deviates: bool,
    done: bool,
    sum: u64,
}

impl User {
    /// The program of a peer.
    pub(super) fn new(scenario: &Scenario, shape: &PeerShape, own: u64) -> Self {
        Self {
            seed: scenario.seed,
            group: shape.group,
            stage: Stage::Join,
            state: State {
                shared: (0, 0),
                synced: None,
                torn: None,
            },
            rng: Rng::new(own),
            todo: Vec::new(),
            open: BTreeMap::new(),
            restart: false,
            failures: 0,
            votes: 0,
            failed_now: false,
            outs: 0,
            lonely: 0,
            deviated: None,
            faithful: false,
            wants_out: false,
            went_out: false,
            joined_once: false,
        }
    }

    /// The user has had enough: leaves before its next call.
    pub(super) fn enough(&mut self) {
        self.wants_out = true;
    }

    /// The user leaves at once, whatever is open; the call was made.
    pub(super) fn leaves_now(&mut self) {
        self.wants_out = true;
        self.stage = Stage::Leave;
    }

    /// Whether its program has ended.
    pub(super) fn over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Where it stands, for people.
    pub(super) fn whereabouts(&self) -> String {
        format!("{:?} of step {}", self.stage, self.state.shared.0)
    }

    /// What to do now; called again whenever a call has ended and none is open that it must wait
    /// for. `world` is the group's size as the library shows it.
    pub(super) fn next(&mut self, scenario: &Scenario, world: u32) -> Vec<Action> {
        let program = scenario.program;
        if std::mem::take(&mut self.went_out) {
            self.out();
        }
        if self.wants_out && self.stage != Stage::Over && self.stage != Stage::Join {
            self.stage = Stage::Leave;
        }
        match self.stage {
            Stage::Join if self.wants_out => {
                self.stage = Stage::Over;
                vec![Action::Exit]
            }
            Stage::Join => {
                // Some go back by update_topology, as rule 18 allows.
                if self.joined_once && self.rng.chance(500) {
                    return vec![Action::Vote {
                        call: UnanimousCall::UpdateTopology,
                        limit: None,
                    }];
                }
                let limit = self
                    .limit(scenario)
                    .map(|l| l + scenario.timing.peer_timeout * 3);
                vec![Action::Connect { limit }]
            }
            Stage::Ask => vec![Action::Vote {
                call: UnanimousCall::ArePeersPending,
                limit: self.limit(scenario),
            }],
            Stage::Update => vec![Action::Vote {
                call: UnanimousCall::UpdateTopology,
                limit: self.limit(scenario),
            }],
            Stage::Idle => {
                self.stage = self.first(scenario);
                vec![Action::Think(scenario.timing.heartbeat / 4)]
            }
            Stage::Agree if world < 2 => self.alone(scenario),
            Stage::Agree if program.sync => {
                let point = self.point(0);
                let limit = self.limit(scenario);
                vec![Action::Sync { limit, point }]
            }
            Stage::Agree => vec![Action::Reduce(self.agree_by_reduce(scenario))],
            Stage::Work => self.work(scenario, world),
            Stage::Leave => vec![Action::Leave],
            Stage::Over => Vec::new(),
        }
    }

    /// A call was made for an action.
    pub(super) fn called(&mut self, call: CallId, reduce: Option<&Reduce>) {
        let planned = reduce.and_then(|r| {
            let at = self.todo.iter().position(|p| p.place == r.point.place)?;
            Some(self.todo.remove(at))
        });
        let fallback = Planned {
            place: 0,
            tag: Tag(0),
            descriptor: ReduceDescriptor {
                count: 0,
                data_type: DataType::U8,
                op: ReduceOp::Sum,
                quantization: None,
                algorithm: None,
            },
            wish: None,
            deviates: false,
            done: false,
            sum: 0,
        };
        self.open.insert(call, planned.unwrap_or(fallback));
    }

    /// Whether calls are open.
    pub(super) fn waits(&self) -> bool {
        !self.open.is_empty()
    }

    /// A call ended. Once none is open, [`Self::next`] goes on.
    pub(super) fn ended(&mut self, scenario: &Scenario, call: CallId, ended: Ended) {
        let Some(mut planned) = self.open.remove(&call) else {
            return;
        };
        if let Ended::Out(error) = &ended {
            // A user whose state was refused starts from scratch.
            if matches!(error, Error::Evicted(EvictReason::State { .. })) {
                self.state.shared = (0, 0);
                self.state.torn = None;
            }
            self.went_out = true;
            return;
        }
        match self.stage {
            Stage::Join => self.joined(),
            Stage::Ask => match ended {
                Ended::Done(Some(true), _) => self.go(Stage::Update),
                Ended::Done(..) => self.go(Stage::Agree),
                // After a mismatch all meet in a round, which no call passes by unnoticed, and
                // after which no failed use is remembered.
                Ended::Failed { mismatch: true, .. } => self.go(Stage::Update),
                _ => self.votes += 1,
            },
            Stage::Update => match ended {
                Ended::Done(..) => self.go(Stage::Agree),
                _ => self.votes += 1,
            },
            Stage::Agree => match ended {
                Ended::Done(_, bytes) => {
                    if !scenario.program.sync
                        && let Some(step) = first_u64(&bytes)
                    {
                        self.state.shared.0 = step;
                    }
                    self.plan(scenario);
                    self.go(Stage::Work);
                }
                Ended::Failed {
                    mismatch,
                    stateless,
                    ..
                } => {
                    if stateless {
                        // The users agree that what they have is the next revision. (Rule 22)
                        self.state.synced = Some(self.state.revision());
                    }
                    self.failed(scenario, mismatch);
                }
                Ended::Out(_) => {}
            },
            Stage::Work => {
                match ended {
                    Ended::Done(_, bytes) => {
                        planned.done = true;
                        planned.sum = bytes.iter().fold(0, |sum, byte| {
                            let mut mixed = sum ^ u64::from(*byte);
                            splitmix(&mut mixed)
                        });
                    }
                    Ended::Failed { mismatch, .. } => {
                        self.restart |= mismatch;
                        self.failed_now = true;
                    }
                    Ended::Out(_) => {}
                }
                self.todo.push(planned);
            }
            Stage::Leave => {
                if self.open.is_empty() {
                    self.stage = Stage::Over;
                }
            }
            Stage::Idle | Stage::Over => {}
        }
    }

    fn first(&self, scenario: &Scenario) -> Stage {
        if scenario.program.poll {
            Stage::Ask
        } else {
            Stage::Update
        }
    }

    fn go(&mut self, stage: Stage) {
        self.stage = stage;
        self.failures = 0;
        self.failed_now = false;
    }

    fn joined(&mut self) {
        self.joined_once = true;
        // Who is admitted by a round goes on like those who voted in it.
        self.go(Stage::Agree);
    }

    fn out(&mut self) {
        self.outs += 1;
        // Whoever comes back is a newcomer to the state, and fetches it.
        self.state.synced = None;
        self.todo.clear();
        self.restart = false;
        self.failed_now = false;
        self.stage = if self.wants_out || self.outs > OUTS_LIMIT || self.stage == Stage::Leave {
            Stage::Over
        } else {
            Stage::Join
        };
    }

    fn failed(&mut self, scenario: &Scenario, mismatch: bool) {
        self.failures += 1;
        if mismatch {
            self.go(Stage::Update);
        } else if self.failures > scenario.program.retries {
            let first = self.first(scenario);
            self.go(first);
        }
    }

    fn alone(&mut self, scenario: &Scenario) -> Vec<Action> {
        self.lonely += 1;
        if self.lonely > LONELY_LIMIT || self.state.shared.0 >= scenario.program.steps {
            self.stage = Stage::Leave;
            return vec![Action::Leave];
        }
        self.stage = Stage::Idle;
        self.next(scenario, 1)
    }

    /// Tries of this step's work that are still to be made; or the end of the step.
    fn work(&mut self, scenario: &Scenario, world: u32) -> Vec<Action> {
        let program = scenario.program;
        let unfinished = self.todo.iter().any(|p| !p.done);
        if std::mem::take(&mut self.failed_now) {
            self.failures += 1;
        }
        if self.restart {
            self.restart = false;
            self.go(Stage::Update);
            return self.next(scenario, world);
        }
        if (unfinished && world < 2) || self.failures > program.retries {
            let first = self.first(scenario);
            self.go(first);
            return self.next(scenario, world);
        }
        if !unfinished {
            return self.finish_step(scenario, world);
        }
        if let Some(instead) = self.deviate(scenario) {
            return vec![instead];
        }
        let mut again: Vec<Planned> = self.todo.iter().filter(|p| !p.done).copied().collect();
        again.sort_by_key(|p| p.place);
        if program.concurrent {
            // Each member opens them in an order of its own.
            self.rng.shuffle(&mut again);
        } else {
            again.truncate(1);
        }
        again
            .into_iter()
            .map(|p| Action::Reduce(self.reduce(scenario, p)))
            .collect()
    }

    fn finish_step(&mut self, scenario: &Scenario, world: u32) -> Vec<Action> {
        let mut mixed = self.state.shared.1 ^ self.state.shared.0;
        self.todo.sort_by_key(|p| p.place);
        for planned in &self.todo {
            mixed ^= planned.sum;
            mixed = splitmix(&mut mixed);
        }
        self.state.shared.1 = mixed;
        self.state.shared.0 += 1;
        self.todo.clear();
        self.lonely = 0;
        if self.state.shared.0 >= scenario.program.steps {
            self.stage = Stage::Leave;
            return vec![Action::Leave];
        }
        let first = self.first(scenario);
        self.go(first);
        if !scenario.program.think.is_zero() {
            let pause = self.rng.duration(Duration::ZERO, scenario.program.think);
            return vec![Action::Think(pause)];
        }
        self.next(scenario, world)
    }

    /// The common program of a step.
    fn plan(&mut self, scenario: &Scenario) {
        let program = scenario.program;
        let mut mix = self.seed ^ self.state.shared.0.rotate_left(32) ^ u64::from(self.group.0);
        let mut common = Rng::new(splitmix(&mut mix));
        let mut forms = Rng::new(splitmix(&mut mix));
        let mut ways = Rng::new(splitmix(&mut mix));
        let width = common.range(1, program.width);
        self.todo = (1..=width as u32)
            .map(|place| {
                let tag = Tag(common.below(2) * 100 + u64::from(place));
                let mut descriptor = draw_descriptor(&mut common, program.elements);
                descriptor.quantization = draw_quantization(&mut forms, &descriptor);
                let wish = draw_wish(&mut ways);
                Planned {
                    place,
                    tag,
                    descriptor,
                    wish,
                    deviates: false,
                    done: false,
                    sum: 0,
                }
            })
            .collect();
    }

    /// In some worlds members' programs differ now and then.
    fn deviate(&mut self, scenario: &Scenario) -> Option<Action> {
        if self.faithful || self.deviated == Some(self.state.shared.0) {
            return None;
        }
        self.deviated = Some(self.state.shared.0);
        if !self.rng.chance(scenario.program.deviating) {
            return None;
        }
        match self.rng.below(3) {
            0 => {
                let at = self.rng.index(self.todo.len());
                if let Some(planned) = self.todo.get_mut(at) {
                    planned.descriptor.count += 1;
                    planned.deviates = true;
                }
                None
            }
            1 => {
                // Goes back to a vote while the others work.
                self.todo.clear();
                self.go(Stage::Update);
                Some(Action::Think(Duration::ZERO))
            }
            _ => {
                let at = self.rng.index(self.todo.len());
                if let Some(planned) = self.todo.get_mut(at) {
                    planned.descriptor.op = match planned.descriptor.op {
                        ReduceOp::Sum => ReduceOp::Max,
                        _ => ReduceOp::Sum,
                    };
                    // Which may not go with the new operator.
                    planned.descriptor.quantization = None;
                    planned.deviates = true;
                }
                None
            }
        }
    }

    fn reduce(&mut self, scenario: &Scenario, planned: Planned) -> Reduce {
        let bytes = draw_bytes(&mut self.rng, planned.descriptor);
        Reduce {
            tag: planned.tag,
            descriptor: planned.descriptor,
            wish: planned.wish,
            bytes,
            in_place: self.rng.chance(500),
            limit: self.limit(scenario),
            point: self.point(planned.place),
        }
    }

    fn agree_by_reduce(&mut self, scenario: &Scenario) -> Reduce {
        Reduce {
            tag: Tag(AGREE_TAG),
            descriptor: ReduceDescriptor {
                count: 1,
                data_type: DataType::U64,
                op: ReduceOp::Max,
                quantization: None,
                algorithm: None,
            },
            wish: None,
            bytes: self.state.shared.0.to_le_bytes().to_vec(),
            in_place: false,
            limit: self.limit(scenario),
            point: self.point(0),
        }
    }

    fn point(&self, place: u32) -> Point {
        // Members come to the agreement on a step with different steps.
        let step = if place == 0 { 0 } else { self.state.shared.0 };
        Point { step, place }
    }

    fn limit(&mut self, scenario: &Scenario) -> Option<Duration> {
        if self.faithful || !self.rng.chance(scenario.program.limited) {
            return None;
        }
        let (low, high) = scenario.program.limits;
        Some(self.rng.duration(low, high))
    }
}

fn first_u64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.first_chunk::<8>()?))
}

fn draw_descriptor(rng: &mut Rng, elements: u64) -> ReduceDescriptor {
    let types = match elements >= BIG {
        true => &[DataType::F16, DataType::BF16, DataType::U8][..],
        false => &DataType::ALL[..],
    };
    ReduceDescriptor {
        count: if rng.chance(100) {
            0
        } else {
            rng.range(0, elements)
        },
        data_type: rng.pick(types).unwrap_or(DataType::F32),
        op: rng.pick(&ReduceOp::ALL).unwrap_or(ReduceOp::Sum),
        quantization: None,
        algorithm: None,
    }
}

/// How the data of an operation travels: quantised half of the time, where that makes sense.
fn draw_quantization(rng: &mut Rng, descriptor: &ReduceDescriptor) -> Option<Quantization> {
    let algorithms = [
        QuantizationAlgorithm::MinMax,
        QuantizationAlgorithm::ZeroPointScale,
    ];
    let algorithm = rng.pick(&algorithms)?;
    let to = rng.pick(&QuantizedType::ALL)?;
    let quantization = Quantization { algorithm, to };
    let fits = quantization
        .refusal(descriptor.data_type, descriptor.op)
        .is_none();
    (rng.chance(500) && fits).then_some(quantization)
}

/// Which algorithm an operation asks for. Left to the library, most are small enough for a star.
fn draw_wish(rng: &mut Rng) -> Option<Algorithm> {
    match rng.below(20) {
        0..=6 => Some(Algorithm::Ring),
        7..=11 => Some(Algorithm::Direct),
        12..=14 => Some(Algorithm::Star),
        _ => None,
    }
}

/// Contributions whose sums depend on their order where the type has rounding.
fn draw_bytes(rng: &mut Rng, descriptor: ReduceDescriptor) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(descriptor.bytes().unwrap_or(0) as usize);
    for _ in 0..descriptor.count {
        let value = match rng.below(4) {
            0 => 1.0,
            1 => 3.0e3,
            2 => -0.37,
            _ => rng.below(1 << 20) as f64 / 4096.0,
        };
        match descriptor.data_type {
            DataType::F32 => bytes.extend((value as f32 * 7.0e3).to_le_bytes()),
            DataType::F64 => bytes.extend((value * 1.0e12 + 1.0e-3).to_le_bytes()),
            DataType::F16 => bytes.extend(half::f16::from_f64(value / 16.0).to_le_bytes()),
            DataType::BF16 => bytes.extend(half::bf16::from_f64(value).to_le_bytes()),
            other => bytes.extend(rng.bits().to_le_bytes().iter().take(other.size())),
        }
    }
    bytes
}

/// Times that a peer joins anew before its user gives up.
const OUTS_LIMIT: u32 = 12;

/// Rounds that a lone member of a group waits for company.
const LONELY_LIMIT: u32 = 40;

/// Tag of the all-reduce by which members agree on the step.
const AGREE_TAG: u64 = 7000;
