//! Runs plans over lanes. Pure: bytes of lanes in, bytes of lanes out.

mod io;

pub use io::{EngineConfig, EngineEvent, EngineGroup, OpStats, StartReduce};
