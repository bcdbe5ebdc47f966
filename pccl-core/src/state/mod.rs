//! The shared state: digests of tensors, and who fetches what from whom.

pub mod digest;
pub mod election;
pub mod ledger;
pub mod packing;
pub mod shared;
