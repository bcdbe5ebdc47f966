//! One outcome: a use of a key ends the same way, for the same reason, at every member that is
//! given a verdict on it; and a commit never pairs different steps of the users' programs.
//! Promise 1, rules 2, 4, 5.

use std::collections::BTreeMap;

use crate::sim::core::ProcId;
use crate::sim::oracle::{Point, TryKey, UseKey};
use crate::wire::control::Outcome;

/// State of the invariant.
#[derive(Default, Debug)]
pub(in crate::sim) struct OneOutcome {
    uses: BTreeMap<UseKey, Ended>,
    votes: BTreeMap<TryKey, (ProcId, VoteEnd)>,
}

/// Completed, with the answer to a question; or failed, with the reason.
type VoteEnd = Result<Option<bool>, String>;

#[derive(Debug)]
struct Ended {
    by: ProcId,
    outcome: Outcome,
    point: Point,
}

impl OneOutcome {
    /// A member was given a verdict.
    pub(in crate::sim) fn verdict(
        &mut self,
        proc: ProcId,
        key: UseKey,
        outcome: &Outcome,
        point: Point,
    ) -> Result<(), String> {
        let first = self.uses.entry(key).or_insert_with(|| Ended {
            by: proc,
            outcome: outcome.clone(),
            point,
        });
        if first.outcome != *outcome {
            return Err(format!(
                "{key:?}: {:?} at {:?}, {outcome:?} at {proc:?}",
                first.outcome, first.by
            ));
        }
        if *outcome == Outcome::Commit && first.point != point {
            return Err(format!(
                "{key:?}: the commit pairs {:?} of {:?} with {point:?} of {proc:?}",
                first.point, first.by
            ));
        }
        Ok(())
    }

    /// A member's unanimous call ended.
    pub(in crate::sim) fn vote(
        &mut self,
        proc: ProcId,
        vote: TryKey,
        ended: VoteEnd,
    ) -> Result<(), String> {
        let first = self
            .votes
            .entry(vote)
            .or_insert_with(|| (proc, ended.clone()));
        if first.1 != ended {
            return Err(format!(
                "{vote:?}: {:?} at {:?}, {ended:?} at {proc:?}",
                first.1, first.0
            ));
        }
        Ok(())
    }
}
