//! Fault-tolerant collective communication over the public internet.

pub mod ids;
pub mod types;
pub mod wire;
