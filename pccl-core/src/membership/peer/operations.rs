//! Uses of keys: their names, and their way from OPEN to verdict. (Rules 1, 2, 4, 5)
//!
//! A use ends with the master's verdict only. Limits and cancels ask for an abort and go on
//! waiting; the verdict may be a commit. No verdict for the master limit ends the membership.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Peer;
use super::io::PeerOutput;
use crate::error::{Error, UsageError};
use crate::event::Event;
use crate::ids::{CallId, Digest, Serial, Tag, Time};
use crate::planted::{Bug, planted};
use crate::types::{OpKey, OpKind, ReduceDescriptor};
use crate::wire::control::{
    AbortRequest, Done, OpBody, OpName, OpReport, Open, Outcome, Stamp, SyncPlan, Up, Verdict,
};
use crate::wire::reason::{AbortReason, Missing, RequestCause, WaitsIn};

/// Uses that are open, and what is remembered of those that failed.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations {
    open: BTreeMap<OpKey, Operation>,
    /// Aborted uses of each key since the last completed round. A key that only ever committed
    /// has no entry: a committed use leaves nothing behind.
    attempts: BTreeMap<OpKey, u32>,
    /// Last verdict received.
    quoted: Serial,
    /// Uses opened so far, to report them in order.
    opened: u64,
}

/// A use that has no verdict yet.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) call: CallId,
    pub(super) open: Open,
    order: u64,
    done: Option<Digest>,
    abort: Option<RequestCause>,
    /// When the abort was asked for, or the master was reached again after that.
    abort_at: Time,
    deadline: Option<Time>,
    /// Whether the engine has it.
    started: bool,
    told: Told,
    /// Of a synchronisation: what the driver was told to do.
    pub(super) plan: Option<SyncPlan>,
}

/// What the master has been told of a use on the present connection.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    open: bool,
    done: bool,
    abort: bool,
}

impl Operation {
    /// Messages that the master has not had.
    fn untold(&mut self, messages: &mut Vec<Up>) {
        let (op, quoted) = (self.open.op, self.open.quoted);
        if !self.told.open {
            self.told.open = true;
            messages.push(Up::Open(self.open.clone()));
        }
        if let Some(result) = self.done.filter(|_| !self.told.done) {
            self.told.done = true;
            messages.push(Up::Done(Done { op, quoted, result }));
        }
        if let Some(cause) = self.abort.clone().filter(|_| !self.told.abort) {
            self.told.abort = true;
            messages.push(Up::AbortRequest(AbortRequest { op, quoted, cause }));
        }
    }

    fn is(&self, op: OpName, quoted: Serial) -> bool {
        self.open.op == op && self.open.quoted == quoted
    }
}

impl Operations {
    /// Of a newcomer that was just admitted.
    pub(super) fn admitted(&mut self) {
        *self = Self::default();
    }

    /// A round is complete: the next uses are numbered from zero under its number.
    pub(super) fn new_round(&mut self) {
        self.attempts.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Last verdict received; acknowledges all up to it.
    pub(super) fn quoted(&self) -> Serial {
        self.quoted
    }

    /// Whether a use of this kind is open.
    pub(super) fn any(&self, kind: OpKind) -> bool {
        self.open.keys().any(|key| key.kind == kind)
    }

    /// What a member brings back of them, in the order in which they were opened; from now on the
    /// master has been told.
    pub(super) fn report(&mut self) -> Vec<OpReport> {
        self.in_order()
            .into_iter()
            .map(|op| {
                op.told = Told {
                    open: true,
                    done: op.done.is_some(),
                    abort: op.abort.is_some(),
                };
                OpReport {
                    open: op.open.clone(),
                    done: op.done,
                    abort: op.abort.clone(),
                }
            })
            .collect()
    }

    /// The master was away for `away` and is back. (Rule 17)
    pub(super) fn extend(&mut self, away: Duration, now: Time) {
        for op in self.open.values_mut() {
            op.deadline = op.deadline.map(|deadline| deadline + away);
            op.abort_at = now;
        }
    }

    /// Key of the use that this call waits in.
    pub(super) fn key_of(&self, call: CallId) -> Option<OpKey> {
        let mut uses = self.open.values();
        uses.find(|op| op.call == call).map(|op| op.open.op.key)
    }

    /// Keys of all open uses, in the order in which they were opened.
    pub(super) fn keys(&mut self) -> Vec<OpKey> {
        self.in_order().iter().map(|op| op.open.op.key).collect()
    }

    /// Takes all open uses out, to fail them.
    pub(super) fn take(&mut self) -> Vec<Operation> {
        let mut uses: Vec<Operation> = std::mem::take(&mut self.open).into_values().collect();
        uses.sort_by_key(|op| op.order);
        uses
    }

    /// When the next limit of an open use passes.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.open
            .values()
            .filter(|op| op.abort.is_none())
            .filter_map(|op| op.deadline)
            .min()
    }

