//! Unanimous calls: one open at a time, numbered by rounds and failed tries. (Rules 1, 5, 6)
//!
//! A call ends with the master's `Completed` or `Failed` only; giving it up asks the master to
//! take the vote back, and the answer may still be that the round is complete. Tries that failed
//! before this member voted are the master's to remember: a vote for one is answered with its
//! failure, so that every member's user sees every failed try once.

use std::time::Duration;

use super::Peer;
use super::io::{Answer, PeerOutput};
use crate::error::{Error, UsageError};
use crate::event::Event;
use crate::ids::{CallId, Round, Time};
use crate::types::UnanimousCall;
use crate::wire::control::{GroupView, Stamp, Up, VoteName, VoteReport};
use crate::wire::reason::{AbortReason, RequestCause, WaitsIn};

/// Counting of unanimous calls, and the one that is open.
#[derive(Clone, Debug, Default)]
pub(super) struct Votes {
    rounds: Count,
    queries: Count,
    open: Option<Vote>,
}

/// Counting of one class of calls: those that complete a round, or queries.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    completed: Round,
    tries: u32,
}

impl Count {
    fn complete(&mut self, round: Round) {
        *self = Self {
            completed: Round(round.0.saturating_add(1)),
            tries: 0,
        };
    }

    fn fail(&mut self) {
        self.tries = self.tries.saturating_add(1);
    }
}

/// A vote that waits for its answer.
#[derive(Clone, Debug)]
struct Vote {
    call: CallId,
    name: VoteName,
    deadline: Option<Time>,
    withdrawn: Option<RequestCause>,
    /// When the master was asked to take it back, or was reached again after that.
    withdrawn_at: Time,
    /// Whether the master has the vote, and the wish to take it back, from this connection.
    told: (bool, bool),
}

impl Votes {
    /// Of a member that was admitted by the round with this number.
    pub(super) fn admitted(&mut self, round: Round) {
        *self = Self::default();
        self.rounds.complete(round);
    }

    pub(super) fn round(&self) -> Round {
        self.rounds.completed
    }

    pub(super) fn queries(&self) -> Round {
        self.queries.completed
    }

    /// The call that is open.
    pub(super) fn open(&self) -> Option<UnanimousCall> {
        self.open.as_ref().map(|vote| vote.name.call)
    }

    /// Whether a call is open that no operation may be opened beside.
    pub(super) fn round_open(&self) -> Option<UnanimousCall> {
        self.open().filter(|call| !is_query(*call))
    }

    /// What a member brings back of it; from now on the master has been told.
    pub(super) fn report(&mut self) -> Option<VoteReport> {
        let vote = self.open.as_mut()?;
        vote.told = (true, vote.withdrawn.is_some());
        Some(VoteReport {
            vote: vote.name,
            withdrawn: vote.withdrawn.clone(),
        })
    }

    /// What the master has not been told on the connection that just opened.
    pub(super) fn untold(&mut self) -> Vec<Up> {
        let mut messages = Vec::new();
        if let Some(vote) = &mut self.open {
            if !vote.told.0 {
                vote.told.0 = true;
                messages.push(Up::Vote(vote.name));
            }
            if let Some(cause) = vote.withdrawn.as_ref().filter(|_| !vote.told.1) {
                vote.told.1 = true;
                messages.push(Up::Withdraw {
                    vote: vote.name,
                    cause: cause.clone(),
                });
            }
        }
        messages
    }

    /// The master was away for `away` and is back. (Rule 17)
    pub(super) fn extend(&mut self, away: Duration, now: Time) {
        if let Some(vote) = &mut self.open {
            vote.deadline = vote.deadline.map(|deadline| deadline + away);
            vote.withdrawn_at = now;
        }
    }

    /// Takes the open call out, to fail it.
    pub(super) fn take(&mut self) -> Option<CallId> {
        self.open.take().map(|vote| vote.call)
    }

    /// Whether this call is the one that is open.
    pub(super) fn is(&self, call: CallId) -> bool {
        self.open.as_ref().is_some_and(|vote| vote.call == call)
    }

    /// When the open call is given up.
    pub(super) fn deadline(&self) -> Option<Time> {
        let vote = self.open.as_ref()?;
        vote.deadline.filter(|_| vote.withdrawn.is_none())
    }

