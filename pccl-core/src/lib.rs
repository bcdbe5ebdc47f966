//! Fault-tolerant collective communication over the public internet.
//!
//! Training processes (*peers*) join and leave a *run* at any time. A small *master* keeps them in
//! agreement; the peers move tensors among themselves, and every peer ends with the same bits.
//!
//! # A run
//!
//! ```
//! use pccl_core::config::{MasterConfig, PeerConfig};
//! use pccl_core::error::Result;
//! use pccl_core::ids::Tag;
//! use pccl_core::types::{DataType, ReduceOp, SyncStrategy};
//! use pccl_core::{Communicator, Master, SharedState};
//!
//! # fn main() -> Result<()> {
//! // Elsewhere this is the program `pccl-master`.
//! let master = Master::start("127.0.0.1:0", MasterConfig::default())?;
//! let address = master.local_addr().to_string();
//!
//! let train = |value: f32| -> Result<f32> {
//!     let communicator = Communicator::new(&address, PeerConfig::default())?;
//!     communicator.connect(None)?;
//!     // Newcomers wait until all members let them in.
//!     while communicator.attributes().global_world_size < 2 {
//!         communicator.update_topology()?;
//!     }
//!     // Everybody begins with the same weights: the newest ones that most members have.
//!     let mut weights = 0.5f32.to_le_bytes();
//!     let mut state = SharedState::new(0);
//!     state.add("weights", DataType::F32, &mut weights, false)?;
//!     communicator.sync_shared_state(&mut state, SyncStrategy::EnforcePopular)?;
//!     // And averages its gradients with the others'.
//!     let mut gradients = vec![value; 1000];
//!     let info = communicator.all_reduce_in_place(&mut gradients, ReduceOp::Avg, Tag(0))?;
//!     assert_eq!(info.world_size, 2);
//!     Ok(gradients[0])
//! };
//! let averages = std::thread::scope(|scope| {
//!     let peers = [1.0, 3.0].map(|value| scope.spawn(move || train(value)));
//!     peers.map(|peer| peer.join().expect("no panic"))
//! });
//! assert_eq!(averages, [Ok(2.0), Ok(2.0)]);
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! - **One outcome.** An operation succeeds at every surviving member of its group, or fails at
//!   every one, for the same reason. Time limits and cancels ask for an end; what a call returns is
//!   what the master decided for all.
//! - **Same bits.** After a success all members hold identical bytes, whatever their machines.
//! - **Nothing lost.** The contribution is never changed; an operation in place that fails gives the
//!   buffer back as it was.
//! - **Bounded time.** The loss of a member, a link or the master reaches every waiting call within
//!   the peer time-out and a round trip; the death of a process within milliseconds. Waiting for
//!   members that live but are slow has no limit unless the caller sets one.
//!
//! # When a call fails
//!
//! [`error::Error`] says whose fault it was and what to do:
//!
//! | error | what to do |
//! |---|---|
//! | `Aborted`, not a mismatch | read [`Communicator::attributes`] and call again |
//! | `Aborted`, a mismatch | the members' programs differ: stop |
//! | `TooFewPeers` | go on alone, or wait in [`Communicator::update_topology`] |
//! | `Evicted`, `MasterLost`, `Abandoned` | join again ([`Communicator::connect`]), then synchronise |
//! | `Unreachable`, `Refused`, `NotAdmitted` | nothing was joined: try again, or look at the reason |
//! | `MasterStopped` | the run has ended |
//! | `Usage` | a mistake of the caller; nothing was started |
//!
//! [`Communicator::all_reduce_multiple_with_retry`] does the first three by itself.
//!
//! # Lockstep
//!
//! All members of the run make the calls [`Communicator::update_topology`] and
//! [`Communicator::are_peers_pending`] together, and all members of a group
//! [`Communicator::sync_shared_state`] and the all-reduces, told apart by their tags. A newcomer
//! does not call `update_topology` right after `connect`: the members have just finished theirs.
//! Members that wait in calls which can never complete together get a mismatch, not a hang.
//!
//! # Layers
//!
//! The modules [`wire`], [`membership`], [`topology`], [`collective`], [`state`] and [`kernels`]
//! decide and never act; they are public for tests and tools, and may change in any release. What
//! programs use is re-exported here, with [`config`], [`error`], [`event`], [`ids`] and [`types`].

mod api;
pub mod collective;
pub mod config;
pub mod error;
pub mod event;
pub mod ids;
pub mod kernels;
pub mod membership;
mod planted;
mod runtime;
#[cfg(feature = "sim")]
pub mod sim;
pub mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod threads;
pub mod topology;
mod transport;
mod trap;
pub mod types;
pub mod wire;

pub use api::{
    AsyncReduce, BatchDone, BatchStop, Begin, CallHandle, CallOptions, Communicator, Divergence,
    Element, Master, Member, OpHandle, ReduceInfo, ReduceRequest, SyncInfo, administer,
    master_status,
};
pub use runtime::events::EventStream;
pub use runtime::sync::SyncProgress;
pub use state::shared::SharedState;
