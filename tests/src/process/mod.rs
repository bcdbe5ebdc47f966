//! Peers and masters in processes of their own, for tests that kill them.

pub mod cluster;
pub mod probe;
pub mod random;
pub mod tensor;
pub mod worker;

pub use cluster::Cluster;
pub use random::Random;
pub use tensor::{Contribution, Job};
pub use worker::{Line, Worker};
