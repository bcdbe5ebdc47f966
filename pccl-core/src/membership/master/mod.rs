//! The master machine.

mod io;

pub use io::{MasterInput, MasterOutput};
