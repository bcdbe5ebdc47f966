//! Fault-tolerant collective communication over the public internet.

pub mod collective;
pub mod config;
pub mod error;
pub mod event;
pub mod ids;
pub mod kernels;
pub mod membership;
mod planted;
pub mod state;
mod transport;
pub mod types;
pub mod wire;
