//! The rules of the house, where a machine can check them: what pure code may name, where `unsafe`
//! and the operating system may appear, how long a file may be, what no file may say.

use pccl_tests::{Source, code_only, root, sources, words};

/// Modules that decide and never act: the simulator runs the same code as production.
const PURE: [&str; 11] = [
    "pccl-core/src/wire/",
    "pccl-core/src/membership/",
    "pccl-core/src/topology/",
    "pccl-core/src/collective/",
    "pccl-core/src/state/digest",
    "pccl-core/src/state/election",
    "pccl-core/src/state/ledger",
    "pccl-core/src/state/packing",
    "pccl-core/src/kernels/",
    "pccl-core/src/sim/",
    "pccl-core/src/ids",
];

/// Names that stand for a socket, a file, a clock, a thread, randomness or an order that changes
/// from run to run. `std::net::SocketAddr` is plain data and is allowed.
const IMPURE: [&str; 26] = [
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "ToSocketAddrs",
    "Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
    "RandomState",
    "tokio",
    "mio",
    "socket2",
    "rand",
    "getrandom",
    "println",
    "eprintln",
    "fs",
    "env",
    "process",
    "stdin",
    "stdout",
    "stderr",
    "spawn",
    "JoinHandle",
    "Condvar",
];

/// The only places that may contain `unsafe`, as docs/architecture.md says.
const UNSAFE: [&str; 6] = [
    "pccl-core/src/kernels/",
    "pccl-core/tests/",
    "pccl-core/src/collective/buffers.rs",
    "pccl-core/src/api/",
    "pccl-ffi/",
    "pccl-py/src/",
];

/// The only places of the library that may ask which operating system it runs on.
const SYSTEM: [&str; 5] = [
    "pccl-core/src/transport/sockopt.rs",
    "pccl-core/src/bin/pccl-master/signals.rs",
    "pccl-ffi/src/destructors/",
    "pccl-ffi/src/signals.rs",
    "tests/",
];

/// A file longer than this would be better as two.
const LONGEST: usize = 700;

