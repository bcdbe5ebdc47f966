//! The bytes that travel: messages, frames, versions, limits. Pure: bytes to types and back.

pub mod control;
pub mod frame;
pub mod lane;
pub mod reason;
pub mod state;
pub mod ticket;
