//! Synchronisation of the shared state.

use std::sync::PoisonError;

use pccl_core::types::DataType;
use pccl_core::{CallOptions, SharedState};

use crate::arguments::{data_type, input, inputs, optional_output, output, strategy, text};
use crate::communicator::connected;
use crate::entry::run_initialized;
use crate::failure::{Call, Code, Failure};
use crate::layout::{self, CommHandle, Enum, SyncInfo, TensorInfo};
use crate::{memory, signals};

/// Brings the group's tensors to the same content.
///
/// # Safety
///
/// Unless null, `shared_state` holds a value that can be written, its `infos` as many as it says,
/// their names end with a zero, and `sync_info_out` can be written. Each tensor has as many bytes
/// as its count and type say; until the call returns nobody else touches them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcclSynchronizeSharedState(
    communicator: *const CommHandle,
    shared_state: *mut layout::SharedState,
    strategy_asked: Enum,
    sync_info_out: *mut SyncInfo,
) -> Enum {
    run_initialized("pcclSynchronizeSharedState", || {
        let comm = connected(communicator)?;
        comm.operations.none_open()?;
        let strategy = strategy(strategy_asked)?;
        // SAFETY: the caller's promise.
        let (given, out, info) = unsafe {
            (
                input(shared_state, "shared_state")?,
                output(shared_state, "shared_state")?,
                optional_output(sync_info_out, "sync_info_out")?,
            )
        };
        // SAFETY: the caller's promise about tensors and their names.
        let tensors = unsafe { tensors(&given) }?;
        memory::enough()?;
        let content = tensors
            .iter()
            .map(|t| t.length)
            .fold(0, usize::saturating_add);
        let books = tensors.len().saturating_mul(TENSOR_BYTES);
        memory::room_for(books.saturating_add(content / CONTENT_PER_BYTE))?;
        let mut copies = copies_of_aliases(&tensors)?;
        let mut state = SharedState::new(given.revision);
        for (tensor, copy) in tensors.iter().zip(&mut copies) {
            let bytes = match copy {
                Some(copy) => copy.as_mut_slice(),
                // SAFETY: the caller's promise; tensors without a copy have no byte in common.
                None => unsafe { tensor.bytes() },
            };
            let (name, may_differ) = (tensor.name.as_str(), tensor.may_differ);
            state
                .add(name, tensor.data_type, bytes, may_differ)
                .map_err(|usage| Failure::argument(usage.to_string()))?;
        }
        let options = CallOptions {
            limit: comm.limit(),
        };
        let lease = comm.lease()?;
        let done = on_own_thread(|| lease.sync_shared_state_with(&mut state, strategy, options))?
            .map_err(|error| Call::Sync.failure(&error))?;
        out.set(layout::SharedState {
            revision: done.revision,
            ..given
        });
        if let Some(info) = info {
            info.set(SyncInfo {
                tx_bytes: done.tx_bytes,
                rx_bytes: done.rx_bytes,
            });
        }
        *comm
            .last_sync
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = done;
        Ok(())
    })
}

/// Runs what starts threads to hash with, so that none of them takes signals, which the calling
/// thread goes on taking.
fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    let internal = |text: String| Failure::new(Code::InternalError, text);
    memory::room_for(THREAD_BYTES)?;
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("pccl-sync".into());
        let thread = signals::blocked(|| builder.spawn_scoped(scope, work))
            .map_err(|cause| internal(format!("a thread was refused: {cause}")))?;
        let ended = thread.join();
        ended.map_err(|_| internal("the synchronisation panicked".into()))
    })
}

/// One tensor, checked.
#[derive(Debug)]
struct Tensor {
    name: String,
    data: *mut u8,
    length: usize,
    data_type: DataType,
    may_differ: bool,
}

impl Tensor {
    /// # Safety
    ///
    /// The name is null or ends with a zero.
    unsafe fn new(info: &TensorInfo) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let name = unsafe { text(info.name, "name of a tensor") }?;
        let name = name.ok_or_else(|| Failure::argument("the name of a tensor is null"))?;
        let data_type = data_type(info.datatype, "datatype")?;
        match info.device_type {
            0 => {}
            1 => {
                return Err(Failure::argument(format!(
                    "tensor {name:?} is in CUDA memory, which this build does not take"
                )));
            }
            other => {
                return Err(Failure::argument(format!(
                    "device_type of tensor {name:?} is {other}, which is no pcclDeviceType_t"
                )));
            }
        }
        let length = info.count.checked_mul(data_type.size());
        let length = length.filter(|length| isize::try_from(*length).is_ok());
        let Some(length) = length else {
            return Err(Failure::argument(format!(
                "no memory holds the {} elements of tensor {name:?}",
                info.count
            )));
        };
        if info.data.is_null() && length > 0 {
            return Err(Failure::argument(format!(
                "data of tensor {name:?} is null"
            )));
        }
        Ok(Self {
            name,
            data: info.data.cast(),
            length,
            data_type,
            may_differ: info.allow_content_inequality != 0,
        })
    }

    /// The content.
    ///
    /// # Safety
    ///
    /// For `'a`, the tensor has its bytes, and nobody else touches them.
    unsafe fn bytes<'a>(&self) -> &'a mut [u8] {
        if self.length == 0 {
            // A null pointer is no slice, not even an empty one.
            return &mut [];
        }
        // SAFETY: the caller's promise; not null, and the length has been checked.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.length) }
    }
}

