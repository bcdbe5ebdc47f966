//! Reading what callers point at.

use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use pccl_core::types::{Algorithm, DataType, ReduceOp, SyncStrategy};

use crate::failure::Failure;
use crate::layout::{CommConfig, Enum, MasterConfig, ReduceCall, SocketAddress};
use crate::memory;

/// A place that a result goes to.
#[derive(Debug)]
pub(crate) struct Out<T> {
    place: *mut T,
}

impl<T> Out<T> {
    /// Puts the result there.
    pub(crate) fn set(self, value: T) {
        // SAFETY: whoever made this vouched for the place until the call returns; it is not null
        // and aligned, and a C structure has nothing to drop.
        unsafe { self.place.write(value) }
    }
}

/// A place that the caller must give.
///
/// # Safety
///
/// Unless null, `place` can be written until the call returns.
pub(crate) unsafe fn output<T>(place: *mut T, name: &str) -> Result<Out<T>, Failure> {
    pointed(place.cast_const(), name)?;
    Ok(Out { place })
}

/// A place that the caller may leave out.
///
/// # Safety
///
/// As [`output`].
pub(crate) unsafe fn optional_output<T>(
    place: *mut T,
    name: &str,
) -> Result<Option<Out<T>>, Failure> {
    if place.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise is the same.
    unsafe { output(place, name) }.map(Some)
}

/// A structure that the caller must give.
///
/// # Safety
///
/// Unless null, `place` holds a value.
pub(crate) unsafe fn input<T: Copy>(place: *const T, name: &str) -> Result<T, Failure> {
    pointed(place, name)?;
    // SAFETY: the caller says that there is a value, and it is aligned.
    Ok(unsafe { place.read() })
}

/// Several structures that the caller must give; none if `count` is zero.
///
/// # Safety
///
/// Unless null, `place` holds `count` values.
pub(crate) unsafe fn inputs<T: Copy>(
    place: *const T,
    count: usize,
    name: &str,
) -> Result<Vec<T>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    pointed(place, name)?;
    if count > isize::MAX.unsigned_abs() / size_of::<T>().max(1) {
        return Err(Failure::argument(format!("no memory holds {count} {name}")));
    }
    // SAFETY: the caller says that there are that many values; they are aligned, and shorter
    // together than an object can be. The slice is gone before the call returns.
    memory::copy(unsafe { std::slice::from_raw_parts(place, count) })
}

/// A text that the caller may leave out.
///
/// # Safety
///
/// Unless null, `place` is a text that ends with a zero.
pub(crate) unsafe fn text(place: *const c_char, name: &str) -> Result<Option<String>, Failure> {
    if place.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and the caller says that it ends with a zero.
    let text = unsafe { CStr::from_ptr(place) };
    if text.count_bytes() > LONGEST {
        return Err(Failure::argument(format!(
            "{name} is longer than {LONGEST} bytes"
        )));
    }
    match text.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Failure::argument(format!("{name} is not UTF-8"))),
    }
}

/// Structures that begin with their own size, so that they can grow.
///
/// # Safety
///
/// The first field is a `usize`, and all-zero bytes are a value.
pub(crate) unsafe trait Growing: Copy {
    /// Size of the first version that there was.
    const FIRST: usize;
}

// SAFETY: begins with `struct_size`; numbers and pointers.
unsafe impl Growing for CommConfig {
    const FIRST: usize = size_of::<Self>();
}

// SAFETY: begins with `struct_size`; numbers and pointers.
unsafe impl Growing for ReduceCall {
    const FIRST: usize = std::mem::offset_of!(Self, algorithm);
}

// SAFETY: begins with `struct_size`; numbers and pointers.
unsafe impl Growing for MasterConfig {
    const FIRST: usize = size_of::<Self>();
}

/// A structure of the version that the program was compiled with: what an older one lacks is zero;
/// what a newer one has besides must be zero, since it would have no effect.
///
/// # Safety
///
/// Unless null, `place` begins with a size, and has that many bytes.
pub(crate) unsafe fn growing<T: Growing>(place: *const T, name: &str) -> Result<T, Failure> {
    pointed(place, name)?;
    // SAFETY: aligned, and the caller says that it begins with its size.
    let size = unsafe { place.cast::<usize>().read() };
    if !(T::FIRST..=LARGEST).contains(&size) {
        let first = T::FIRST;
        return Err(Failure::argument(format!(
            "{name}.struct_size is {size}; set it to sizeof, which is at least {first}"
        )));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the caller says that there are `size` bytes; `known` is not more.
    let rest = unsafe { std::slice::from_raw_parts(place.cast::<u8>().add(known), size - known) };
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Failure::argument(format!(
            "{name} has fields that this version of the library does not know; leave them zero"
        )));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes are there on both sides, which are different memory; zero bytes are a
    // value of the rest.
    unsafe {
        let to = value.as_mut_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(place.cast::<u8>(), to, known);
        Ok(value.assume_init())
    }
}

/// An element type.
pub(crate) fn data_type(number: Enum, name: &str) -> Result<DataType, Failure> {
    by_number(&DataType::ALL, number, name, "pcclDataType_t")
}

