//! The peer machine.

mod io;

pub use io::{Answer, MasterLink, OwnAddresses, PeerInput, PeerOutput, Request};
