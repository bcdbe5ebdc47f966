//! Runs plans over lanes. Pure: bytes of lanes in, bytes of lanes out.

mod io;

pub use io::{EngineEvent, EngineGroup, OpStats, StartReduce};