    /// Since when the master owes the verdict on a use that was given up.
    pub(super) fn abort_at(&self) -> Option<Time> {
        self.open
            .values()
            .filter(|op| op.abort.is_some())
            .map(|op| op.abort_at)
            .min()
    }

    /// The open use with this name, opened after this verdict.
    pub(super) fn find(&mut self, op: OpName, quoted: Serial) -> Option<&mut Operation> {
        self.open
            .get_mut(&op.key)
            .filter(|open| open.is(op, quoted))
    }

    /// The open synchronisation.
    pub(super) fn sync(&self) -> Option<&Operation> {
        self.open
            .values()
            .find(|op| op.open.op.key.kind == OpKind::Sync)
    }

    fn due(&self, now: Time) -> Vec<OpKey> {
        self.open
            .iter()
            .filter(|(_, op)| op.abort.is_none() && op.deadline.is_some_and(|at| at <= now))
            .map(|(key, _)| *key)
            .collect()
    }

    fn in_order(&mut self) -> Vec<&mut Operation> {
        let mut uses: Vec<&mut Operation> = self.open.values_mut().collect();
        uses.sort_by_key(|op| op.order);
        uses
    }

    /// Keys that take part of the limit: open ones, and those with failed uses (a key that is both
    /// counts twice while the limit is far). (Rule 2)
    fn held(&self) -> usize {
        let both = self.attempts.len() + self.open.len();
        if both < MOST_OPERATIONS {
            return both;
        }
        let counted_twice = self
            .open
            .keys()
            .filter(|key| self.attempts.contains_key(key));
        both - counted_twice.count()
    }
}

impl Peer {
    /// The user calls an all-reduce.
    pub(super) fn reduce(
        &mut self,
        call: CallId,
        tag: Tag,
        descriptor: ReduceDescriptor,
        limit: Option<Duration>,
        now: Time,
    ) {
        let key = OpKey {
            kind: OpKind::Collective,
            tag,
        };
        if let Err(error) = self.may_reduce(key, &descriptor) {
            self.complete(call, Err(error));
            return;
        }
        let what = OpBody::Reduce {
            descriptor,
            digest: descriptor.digest(),
        };
        self.open(call, key, what, limit, now);
    }

    /// Whether nothing open stands against a use of `key`, and there is room for one.
    pub(super) fn may_open(&self, key: OpKey) -> Result<(), Error> {
        if self.ops.open.contains_key(&key) {
            return Err(UsageError::InUse(key).into());
        }
        if let Some(call) = self.votes.round_open() {
            return Err(UsageError::CallOpen(WaitsIn::Call(call)).into());
        }
        let held = self.ops.held();
        if held >= MOST_OPERATIONS && !self.ops.attempts.contains_key(&key) {
            return Err(UsageError::TooMany {
                open: held,
                limit: MOST_OPERATIONS,
            }
            .into());
        }
        Ok(())
    }

