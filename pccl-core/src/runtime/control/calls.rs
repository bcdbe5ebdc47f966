//! The calls that the control thread has to answer.

use std::collections::BTreeMap;

use super::driver::Work;
use crate::collective::buffers::Lent;
use crate::collective::engine::OpStats;
use crate::error::{Error, Result};
use crate::ids::CallId;
use crate::membership::peer::{Answer, Request};
use crate::runtime::calls::{Completer, Reply};
use crate::runtime::sync::SyncControl;
use crate::types::OpKey;
use crate::wire::control::{Outcome, Stamp};
use crate::wire::reason::WaitsIn;

/// Open calls by number.
#[derive(Default)]
pub(super) struct Calls {
    open: BTreeMap<CallId, Call>,
}

struct Call {
    completer: Completer,
    work: Work,
    /// Whether the data thread has its buffers.
    lent: bool,
    /// Whether this peer is out of the run, in good order, when the call completes.
    leaves: bool,
    /// What the user is told once the data thread has given the buffers back.
    ending: Option<Ending>,
}

/// How a use of a key has ended.
pub(super) struct Ending {
    pub(super) key: OpKey,
    pub(super) outcome: Result<Outcome>,
    pub(super) stamp: Stamp,
}

impl Call {
    /// Lets the user's thread go on, which may lend the same buffers again at once: so they are let
    /// go of first.
    fn end(self, result: Result<Reply>) {
        let Self {
            completer, work, ..
        } = self;
        drop(work);
        completer.complete(result);
    }
}

impl Calls {
    pub(super) fn add(&mut self, id: CallId, request: &Request, completer: Completer, work: Work) {
        let call = Call {
            completer,
            work,
            lent: false,
            leaves: matches!(request, Request::Leave),
            ending: None,
        };
        self.open.insert(id, call);
    }

    pub(super) fn contains(&self, call: CallId) -> bool {
        self.open.contains_key(&call)
    }

    /// Buffers for the data thread, once.
    pub(super) fn lend(&mut self, call: CallId) -> Option<Lent> {
        let call = self.open.get_mut(&call)?;
        match std::mem::replace(&mut call.work, Work::None) {
            Work::Reduce(lent) => {
                call.lent = true;
                Some(lent)
            }
            other => {
                call.work = other;
                None
            }
        }
    }

    /// The user's thread that fetches and serves state for a call.
    pub(super) fn sync(&self, call: CallId) -> Option<&SyncControl> {
        match &self.open.get(&call)?.work {
            Work::Sync(control) => Some(control),
            Work::None | Work::Reduce(_) => None,
        }
    }

    /// The synchronisation that is open.
    pub(super) fn any_sync(&self) -> Option<&SyncControl> {
        self.open.keys().find_map(|call| self.sync(*call))
    }

    /// All of them.
    pub(super) fn ids(&self) -> Vec<CallId> {
        self.open.keys().copied().collect()
    }

    /// Notes how a use has ended. Whether the data thread has to give its buffers back first.
    pub(super) fn ending(&mut self, id: CallId, ending: Ending) -> bool {
        let Some(call) = self.open.get_mut(&id) else {
            return false;
        };
        call.ending = Some(ending);
        if !call.lent {
            self.released(id, OpStats::default());
            return false;
        }
        true
    }

    /// The data thread has given the buffers of a call back.
    pub(super) fn released(&mut self, id: CallId, stats: OpStats) {
        let Some(mut call) = self.open.remove(&id) else {
            return;
        };
        let Some(ending) = call.ending.take() else {
            call.lent = false;
            self.open.insert(id, call);
            return;
        };
        call.end(match ending.outcome {
            Ok(Outcome::Commit) => Ok(Reply::Committed(stats, ending.stamp)),
            Ok(Outcome::Abort(reason)) => Err(Error::Aborted {
                what: WaitsIn::Op(ending.key),
                reason,
                stamp: ending.stamp,
            }),
            Err(error) => Err(error),
        });
    }

    /// The peer machine has answered a call. Whether it was one that leaves the run.
    pub(super) fn complete(&mut self, id: CallId, result: Result<Answer>) -> bool {
        let Some(call) = self.open.remove(&id) else {
            return false;
        };
        let left = call.leaves && result.is_ok();
        call.end(result.map(|answer| match answer {
            Answer::Done(_) => Reply::Done,
            Answer::Pending(pending) => Reply::Pending(pending),
        }));
        left
    }

