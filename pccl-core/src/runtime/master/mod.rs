//! Runs the master machine: sockets, clock, thread.

mod accept;
mod door;
mod driver;
mod handle;

pub(crate) use handle::MasterThread;
