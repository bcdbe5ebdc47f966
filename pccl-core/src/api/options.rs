//! What calls take and give besides buffers.

use std::time::Duration;

use crate::ids::MemberId;

/// Options of one call.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CallOptions {
    /// Longest time that the call may take. When it has passed, the call asks the master for an
    /// end and returns with the verdict, which may still be success: the members decide together.
    /// Time in which the master is away does not count. Default: none, it waits as long as the
    /// others live.
    pub limit: Option<Duration>,
}

impl CallOptions {
    /// With a time limit.
    pub fn within(limit: Duration) -> Self {
        Self { limit: Some(limit) }
    }
}

/// What an all-reduce was.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReduceInfo {
    /// Members whose contributions are in the result; what an average was divided by.
    pub world_size: u32,
    /// Bytes of data sent by this peer.
    pub tx_bytes: u64,
    /// Bytes of data received by this peer.
    pub rx_bytes: u64,
    /// Whether newcomers waited for admission when the operation was decided; the same at all
    /// members.
    pub newcomers_pending: bool,
}

/// A member of the own group, as others know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its number in the run.
    pub id: MemberId,
    /// What its operator calls it.
    pub name: String,
    /// Where it listens.
    pub addresses: Vec<std::net::SocketAddr>,
    /// Where a connection with it was last made: the one of these that answered, or, if it has dialled
    /// this peer, where it came from. None if there has been no connection.
    pub reached: Option<std::net::SocketAddr>,
}
