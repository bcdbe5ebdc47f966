//! A deterministic simulator: the machines of production over a simulated network and clock.
//!
//! Everything that happens in a world follows from its seed: sizes, rates, faults, and their times.
//! First the world runs with faults; then they stop, and everything that waits must end. An oracle
//! watches all the while; each thing that it demands is a file in `invariants`. A violation is
//! replayed with its seed: it is the same run, to the last event.
//!
//! [`run`] runs one world; [`campaign`] runs many, and shows with planted bugs that the invariants
//! would find what they are there for.

mod calls;
pub mod campaign;
mod chaos;
mod clock;
mod control_link;
mod core;
pub mod coverage;
mod data_node;
mod faults;
mod fetch;
mod handshake;
mod invariants;
mod master_node;
mod network;
mod oracle;
mod peer_node;
mod queue;
mod reference;
pub mod rng;
pub mod scenario;
#[cfg(test)]
mod tests;
pub mod trace;
mod user;
mod watch;
mod workload;
mod world;

pub use self::core::Violation;
pub use self::world::{Outcome, run};
pub use crate::planted::{Bug, plant};