/// The tensors of a state.
///
/// # Safety
///
/// There are as many as it says, and their names are null or end with a zero.
unsafe fn tensors(state: &layout::SharedState) -> Result<Vec<Tensor>, Failure> {
    // SAFETY: the caller's promise.
    let infos = unsafe { inputs(state.infos.cast_const(), state.count, "infos") }?;
    infos
        .iter()
        // SAFETY: the caller's promise about names.
        .map(|info| unsafe { Tensor::new(info) })
        .collect()
}

/// Copies of tensors whose memory another one has too, as that of tied weights: what is elected for
/// the other reaches it. Tensors that share a part of their memory are an error.
fn copies_of_aliases(tensors: &[Tensor]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
    let mut copies: Vec<Option<Vec<u8>>> = tensors.iter().map(|_| None).collect();
    let mut order: Vec<(&Tensor, &mut Option<Vec<u8>>)> = tensors
        .iter()
        .zip(&mut copies)
        .filter(|(tensor, _)| tensor.length > 0)
        .collect();
    order.sort_by_key(|(tensor, _)| (tensor.data.addr(), tensor.length));
    let mut last: Option<&Tensor> = None;
    for (tensor, copy) in order {
        if let Some(last) = last
            && tensor.data.addr() - last.data.addr() < last.length
        {
            if (tensor.data, tensor.length) != (last.data, last.length) {
                return Err(Failure::argument(format!(
                    "tensors {:?} and {:?} share a part of their memory",
                    last.name, tensor.name
                )));
            }
            // SAFETY: the caller's promise about the bytes; nothing else refers to them yet.
            *copy = Some(memory::copy(unsafe { tensor.bytes() })?);
        } else {
            last = Some(tensor);
        }
    }
    Ok(copies)
}

/// Memory that a thread needs to begin: the standard library cannot fail in it.
const THREAD_BYTES: usize = 3 << 20;

/// Memory that keeping the books of one tensor takes, amply.
const TENSOR_BYTES: usize = 1024;

/// Bytes of content for which the books of its parts take one byte, amply.
const CONTENT_PER_BYTE: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, data: *mut u8, length: usize) -> Tensor {
        Tensor {
            name: name.into(),
            data,
            length,
            data_type: DataType::U8,
            may_differ: false,
        }
    }

    #[test]
    fn tied_tensors_are_copied_and_partly_shared_ones_refused() {
        let mut memory = [1u8, 2, 3, 4];
        let place = memory.as_mut_ptr();
        let at = |offset: usize| place.wrapping_add(offset);
        let tied = [
            tensor("b", at(2), 2),
            tensor("a", at(0), 2),
            tensor("tied", at(2), 2),
            tensor("empty", at(1), 0),
        ];
        let copies = copies_of_aliases(&tied).unwrap();
        assert_eq!(copies.iter().flatten().collect::<Vec<_>>(), [&vec![3, 4]]);
        let shared = [tensor("a", at(0), 3), tensor("b", at(2), 2)];
        assert!(copies_of_aliases(&shared).is_err());
        let within = [tensor("a", at(0), 4), tensor("b", at(0), 2)];
        assert!(copies_of_aliases(&within).is_err());
    }

    #[test]
    fn nonsense_in_a_tensor_is_named() {
        let info = TensorInfo {
            name: c"w".as_ptr(),
            data: std::ptr::null_mut(),
            count: 1,
            datatype: 10,
            device_type: 0,
            allow_content_inequality: 0,
        };
        let wrong = [
            info,
            TensorInfo {
                name: std::ptr::null(),
                ..info
            },
            TensorInfo {
                count: usize::MAX,
                ..info
            },
            TensorInfo {
                datatype: 12,
                ..info
            },
            TensorInfo {
                device_type: 1,
                count: 0,
                ..info
            },
            TensorInfo {
                device_type: 9,
                count: 0,
                ..info
            },
        ];
        for info in wrong {
            // SAFETY: names are null or end with a zero.
            assert!(unsafe { Tensor::new(&info) }.is_err(), "{info:?}");
        }
        // SAFETY: as above.
        let empty = unsafe { Tensor::new(&TensorInfo { count: 0, ..info }) };
        assert_eq!(empty.unwrap().length, 0);
    }
}