/// What no source file says: unfinished work, and places that only one machine has. Each is put
/// together from two halves so that this file does not contain it.
const FORBIDDEN: [(&str, &str); 9] = [
    ("TO", "DO"),
    ("FIX", "ME"),
    ("todo", "!("),
    ("unimple", "mented!("),
    ("#[ig", "nore"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/wo", "rk/"),
    ("/tm", "p/"),
];

fn rust() -> Vec<Source> {
    let files: Vec<Source> = sources()
        .into_iter()
        .filter(|s| s.extension() == "rs")
        .collect();
    assert!(
        files.len() > 10,
        "the walk over the source found only {} files",
        files.len()
    );
    files
}

fn is_in(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

/// Fails with one line per offence.
fn nothing(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

/// `path:line: word` for every line of code on which `offends` names a word.
fn offences(files: &[Source], offends: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        for (number, line) in code_only(&file.text).lines().enumerate() {
            if let Some(word) = offends(line) {
                found.push(format!("{}:{}: {word}", file.path, number + 1));
            }
        }
    }
    found
}

#[test]
fn pure_modules_name_no_socket_clock_thread_or_unstable_order() {
    // The lending of buffers decides nothing; its tests lend from one thread to another.
    let lending = "pccl-core/src/collective/buffers.rs";
    let files: Vec<Source> = rust()
        .into_iter()
        .filter(|s| is_in(&s.path, &PURE) && s.path != lending)
        .collect();
    let found = offences(&files, |line| {
        // `thread_local!` is how the simulator plants a bug; `std::thread` is a thread.
        let word = words(line).find(|word| IMPURE.contains(word));
        let thread = line.contains("std::thread").then_some("std::thread");
        word.or(thread).map(str::to_owned)
    });
    nothing(
        "pure code must not name these; hand them in from `runtime`",
        &found,
    );
}

#[test]
fn arrows_between_modules_point_down() {
    // What each layer must not know. `runtime` knows everything, `wire` nothing.
    const ABOVE: [(&str, &[&str]); 7] = [
        (
            "pccl-core/src/wire/",
            &[
                "membership",
                "topology",
                "collective",
                "kernels",
                "state",
                "transport",
                "runtime",
                "api",
                "sim",
            ],
        ),
        (
            "pccl-core/src/kernels/",
            &[
                "membership",
                "topology",
                "collective",
                "state",
                "transport",
                "runtime",
                "api",
                "sim",
            ],
        ),
        (
            "pccl-core/src/topology/",
            &[
                "membership",
                "collective",
                "transport",
                "runtime",
                "api",
                "sim",
            ],
        ),
        (
            "pccl-core/src/membership/",
            &["transport", "runtime", "api", "sim"],
        ),
        (
            "pccl-core/src/collective/",
            &["membership", "transport", "runtime", "api", "sim"],
        ),
        (
            "pccl-core/src/state/",
            &["membership", "collective", "runtime", "api", "sim"],
        ),
        (
            "pccl-core/src/transport/",
            &["membership", "runtime", "api", "sim"],
        ),
    ];
    let mut found = Vec::new();
    for (layer, above) in ABOVE {
        let files: Vec<Source> = rust()
            .into_iter()
            .filter(|s| s.path.starts_with(layer) && !s.path.contains("/tests"))
            .collect();
        found.extend(offences(&files, |line| {
            above
                .iter()
                .map(|module| format!("crate::{module}"))
                .find(|path| {
                    line.match_indices(path.as_str()).any(|(at, _)| {
                        let after = line[at + path.len()..].chars().next();
                        !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
                    })
                })
        }));
    }
    nothing("a lower layer names a higher one", &found);
}

#[test]
fn unsafe_stands_only_where_the_architecture_page_names_it() {
    let files: Vec<Source> = rust()
        .into_iter()
        .filter(|s| !is_in(&s.path, &UNSAFE))
        .collect();
    let found = offences(&files, |line| {
        words(line).find(|w| *w == "unsafe").map(str::to_owned)
    });
    nothing("`unsafe` outside its modules", &found);
}

#[test]
fn only_the_socket_options_ask_for_the_operating_system() {
    let files: Vec<Source> = rust()
        .into_iter()
        .filter(|s| !is_in(&s.path, &SYSTEM))
        .collect();
    let found = offences(&files, |line| {
        let asks = line.contains("cfg(") || line.contains("cfg!(") || line.contains("cfg_attr(");
        let system = |w: &&str| {
            [
                "unix",
                "windows",
                "target_os",
                "target_family",
                "target_vendor",
            ]
            .contains(w)
        };
        asks.then(|| words(line).find(system))
            .flatten()
            .map(str::to_owned)
    });
    nothing(
        "`cfg` on the operating system belongs in transport/sockopt.rs",
        &found,
    );
}

#[test]
fn no_file_needs_a_table_of_contents() {
    let found: Vec<String> = sources()
        .iter()
        .filter(|s| ["rs", "py", "pyi", "c", "h", "sh"].contains(&s.extension()))
        .map(|s| (s, s.text.lines().count()))
        .filter(|(_, lines)| *lines > LONGEST)
        .map(|(s, lines)| format!("{}: {lines} lines", s.path))
        .collect();
    nothing("split these", &found);
}

#[test]
fn nothing_is_left_unfinished_and_no_file_knows_this_machine() {
    let mut found = Vec::new();
    for file in sources() {
        let generated = file.path.ends_with("Cargo.lock") || file.path == ".gitignore";
        if generated {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            for (head, tail) in FORBIDDEN {
                let word = format!("{head}{tail}");
                if line.contains(&word) {
                    found.push(format!("{}:{}: {word}", file.path, number + 1));
                }
            }
        }
    }
    nothing("none of these may stand in a file", &found);
}

#[test]
fn the_architecture_page_names_only_files_that_exist() {
    let page = root().join("docs/architecture.md");
    let text = std::fs::read_to_string(&page).expect("docs/architecture.md");
    let mut named = 0;
    let mut found = Vec::new();
    for quoted in text.split('`').skip(1).step_by(2) {
        let is_path = quoted.contains('/')
            && !quoted.contains(|c: char| c.is_whitespace() || "<>*{}(),=".contains(c))
            && !quoted.contains("::");
        if is_path {
            named += 1;
            if !root().join(quoted).exists() {
                found.push(quoted.to_owned());
            }
        }
    }
    assert!(named > 10, "the page names only {named} paths");
    nothing("docs/architecture.md names what is not there", &found);
}
