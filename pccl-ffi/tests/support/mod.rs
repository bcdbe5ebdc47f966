//! Compiling and running C programs against the library that these tests were built with.

// Each test program uses a part of this; what cannot be done here ends the test.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// What every C program must be clean under.
pub(crate) const STRICT: [&str; 5] = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"];

/// Whether C programs of the tests can be compiled and run: they are written for POSIX.
pub(crate) fn posix() -> bool {
    let posix = std::env::consts::OS != "windows";
    if !posix {
        println!("left out: the C programs need POSIX threads");
    }
    posix
}

/// Root of the repository.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap().to_path_buf()
}

/// Folder with the C headers.
pub(crate) fn include() -> PathBuf {
    root().join("include")
}

/// Folder with the shared and the static library.
pub(crate) fn libraries() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().to_path_buf()
}

/// Name of the shared library's file.
pub(crate) fn shared_library() -> PathBuf {
    let file = format!(
        "{}pccl{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    libraries().join(file)
}

/// A C file of the tests.
pub(crate) fn test_source(name: &str) -> PathBuf {
    root().join("pccl-ffi/tests/c").join(name)
}

/// A C file of the examples.
pub(crate) fn example_source(name: &str) -> PathBuf {
    root().join("examples/c").join(name)
}

/// A folder for what the tests make.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a command that must succeed.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e} (the tests need a C compiler)"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Whether a program can be started.
pub(crate) fn is_there(program: &str) -> bool {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok()
}

/// Compiles a C program and links it to the shared library. One that is newer than its source, the
/// headers and this program is taken as it is: tests run in processes of their own.
pub(crate) fn program(source: &Path, options: &[&str]) -> PathBuf {
    let _one_at_a_time = BUILDING.lock();
    let name = source.file_stem().unwrap().to_string_lossy();
    let file = format!("{name}{}", options.concat().replace([',', '='], ""));
    let target = scratch("programs").join(file);
    let own = std::env::current_exe().unwrap();
    let folder = source.parent().unwrap();
    let inputs = [
        source.to_path_buf(),
        folder.join("harness.h"),
        include().join("pccl.h"),
        own,
    ];
    let newest = inputs.iter().filter_map(|path| modified(path)).max();
    if modified(&target) > newest {
        return target;
    }
    let building = target.with_extension(std::process::id().to_string());
    let libraries = libraries();
    let mut command = Command::new("cc");
    command
        .args(STRICT)
        .args(["-D_GNU_SOURCE", "-g"])
        .args(options)
        .arg("-I")
        .arg(include())
        .arg(source)
        .arg("-o")
        .arg(&building)
        .arg("-L")
        .arg(&libraries)
        .args(["-lpccl", "-lpthread"])
        .arg(format!("-Wl,-rpath,{}", libraries.display()));
    succeed(&mut command);
    // Another process may be doing the same: whoever is last wins, and all are alike.
    std::fs::rename(&building, &target).unwrap();
    target
}

/// Cargo names folders in which there may be an older library of the same name.
pub(crate) fn own_library(command: &mut Command) {
    for name in ["LD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"] {
        command.env_remove(name);
    }
}

/// Runs a program that must succeed within a minute.
pub(crate) fn run(program: &Path, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments);
    run_command(&mut command);
}

/// As [`run`].
pub(crate) fn run_command(command: &mut Command) {
    run_and_read(command);
}

/// As [`run`]; what it wrote, to whichever output.
pub(crate) fn run_and_read(command: &mut Command) -> String {
    let log = scratch("logs").join(format!(
        "{}-{:?}.log",
        std::process::id(),
        std::thread::current().id()
    ));
    let file = std::fs::File::create(&log).unwrap();
    command.stdout(file.try_clone().unwrap()).stderr(file);
    own_library(command);
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if begin.elapsed() > LONGEST {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    let succeeded = status.is_some_and(|status| status.success());
    assert!(
        succeeded,
        "{command:?}: {status:?} (none: too long)\n{text}"
    );
    text
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|about| about.modified()).ok()
}

/// Held while a program is compiled: threads of one process would write the same file.
static BUILDING: Mutex<()> = Mutex::new(());

/// No program of these tests takes longer, however busy the machine is.
const LONGEST: Duration = Duration::from_secs(60);
