//! Memory of numpy arrays, lent to the library.

use pyo3::exceptions::PyKeyError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::argument_error;

/// The memory of a C-contiguous array, and the array itself, so that it lives.
///
/// Comes from numpy's array interface rather than the buffer protocol: the stable ABI has the
/// latter from Python 3.11 on only, and numpy cannot export 16-bit brain floats through it.
pub(crate) struct Memory {
    address: usize,
    bytes: usize,
    _array: Py<PyAny>,
}

impl Memory {
    /// Looks at `array`, which is called `name` in errors of `function`.
    ///
    /// # Errors
    /// An `ArgumentError` if it is strided, or read-only though it is to be written.
    pub(crate) fn of(
        function: &str,
        name: &str,
        array: &Bound<'_, PyAny>,
        writable: bool,
    ) -> PyResult<Self> {
        let py = array.py();
        let interface = array.getattr(intern!(py, "__array_interface__"))?;
        let interface = interface.cast_into::<PyDict>()?;
        let strides = interface.get_item("strides")?;
        if strides.is_some_and(|strides| !strides.is_none()) {
            let why = format!(
                "{name} is not C-contiguous; pass numpy.ascontiguousarray({name}) and copy back"
            );
            return Err(argument_error(py, function, why));
        }
        let (address, read_only): (usize, bool) = item(&interface, "data")?.extract()?;
        if writable && read_only {
            return Err(argument_error(py, function, format!("{name} is read-only")));
        }
        let mut count = 1_usize;
        for length in item(&interface, "shape")?.cast_into::<PyTuple>()?.iter() {
            count = count.saturating_mul(length.extract()?);
        }
        let kind: String = item(&interface, "typestr")?.extract()?;
        let size: usize = kind
            .get(2..)
            .and_then(|size| size.parse().ok())
            .unwrap_or(0);
        let bytes = count
            .checked_mul(size)
            .filter(|_| size > 0)
            .ok_or_else(|| {
                argument_error(py, function, format!("{name} has the element type {kind}"))
            })?;
        Ok(Self {
            address,
            bytes,
            _array: array.clone().unbind(),
        })
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    /// How long it is.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn item<'py>(interface: &Bound<'py, PyDict>, key: &str) -> PyResult<Bound<'py, PyAny>> {
    let missing = || PyKeyError::new_err(format!("__array_interface__ has no {key}"));
    interface.get_item(key)?.ok_or_else(missing)
}
