//! The control thread of a communicator: it runs the peer machine.

mod calls;
mod driver;
mod handle;
mod lanes;
mod link;
mod outputs;
mod setup;

pub(crate) use driver::Work;
pub(crate) use handle::{ControlThread, Controls, Snapshot};
