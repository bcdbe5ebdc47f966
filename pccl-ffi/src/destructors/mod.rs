//! What a thread does with its thread-locals when it ends, kept in memory that is always there.
//!
//! glibc keeps a list of these destructors for each thread, and ends the process when it has no memory
//! to note one down. Any thread can meet that, the program's as well as the library's, in whichever
//! call touches a thread-local first; nobody can make sure beforehand, since other threads take memory
//! at the same time. So this library keeps the list itself, in memory of its own allocator, which has
//! a reserve. A destructor that even the reserve has no room for is left out: what it would have
//! freed stays until the process ends.
//!
//! The standard library asks for the function by the name that glibc gave it, and finds ours, which
//! nobody outside this library sees. The list is run where POSIX runs the destructors of a thread's
//! keys. That takes code which is still there, so the shared library is never unloaded (`build.rs`).

/// To be called once before the library is used; more often does no harm.
pub(crate) fn initialize() {
    #[cfg(all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64")
    ))]
    list::initialize();
}

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod list;