    /// Names a use, tells the master, and starts it.
    pub(super) fn open(
        &mut self,
        call: CallId,
        key: OpKey,
        what: OpBody,
        limit: Option<Duration>,
        now: Time,
    ) {
        let attempt = self.ops.attempts.get(&key).copied().unwrap_or(0);
        let epoch = if planted(Bug::OpenWithKnownEpoch) {
            self.known.epoch
        } else {
            self.shown.epoch()
        };
        let op = OpName {
            round: self.votes.round(),
            key,
            attempt,
        };
        let operation = Operation {
            call,
            open: Open {
                op,
                epoch,
                quoted: self.ops.quoted,
                what,
            },
            order: self.ops.opened,
            done: None,
            abort: None,
            abort_at: now,
            deadline: limit.map(|limit| now + limit),
            started: false,
            told: Told::default(),
            plan: None,
        };
        self.ops.opened += 1;
        self.ops.open.insert(key, operation);
        self.tell_operation(key);
        self.start(key);
    }

    /// Starts what waited for the view that lanes follow from now on.
    pub(super) fn start_operations(&mut self) {
        for key in self.ops.keys() {
            self.start(key);
        }
    }

    /// Starts a use that was opened under the epoch that lanes follow. One opened under an older
    /// epoch is doomed: the master aborts it for all. One opened under a newer epoch (the verdict
    /// that showed it came before the view itself) waits for that view.
    fn start(&mut self, key: OpKey) {
        let (Some(own), Some(op)) = (self.own_id(), self.ops.open.get_mut(&key)) else {
            return;
        };
        let OpBody::Reduce { descriptor, .. } = op.open.what else {
            return;
        };
        let known = &self.known;
        if op.started || op.open.epoch != known.epoch || known.rank(own).is_none() {
            return;
        }
        op.started = true;
        let mut group = known.clone();
        if planted(Bug::OwnOrder) {
            group
                .ring
                .sort_by_key(|member| (member.id != own, member.id));
        }
        if planted(Bug::OwnChoice) {
            group.choice.star_below >>= own.0 % 2 * 63;
            group.choice.direct_below >>= own.0 % 2 * 63;
        }
        self.outputs.push_back(PeerOutput::StartReduce {
            call: op.call,
            op: op.open.op,
            quoted: op.open.quoted,
            descriptor,
            group,
            own,
        });
    }

    /// The driver has all of the result. Ignored of uses that have ended.
    pub(super) fn on_op_done(&mut self, op: OpName, quoted: Serial, result: Digest) {
        if let Some(open) = self.ops.find(op, quoted)
            && open.done.is_none()
        {
            open.done = Some(result);
            self.tell_operation(op.key);
        }
    }

    /// The driver cannot go on. Ignored of uses that have ended.
    pub(super) fn on_op_failed(
        &mut self,
        op: OpName,
        quoted: Serial,
        cause: RequestCause,
        now: Time,
    ) {
        if self.ops.find(op, quoted).is_some() {
            self.request_abort(op.key, cause, now);
        }
    }

    /// Asks the master for an abort, once.
    pub(super) fn request_abort(&mut self, key: OpKey, cause: RequestCause, now: Time) {
        let Some(op) = self.ops.open.get_mut(&key) else {
            return;
        };
        if op.abort.is_none() {
            op.abort = Some(cause);
            op.abort_at = now;
            self.tell_operation(key);
        }
    }

    /// Limits of open uses pass. (Rule 5)
    pub(super) fn operations_due(&mut self, now: Time) {
        for key in self.ops.due(now) {
            if planted(Bug::TimeoutDecidesLocally)
                && let (Some(by), Some(op)) = (self.own_id(), self.ops.open.remove(&key))
            {
                let cause = RequestCause::TimedOut;
                let missing = Box::new(Missing::Nobody);
                let outcome = Outcome::Abort(AbortReason::Requested { by, cause, missing });
                self.ops
                    .attempts
                    .insert(key, op.open.op.attempt.saturating_add(1));
                self.finish(op, Ok(outcome), self.shown.stamp(false));
                continue;
            }
            self.request_abort(key, RequestCause::TimedOut, now);
        }
    }

