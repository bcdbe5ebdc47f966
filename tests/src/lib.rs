//! What tests across crates share: the project's own source, for the tests that look at it, and
//! processes to be driven and killed.

mod code;
pub mod process;

use std::fs;
use std::path::{Path, PathBuf};

pub use code::{code_only, words};

/// The programs in the README, so that they compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// Folders that hold no source: built, installed or generated.
const NOT_SOURCE: [&str; 12] = [
    ".git",
    ".venv",
    "target",
    "dist",
    "out",
    "build",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    "corpus",
];

/// One file of the repository.
#[derive(Clone, Debug)]
pub struct Source {
    /// From the repository's root, with forward slashes.
    pub path: String,
    /// As it is in the file.
    pub text: String,
}

impl Source {
    /// The last part of the name, after the dot; empty without one.
    pub fn extension(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(_, ext)| ext)
    }
}

/// Root of the repository.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_path_buf()
}

/// All text files of the repository, sorted by path. Files that are not UTF-8 are no source.
pub fn sources() -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if NOT_SOURCE.contains(&name.as_ref()) {
                continue;
            }
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() {
                if !name.ends_with(".egg-info") {
                    folders.push(path);
                }
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(&path)
                && let Ok(relative) = path.strip_prefix(&root)
            {
                found.push(Source {
                    path: relative.to_string_lossy().replace('\\', "/"),
                    text,
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}
