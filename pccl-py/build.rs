//! An extension module finds the interpreter's symbols when it is loaded; macOS must be told so.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
