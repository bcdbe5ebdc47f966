//! Where the library's log goes: to standard error, or to a callback of the program.

use std::ffi::{CString, c_char, c_void};
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::arguments::by_number;
use crate::entry::{in_callback, run};
use crate::layout::{Enum, LogCallback};

/// Sends the log to a callback, or back to standard error.
///
/// # Safety
///
/// `callback` can be called with `user_data` by any thread until another one is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclSetLogCallback(
    callback: LogCallback,
    user_data: *mut c_void,
    level: Enum,
) -> Enum {
    run("pcclSetLogCallback", || {
        by_number(&LEVELS, level, "level", "pcclLogLevel_t")?;
        SET.store(true, Ordering::Release);
        install();
        let user_data = UserData(user_data);
        let mut sink = SINK.lock().unwrap_or_else(PoisonError::into_inner);
        *sink = callback.map(|callback| (callback, user_data));
        drop(sink);
        admit(level);
        Ok(())
    })
}

/// The level that the environment says, unless the program has set one.
pub(crate) fn initialize() {
    if SET.swap(true, Ordering::AcqRel) {
        return;
    }
    install();
    let asked = std::env::var("PCCL_LOG_LEVEL").ok();
    admit(level_of(asked.as_deref()));
}

/// Level of a name in `PCCL_LOG_LEVEL`. The library has no message above an error, and unknown
/// names must not silence it.
fn level_of(name: Option<&str>) -> Enum {
    match name.map(str::to_ascii_uppercase).as_deref() {
        Some("FATAL" | "NONE") => 0,
        Some("WARN") => 2,
        Some("INFO") => 3,
        Some("DEBUG") => 4,
        Some("TRACE") => 5,
        _ => 1,
    }
}

fn admit(level: Enum) {
    ADMITTED.store(level, Ordering::Release);
    tracing::callsite::rebuild_interest_cache();
}

/// Makes this the receiver of the library's events. Those of a program that is written in Rust too
/// are apart: a shared library has its own copy of everything.
fn install() {
    if !INSTALLED.swap(true, Ordering::AcqRel) {
        // Fails if somebody linked the library statically and was faster: the log is theirs then.
        let _ = tracing::subscriber::set_global_default(Receiver);
    }
}

struct Receiver;

impl Subscriber for Receiver {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        number(*metadata.level()) <= ADMITTED.load(Ordering::Acquire)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut line = Line::default();
        event.record(&mut line);
        emit(*metadata.level(), metadata.target(), &line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// One line: the message, then the fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

fn emit(level: Level, target: &str, line: &Line) {
    in_callback(|| {
        let text = format!("{target}: {}{}", line.message, line.fields);
        let text = text.replace(['\n', '\0'], " ");
        let sink = SINK.lock().unwrap_or_else(PoisonError::into_inner);
        match &*sink {
            Some((callback, user_data)) => {
                let text = CString::new(text).unwrap_or_default();
                // SAFETY: the program promised, when it set the callback, that any thread may call
                // it with this value until it sets another one, which waits for the lock.
                unsafe { callback(number(level), text.as_ptr(), user_data.0) };
            }
            // A log that cannot be written is no reason to fail.
            None => {
                let _ = writeln!(std::io::stderr().lock(), "[{level}] {text}");
            }
        }
    });
}

fn number(level: Level) -> Enum {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

type Callback = unsafe extern "C" fn(Enum, *const c_char, *mut c_void);

/// What the program wants back with every line.
struct UserData(*mut c_void);

// SAFETY: never followed here; the program promised that any thread may hand it to its callback.
unsafe impl Send for UserData {}

static SINK: Mutex<Option<(Callback, UserData)>> = Mutex::new(None);

/// Most detailed level that goes out.
static ADMITTED: AtomicI32 = AtomicI32::new(1);

/// Whether the level has been settled, by the environment or by the program.
static SET: AtomicBool = AtomicBool::new(false);

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Values of `pcclLogLevel_t`.
const LEVELS: [(); 6] = [(); 6];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_the_environment_are_those_of_pccl_1_0() {
        let names = ["NONE", "FATAL", "ERR", "WARN", "INFO", "DEBUG", "TRACE"];
        let levels = names.map(|name| level_of(Some(name)));
        assert_eq!(levels, [0, 0, 1, 2, 3, 4, 5]);
        assert_eq!(level_of(None), 1);
        assert_eq!(level_of(Some("chatty")), 1);
        assert_eq!(level_of(Some("debug")), 4);
    }

    #[test]
    fn lines_go_to_the_callback_up_to_its_level() {
        unsafe extern "C" fn collect(level: Enum, line: *const c_char, lines: *mut c_void) {
            // SAFETY: what the test gave below, and what the library promises.
            let (lines, line) = unsafe {
                let lines = &*lines.cast::<Mutex<Vec<(Enum, String)>>>();
                (lines, std::ffi::CStr::from_ptr(line))
            };
            let line = line.to_string_lossy().into_owned();
            lines.lock().unwrap().push((level, line));
        }
        let lines = Mutex::new(Vec::<(Enum, String)>::new());
        let place = (&raw const lines).cast_mut().cast::<c_void>();
        // SAFETY: the lines outlive the callback, which is taken back below.
        assert_eq!(unsafe { pcclSetLogCallback(Some(collect), place, 2) }, 0);
        tracing::warn!(target: "pccl::test", peer = 3, "two\nlines");
        tracing::info!(target: "pccl::test", "too much");
        // SAFETY: no callback.
        let back = unsafe { pcclSetLogCallback(None, std::ptr::null_mut(), 1) };
        assert_eq!(back, 0);
        tracing::error!(target: "pccl::test", "for standard error");
        let lines = lines.into_inner().unwrap();
        let own: Vec<_> = lines
            .into_iter()
            .filter(|(_, l)| l.contains("::test"))
            .collect();
        assert_eq!(own, [(2, "pccl::test: two lines peer=3".to_owned())]);
    }
}
