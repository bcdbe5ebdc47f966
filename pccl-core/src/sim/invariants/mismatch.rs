//! Mismatch is an error everywhere: a use in which members' descriptors differ, or whose results
//! differ, never commits; and where nothing else goes wrong the reason given is that one.
//! Promise 6, rules 4, 6.

use std::collections::BTreeMap;

use crate::sim::oracle::UseKey;
use crate::types::ReduceDescriptor;
use crate::wire::control::Outcome;
use crate::wire::reason::AbortReason;

/// State of the invariant.
#[derive(Default, Debug)]
pub(in crate::sim) struct Mismatch {
    uses: BTreeMap<UseKey, (ReduceDescriptor, bool)>,
}

impl Mismatch {
    /// A member calls with this descriptor.
    pub(in crate::sim) fn called(&mut self, key: UseKey, descriptor: ReduceDescriptor) {
        let entry = self.uses.entry(key).or_insert((descriptor, false));
        entry.1 |= entry.0 != descriptor;
    }

    /// A member was given a verdict. `undisturbed`: no fault, cancel or time limit in this world.
    pub(in crate::sim) fn verdict(
        &self,
        key: UseKey,
        outcome: &Outcome,
        undisturbed: bool,
    ) -> Result<(), String> {
        let differs = self.uses.get(&key).is_some_and(|u| u.1);
        match outcome {
            Outcome::Commit if differs => Err(format!("{key:?} committed with a mismatch")),
            Outcome::Abort(reason) if differs && undisturbed => match reason {
                reason if reason.is_mismatch() => Ok(()),
                AbortReason::StaleEpoch { .. } => Ok(()),
                reason => Err(format!(
                    "{key:?} has a mismatch; the reason given is {reason}"
                )),
            },
            _ => Ok(()),
        }
    }
}
