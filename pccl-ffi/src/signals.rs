//! Threads of the library take no signals: those are the program's, and so are its handlers.

/// Runs `spawn`, whose threads start with all signals blocked; the caller's mask stays as it is.
/// Threads that those start inherit it.
#[cfg(unix)]
pub(crate) fn blocked<R>(spawn: impl FnOnce() -> R) -> R {
    let _restored = Blocked::new();
    spawn()
}

/// Runs `spawn`. There are no signals on this system.
#[cfg(not(unix))]
pub(crate) fn blocked<R>(spawn: impl FnOnce() -> R) -> R {
    spawn()
}

/// While it lives, the calling thread has all signals blocked.
#[cfg(unix)]
struct Blocked {
    before: Option<libc::sigset_t>,
}

#[cfg(unix)]
impl Blocked {
    fn new() -> Self {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the first call fills `all`, and the second fills `before` if it returns zero;
        // the mask of this thread alone is changed, and given back by `drop`.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            let set = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            (set == 0).then(|| before.assume_init())
        };
        Self { before }
    }
}

#[cfg(unix)]
impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: a mask that this thread had.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn blocks(signal: i32) -> bool {
        let mut mask = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: with no new mask the call only fills the old one.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr());
            libc::sigismember(mask.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn threads_block_signals_and_the_caller_does_not() {
        let thread = blocked(|| {
            std::thread::spawn(|| {
                let grandchild = std::thread::spawn(|| blocks(libc::SIGTERM));
                (blocks(libc::SIGINT), grandchild.join().unwrap())
            })
        });
        assert_eq!(thread.join().unwrap(), (true, true));
        assert!(!blocks(libc::SIGINT));
    }
}
