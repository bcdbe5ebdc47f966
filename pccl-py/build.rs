//! An extension module finds the interpreter's symbols when it is loaded; macOS must be told so.
//! Its version is told to it as Python writes versions.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
    let version = python_version(&std::env::var("CARGO_PKG_VERSION").unwrap_or_default());
    println!("cargo::rustc-env=PCCL_PYTHON_VERSION={version}");
}

/// 2.0.0-alpha.1 is 2.0.0a1 there.
fn python_version(version: &str) -> String {
    let (release, stage) = version.split_once('-').unwrap_or((version, ""));
    let stage = stage
        .replace("alpha", "a")
        .replace("beta", "b")
        .replace('.', "");
    format!("{release}{stage}")
}
