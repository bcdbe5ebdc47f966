//! Runs the master machine: sockets, clock, thread.

mod accept;
mod book;
mod door;
mod driver;
mod handle;

pub(crate) use handle::MasterThread;
