//! DLPack: how array libraries hand memory to one another.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// The memory of a tensor that its owner has exported. Goes back when this is destroyed.
#[pyclass(frozen, module = "pccl._native")]
pub(crate) struct Dlpack {
    managed: Managed,
    seen: Seen,
}

/// What the package needs to know; all of it is copied out of the exported structure.
struct Seen {
    address: usize,
    device: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    read_only: bool,
}

#[pymethods]
impl Dlpack {
    /// Takes over what a capsule of `__dlpack__` holds.
    #[new]
    fn new(capsule: &Bound<'_, PyCapsule>) -> PyResult<Self> {
        let (managed, seen) = if capsule.is_valid_checked(Some(VERSIONED)) {
            let pointer = capsule.pointer_checked(Some(VERSIONED))?;
            let pointer = pointer.cast::<ManagedVersioned>();
            // SAFETY: a capsule of this name holds such a structure, which lives until its deleter
            // has been called, and nobody has called it: the name would be another.
            let (major, flags) = unsafe {
                let version = &(*pointer.as_ptr()).version;
                (version.major, (*pointer.as_ptr()).flags)
            };
            if major != 1 {
                // Only the version may be read then. The capsule keeps what it holds.
                return Err(PyValueError::new_err(format!(
                    "DLPack version {major} is not known"
                )));
            }
            // SAFETY: as above, and version 1 has this layout.
            let seen = unsafe { look(&(*pointer.as_ptr()).tensor, flags & READ_ONLY != 0) };
            (Managed::Versioned(pointer.as_ptr()), seen)
        } else {
            let pointer = capsule.pointer_checked(Some(PLAIN))?.cast::<ManagedPlain>();
            // SAFETY: as above.
            let seen = unsafe { look(&(*pointer.as_ptr()).tensor, false) };
            (Managed::Plain(pointer.as_ptr()), seen)
        };
        let seen = seen.ok_or_else(|| PyValueError::new_err("the DLPack structure is broken"))?;
        let used = match managed {
            Managed::Versioned(_) => c"used_dltensor_versioned",
            Managed::Plain(_) => c"used_dltensor",
        };
        // SAFETY: the name is static. It tells the capsule's destructor that the structure has a
        // new owner.
        if unsafe { pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        Ok(Self { managed, seen })
    }

    #[getter]
    fn address(&self) -> usize {
        self.seen.address
    }

    /// 1 is a CPU.
    #[getter]
    fn device(&self) -> i32 {
        self.seen.device
    }

    /// Sort of number, bits, and numbers per element.
    #[getter]
    fn element(&self) -> (u8, u8, u16) {
        (self.seen.code, self.seen.bits, self.seen.lanes)
    }

    #[getter]
    fn shape(&self) -> Vec<i64> {
        self.seen.shape.clone()
    }

    /// In elements; none if it is C-contiguous.
    #[getter]
    fn strides(&self) -> Option<Vec<i64>> {
        self.seen.strides.clone()
    }

    #[getter]
    fn read_only(&self) -> bool {
        self.seen.read_only
    }
}

impl Drop for Dlpack {
    fn drop(&mut self) {
        // SAFETY: the structure was taken over when this was made, and has not been given back. A
        // deleter may be absent, and is called with the structure that it is in.
        unsafe {
            match self.managed {
                Managed::Plain(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
                Managed::Versioned(managed) => {
                    if let Some(deleter) = (*managed).deleter {
                        deleter(managed);
                    }
                }
            }
        }
    }
}

/// Copies what is of interest. None if there are dimensions without a shape.
///
/// # Safety
///
/// The structure is as DLPack says: `shape` and `strides` are null or have an entry per dimension.
unsafe fn look(tensor: &Tensor, read_only: bool) -> Option<Seen> {
    let dimensions = usize::try_from(tensor.dimensions).ok()?;
    let entries = |entries: *const i64| -> Option<Vec<i64>> {
        if entries.is_null() {
            return (dimensions == 0).then(Vec::new);
        }
        // SAFETY: the caller's promise.
        Some(unsafe { std::slice::from_raw_parts(entries, dimensions) }.to_vec())
    };
    Some(Seen {
        address: tensor
            .data
            .expose_provenance()
            .checked_add(usize::try_from(tensor.byte_offset).ok()?)?,
        device: tensor.device_type,
        code: tensor.code,
        bits: tensor.bits,
        lanes: tensor.lanes,
        shape: entries(tensor.shape)?,
        strides: if tensor.strides.is_null() {
            None
        } else {
            entries(tensor.strides)
        },
        read_only,
    })
}

enum Managed {
    Plain(*mut ManagedPlain),
    Versioned(*mut ManagedVersioned),
}

// SAFETY: the structure is only touched when this is made and when it is destroyed; DLPack lets the
// deleter be called on any thread, and Python objects are destroyed with the interpreter's lock.
unsafe impl Send for Managed {}
// SAFETY: as above; a shared reference gives access to nothing.
unsafe impl Sync for Managed {}

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
/// Flag of a tensor that must not be written.
const READ_ONLY: u64 = 1;

/// `DLTensor` of the standard.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    _device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct ManagedPlain {
    tensor: Tensor,
    _context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct Version {
    major: u32,
    _minor: u32,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: Version,
    _context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}
