//! Any inputs in any order: no panic, one answer per call, no deadline in the past.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::types::{StateOffer, SyncStrategy};
use crate::wire::control::SyncPlan;
use crate::wire::lane::PeerRefusal;
use crate::wire::reason::{EvictReason, RefuseReason};

/// Calls and what the driver was told of them.
#[derive(Default)]
struct Ledger {
    open: BTreeSet<CallId>,
    /// Uses that the driver was told to start and has not been told to finish.
    started: BTreeMap<CallId, (OpName, Serial)>,
    /// Latest uses opened, to be named by later inputs.
    opened: Vec<(OpName, Serial)>,
    votes: Vec<VoteName>,
    lanes: BTreeSet<LaneId>,
    view: u64,
}

impl Ledger {
    fn note(&mut self, output: &PeerOutput) {
        match output {
            PeerOutput::Complete { call, .. } => {
                assert!(self.open.remove(call), "{call} completed twice");
                assert!(
                    !self.started.contains_key(call),
                    "{call} completed while running"
                );
            }
            PeerOutput::Finish {
                call, op, quoted, ..
            } => {
                assert!(self.open.remove(call), "{call} finished twice");
                if let Some(started) = self.started.remove(call) {
                    assert_eq!(started, (*op, *quoted));
                }
            }
            PeerOutput::StartReduce {
                call,
                op,
                quoted,
                group,
                own,
                ..
            } => {
                assert!(self.open.contains(call));
                assert!(group.rank(*own).is_some());
                assert_eq!(self.started.insert(*call, (*op, *quoted)), None);
            }
            PeerOutput::StartSync { call, .. } => assert!(self.open.contains(call)),
            PeerOutput::Send(Up::Open(open)) => self.opened.push((open.op, open.quoted)),
            PeerOutput::Send(Up::Vote(name)) => self.votes.push(*name),
            PeerOutput::CloseLane { lane } => {
                assert!(self.lanes.remove(lane), "{lane} closed twice");
            }
            _ => {}
        }
    }
}

/// One random step; small numbers pick among what there is.
#[derive(Clone, Debug)]
struct Step {
    kind: u8,
    a: u8,
    b: u8,
    c: bool,
}

fn ring(bits: u8, own: u64) -> Vec<u64> {
    let others = (1..8u64).filter(|id| *id != own && bits >> (id - 1) & 1 == 1);
    let mut ring: Vec<u64> = others.collect();
    ring.insert(usize::from(bits) % (ring.len() + 1), own);
    ring
}

fn pick<T: Clone>(all: &[T], at: u8) -> Option<T> {
    all.get(all.len().checked_sub(1 + usize::from(at) % 4)?)
        .cloned()
}

