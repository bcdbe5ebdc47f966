//! What a user of the library sees.

mod communicator;
mod element;
mod handle;
mod loan;
mod master;
mod options;
mod reduce;
mod retry;
mod sync;

pub use communicator::{Begin, CallHandle, Communicator};
pub use element::Element;
pub use handle::{AsyncReduce, OpHandle};
pub use master::{Master, administer, master_status};
pub use options::{CallOptions, Member, ReduceInfo};
pub use retry::{BatchDone, BatchStop, ReduceRequest};
pub use sync::{Divergence, SyncInfo};
