//! Fault-tolerant collective communication over the public internet.

pub mod collective;
pub mod config;
pub mod error;
pub mod event;
pub mod ids;
pub mod kernels;
pub mod membership;
mod planted;
mod runtime;
pub mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod topology;
mod transport;
pub mod types;
pub mod wire;