fn input(rig: &mut Rig, ledger: &mut Ledger, step: &Step) -> Option<PeerInput> {
    let Step { kind, a, b, c } = *step;
    let own = rig.peer.member_id().map_or(4, |id| id.0);
    let epoch = rig.peer.group().epoch.0 + u64::from(b % 3);
    let members = ring(a, own);
    ledger.view += u64::from(b % 2);
    let stamp = Stamp {
        pending: c,
        ..stamp(ledger.view, epoch, &members)
    };
    let limit = c.then(|| Duration::from_millis(u64::from(b) * 20));
    let abort = Outcome::Abort(gave_up(u64::from(a)));
    Some(match kind % 22 {
        0..=4 => {
            let request = match (kind % 22, a % 12) {
                (0, _) => Request::Connect,
                (1, 0..=5) => Request::Vote(UnanimousCall::UpdateTopology),
                (1, 6..=7) => Request::Vote(UnanimousCall::OptimizeTopology),
                (1, _) => Request::Vote(UnanimousCall::ArePeersPending),
                (2, 0) => Request::Leave,
                (2, 1..=4) => Request::Sync(StateOffer {
                    revision: 1,
                    strategy: SyncStrategy::EnforcePopular,
                    entries: Default::default(),
                    torn: false,
                }),
                _ => Request::Reduce {
                    tag: Tag(u64::from(a % 3)),
                    descriptor: DESCRIPTOR,
                },
            };
            rig.calls += 1;
            let call = CallId(rig.calls);
            ledger.open.insert(call);
            PeerInput::Call {
                call,
                request,
                limit,
            }
        }
        5 => PeerInput::Cancel {
            call: CallId(rig.calls.saturating_sub(u64::from(a % 4))),
            cause: RequestCause::Cancelled,
        },
        6 | 7 => PeerInput::Master(MasterLink::Reply(match a % 12 {
            0..=4 => registered(own + u64::from(b % 2)),
            5..=9 => attached(1 + u64::from(b % 3)),
            10 if c => ControlReply::Refused(RefuseReason::Stopping),
            10 => ControlReply::Evicted {
                run: RUN,
                incarnation: Incarnation(2),
                reason: EvictReason::UnknownMember,
            },
            _ => ControlReply::Status(String::new()),
        })),
        8 => PeerInput::Master(if a % 4 == 0 {
            MasterLink::Closed { cause: "x".into() }
        } else {
            MasterLink::Failed(unreachable(ConnectPhase::Dial, "x"))
        }),
        9 | 10 => {
            let vote = pick(&ledger.votes, a);
            let vote = vote.unwrap_or_else(|| vote_name(UnanimousCall::UpdateTopology, FIRST, 0));
            PeerInput::Message(Down::Completed {
                vote,
                stamp,
                group: view(epoch.max(1), &members),
            })
        }
        11 => {
            let vote = pick(&ledger.votes, a)?;
            let reason = gave_up(1);
            PeerInput::Message(Down::Failed {
                vote,
                reason,
                stamp,
            })
        }
        12 | 13 => {
            let op = pick(&ledger.opened, a)?.0;
            let outcome = if c { Outcome::Commit } else { abort };
            PeerInput::Message(verdict(op, ledger.view, outcome, stamp))
        }
        14 => PeerInput::Message(match a % 24 {
            0 => Down::Evicted(EvictReason::Operator),
            1 => Down::Stopping,
            2 => Down::Goodbye,
            3..=9 => Down::Dial {
                peers: vec![info(u64::from(b % 9)), info(u64::from(a % 9))],
            },
            10..=14 => Down::Expect {
                peers: vec![info(u64::from(b % 9))],
            },
            15..=18 => Down::SyncPlan(SyncPlan {
                op: pick(&ledger.opened, b)?.0,
                quoted: pick(&ledger.opened, b)?.1,
                revision: 1,
                fetch: Default::default(),
                seeders: Vec::new(),
                readers: vec![(MemberId(u64::from(b % 9)), Token(1))],
            }),
            _ => Down::Group(view(epoch, &members)),
        }),
        15 => {
            rig.lanes += 1;
            let lane = LaneId(rig.lanes);
            ledger.lanes.insert(lane);
            PeerInput::LaneOpen {
                lane,
                peer: MemberId(u64::from(a % 9)),
                dialled: c,
                wanted: u16::from(b),
                round_trip: Duration::from_millis(u64::from(a)),
            }
        }
        16 => {
            let lane = *ledger
                .lanes
                .iter()
                .nth(usize::from(a) % ledger.lanes.len().max(1))?;
            ledger.lanes.remove(&lane);
            PeerInput::LaneClosed {
                lane,
                orderly: c,
                cause: "x".into(),
            }
        }
        17 => PeerInput::DialFailed {
            peer: MemberId(u64::from(a % 9)),
            cause: "x".into(),
            refusal: match b % 4 {
                0 => Some(PeerRefusal::Unknown),
                1 => Some(PeerRefusal::TooMany),
                _ => None,
            },
        },
        18 => {
            let (op, quoted) = pick(&ledger.opened, a)?;
            let result = Digest(1);
            PeerInput::OpDone { op, quoted, result }
        }
        19 => {
            let (op, quoted) = pick(&ledger.opened, a)?;
            let cause = RequestCause::Cancelled;
            PeerInput::OpFailed { op, quoted, cause }
        }
        20 => PeerInput::Heard(vec![MemberId(u64::from(a % 9))]),
        _ => PeerInput::Message(Down::Heartbeat),
    })
}

