//! What must hold in every world, whatever fails: one invariant per file.

pub(super) mod bounded;
pub(super) mod buffers_restored;
pub(super) mod equal_bits;
pub(super) mod highest_incarnation;
pub(super) mod innocent;
pub(super) mod liveness;
pub(super) mod master_limit;
pub(super) mod mismatch;
pub(super) mod no_failure_without_cause;
pub(super) mod one_answer;
pub(super) mod one_outcome;
pub(super) mod stamps;
pub(super) mod well_formed;
