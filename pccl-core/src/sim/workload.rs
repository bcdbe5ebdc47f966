//! Between a user's program and the machines: makes calls, and takes what they return.

use std::sync::Arc;
use std::time::Duration;

use super::calls::{Call, Ending, Kind};
use super::core::{Core, Event, Thread, trace};
use super::coverage::Cover;
use super::data_node::Order;
use super::fetch::{Content, Fetch, Said, Tensors, WEIGHTS, root_of};
use super::oracle::{EndedUse, Point, TryKey};
use super::peer_node::{Note, PeerNode};
use super::user::{Action, Ended, Reduce};
use crate::collective::buffers::{Lent, OwnedBuffers};
use crate::error::Error;
use crate::ids::{CallId, MemberId, Serial, Tag};
use crate::membership::peer::{Answer, PeerInput, Request};
use crate::state::digest::state_digest;
use crate::types::{OpKey, OpKind, StateOffer, SyncStrategy, UnanimousCall};
use crate::wire::control::{GroupView, OpName, Outcome, Stamp, SyncPlan};
use crate::wire::reason::{AbortReason, RequestCause};

impl PeerNode {
    /// The user's thread runs: takes what returned, and goes on when nothing is open.
    pub(super) fn user_step(&mut self, core: &mut Core) {
        while let Some(call) = self.returned.pop_front() {
            self.take_return(core, call);
        }
        if !self.user.waits() && !self.user.over() && !self.exits {
            let world = self.machine.attributes().group_world_size;
            let actions = self.user.next(&core.scenario, world);
            for action in actions {
                self.act(core, action);
            }
        }
        if self.user.over() && !self.user.waits() && !self.exits {
            self.exits = true;
            core.after(EXIT_DELAY, Event::Exit { proc: self.id });
        }
        self.arm(core);
    }

    /// The user leaves, whatever is open.
    pub(super) fn leave_now(&mut self, core: &mut Core) {
        if self.user.over() || self.machine.member_id().is_none() {
            self.user.enough();
            return;
        }
        self.user.leaves_now();
        let call = self.make(core, Kind::Leave, Point::default(), Request::Leave, None);
        self.user.called(call, None);
    }

    fn act(&mut self, core: &mut Core, action: Action) {
        let id = self.id;
        trace!(core, "{id:?} user: {action:?}");
        match action {
            Action::Connect { limit } => {
                let request = Request::Connect;
                let call = self.make(core, Kind::Connect, Point::default(), request, limit);
                self.user.called(call, None);
            }
            Action::Vote { call, limit } => {
                let request = Request::Vote(call);
                let call = self.make(core, Kind::Vote(call), Point::default(), request, limit);
                self.user.called(call, None);
                self.maybe_cancel(core, call);
            }
            Action::Sync { limit, point } => {
                let offer = self.offer();
                let call = self.make(core, Kind::Sync, point, Request::Sync(offer), limit);
                self.user.called(call, None);
                self.maybe_cancel(core, call);
            }
            Action::Reduce(reduce) => self.reduce(core, reduce),
            Action::Think(pause) => core.after(pause, self.user_event()),
            Action::Leave => {
                let call = self.make(core, Kind::Leave, Point::default(), Request::Leave, None);
                self.user.called(call, None);
            }
            Action::Exit => {}
        }
    }

    fn reduce(&mut self, core: &mut Core, mut reduce: Reduce) {
        let choice = self.group.choice;
        let wish = reduce.wish.filter(|wish| choice.offers(*wish));
        reduce.descriptor.algorithm = wish;
        let key = OpKey {
            kind: OpKind::Collective,
            tag: reduce.tag,
        };
        let request = Request::Reduce {
            tag: reduce.tag,
            descriptor: reduce.descriptor,
        };
        let kind = Kind::Reduce(reduce.descriptor);
        let turn = self.calls.take_turn(key);
        let call = self.make(core, kind, reduce.point, request, reduce.limit);
        self.user.called(call, Some(&reduce));
        if let Some(open) = self.calls.open.get_mut(&call) {
            open.turn = turn;
            open.tag = Some(reduce.tag);
            open.given = reduce.bytes;
            open.in_place = reduce.in_place;
        }
        self.maybe_cancel(core, call);
    }

