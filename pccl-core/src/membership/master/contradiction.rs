//! Calls that can never complete together. (Rule 6)

use std::collections::BTreeSet;

use super::Master;
use super::votes::Sort;
use crate::ids::{MemberId, PeerGroup};
use crate::planted::{Bug, planted};
use crate::wire::reason::{AbortReason, WaitsIn};

/// Most members that a contradiction names of each call.
const NAMED_PER_CALL: usize = 16;

impl Master {
    /// Looks for members of a group whose calls wait for one another, and fails these calls.
    ///
    /// A member that waits in a round, or in a synchronisation, opens nothing until that call has
    /// ended; if somebody waits for it to open something else, neither ever ends. (A query is no
    /// such call: operations may be open and opened beside it.)
    ///
    /// Cheap while nobody is in such a call, and while all are in the same.
    pub(super) fn contradictions(&mut self, number: PeerGroup) {
        let Some(group) = self.groups.get(&number) else {
            return;
        };
        let (uses, voters) = (&group.uses, &group.voters);
        let idle = voters.is_empty() && uses.syncs().is_empty();
        if idle || uses.undecided().is_empty() || planted(Bug::ContradictionMissed) {
            return;
        }
        let mut wrong = BTreeSet::new();
        let mut wrong_voters = BTreeSet::new();
        for use_id in uses.undecided() {
            let Some(entry) = uses.get(*use_id) else {
                continue;
            };
            let lacks = |id: &MemberId| !entry.opened.contains_key(id);
            if voters.iter().any(lacks) {
                wrong.insert(*use_id);
                wrong_voters.extend(voters.iter().copied().filter(lacks).take(NAMED_PER_CALL));
            }
            for sync in uses.syncs().iter().filter(|sync| *sync != use_id) {
                if uses.get(*sync).is_some_and(|s| s.opened.keys().any(lacks)) {
                    wrong.extend([*use_id, *sync]);
                }
            }
        }
        if wrong.is_empty() {
            return;
        }
        let mut calls: Vec<(MemberId, WaitsIn)> = Vec::new();
        for entry in wrong.iter().filter_map(|use_id| uses.get(*use_id)) {
            let what = WaitsIn::Op(entry.name.key);
            calls.extend(
                entry
                    .opened
                    .keys()
                    .take(NAMED_PER_CALL)
                    .map(|id| (*id, what)),
            );
        }
        for id in &wrong_voters {
            if let Some(vote) = self.votes.cast.get(id) {
                calls.push((*id, WaitsIn::Call(vote.call)));
            }
        }
        calls.truncate(super::NAMED);
        let reason = AbortReason::Contradiction { calls };
        for use_id in wrong {
            self.abort(number, use_id, reason.clone());
        }
        if let Some(voter) = wrong_voters.first() {
            self.fail_votes(Sort::Round, *voter, reason);
        }
    }
}
