//! The drivers: they join the pure machines to sockets, clocks and threads.

mod clock;
mod data;
mod sync;
