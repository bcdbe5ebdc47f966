//! The way into and out of every function of the interface.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Code, Failure};
use crate::layout::Enum;

/// What a function of the interface comes to.
pub(crate) type Outcome = Result<(), Failure>;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs the body of a function: its outcome as a code, its words kept for [`last_error`].
///
/// A panic ends here. What the body was changing is behind locks that others recover, or is lost
/// with the body; so it is safe to go on.
pub(crate) fn run(function: &'static str, body: impl FnOnce() -> Outcome) -> Enum {
    let guarded = || {
        if IN_CALLBACK.get() {
            return Err(Failure::usage("called from within a log callback"));
        }
        body()
    };
    let outcome = catch_unwind(AssertUnwindSafe(guarded)).unwrap_or_else(|panic| {
        let text = format!("panicked: {}", panic_text(&*panic));
        Err(Failure::new(Code::InternalError, text))
    });
    let (code, text) = match outcome {
        Ok(()) => (Code::Success, String::new()),
        Err(Failure { code, text }) => (code, format!("{function}: {text}")),
    };
    remember(text);
    code as Enum
}

/// As [`run`], for functions that need `pcclInit`.
pub(crate) fn run_initialized(function: &'static str, body: impl FnOnce() -> Outcome) -> Enum {
    run(function, || {
        if !INITIALIZED.load(Ordering::Acquire) {
            return Err(Failure::new(
                Code::NotInitialized,
                "pcclInit was not called",
            ));
        }
        body()
    })
}

/// From now on [`run_initialized`] runs.
pub(crate) fn initialize() {
    INITIALIZED.store(true, Ordering::Release);
}

/// The words of this thread's last call; valid until its next one.
pub(crate) fn last_error() -> *const c_char {
    let text = LAST_ERROR.try_with(|text| text.borrow().as_ptr());
    // The thread is ending, and its texts are gone.
    text.unwrap_or(c"".as_ptr())
}

/// Runs a callback of the program, in which calls to the library are refused.
pub(crate) fn in_callback(callback: impl FnOnce()) {
    if IN_CALLBACK.replace(true) {
        return;
    }
    // A line that cannot be told is no reason for anything else to fail.
    let _ = catch_unwind(AssertUnwindSafe(callback));
    IN_CALLBACK.set(false);
}

fn remember(text: String) {
    let text = CString::new(text).unwrap_or_else(|nul| {
        // The part before the zero is better than nothing.
        let mut bytes = nul.into_vec();
        bytes.push(0);
        CStr::from_bytes_until_nul(&bytes).map_or_else(|_| CString::default(), CStr::to_owned)
    });
    // Fails only when the thread is ending: nobody can ask any more.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("for an unknown reason")
}

/// Whether `pcclInit` was called.
static INITIALIZED: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        // SAFETY: the text is this thread's, and nothing is called before it is copied.
        let text = unsafe { CStr::from_ptr(last_error()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_an_internal_error_with_its_words() {
        let code = run("pcclConnect", || panic!("of {}", "no account"));
        assert_eq!(code, Code::InternalError as Enum);
        assert_eq!(text(), "pcclConnect: panicked: of no account");
    }

    #[test]
    fn the_words_are_the_thread_s_own_and_go_with_success() {
        run("f", || Err(Failure::argument("odd\0and more")));
        assert_eq!(text(), "f: odd");
        std::thread::spawn(|| assert_eq!(text(), ""))
            .join()
            .unwrap();
        run("f", || Ok(()));
        assert_eq!(text(), "");
    }

    #[test]
    fn calls_from_a_callback_are_refused() {
        let mut code = 0;
        in_callback(|| code = run("f", || Ok(())));
        assert_eq!(code, Code::InvalidUsage as Enum);
        assert_eq!(run("f", || Ok(())), 0);
        in_callback(|| panic!("in the middle of a line"));
        assert_eq!(run("f", || Ok(())), 0);
    }
}
