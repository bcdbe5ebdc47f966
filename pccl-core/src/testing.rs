//! Tools for tests, those of other crates too.

pub use crate::transport::relay::{Relay, Rules};
