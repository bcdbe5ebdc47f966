//! Collectives: plans, the engine that runs them, the buffers they work on.

pub mod buffers;
pub mod digest;
pub mod engine;
pub mod plan;
pub mod ranges;
