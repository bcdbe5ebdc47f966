//! The master against exact inputs: one file per part of the rules.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod admission;
mod attach;
mod bounds;
mod contradiction;
mod edges;
mod harness;
mod heartbeat;
mod loss;
mod operations;
mod sync;
mod votes;
