//! The header: compiles everywhere, agrees with PCCL 1.0 and with the library.

// What a helper of the tests cannot do ends the test.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::process::Command;

use support::{
    STRICT, include, is_there, libraries, own_library, posix, root, scratch, shared_library,
    succeed, test_source,
};

/// The functions of PCCL 1.0.
const OLD: [&str; 19] = [
    "pcclAllReduce",
    "pcclAllReduceAsync",
    "pcclAllReduceMultipleWithRetry",
    "pcclArePeersPending",
    "pcclAwaitAsyncReduce",
    "pcclConnect",
    "pcclCreateCommunicator",
    "pcclCreateMaster",
    "pcclDestroyCommunicator",
    "pcclDestroyMaster",
    "pcclGetAttribute",
    "pcclGetBuildInfo",
    "pcclInit",
    "pcclInterruptMaster",
    "pcclMasterAwaitTermination",
    "pcclOptimizeTopology",
    "pcclRunMaster",
    "pcclSynchronizeSharedState",
    "pcclUpdateTopology",
];

/// The functions that are new.
const NEW: [&str; 18] = [
    "pcclAllReduceAsyncEx",
    "pcclAwaitAsyncReduceFor",
    "pcclCancelAsyncReduce",
    "pcclCreateCommunicatorEx",
    "pcclCreateMasterEx",
    "pcclGetDivergences",
    "pcclGetLastError",
    "pcclGetMasterPort",
    "pcclGetMemberId",
    "pcclGetMembers",
    "pcclGetRank",
    "pcclGetResultName",
    "pcclGetSyncProgress",
    "pcclGetSyncSources",
    "pcclGetVersion",
    "pcclSetLogCallback",
    "pcclSetTimeLimit",
    "pcclTestAsyncReduce",
];

fn all() -> BTreeSet<String> {
    OLD.iter().chain(&NEW).map(ToString::to_string).collect()
}

#[test]
fn layouts_values_and_signatures_are_those_of_pccl_1_0() {
    if !posix() {
        return;
    }
    let mut command = Command::new("cc");
    command
        .args(STRICT)
        .arg("-I")
        .arg(include())
        .arg("-fsyntax-only");
    succeed(command.arg(test_source("layout.c")));
}

#[test]
fn the_header_is_cpp_too() {
    if !posix() {
        return;
    }
    let mut command = Command::new("c++");
    let strict = ["-std=c++17", "-Wall", "-Wextra", "-pedantic", "-Werror"];
    command.args(strict).arg("-I").arg(include());
    succeed(
        command
            .args(["-fsyntax-only", "-x", "c++"])
            .arg(test_source("layout.c")),
    );
}

#[test]
fn the_header_needs_no_other_file() {
    if !posix() {
        return;
    }
    let folder = scratch("alone");
    std::fs::copy(include().join("pccl.h"), folder.join("pccl.h")).unwrap();
    let source = folder.join("alone.c");
    std::fs::write(&source, "#include \"pccl.h\"\nextern int nothing;\n").unwrap();
    let mut command = Command::new("cc");
    succeed(command.args(STRICT).arg("-fsyntax-only").arg(&source));
}

#[test]
fn the_headers_of_pccl_1_0_are_there_by_their_names() {
    if !posix() {
        return;
    }
    let source = scratch("names").join("names.c");
    let text = "#include <ccoip.h>\n#include <ccoip_inet.h>\n#include <pccl.h>\n\
                extern ccoip_socket_address_t address;\n\
                typedef char ports[CCOIP_PROTOCOL_PORT_MASTER == 48148 ? 1 : -1];\n";
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new("cc");
    command.args(STRICT).arg("-I").arg(include());
    succeed(command.arg("-fsyntax-only").arg(&source));
}

#[test]
fn the_header_declares_what_the_library_exports_and_nothing_else() {
    let header = std::fs::read_to_string(include().join("pccl.h")).unwrap();
    let declared: BTreeSet<String> = header
        .split("PCCL_EXPORT ")
        .filter(|text| text.starts_with("pcclResult_t ") || text.starts_with("const char"))
        .filter_map(|text| text.split('(').next())
        .filter_map(|text| text.split([' ', '*']).next_back())
        .map(str::to_owned)
        .collect();
    assert_eq!(declared, all());
}

#[test]
fn exactly_these_symbols_are_exported() {
    if std::env::consts::OS != "linux" {
        println!("left out: the tool that lists symbols differs on this system");
        return;
    }
    assert!(is_there("nm"), "the tests need binutils");
    let listing = succeed(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(shared_library()),
    );
    let listing = String::from_utf8(listing.stdout).unwrap();
    let exported: BTreeSet<String> = listing
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect();
    assert_eq!(exported, all());
}

#[test]
fn the_c_library_is_not_asked_to_note_down_destructors_of_threads() {
    if std::env::consts::OS != "linux" {
        println!("left out: other systems do not end the process over it");
        return;
    }
    let listing = succeed(Command::new("nm").arg("-D").arg(shared_library()));
    let listing = String::from_utf8(listing.stdout).unwrap();
    assert!(!listing.contains("__cxa_thread_atexit"), "{listing}");
}

