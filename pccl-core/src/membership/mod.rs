//! Agreement between master and peers: who is a member, and how operations end.
//!
//! Two machines, both pure: an event and the time go in, outputs come out. The drivers in
//! `runtime` and the simulator run the same code. Contract of both machines:
//!
//! 1. `handle(event, now)` with a `now` that never goes back;
//! 2. then `poll_output()` until it is `None`, each output carried out in order;
//! 3. `next_deadline()` says when `handle(Tick, now)` is due at the latest. Before a tick, the
//!    driver hands in all input that can be read. (Rule 14)

pub mod master;
pub mod peer;
