//! The library as a whole: initialisation, build, version, words.

use std::ffi::{CStr, c_char};

use crate::arguments::output;
use crate::destructors;
use crate::entry::{self, run};
use crate::failure::Code;
use crate::layout::{BuildInfo, Enum};
use crate::log;

/// Makes the library ready: the log goes where the environment says. Always succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn pcclInit() -> Enum {
    run("pcclInit", || {
        destructors::initialize();
        log::initialize();
        entry::initialize();
        Ok(())
    })
}

/// What this build can do.
///
/// # Safety
///
/// Unless null, `info` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclGetBuildInfo(info: *mut BuildInfo) -> Enum {
    run("pcclGetBuildInfo", || {
        // SAFETY: the caller's promise.
        let info = unsafe { output(info, "info") }?;
        info.set(BuildInfo {
            has_cuda_support: false,
        });
        Ok(())
    })
}

/// Version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn pcclGetVersion() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Why the thread's last call failed.
#[unsafe(no_mangle)]
pub extern "C" fn pcclGetLastError() -> *const c_char {
    entry::last_error()
}

/// Name of a result.
#[unsafe(no_mangle)]
pub extern "C" fn pcclGetResultName(result: Enum) -> *const c_char {
    let code = usize::try_from(result).ok().and_then(|n| Code::ALL.get(n));
    code.map_or(c"unknown", |code| code.name()).as_ptr()
}
