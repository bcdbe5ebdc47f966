//! Flat: what the machines hold stays within limits, and is nothing once all is over. Promise 10.

/// Outputs that a machine may give for one input.
pub(in crate::sim) const OUTPUTS_PER_INPUT: usize = 10_000;

/// Times that a deadline may be due at once, with no time passing in between.
pub(in crate::sim) const SPINS: u32 = 50;

/// A count against its limit.
pub(in crate::sim) fn within(what: &str, count: usize, limit: usize) -> Result<(), String> {
    if count <= limit {
        return Ok(());
    }
    Err(format!("{what}: {count}, the limit is {limit}"))
}