/// An algorithm; none if the library is to choose.
pub(crate) fn algorithm(number: u32) -> Result<Option<Algorithm>, Failure> {
    let found = Algorithm::from_number(number);
    if number != 0 && found.is_none() {
        let why = format!("{number} is no pcclAlgorithm_t");
        return Err(Failure::argument(why));
    }
    Ok(found)
}

/// An operator.
pub(crate) fn operator(number: Enum) -> Result<ReduceOp, Failure> {
    by_number(&ReduceOp::ALL, number, "op", "pcclRedOp_t")
}

/// How a member takes part in a synchronisation.
pub(crate) fn strategy(number: Enum) -> Result<SyncStrategy, Failure> {
    const ALL: [SyncStrategy; 3] = [
        SyncStrategy::EnforcePopular,
        SyncStrategy::ReceiveOnly,
        SyncStrategy::SendOnly,
    ];
    by_number(&ALL, number, "strategy", "pcclSharedStateSyncStrategy_t")
}

/// The value with a number, out of all values in the order of their numbers.
pub(crate) fn by_number<T: Copy>(
    all: &[T],
    number: Enum,
    name: &str,
    of: &str,
) -> Result<T, Failure> {
    let value = usize::try_from(number).ok().and_then(|n| all.get(n));
    let unknown = || Failure::argument(format!("{name} is {number}, which is no {of}"));
    value.copied().ok_or_else(unknown)
}

/// An address as text, the way the library takes it.
pub(crate) fn address(address: &SocketAddress) -> Result<String, Failure> {
    let inet = &address.inet;
    let ip = match inet.protocol {
        0 => Ipv4Addr::from(inet.ipv4.data).into(),
        1 => Ipv6Addr::from(inet.ipv6.data).into(),
        other => {
            return Err(Failure::argument(format!(
                "protocol is {other}, which is no ccoip_inet_protocol_t"
            )));
        }
    };
    Ok(SocketAddr::new(ip, address.port).to_string())
}

/// A limit in milliseconds, of which zero is none.
pub(crate) fn limit(milliseconds: u64) -> Option<Duration> {
    (milliseconds > 0).then(|| Duration::from_millis(milliseconds))
}

fn pointed<T>(place: *const T, name: &str) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::argument(format!("{name} is null")));
    }
    if !place.is_aligned() {
        return Err(Failure::argument(format!("{name} is not aligned")));
    }
    Ok(())
}

/// Bytes of a text: no address, and no name that members tell one another, is longer.
const LONGEST: usize = 64 << 10;

/// No structure of the interface grows to this size: larger ones have no size set.
const LARGEST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Code;
    use crate::layout::{InetAddress, Ipv4Address, Ipv6Address};

    fn config(size: usize) -> MasterConfig {
        MasterConfig {
            struct_size: size,
            listen: std::ptr::null(),
            peer_timeout_ms: 7,
        }
    }

    #[test]
    fn a_structure_without_its_size_is_refused() {
        for size in [0, 23, 4097, usize::MAX] {
            // SAFETY: only the size is read before it is refused.
            let read = unsafe { growing(&config(size), "config") };
            assert_eq!(read.unwrap_err().code, Code::InvalidArgument);
        }
        // SAFETY: the structure is there.
        let read = unsafe { growing(&config(24), "config") }.unwrap();
        assert_eq!(read.peer_timeout_ms, 7);
    }

    #[test]
    fn what_a_newer_program_asks_beyond_this_version_is_refused() {
        #[repr(C)]
        struct Newer {
            known: MasterConfig,
            more: u64,
        }
        for (more, accepted) in [(0, true), (1, false)] {
            let newer = Newer {
                known: config(size_of::<Newer>()),
                more,
            };
            // SAFETY: as many bytes as it says, from the whole structure.
            let read = unsafe { growing((&raw const newer).cast::<MasterConfig>(), "config") };
            assert_eq!(read.is_ok(), accepted);
            assert_eq!(newer.more, more);
        }
    }

    #[test]
    fn nonsense_is_named() {
        // SAFETY: null is allowed.
        let null = unsafe { input(std::ptr::null::<u32>(), "info") };
        assert_eq!(null.unwrap_err().text, "info is null");
        let odd = std::ptr::without_provenance::<u32>(2);
        // SAFETY: a pointer that is not aligned is not read.
        let odd = unsafe { input(odd, "info") };
        assert_eq!(odd.unwrap_err().text, "info is not aligned");
        assert!(data_type(12, "datatype").is_err());
        assert!(data_type(-1, "datatype").is_err());
        assert_eq!(data_type(3, "datatype"), Ok(DataType::U16));
        assert_eq!(operator(4), Ok(ReduceOp::Min));
        assert!(strategy(3).is_err());
    }

    #[test]
    fn addresses_are_texts() {
        let of = |protocol| SocketAddress {
            inet: InetAddress {
                protocol,
                ipv4: Ipv4Address {
                    data: [127, 0, 0, 1],
                },
                ipv6: Ipv6Address {
                    data: Ipv6Addr::LOCALHOST.octets(),
                },
            },
            port: 48148,
        };
        assert_eq!(address(&of(0)).unwrap(), "127.0.0.1:48148");
        assert_eq!(address(&of(1)).unwrap(), "[::1]:48148");
        assert!(address(&of(2)).is_err());
    }
}
