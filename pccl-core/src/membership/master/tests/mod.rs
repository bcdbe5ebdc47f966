//! The master against exact inputs: one file per part of the rules.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod admission;
mod harness;