#[test]
fn the_library_needs_only_the_c_runtime_and_says_its_name() {
    if std::env::consts::OS != "linux" {
        println!("left out: the tool that lists libraries differs on this system");
        return;
    }
    let listing = succeed(Command::new("objdump").arg("-p").arg(shared_library()));
    let listing = String::from_utf8(listing.stdout).unwrap();
    let values = |key: &str| -> Vec<String> {
        let lines = listing
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with(key));
        lines
            .filter_map(|line| line.split_whitespace().nth(1))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(values("SONAME"), ["libpccl.so"]);
    for needed in values("NEEDED") {
        let known = [
            "libc.so",
            "libgcc_s.so",
            "libm.so",
            "ld-linux",
            "libdl.so",
            "libpthread.so",
        ];
        assert!(
            known.iter().any(|k| needed.starts_with(k)),
            "needs {needed}"
        );
    }
}

#[test]
fn an_installed_library_is_found_by_pkg_config_and_links_statically() {
    if !posix() {
        return;
    }
    let prefix = scratch("prefix");
    let script = root().join("pccl-ffi/install/install.sh");
    succeed(
        Command::new("bash")
            .arg(script)
            .arg(&prefix)
            .arg(libraries()),
    );
    let source = scratch("installed").join("version.c");
    let text = "#include <pccl.h>\n#include <stdio.h>\n\
                int main(void) { return pcclInit() != pcclSuccess || puts(pcclGetVersion()) < 0; }\n";
    std::fs::write(&source, text).unwrap();

    let packages = prefix.join("lib/pkgconfig");
    let ask = |what: &[&str]| -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command
            .env("PKG_CONFIG_PATH", &packages)
            .args(what)
            .arg("pccl");
        let said = String::from_utf8(succeed(&mut command).stdout).unwrap();
        said.split_whitespace().map(str::to_owned).collect()
    };
    let pc = std::fs::read_to_string(packages.join("pccl.pc")).unwrap();
    assert!(pc.contains(env!("CARGO_PKG_VERSION")));
    let private = pc
        .lines()
        .find_map(|line| line.strip_prefix("Libs.private:"))
        .unwrap();
    let private: Vec<String> = private.split_whitespace().map(str::to_owned).collect();
    let (headers, dynamic) = if is_there("pkg-config") {
        (ask(&["--cflags"]), ask(&["--libs"]))
    } else {
        println!("pkg-config is not here: the flags are taken from the folders");
        let folder = |flag: &str, name: &str| format!("{flag}{}", prefix.join(name).display());
        (
            vec![folder("-I", "include")],
            vec![folder("-L", "lib"), "-lpccl".into()],
        )
    };

    let shared = prefix.join("shared");
    let mut command = Command::new("cc");
    command
        .args(STRICT)
        .args(&headers)
        .arg(&source)
        .arg("-o")
        .arg(&shared)
        .args(&dynamic);
    succeed(command.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display())));
    let mut installed = Command::new(&shared);
    own_library(&mut installed);
    let said = succeed(&mut installed).stdout;
    assert_eq!(
        String::from_utf8(said).unwrap().trim(),
        env!("CARGO_PKG_VERSION")
    );

    let alone = prefix.join("static");
    let mut command = Command::new("cc");
    command
        .args(STRICT)
        .args(&headers)
        .arg(&source)
        .arg("-o")
        .arg(&alone);
    succeed(command.arg(prefix.join("lib/libpccl.a")).args(&private));
    succeed(&mut Command::new(&alone));
    assert!(prefix.join("lib/cmake/pccl/pccl-config.cmake").exists());
    find_with_cmake(&prefix);
}

/// CMake is not everywhere; where it is, its package works.
fn find_with_cmake(prefix: &std::path::Path) {
    if !is_there("cmake") {
        println!("left out: cmake is not here");
        return;
    }
    let project = scratch("cmake");
    let text = "cmake_minimum_required(VERSION 3.16)\nproject(found C)\n\
                find_package(pccl REQUIRED)\n\
                add_executable(shared version.c)\ntarget_link_libraries(shared pccl::pccl)\n\
                add_executable(alone version.c)\ntarget_link_libraries(alone pccl::static)\n";
    std::fs::write(project.join("CMakeLists.txt"), text).unwrap();
    std::fs::copy(
        scratch("installed").join("version.c"),
        project.join("version.c"),
    )
    .unwrap();
    let build = project.join("build");
    let mut command = Command::new("cmake");
    command.arg("-S").arg(&project).arg("-B").arg(&build);
    succeed(command.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    succeed(Command::new("cmake").arg("--build").arg(&build));
    let mut shared = Command::new(build.join("shared"));
    own_library(&mut shared);
    succeed(&mut shared);
    succeed(&mut Command::new(build.join("alone")));
}
