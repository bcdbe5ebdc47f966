//! Bounded time: once faults have stopped, every call ends within the stated bound, and every
//! program ends. Promise 4, rule 17.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{CallId, Time};
use crate::sim::core::ProcId;

/// State of the invariant.
#[derive(Default, Debug)]
pub(in crate::sim) struct Liveness {
    open: BTreeMap<(ProcId, CallId), (Time, String)>,
    calm_since: Option<Time>,
}

impl Liveness {
    /// A call begins.
    pub(in crate::sim) fn called(&mut self, proc: ProcId, call: CallId, what: String, now: Time) {
        self.open.insert((proc, call), (now, what));
    }

    /// A call ended.
    pub(in crate::sim) fn answered(&mut self, proc: ProcId, call: CallId) {
        self.open.remove(&(proc, call));
    }

    /// A process is no more.
    pub(in crate::sim) fn gone(&mut self, proc: ProcId) {
        self.open.retain(|(p, _), _| *p != proc);
    }

    /// Faults have stopped.
    pub(in crate::sim) fn calm(&mut self, now: Time) {
        self.calm_since.get_or_insert(now);
    }

    /// Judges all open calls.
    pub(in crate::sim) fn check(&self, now: Time, bound: Duration) -> Result<(), String> {
        let Some(calm) = self.calm_since else {
            return Ok(());
        };
        for ((proc, call), (since, what)) in &self.open {
            let from = (*since).max(calm);
            if now.since(from) > bound {
                return Err(format!(
                    "{call} of {proc:?} ({what}), made at {since:?}, has waited for {:?} since \
                     faults stopped at {calm:?}; the bound is {bound:?}",
                    now.since(from)
                ));
            }
        }
        Ok(())
    }

    /// The world's time is over with these programs unfinished.
    pub(in crate::sim) fn unfinished(&self, who: &[String]) -> Result<(), String> {
        if who.is_empty() {
            return Ok(());
        }
        Err(format!("programs do not end: {who:?}"))
    }
}
