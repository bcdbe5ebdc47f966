//! Gives the shared library the name under which programs that link to it look for it, and keeps it
//! in the process.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |key: &str| std::env::var(key).unwrap_or_default();
    if target("CARGO_CFG_TARGET_OS") == "linux" {
        // A thread that has called the library runs the library's destructors when it ends.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    match target("CARGO_CFG_TARGET_OS").as_str() {
        "linux" | "android" | "freebsd" => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpccl.so");
        }
        "macos" => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libpccl.dylib");
        }
        _ => {}
    }
}
