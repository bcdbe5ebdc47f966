//! What tests over loopback share.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

pub(crate) mod state;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use pccl_core::config::{MasterConfig, PeerConfig, Timing};
use pccl_core::error::Error;
use pccl_core::{Communicator, Master};

/// Nothing here takes longer, on the slowest machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Peer time-out of the runs here: long enough for a loaded machine.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs a test, and fails it if it hangs.
pub(crate) fn within_limit(test: impl FnOnce() + Send + 'static) {
    let (done, waits) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match waits.recv_timeout(LIMIT) {
        Ok(()) => thread.join().unwrap(),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().unwrap_err())
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
    }
}

/// A master on a free port of loopback, and its address.
pub(crate) fn master() -> (Master, String) {
    let config = MasterConfig {
        timing: Timing::from_peer_timeout(PEER_TIMEOUT),
        ..MasterConfig::default()
    };
    let master = Master::start("127.0.0.1:0", config).unwrap();
    let address = master.local_addr().to_string();
    (master, address)
}

/// A peer that knows this master.
pub(crate) fn peer(address: &str) -> Communicator {
    Communicator::new(address, PeerConfig::default()).unwrap()
}

/// Joins, and then admits others until the run has `size` members. All members do this together.
pub(crate) fn join_until(communicator: &Communicator, size: u32) {
    communicator.connect(Some(LIMIT)).unwrap();
    grow_until(communicator, size);
}

/// Admits others until the run has `size` members. All members do this together.
pub(crate) fn grow_until(communicator: &Communicator, size: u32) {
    let begin = Instant::now();
    while communicator.attributes().global_world_size < size {
        assert!(begin.elapsed() < LIMIT, "the run does not grow to {size}");
        communicator.update_topology().unwrap();
    }
}

/// A run of `size` members in one group.
pub(crate) fn group(size: u32) -> (Master, Vec<Communicator>) {
    let (master, address) = master();
    let communicators = (0..size).map(|_| peer(&address)).collect::<Vec<_>>();
    // The first one is the run; the others come to it.
    communicators.first().unwrap().connect(Some(LIMIT)).unwrap();
    each(&communicators, |n, communicator| {
        if n == 0 {
            grow_until(communicator, size);
        } else {
            join_until(communicator, size);
        }
    });
    (master, communicators)
}

/// Does the same with every communicator, at the same time.
pub(crate) fn each<T: Send>(
    communicators: &[Communicator],
    action: impl Fn(usize, &Communicator) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = communicators
            .iter()
            .enumerate()
            .map(|(n, communicator)| {
                let action = &action;
                scope.spawn(move || action(n, communicator))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Whether this is the failure that members get together.
pub(crate) fn is_aborted<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Aborted { .. }))
}
