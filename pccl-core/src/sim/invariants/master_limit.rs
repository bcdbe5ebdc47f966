//! A member that has not heard from its master for the master limit gives its membership up, and so
//! no call waits for ever for a master that does not come back. Promise 4, rules 5 and 17.

use std::time::Duration;

use crate::config::Timing;

/// Judges a peer that has heard nothing for `silent`.
pub(in crate::sim) fn check(member: bool, silent: Duration, timing: Timing) -> Result<(), String> {
    // Silence is noticed after the peer time-out, and the look is taken once in one.
    let bound = timing.master_limit + timing.peer_timeout * 3;
    if !member || silent <= bound {
        return Ok(());
    }
    Err(format!(
        "a member has not heard from its master for {silent:?}; the bound is {bound:?}"
    ))
}
