//! Runs the master machine: sockets, clock, thread.

mod accept;
mod driver;
mod handle;

pub(crate) use handle::MasterThread;
