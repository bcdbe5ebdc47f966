//! In the run or not: joining, being admitted, being evicted, leaving. (Rules 15, 17, 18)

use std::time::Duration;

use super::calls::is_query;
use super::io::{Answer, PeerOutput};
use super::{Peer, Standing};
use crate::error::{ConnectPhase, Error, UsageError};
use crate::event::Event;
use crate::ids::{CallId, MemberId, Time};
use crate::types::UnanimousCall;
use crate::wire::control::{GroupView, Stamp, Up, VoteName};
use crate::wire::reason::{EvictReason, RefuseReason, RequestCause, WaitsIn};

/// A call that joins the run.
#[derive(Clone, Debug)]
pub(super) struct Joining {
    pub(super) call: CallId,
    pub(super) deadline: Option<Time>,
    /// Whether a first failure to register ends the call: it has no limit, and callers have
    /// their own loops around it.
    impatient: bool,
    /// What the last dial said.
    failure: Option<Error>,
    /// Why the peer was out before, to be out for the same reason if it cannot join.
    before: Option<Error>,
    /// Whether the user did not ask to join, but called as a member does. (Rule 18)
    again: bool,
}

impl Joining {
    /// What the user is told of a failure to reach the master. Who calls as a member does, and has
    /// not heard yet that the master was stopped, learns that: nobody answering is only what comes
    /// of it.
    pub(super) fn told(&self, error: Error) -> Error {
        match &self.before {
            Some(stopped @ Error::MasterStopped { .. }) if self.again => stopped.clone(),
            _ => error,
        }
    }
}

/// A call that leaves the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    call: CallId,
    /// When it stops waiting for the master's goodbye.
    pub(super) deadline: Time,
}

impl Peer {
    /// The user connects, or an evicted peer calls `update_topology`.
    pub(super) fn join(&mut self, call: CallId, limit: Option<Duration>, again: bool, now: Time) {
        let before = match &self.standing {
            Standing::Out(before) => before.clone(),
            Standing::Joining(_) => {
                let joining = WaitsIn::Call(UnanimousCall::UpdateTopology);
                return self.complete(call, Err(UsageError::CallOpen(joining).into()));
            }
            Standing::Member => {
                return self.complete(call, Err(UsageError::AlreadyConnected.into()));
            }
            Standing::Leaving(_) | Standing::Closed => {
                return self.complete(call, Err(UsageError::Closed.into()));
            }
        };
        self.standing = Standing::Joining(Joining {
            call,
            deadline: limit.map(|limit| now + limit),
            impatient: limit.is_none(),
            failure: None,
            before,
            again,
        });
        self.dial_master(now);
    }

    /// A dial failed before this peer was registered. Returns whether that ended the call.
    pub(super) fn join_failed(&mut self, error: &Error, now: Time) -> bool {
        let Standing::Joining(joining) = &mut self.standing else {
            return true;
        };
        joining.failure = Some(error.clone());
        // No retry helps against an address that cannot be used.
        let ends = joining.impatient || matches!(error, Error::Usage(_));
        if ends {
            let error = joining.told(error.clone());
            self.leave_run(error, now);
        }
        ends
    }

    /// The user, or the call's limit, ends the attempt to join.
    pub(super) fn give_up_joining(&mut self, cause: RequestCause, now: Time) {
        let Standing::Joining(joining) = &mut self.standing else {
            return;
        };
        let error = if self.identity.is_some() || cause != RequestCause::TimedOut {
            Error::NotAdmitted(cause)
        } else {
            let silence = || Error::Unreachable {
                address: self.settings.master_address.clone(),
                phase: ConnectPhase::Dial,
                cause: "no answer within the time limit of the call".into(),
            };
            let failure = joining.failure.take().unwrap_or_else(silence);
            joining.told(failure)
        };
        if self.identity.is_some() {
            self.send(Up::Leave);
        }
        self.leave_run(error, now);
    }

    /// The round that admits this peer is complete.
    pub(super) fn admitted(&mut self, name: VoteName, stamp: &Stamp, group: GroupView, now: Time) {
        let Standing::Joining(joining) = &self.standing else {
            return;
        };
        if is_query(name.call) {
            return;
        }
        let call = joining.call;
        self.standing = Standing::Member;
        self.member_since = call;
        self.votes.admitted(name.round);
        self.ops.admitted();
        self.shown.show(stamp);
        if let Some(member) = self.own_id() {
            let round = name.round;
            self.outputs
                .push_back(PeerOutput::Event(Event::Admitted { member, round }));
        }
        self.edges.round_completed(&group);
        self.follow(group, now);
        let stamp = self.shown.stamp(stamp.pending);
        self.complete(call, Ok(Answer::Done(stamp)));
    }