    fn make(
        &mut self,
        core: &mut Core,
        kind: Kind,
        point: Point,
        request: Request,
        limit: Option<Duration>,
    ) -> CallId {
        let call = CallId(self.next_call);
        self.next_call += 1;
        let shown = self.attributes().group_world_size;
        let mut open = Call::new(kind, point, shown, self.member);
        if kind == Kind::Sync {
            open.turn = self.calls.take_turn(SYNC);
        }
        self.calls.open.insert(call, open);
        core.saw_call(self.id, call, || format!("{kind:?}"));
        self.call(core, call, request, limit);
        call
    }

    fn maybe_cancel(&mut self, core: &mut Core, call: CallId) {
        if self.user.faithful || !core.rng.chance(core.scenario.program.cancelled) {
            return;
        }
        let (low, high) = core.scenario.program.limits;
        let after = core.rng.duration(low, high);
        let proc = self.id;
        core.after(after, Event::Cancel { proc, call });
    }

    /// The machine starts an all-reduce: lends its buffers.
    pub(super) fn started(
        &mut self,
        core: &mut Core,
        call: CallId,
        op: OpName,
        quoted: Serial,
        group: &GroupView,
        own: MemberId,
    ) -> Option<Lent> {
        let peer_group = self.shape.group;
        let open = self.calls.open.get_mut(&call)?;
        let Kind::Reduce(descriptor) = open.kind else {
            return None;
        };
        open.who = self.member;
        open.started = Some((op, quoted));
        let ring: Vec<MemberId> = group.ring.iter().map(|m| m.id).collect();
        open.ring = ring.len();
        let mut kept = if open.in_place {
            OwnedBuffers::in_place(open.given.clone())
        } else {
            OwnedBuffers::new(open.given.clone())
        };
        let lent = kept.lend();
        open.kept = Some(kept);
        let (key, given) = (open.use_key(op, peer_group)?, open.given.clone());
        core.saw_start(key, own, descriptor, group, given);
        Some(lent)
    }

    /// A use has its verdict, or never will have one.
    pub(super) fn finish(
        &mut self,
        core: &mut Core,
        call: CallId,
        op: (OpName, Serial),
        outcome: Result<Outcome, Error>,
        stamp: Stamp,
    ) {
        let commit = outcome == Ok(Outcome::Commit);
        let lent = self.calls.open.get(&call).is_some_and(|c| c.kept.is_some());
        let ending = Ending::Use {
            op: op.0,
            outcome,
            stamp,
        };
        if !self.calls.end(call, ending) {
            core.violate("one_answer", format!("{:?} finishes {call} again", self.id));
        }
        if lent {
            self.order(core, Order::Finish { call, commit });
        } else {
            self.return_call(core, call);
        }
    }

    fn take_return(&mut self, core: &mut Core, number: CallId) {
        core.saw_answer(self.id, number);
        let Some(mut call) = self.calls.open.remove(&number) else {
            return;
        };
        // The user comes for the result only now, and is shown the world sizes after a failure.
        if let (
            Kind::Reduce(_),
            Some(Ending::Use {
                outcome: Ok(Outcome::Abort(_)),
                stamp,
                ..
            }),
        ) = (call.kind, &call.ending)
        {
            let (call, stamp) = (number, *stamp);
            self.input(core, PeerInput::Shown { call, stamp });
        }
        let ended = match call.ending.take() {
            Some(Ending::Use { op, outcome, stamp }) => {
                self.use_ended(core, &mut call, op, outcome, stamp)
            }
            Some(Ending::Answer(result)) => self.answered(core, &call, result),
            None => {
                core.violate("one_answer", format!("{number} returns without an end"));
                return;
            }
        };
        let id = self.id;
        trace!(
            core,
            "{id:?} user: {number} ({:?}) ended: {ended:?}", call.kind
        );
        match &ended {
            Ended::Done(..) => {}
            failed => core.saw_failure(id, || format!("{:?}: {failed:?}", call.kind)),
        }
        if let Ended::Out(error) = &ended {
            self.calls.new_round();
            if matches!(error, Error::MasterLost { .. }) {
                core.cover(Cover::MasterLimitPassed);
            }
        }
        self.user.ended(&core.scenario, number, ended);
    }

