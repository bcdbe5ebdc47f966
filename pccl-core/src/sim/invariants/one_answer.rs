//! Every call of a user is answered exactly once, and nothing else is.

use std::collections::BTreeSet;

use crate::ids::CallId;
use crate::sim::core::ProcId;

/// State of the invariant.
#[derive(Default, Debug)]
pub(in crate::sim) struct OneAnswer {
    open: BTreeSet<(ProcId, CallId)>,
}

impl OneAnswer {
    /// A call begins.
    pub(in crate::sim) fn called(&mut self, proc: ProcId, call: CallId) {
        self.open.insert((proc, call));
    }

    /// A call is answered.
    pub(in crate::sim) fn answered(&mut self, proc: ProcId, call: CallId) -> Result<(), String> {
        if self.open.remove(&(proc, call)) {
            return Ok(());
        }
        Err(format!(
            "{proc:?} answers {call}, which is not open (answered twice?)"
        ))
    }

    /// A process is no more.
    pub(in crate::sim) fn gone(&mut self, proc: ProcId) {
        self.open.retain(|(p, _)| *p != proc);
    }
}