fn give(rig: &mut Rig, ledger: &mut Ledger, input: PeerInput) {
    let was = rig.peer.attributes();
    rig.peer.handle(input, rig.now);
    let mut returned = false;
    let mut gone = false;
    while let Some(output) = rig.peer.poll_output() {
        ledger.note(&output);
        match output {
            PeerOutput::Complete { .. } | PeerOutput::Finish { .. } => returned = true,
            PeerOutput::Admit { own: None, .. } => gone = true,
            _ => {}
        }
    }
    // World sizes change when a call returns, or this peer is out. (Rule 16)
    assert!(rig.peer.attributes() == was || returned || gone);
    if rig.peer.member_id().is_none() {
        assert_eq!(rig.peer.attributes(), Attributes::ALONE);
        assert!(ledger.started.is_empty(), "{:?} run on", ledger.started);
        assert!(ledger.lanes.is_empty(), "{:?} stay open", ledger.lanes);
        // At most the call that joins is open.
        assert!(ledger.open.len() <= 1, "{:?} stay open", ledger.open);
    }
}

/// Ticks at every deadline of the next while, as a driver does.
fn pass(rig: &mut Rig, ledger: &mut Ledger, time: Duration) {
    let end = rig.now + time;
    while let Some(due) = rig.peer.next_deadline().filter(|due| *due <= end) {
        rig.now = rig.now.max(due);
        give(rig, ledger, PeerInput::Tick);
        let next = rig.peer.next_deadline();
        assert!(
            next.is_none_or(|next| next > rig.now),
            "{next:?} is not after {:?}",
            rig.now
        );
    }
    rig.now = end;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn any_inputs_give_each_call_one_answer(
        seed in any::<bool>(),
        steps in prop::collection::vec(
            (any::<u8>(), any::<u8>(), any::<u8>(), any::<bool>(), 0u64..400),
            1..400,
        ),
    ) {
        let mut ledger = Ledger::default();
        // Half of the cases start as a member: joining by chance is rare.
        let mut rig = if seed { Rig::member(4, &[2, 4, 6]) } else { Rig::new() };
        for (kind, a, b, c, wait) in steps {
            let step = Step { kind, a, b, c };
            if let Some(input) = input(&mut rig, &mut ledger, &step) {
                give(&mut rig, &mut ledger, input);
            }
            pass(&mut rig, &mut ledger, Duration::from_millis(wait));
        }
        // With no word from anybody any more, every call has returned after the time-out, the
        // master limit, and a dial that was still open.
        let limits = PEER_TIMEOUT * 4 + MASTER_LIMIT + Duration::from_secs(20);
        pass(&mut rig, &mut ledger, limits);
        prop_assert!(ledger.open.is_empty(), "{:?} never returned", ledger.open);
    }

    #[test]
    fn equal_inputs_give_equal_outputs(
        steps in prop::collection::vec(
            (any::<u8>(), any::<u8>(), any::<u8>(), any::<bool>(), 0u64..400),
            1..60,
        ),
    ) {
        let run = || {
            let mut ledger = Ledger::default();
            let mut rig = Rig::member(4, &[2, 4, 6]);
            let mut all = Vec::new();
            for (kind, a, b, c, wait) in &steps {
                let step = Step { kind: *kind, a: *a, b: *b, c: *c };
                if let Some(input) = input(&mut rig, &mut ledger, &step) {
                    all.extend(rig.give(input));
                }
                all.extend(rig.pass(Duration::from_millis(*wait)));
            }
            all
        };
        prop_assert_eq!(run(), run());
    }
}