    /// The master's word.
    pub(super) fn on_verdict(&mut self, verdict: Verdict, now: Time) {
        let key = verdict.op.key;
        let Some(op) = self.ops.open.get(&key) else {
            return;
        };
        if op.open.op != verdict.op {
            return;
        }
        let commit = verdict.outcome == Outcome::Commit;
        let lax = planted(Bug::VerdictWithoutSerial);
        // Committed uses of one key bear the same name until one fails: a commit that this member
        // had when it opened the use is that of an earlier one.
        if commit && verdict.serial <= op.open.quoted && !lax {
            return;
        }
        if commit && op.done.is_none() && !lax {
            // No correct master does this; to go on would be to return without the result.
            let what = format!("the master committed {key}, of which this peer has no result");
            self.leave_run(Error::Internal(what), now);
            return;
        }
        let Some(op) = self.ops.open.remove(&key) else {
            return;
        };
        self.ops.quoted = self.ops.quoted.max(verdict.serial);
        if !commit {
            let attempt = verdict.op.attempt.saturating_add(1);
            self.ops.attempts.insert(key, attempt);
        }
        let mut after = self.shown;
        if !commit || key.kind == OpKind::Sync {
            after.show(&verdict.stamp);
        }
        if key.kind == OpKind::Sync {
            // Its user waits in the call. That of a collective may come for the result later, and
            // says so with `PeerInput::Shown`.
            self.shown = after;
        }
        self.outputs.push_back(PeerOutput::Event(Event::Verdict {
            op: verdict.op,
            group: self.settings.group,
            serial: verdict.serial,
            outcome: verdict.outcome.clone(),
            stamp: verdict.stamp,
        }));
        if key.kind == OpKind::Sync {
            // Readers are shut out first: no chunk is served after the call has returned.
            self.tell_admitted();
        }
        self.finish(op, Ok(verdict.outcome), after.stamp(verdict.stamp.pending));
        self.tell_group();
    }

    /// Lets the user's call return.
    pub(super) fn finish(&mut self, op: Operation, outcome: Result<Outcome, Error>, stamp: Stamp) {
        self.outputs.push_back(PeerOutput::Finish {
            call: op.call,
            op: op.open.op,
            quoted: op.open.quoted,
            outcome,
            stamp,
        });
    }

    /// The master has not taken a use up: it is as if it had not been called here.
    pub(super) fn on_too_many(&mut self, op: OpName, quoted: Serial, held: u32) {
        if self.ops.find(op, quoted).is_none() {
            return;
        }
        if let Some(operation) = self.ops.open.remove(&op.key) {
            let error = UsageError::TooMany {
                open: held as usize,
                limit: 2 * MOST_OPERATIONS,
            };
            let stamp = self.shown.stamp(false);
            self.finish(operation, Err(error.into()), stamp);
            self.tell_admitted();
        }
    }

    /// A failed collective has returned to its user.
    pub(super) fn on_shown(&mut self, call: CallId, stamp: &Stamp) {
        if self.is_member() && call > self.member_since {
            self.shown.show(stamp);
            self.tell_group();
        }
    }

    /// Sends what the master does not know of all open uses.
    pub(super) fn tell_operations(&mut self) {
        for key in self.ops.keys() {
            self.tell_operation(key);
        }
    }

    fn tell_operation(&mut self, key: OpKey) {
        if !self.session.is_open() {
            return;
        }
        let mut messages = Vec::new();
        if let Some(op) = self.ops.open.get_mut(&key) {
            op.untold(&mut messages);
        }
        for message in messages {
            self.send(message);
        }
    }

    fn may_reduce(&self, key: OpKey, descriptor: &ReduceDescriptor) -> Result<(), Error> {
        self.must_be_member()?;
        if descriptor.bytes().is_none() {
            return Err(UsageError::Argument {
                name: "count",
                why: format!("{descriptor} does not fit into 64 bits of bytes"),
            }
            .into());
        }
        if let Some(quantization) = descriptor.quantization
            && let Some(why) = quantization.refusal(descriptor.data_type, descriptor.op)
        {
            let name = "quantization";
            return Err(UsageError::Argument { name, why }.into());
        }
        if self.shown.attributes().group_world_size < 2 {
            return Err(Error::TooFewPeers);
        }
        if let Some(sync) = self.ops.sync() {
            return Err(UsageError::CallOpen(WaitsIn::Op(sync.open.op.key)).into());
        }
        self.may_open(key)
    }
}

/// Operations in flight, and keys with failed uses since the last round, of one communicator.
/// (Rules 2 and 7)
pub(super) const MOST_OPERATIONS: usize = 1_024;
