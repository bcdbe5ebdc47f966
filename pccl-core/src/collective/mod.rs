//! Collectives: plans, the engine that runs them, the buffers they work on.

pub mod digest;
pub mod engine;