    /// The master does not count this peer as a member, or newcomer, any more.
    pub(super) fn on_evicted(&mut self, reason: EvictReason, now: Time) {
        if let Some(member) = self.own_id() {
            let reason = reason.clone();
            self.outputs
                .push_back(PeerOutput::Event(Event::Evicted { member, reason }));
        }
        let newcomer = matches!(self.standing, Standing::Joining(_));
        let error = match reason {
            // A newcomer that has no possible plan is turned down. (Rule 15)
            EvictReason::Unreachable { from } if newcomer => Error::Refused {
                address: self.settings.master_address.clone(),
                reason: RefuseReason::Unreachable { from },
            },
            reason => Error::Evicted(reason),
        };
        self.leave_run(error, now);
    }

    /// The master stops in good order: all calls fail at once. (Rule 17)
    pub(super) fn on_stopping(&mut self, now: Time) {
        let address = self.settings.master_address.clone();
        self.leave_run(Error::MasterStopped { address }, now);
    }

    /// The user leaves: open calls are cancelled for all, naming the leaver, and get their
    /// verdicts before the master says goodbye.
    pub(super) fn leave(&mut self, call: CallId, now: Time) {
        match self.standing {
            Standing::Leaving(_) | Standing::Closed => {
                return self.complete(call, Err(UsageError::Closed.into()));
            }
            Standing::Out(_) => self.standing = Standing::Closed,
            Standing::Joining(_) => {
                self.give_up_joining(RequestCause::Destroyed, now);
                self.standing = Standing::Closed;
            }
            Standing::Member => {
                for key in self.ops.keys() {
                    self.request_abort(key, RequestCause::Destroyed, now);
                }
                self.withdraw(RequestCause::Destroyed, now);
                self.standing = Standing::Leaving(Leaving {
                    call,
                    deadline: now + self.timing.heartbeat * GOODBYE_HEARTBEATS,
                });
                if self.session.is_open() {
                    self.send(Up::Leave);
                } else {
                    self.left(now);
                }
                return;
            }
        }
        let stamp = self.shown.stamp(false);
        self.complete(call, Ok(Answer::Done(stamp)));
    }

    /// The master said goodbye, or nothing in time.
    pub(super) fn left(&mut self, now: Time) {
        if matches!(self.standing, Standing::Leaving(_)) {
            self.leave_run(UsageError::Closed.into(), now);
        }
    }

    /// Out of the run: every open call fails with `error`, but one that leaves succeeds; nothing
    /// of the old membership is left.
    pub(super) fn leave_run(&mut self, error: Error, now: Time) {
        self.close_master();
        self.shown = Default::default();
        let (standing, call) = match std::mem::replace(&mut self.standing, Standing::Closed) {
            Standing::Joining(joining) => {
                let failed = (joining.call, Err(error.clone()));
                (Standing::Out(joining.before), Some(failed))
            }
            Standing::Leaving(leaving) => {
                let done = Answer::Done(self.shown.stamp(false));
                (Standing::Closed, Some((leaving.call, Ok(done))))
            }
            Standing::Member => (Standing::Out(Some(error.clone())), None),
            other => (other, None),
        };
        self.standing = standing;
        self.identity = None;
        self.known = GroupView::default();
        self.heard.clear();
        // Nobody is let in by the old proof, and buffers are let go, before any call returns.
        let open = self.ops.take();
        self.tell_admitted();
        for op in open {
            self.finish(op, Err(error.clone()), self.shown.stamp(false));
        }
        self.reconcile(now);
        self.tell_group();
        if let Some(vote) = self.votes.take() {
            self.complete(vote, Err(error));
        }
        if let Some((call, result)) = call {
            self.complete(call, result);
        }
        self.votes = Default::default();
        self.ops = Default::default();
    }

    /// Why a call that needs a membership cannot be made, if it cannot.
    pub(super) fn must_be_member(&self) -> Result<(), Error> {
        match &self.standing {
            Standing::Member => Ok(()),
            Standing::Out(Some(why)) => Err(why.clone()),
            Standing::Out(None) | Standing::Joining(_) => Err(UsageError::NotConnected.into()),
            Standing::Leaving(_) | Standing::Closed => Err(UsageError::Closed.into()),
        }
    }

    /// Whether `update_topology` joins again. (Rule 18)
    pub(super) fn must_rejoin(&self) -> bool {
        matches!(self.standing, Standing::Out(Some(_)))
    }

    /// The own number in the run.
    pub(super) fn own_id(&self) -> Option<MemberId> {
        self.identity.map(|own| own.id)
    }
}

/// Heartbeat intervals that leaving waits for the master's goodbye: a live master answers within
/// a round trip, and destroying a communicator waits for nobody for long.
const GOODBYE_HEARTBEATS: u32 = 2;
