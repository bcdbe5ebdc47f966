//! The list of a thread's destructors. Linux alone has such a function to be replaced.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

// Weak, so that glibc's own wins where a program is linked with all of glibc inside.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.pccl_thread_atexit,\"ax\",@progbits",
    ".weak __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    ".type __cxa_thread_atexit_impl,@function",
    "__cxa_thread_atexit_impl: jmp {register}",
    ".size __cxa_thread_atexit_impl, . - __cxa_thread_atexit_impl",
    ".popsection",
    register = sym register,
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.pccl_thread_atexit,\"ax\",%progbits",
    ".weak __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    ".type __cxa_thread_atexit_impl,%function",
    "__cxa_thread_atexit_impl: b {register}",
    ".size __cxa_thread_atexit_impl, . - __cxa_thread_atexit_impl",
    ".popsection",
    register = sym register,
);

unsafe extern "C" {
    fn __cxa_thread_atexit_impl(
        destructor: Destructor,
        object: *mut c_void,
        library: *mut c_void,
    ) -> c_int;
}

type Destructor = unsafe extern "C" fn(*mut c_void);

/// One destructor that is to run, and those noted down before it.
struct Entry {
    destructor: Destructor,
    object: *mut c_void,
    before: *mut Self,
}

/// Sees to it that the function is linked from a static library, too, for which a weak reference
/// does not suffice; makes the key early, since the first 32 of a process take no memory; and has
/// the destructors of the thread that ends the process run, which keys do not do.
pub(super) fn initialize() {
    type Function = unsafe extern "C" fn(Destructor, *mut c_void, *mut c_void) -> c_int;
    static ONCE: Once = Once::new();
    std::hint::black_box(__cxa_thread_atexit_impl as Function);
    ONCE.call_once(|| {
        let _ = key();
        // Without memory for it, they are left out.
        // SAFETY: what is to be called is there as long as the process.
        let _ = unsafe { libc::atexit(run_own) };
    });
}

extern "C" fn run_own() {
    if let Some(key) = key() {
        // SAFETY: the key was made, and what threads have under it are lists of `register`.
        unsafe { run(libc::pthread_getspecific(key)) };
    }
}

/// Notes down that `destructor` is to be called with `object` when this thread ends. The result is
/// always zero: whoever asks goes on without the destructor if there is no room to note it down.
///
/// # Safety
///
/// `destructor` may be called with `object` at any time until the thread is gone.
unsafe extern "C" fn register(
    destructor: Destructor,
    object: *mut c_void,
    _library: *mut c_void,
) -> c_int {
    let Some(key) = key() else {
        return 0;
    };
    let layout = Layout::new::<Entry>();
    // SAFETY: an entry has a size.
    let entry: *mut Entry = unsafe { alloc(layout) }.cast();
    if entry.is_null() {
        return 0;
    }
    // SAFETY: the key was made below and is never deleted; the entry is new, and of this size.
    unsafe {
        entry.write(Entry {
            destructor,
            object,
            before: libc::pthread_getspecific(key).cast(),
        });
        // Fails only at this thread's first, when there is no memory for keys beyond the first 32.
        if libc::pthread_setspecific(key, entry.cast()) != 0 {
            dealloc(entry.cast(), layout);
        }
    }
    0
}

/// Runs all destructors of a thread that ends, the last first, those included that they note down.
unsafe extern "C" fn run(mut list: *mut c_void) {
    let Some(key) = key() else {
        return;
    };
    while !list.is_null() {
        // SAFETY: entries are made by `register` alone, belong to this thread, and each is taken off
        // the list before it is run and freed. The thread has had a value for the key before.
        list = unsafe {
            let entry: *mut Entry = list.cast();
            let Entry {
                destructor,
                object,
                before,
            } = entry.read();
            libc::pthread_setspecific(key, before.cast());
            dealloc(entry.cast(), Layout::new::<Entry>());
            destructor(object);
            libc::pthread_getspecific(key)
        };
    }
}

/// The key under which each thread has its list; none if the process has no keys left.
fn key() -> Option<libc::pthread_key_t> {
    let known = KEY.load(Ordering::Acquire);
    if known != NONE {
        return libc::pthread_key_t::try_from(known).ok();
    }
    let mut made: libc::pthread_key_t = 0;
    // SAFETY: the key is written, and `run` is there as long as the process.
    if unsafe { libc::pthread_key_create(&raw mut made, Some(run)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(NONE, made.into(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(made),
        Err(theirs) => {
            // SAFETY: nobody has seen this key.
            unsafe { libc::pthread_key_delete(made) };
            libc::pthread_key_t::try_from(theirs).ok()
        }
    }
}

/// The key when it has been made. Zero is a key like others.
static KEY: AtomicU64 = AtomicU64::new(NONE);

/// No key has this number.
const NONE: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    struct Says(Sender<u32>, u32);

    impl Drop for Says {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
            if self.1 == 2 {
                let says = Self(self.0.clone(), 3);
                let _ = LATER.try_with(|kept| *kept.borrow_mut() = Some(says));
            }
        }
    }

    thread_local! {
        static FIRST: RefCell<Option<Says>> = const { RefCell::new(None) };
        static SECOND: RefCell<Option<Says>> = const { RefCell::new(None) };
        static LATER: RefCell<Option<Says>> = const { RefCell::new(None) };
    }

    #[test]
    fn thread_locals_are_dropped_at_the_end_of_each_thread() {
        let (says, said) = channel();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let says = says.clone();
                std::thread::spawn(move || {
                    FIRST.set(Some(Says(says.clone(), 1)));
                    SECOND.set(Some(Says(says, 2)));
                    let key = key().unwrap();
                    // SAFETY: a key that was made.
                    let list = unsafe { libc::pthread_getspecific(key) };
                    assert!(!list.is_null(), "the standard library asks somebody else");
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        drop(says);
        let mut said: Vec<_> = said.iter().collect();
        assert_eq!(said.len(), 12);
        said.sort_unstable();
        assert_eq!(said, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
    }

    #[test]
    fn the_last_is_run_first() {
        static ORDER: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        unsafe extern "C" fn note(object: *mut c_void) {
            ORDER.lock().unwrap().push(object.addr());
        }
        let thread = std::thread::spawn(|| {
            for number in 1..4 {
                let object = std::ptr::without_provenance_mut(number);
                // SAFETY: `note` looks at the address only.
                unsafe { register(note, object, std::ptr::null_mut()) };
            }
        });
        thread.join().unwrap();
        assert_eq!(*ORDER.lock().unwrap(), [3, 2, 1]);
    }
}
