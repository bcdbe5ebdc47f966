//! The drivers: they join the pure machines to sockets, clocks and threads.
//!
//! Threads of a process: one per communicator for control (`pccl-control`), one per communicator
//! that is in a run for data (`pccl-data`), one per master (`pccl-master`); while a state is being
//! synchronised, some more. All of them end with their owner.

pub(crate) mod calls;
mod clock;
pub(crate) mod control;
mod data;
pub(crate) mod dial;
pub(crate) mod events;
mod framed;
mod half_open;
mod listen;
mod log;
pub(crate) mod master;
mod randomness;
mod share;
pub(crate) mod sync;
mod target;
mod tasks;
