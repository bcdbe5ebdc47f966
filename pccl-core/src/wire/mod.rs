//! The bytes that travel: messages, frames, versions, limits. Pure: bytes to types and back.

pub mod reason;
