//! Sockets: their options, and how connections between members open.
//!
//! Nothing above this module and [`crate::runtime`] names a socket type.

pub(crate) mod admission;
pub(crate) mod backoff;
pub(crate) mod channel;
pub(crate) mod handshake;
pub(crate) mod listener;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod relay;
pub(crate) mod secure;
pub(crate) mod slots;
pub(crate) mod sockopt;
