//! Panics that tests plant, one place per kind of thread and task: a bug in any of them must end in
//! results, never in an abort or a hang.
//!
//! The variable `PCCL_TEST_PANIC` is `PLACE:N`: the process panics when it gets to that place the
//! `N`th time. Without the feature `testing` no place does anything, and nothing reads the variable.

/// Where a panic can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trap {
    /// The control thread hands something to the peer machine.
    Control,
    /// Its task that binds the listener.
    Prepare,
    /// Its task that accepts connections of members.
    Listener,
    /// Its task that dials a member.
    DialMember,
    /// Its task that dials the master.
    DialMaster,
    /// Its task that reads what the master says.
    ReadMaster,
    /// A task of the control thread, or of the master, that writes messages.
    Write,
    /// The data thread, once in each turn of its loop.
    Data,
    /// The data thread, between the copy of a part of an in-place buffer and its change.
    Fold,
    /// The master's thread hands something to the master machine.
    Master,
    /// Its task that accepts connections.
    Accept,
    /// Its task that hears somebody's first words.
    Greet,
    /// Its task that reads what a peer says.
    ReadPeer,
    /// The user's part of a synchronisation.
    Sync,
    /// A thread that computes digests.
    Digest,
    /// A thread that fetches chunks of the state.
    Fetch,
    /// A thread that serves chunks of the state.
    Serve,
}

/// Panics if a test wants it here and now.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub(crate) fn pass(_: Trap) {}

/// Panics if a test wants it here and now.
#[cfg(feature = "testing")]
pub(crate) fn pass(place: Trap) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PLANTED: OnceLock<Option<(String, AtomicU64)>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let wish = std::env::var("PCCL_TEST_PANIC").ok()?;
        let (name, turn) = wish.split_once(':')?;
        Some((name.to_owned(), AtomicU64::new(turn.parse().ok()?)))
    });
    let Some((name, left)) = planted else { return };
    if *name == format!("{place:?}") && left.fetch_sub(1, Ordering::Relaxed) == 1 {
        panic!("planted in {place:?}");
    }
}
