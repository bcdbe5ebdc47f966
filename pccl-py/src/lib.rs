//! The Python module `pccl._native`: what the package `pccl` is built on. Not for direct use; its
//! names and types are in `_native.pyi`.

mod batch;
mod buffers;
mod communicator;
mod dlpack;
mod errors;
mod events;
mod exit;
mod home;
mod log;
mod master;
mod operation;
mod sync;
mod wait;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    log::start();
    module.add("VERSION", env!("PCCL_PYTHON_VERSION"))?;
    module.add_function(wrap_pyfunction!(exit::ending, module)?)?;
    module.add_class::<dlpack::Dlpack>()?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<operation::Operation>()?;
    module.add_class::<events::Events>()?;
    module.add_class::<master::Master>()?;
    Ok(())
}