    /// Since when the master owes the answer to a vote taken back.
    pub(super) fn withdrawn_at(&self) -> Option<Time> {
        let vote = self.open.as_ref()?;
        vote.withdrawn.as_ref().map(|_| vote.withdrawn_at)
    }

    fn count(&mut self, call: UnanimousCall) -> &mut Count {
        if is_query(call) {
            &mut self.queries
        } else {
            &mut self.rounds
        }
    }
}

impl Peer {
    /// The user votes.
    pub(super) fn vote(
        &mut self,
        call: CallId,
        what: UnanimousCall,
        limit: Option<Duration>,
        now: Time,
    ) {
        if let Err(error) = self.may_vote(what) {
            self.complete(call, Err(error));
            return;
        }
        let count = self.votes.count(what);
        let name = VoteName {
            call: what,
            round: count.completed,
            tries: count.tries,
        };
        self.votes.open = Some(Vote {
            call,
            name,
            deadline: limit.map(|limit| now + limit),
            withdrawn: None,
            withdrawn_at: now,
            told: (false, false),
        });
        self.tell_votes();
    }

    /// The user, or the call's limit, gives the open call up.
    pub(super) fn withdraw(&mut self, cause: RequestCause, now: Time) {
        if let Some(vote) = &mut self.votes.open
            && vote.withdrawn.is_none()
        {
            vote.withdrawn = Some(cause);
            vote.withdrawn_at = now;
            self.tell_votes();
        }
    }

    /// A round or query is complete at a member; joining is [`Peer::admitted`].
    pub(super) fn on_completed(
        &mut self,
        name: VoteName,
        stamp: &Stamp,
        group: GroupView,
        now: Time,
    ) {
        let query = is_query(name.call);
        let Some(vote) = self
            .votes
            .open
            .take_if(|vote| is_query(vote.name.call) == query && vote.name.round == name.round)
        else {
            // Sent again, or of a round that this member had no part in.
            return;
        };
        self.outputs
            .push_back(PeerOutput::Event(Event::Completed { vote: name }));
        self.votes.count(name.call).complete(name.round);
        if !query {
            self.votes.queries = Count::default();
            self.ops.new_round();
            self.shown.show(stamp);
            self.edges.round_completed(&group);
        }
        self.follow(group, now);
        let stamp = self.shown.stamp(stamp.pending);
        let answer = if query {
            Answer::Pending(stamp.pending)
        } else {
            Answer::Done(stamp)
        };
        self.complete(vote.call, Ok(answer));
    }

    /// A try failed for all.
    pub(super) fn on_failed(&mut self, name: VoteName, reason: AbortReason, stamp: &Stamp) {
        let query = is_query(name.call);
        let this = |vote: &mut Vote| {
            let (round, tries) = (vote.name.round, vote.name.tries);
            is_query(vote.name.call) == query && (round, tries) == (name.round, name.tries)
        };
        let Some(vote) = self.votes.open.take_if(this) else {
            // Sent again.
            return;
        };
        self.votes.count(name.call).fail();
        if !query {
            self.shown.show(stamp);
            self.tell_group();
        }
        let event = Event::VoteFailed {
            vote: vote.name,
            reason: reason.clone(),
        };
        self.outputs.push_back(PeerOutput::Event(event));
        let error = Error::Aborted {
            what: WaitsIn::Call(vote.name.call),
            reason,
            stamp: self.shown.stamp(stamp.pending),
        };
        self.complete(vote.call, Err(error));
    }

    /// Sends what the master does not know of the open call.
    pub(super) fn tell_votes(&mut self) {
        if self.session.is_open() {
            for message in self.votes.untold() {
                self.send(message);
            }
        }
    }

    fn may_vote(&self, what: UnanimousCall) -> Result<(), Error> {
        self.must_be_member()?;
        if let Some(open) = self.votes.open() {
            return Err(UsageError::CallOpen(WaitsIn::Call(open)).into());
        }
        if !is_query(what) && self.ops.len() > 0 {
            return Err(UsageError::OperationsOpen(self.ops.len()).into());
        }
        Ok(())
    }
}

/// Whether a call completes no round and is counted by itself.
pub(super) fn is_query(call: UnanimousCall) -> bool {
    match call {
        UnanimousCall::ArePeersPending => true,
        UnanimousCall::UpdateTopology | UnanimousCall::OptimizeTopology => false,
    }
}