    /// Calls whose buffers the data thread has and was not told to give back.
    pub(super) fn lent(&self) -> Vec<CallId> {
        let lent = self
            .open
            .iter()
            .filter(|(_, c)| c.lent && c.ending.is_none());
        lent.map(|(id, _)| *id).collect()
    }

    /// Ends all calls with an error, or with what is known of them. Only for when no other thread
    /// has buffers any more. A result that the data thread was to leave in place, and has not said
    /// to have left, is not there: that thread panicked, and put everything back.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for id in self.ids() {
            if let Some(call) = self.open.get_mut(&id) {
                let commit = |e: &mut Ending| matches!(e.outcome, Ok(Outcome::Commit));
                let _ = call.ending.take_if(|e| call.lent && commit(e));
            }
            self.released(id, OpStats::default());
            if let Some(call) = self.open.remove(&id) {
                call.end(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::error::UsageError;
    use crate::ids::Tag;
    use crate::runtime::calls::{self, Ticket};
    use crate::types::{DataType, OpKind, ReduceDescriptor, ReduceOp};
    use crate::wire::reason::{AbortReason, Missing, RequestCause};

    /// Says at the end of a loan whether its user's thread could run already.
    struct Loan(Ticket, Sender<bool>);

    impl Drop for Loan {
        fn drop(&mut self) {
            self.1.send(self.0.is_complete()).unwrap();
        }
    }

    const CALL: CallId = CallId(1);

    fn open() -> (Calls, Ticket, Receiver<bool>) {
        let (ticket, completer) = calls::call(Arc::default());
        let (says, early) = channel();
        let mut buffers = crate::collective::buffers::OwnedBuffers::in_place(Vec::new());
        let lent = buffers.lend().with_guard(Loan(ticket.clone(), says));
        let descriptor = ReduceDescriptor {
            count: 0,
            data_type: DataType::U8,
            op: ReduceOp::Sum,
            quantization: None,
            algorithm: None,
        };
        let tag = Tag(1);
        let mut calls = Calls::default();
        let request = Request::Reduce { tag, descriptor };
        calls.add(CALL, &request, completer, Work::Reduce(lent));
        (calls, ticket, early)
    }

    fn gave_up() -> Outcome {
        Outcome::Abort(AbortReason::Requested {
            by: crate::ids::MemberId(1),
            cause: RequestCause::Cancelled,
            missing: Box::new(Missing::Nobody),
        })
    }

    fn ending(outcome: Outcome) -> Ending {
        Ending {
            key: OpKey {
                kind: OpKind::Collective,
                tag: Tag(1),
            },
            outcome: Ok(outcome),
            stamp: Stamp::default(),
        }
    }

    #[test]
    fn buffers_are_free_before_the_user_of_a_call_that_never_started_goes_on() {
        let (mut calls, ticket, early) = open();
        let ending = ending(gave_up());
        assert!(!calls.ending(CALL, ending));
        assert!(matches!(ticket.peek(), Some(Err(Error::Aborted { .. }))));
        assert_eq!(early.try_recv(), Ok(false));
    }

    #[test]
    fn a_result_that_the_data_thread_did_not_leave_is_no_success() {
        for outcome in [Outcome::Commit, gave_up()] {
            let (mut calls, ticket, _early) = open();
            drop(calls.lend(CALL));
            assert!(calls.ending(CALL, ending(outcome)));
            calls.fail_all(&Error::Abandoned);
            assert!(matches!(ticket.peek(), Some(Err(_))));
        }
        let (mut calls, ticket, _early) = open();
        drop(calls.lend(CALL));
        assert!(calls.ending(CALL, ending(Outcome::Commit)));
        calls.released(CALL, OpStats::default());
        calls.fail_all(&Error::Abandoned);
        assert!(matches!(ticket.peek(), Some(Ok(Reply::Committed(..)))));
    }

    #[test]
    fn buffers_are_free_before_the_user_of_a_call_that_was_refused_goes_on() {
        let (mut calls, ticket, early) = open();
        calls.complete(CALL, Err(UsageError::NotConnected.into()));
        assert!(ticket.is_complete());
        assert_eq!(early.try_recv(), Ok(false));
        let (mut calls, ticket, early) = open();
        calls.fail_all(&Error::Abandoned);
        assert_eq!(ticket.peek(), Some(Err(Error::Abandoned)));
        assert_eq!(early.try_recv(), Ok(false));
    }
}
