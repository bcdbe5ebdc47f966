//! Memory of tensors, lent to the library.

use pyo3::prelude::*;

use crate::errors::argument_error;

/// A tensor as the Python package hands it over: where it begins, how many bytes it has, and what
/// keeps it there. The package has looked at it: it is contiguous and on the CPU, and writable
/// where it is to be written. (`_tensors.py`)
pub(crate) type View<'py> = (usize, usize, Bound<'py, PyAny>);

/// The memory of a tensor, and the tensor itself, so that it lives.
pub(crate) struct Memory {
    address: usize,
    bytes: usize,
    _owner: Py<PyAny>,
}

impl Memory {
    pub(crate) fn of((address, bytes, owner): View<'_>) -> Self {
        Self {
            address,
            bytes,
            _owner: owner.unbind(),
        }
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    /// How long it is.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// From where to where.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.address, self.address.saturating_add(self.bytes))
    }
}

/// Refuses memory that two would write, or that one would write and another read. `written` and
/// `read` are what is written and only read, each with its name.
///
/// # Errors
/// An `ArgumentError` of `function` that names both.
pub(crate) fn check_apart(
    py: Python<'_>,
    function: &str,
    written: &[(&Memory, String)],
    read: &[(&Memory, String)],
) -> PyResult<()> {
    let some = |list: &[(&Memory, String)]| -> Vec<(usize, usize, String)> {
        let filled = list.iter().filter(|(memory, _)| memory.bytes() > 0);
        filled
            .map(|(memory, name)| {
                let (begin, end) = memory.range();
                (begin, end, name.clone())
            })
            .collect()
    };
    let clash = |one: &str, other: &str| {
        let why = format!("{one} and {other} share memory");
        Err(argument_error(py, function, why))
    };
    let mut written = some(written);
    written.sort_unstable();
    for pair in written.windows(2) {
        if let [(_, end, one), (begin, _, other)] = pair
            && begin < end
        {
            return clash(one, other);
        }
    }
    for (begin, end, name) in some(read) {
        // Those written are apart: the last one that begins before the end is the only candidate.
        let before = written.partition_point(|(other, ..)| *other < end);
        if let Some((_, until, other)) = before.checked_sub(1).and_then(|i| written.get(i))
            && begin < *until
        {
            return clash(&name, other);
        }
    }
    Ok(())
}