    fn use_ended(
        &mut self,
        core: &mut Core,
        call: &mut Call,
        op: OpName,
        outcome: Result<Outcome, Error>,
        stamp: Stamp,
    ) -> Ended {
        if call.who.is_none() {
            call.who = self.member;
        }
        if outcome != Ok(Outcome::Commit)
            && let Some(fetch) = &call.fetch
            && let Some(content) = fetch.broken_off()
        {
            core.cover(Cover::SyncTorn);
            let state = &mut self.user.state;
            state.torn = Some(state.revision());
            // The first number is the program's step too, which it does not take from a torn tensor.
            state.shared.1 = content.1;
        }
        let Some(key) = call.use_key(op, self.shape.group) else {
            return match outcome {
                Err(error) => Ended::Out(error),
                Ok(_) => {
                    core.violate("one_answer", "a verdict for no member".into());
                    Ended::Failed {
                        mismatch: false,
                        stateless: false,
                        world: 1,
                    }
                }
            };
        };
        let committed = outcome == Ok(Outcome::Commit);
        let mut result = Vec::new();
        if let Some(kept) = call.kept.take() {
            // Panics, and so breaks the world, if the engine has not let go of it.
            result = kept.recv().to_vec();
            let send = if call.in_place {
                kept.recv()
            } else {
                kept.send()
            };
            core.saw_buffers(key, &call.given, send, call.in_place, committed);
        }
        // A lone survivor's result is compared with nobody's.
        let alone = call.stamp.unwrap_or(stamp).attributes.group_world_size <= 1;
        let wrong = call.wrong && !alone;
        if wrong && let Some(first) = result.first_mut() {
            *first ^= 1;
        }
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return Ended::Out(error),
        };
        let Some((_, member)) = call.who else {
            return Ended::Done(None, result);
        };
        let end = EndedUse {
            proc: self.id,
            member,
            key,
            outcome: &outcome,
            stamp: call.stamp.unwrap_or(stamp),
            point: call.point,
            shown: call.shown,
        };
        core.saw_verdict(&end);
        let still = self.member == call.who;
        if still && (!committed || call.kind == Kind::Sync) {
            let others = !self.calls.open.is_empty();
            core.saw_attributes(self.id, stamp, self.attributes(), others);
        }
        match outcome {
            Outcome::Commit => {
                if call.sent_abort {
                    core.cover(Cover::CommitDespiteCancel);
                }
                match call.kind {
                    Kind::Sync => self.synced(core, call, &end),
                    _ => {
                        if wrong && result.is_empty() {
                            let what = format!("{key:?} committed with unequal results");
                            core.violate("equal_bits", what);
                        }
                        core.saw_commit(&end, call.ring, &result);
                    }
                }
                Ended::Done(None, result)
            }
            Outcome::Abort(reason) => {
                if call.sent_abort {
                    core.cover(Cover::CancelledOp);
                }
                if stamp.attributes.group_world_size == 1 {
                    core.cover(Cover::RemainedAlone);
                }
                Ended::Failed {
                    mismatch: reason.is_mismatch(),
                    stateless: matches!(reason, AbortReason::State { .. }),
                    world: stamp.attributes.group_world_size,
                }
            }
        }
    }

    fn answered(&mut self, core: &mut Core, call: &Call, result: Result<Answer, Error>) -> Ended {
        let key = match call.kind {
            Kind::Sync => Some(SYNC),
            _ => None,
        };
        if let Some(key) = key {
            self.calls.give_turn_back(key);
        }
        match result {
            Ok(answer) => {
                let (question, stamp) = match answer {
                    Answer::Done(stamp) => (None, Some(stamp)),
                    Answer::Pending(pending) => (Some(pending), None),
                };
                self.saw_vote_end(core, call, Ok(question), stamp);
                let round = match call.kind {
                    Kind::Vote(UnanimousCall::ArePeersPending) => {
                        core.cover(Cover::QueryCompleted);
                        false
                    }
                    Kind::Vote(_) => {
                        core.cover(Cover::RoundCompleted);
                        true
                    }
                    kind => kind == Kind::Connect,
                };
                if round {
                    self.calls.new_round();
                    if let Some(stamp) = stamp
                        && self.member.is_some()
                    {
                        let others = !self.calls.open.is_empty();
                        core.saw_attributes(self.id, stamp, self.attributes(), others);
                    }
                }
                Ended::Done(question, Vec::new())
            }
            Err(Error::Aborted { reason, stamp, .. }) => {
                core.cover(Cover::VoteFailed);
                if reason.is_mismatch() {
                    core.cover(Cover::Contradiction);
                }
                self.saw_vote_end(core, call, Err(&reason), Some(stamp));
                Ended::Failed {
                    mismatch: reason.is_mismatch(),
                    stateless: false,
                    world: stamp.attributes.group_world_size,
                }
            }
            Err(Error::TooFewPeers) => {
                self.turned_down(call);
                Ended::Failed {
                    mismatch: false,
                    stateless: false,
                    world: 1,
                }
            }
            Err(Error::Usage(usage)) if !expected(&usage) => {
                core.violate(
                    "one_answer",
                    format!("{:?} was refused: {usage}", call.kind),
                );
                Ended::Out(Error::Usage(usage))
            }
            Err(error) => {
                self.turned_down(call);
                Ended::Out(error)
            }
        }
    }

    fn turned_down(&mut self, call: &Call) {
        if let Kind::Reduce(_) = call.kind
            && let Some(tag) = call.tag
        {
            self.calls.give_turn_back(OpKey {
                kind: OpKind::Collective,
                tag,
            });
        }
    }

    fn saw_vote_end(
        &self,
        core: &mut Core,
        call: &Call,
        ended: Result<Option<bool>, &AbortReason>,
        stamp: Option<Stamp>,
    ) {
        if let (Some((round, vote)), Some((run, _))) = (call.vote, call.who) {
            let vote = TryKey { run, round, vote };
            core.saw_vote(self.id, self.shape.group, vote, ended, stamp);
        }
    }

    fn user_event(&self) -> Event {
        Event::Step {
            proc: self.id,
            thread: Thread::User,
        }
    }

    // ------------------------------------------------------------------ shared state

    fn offer(&self) -> StateOffer {
        let state = &self.user.state;
        StateOffer {
            revision: state.revision(),
            strategy: SyncStrategy::EnforcePopular,
            entries: Arc::new(self.tensors(state.shared).entries()),
            torn: state.is_torn(),
        }
    }

    fn tensors(&self, weights: Content) -> Tensors {
        Tensors {
            optimizer: (self.id.0 as u64, 0),
            weights,
        }
    }

    /// The master has elected the state.
    pub(super) fn start_sync(&mut self, core: &mut Core, call: CallId, plan: SyncPlan) {
        let proc = self.id;
        let Some(open) = self.calls.open.get_mut(&call) else {
            return;
        };
        open.started = Some((plan.op, plan.quoted));
        if open.who.is_none() {
            open.who = self.member;
        }
        let nothing = plan.fetch.is_empty() || open.fetched.is_some();
        open.plan = Some(plan);
        if nothing {
            self.fetched(core, call);
        } else if open.fetch.is_none() {
            let own = Tensors {
                optimizer: (proc.0 as u64, 0),
                weights: self.user.state.shared,
            };
            let plan = open.plan.as_ref();
            open.fetch = plan.map(|plan| Fetch::new(plan, own, &mut core.rng));
            let delay = core.rng.duration(
                Duration::ZERO,
                core.scenario.jitter + core.scenario.timing.heartbeat / 20,
            );
            core.after(delay, Event::Fetch { proc, call });
        }
    }

    /// What this member would serve of an open synchronisation.
    pub(super) fn serves(&self, reader: MemberId) -> Option<Tensors> {
        if !self.admission.readers.contains_key(&reader) {
            return None;
        }
        let open = self
            .calls
            .open
            .values()
            .find(|c| c.kind == Kind::Sync && c.ending.is_none() && c.plan.is_some())?;
        Some(self.tensors(open.fetched.unwrap_or(self.user.state.shared)))
    }

    /// A step of a fetch, with those of its seeders that can be reached.
    pub(super) fn fetch_step(
        &mut self,
        core: &mut Core,
        call: CallId,
        seeders: &[(MemberId, Tensors)],
    ) {
        let proc = self.id;
        let Some(open) = self.calls.open.get_mut(&call) else {
            return;
        };
        let Some(plan) = open.plan.as_ref().filter(|_| open.ending.is_none()) else {
            return;
        };
        let Some(fetch) = &mut open.fetch else {
            return;
        };
        match fetch.step(seeders, &mut core.rng) {
            Said::More => {
                let slow = core.scenario.jitter + core.scenario.timing.heartbeat / 20;
                let delay = core.rng.duration(Duration::ZERO, slow / 4);
                core.after(delay, Event::Fetch { proc, call });
            }
            Said::Done(weights, sources) => {
                open.fetched = Some(match fetch.has_weights() {
                    true => weights,
                    false => self.user.state.shared,
                });
                let (lies, stalls) = (fetch.lies, fetch.stalls);
                core.cover(Cover::SyncFetch);
                for (seen, cover) in [
                    (sources > 1, Cover::SyncSources),
                    (lies > 0, Cover::SyncLie),
                    (stalls > 0, Cover::SyncStall),
                    (fetch.met_newcomer, Cover::JoinDuringFetch),
                    (fetch.met_reader, Cover::SyncTwoFetch),
                    (self.user.state.is_torn(), Cover::SyncTornFetch),
                ] {
                    if seen {
                        core.cover(cover);
                    }
                }
                self.fetched(core, call);
            }
            Said::Wrong(what) => core.violate("equal_bits", what),
            Said::Nobody => {
                open.fetch_tries += 1;
                if open.fetch_tries > FETCH_TRIES {
                    let (op, quoted) = (plan.op, plan.quoted);
                    let cause = RequestCause::FetchFailed {
                        what: "no seeder answers".into(),
                    };
                    self.note(core, Note::Input(PeerInput::OpFailed { op, quoted, cause }));
                    return;
                }
                core.after(core.scenario.timing.heartbeat, Event::Fetch { proc, call });
            }
        }
    }

    fn fetched(&mut self, core: &mut Core, call: CallId) {
        let Some(open) = self.calls.open.get(&call) else {
            return;
        };
        let Some(plan) = &open.plan else { return };
        let content = open.fetched.unwrap_or(self.user.state.shared);
        let result = state_digest(plan.revision, [(WEIGHTS, root_of(content))]);
        let (op, quoted) = (plan.op, plan.quoted);
        self.note(core, Note::Input(PeerInput::OpDone { op, quoted, result }));
    }

    fn synced(&mut self, core: &mut Core, call: &Call, end: &EndedUse<'_>) {
        core.cover(Cover::SyncCommit);
        let Some(plan) = &call.plan else {
            let what = format!("{:?} committed without a plan", end.key);
            core.violate("equal_bits", what);
            return;
        };
        if let Some(content) = call.fetched {
            self.user.state.shared = content;
        }
        self.user.state.synced = Some(plan.revision);
        self.user.state.torn = None;
        core.saw_synced(end, plan.revision, self.user.state.shared);
    }
}

fn expected(usage: &crate::error::UsageError) -> bool {
    use crate::error::UsageError;
    // What a peer says that was thrown out, or leaves, between two calls.
    matches!(usage, UsageError::NotConnected | UsageError::Closed)
}

/// Key of the synchronisation.
const SYNC: OpKey = OpKey {
    kind: OpKind::Sync,
    tag: Tag(0),
};

/// Heartbeats that a fetch is tried again: some peer time-outs.
const FETCH_TRIES: u32 = 20;

/// How long a process lives on after its program's end, to close what is open.
const EXIT_DELAY: Duration = Duration::from_millis(20);
