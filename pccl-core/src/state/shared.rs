//! The shared state as its user lends it for a synchronisation.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::digest::{CHUNK_BYTES, TensorDigest, chunk_digest, root};
use crate::error::UsageError;
use crate::ids::ContentDigest;
use crate::threads;
use crate::trap::{self, Trap};
use crate::types::{DataType, DigestKind, StateEntry, StateOffer, SyncStrategy};
use crate::wire::frame::CONTROL_HELLO_LIMIT;
use crate::wire::state::KEY_LIMIT;

/// Named tensors and their revision, borrowed for one synchronisation after another.
#[derive(Debug, Default)]
pub struct SharedState<'a> {
    /// Revision of the content; a synchronisation sets it to the elected one.
    pub revision: u64,
    tensors: Vec<SharedTensor<'a>>,
    /// Bytes that the tensors take in the offer to the master.
    offered: usize,
}

/// One named tensor.
#[derive(Debug)]
pub(crate) struct SharedTensor<'a> {
    pub(crate) key: String,
    pub(crate) data_type: DataType,
    pub(crate) allow_content_inequality: bool,
    pub(crate) bytes: &'a mut [u8],
}

/// Offer of a state, and the digests that it was made from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Offered {
    /// For the master.
    pub(crate) offer: StateOffer,
    /// By tensor, in the order of the offer.
    pub(crate) digests: Vec<TensorDigest>,
}

impl<'a> SharedState<'a> {
    /// A state without any tensor.
    pub fn new(revision: u64) -> Self {
        Self {
            revision,
            tensors: Vec::new(),
            offered: 0,
        }
    }

    /// Adds a tensor. Keys are compared by name; data type, length and the permission to differ
    /// must be the same at all members. With that permission, members keep their own content, and
    /// only who is new or out of date takes another's.
    pub fn add(
        &mut self,
        key: impl Into<String>,
        data_type: DataType,
        bytes: &'a mut [u8],
        allow_content_inequality: bool,
    ) -> Result<(), UsageError> {
        let key = key.into();
        let wrong = |why| UsageError::Argument { name: "key", why };
        if key.len() > KEY_LIMIT {
            return Err(wrong(format!(
                "{} bytes; the limit is {KEY_LIMIT}",
                key.len()
            )));
        }
        let offered = self.offered + key.len() + ENTRY_BYTES;
        if offered > OFFER_LIMIT {
            return Err(wrong(format!(
                "with {key:?} the names of the tensors are too long together; the limit is \
                 {OFFER_LIMIT} bytes, {ENTRY_BYTES} of them for each tensor"
            )));
        }
        if !bytes.len().is_multiple_of(data_type.size()) {
            let why = format!("{key:?}: {} bytes are no whole {data_type:?}", bytes.len());
            let name = "bytes";
            return Err(UsageError::Argument { name, why });
        }
        match self.tensors.binary_search_by(|t| t.key.as_str().cmp(&key)) {
            Ok(_) => Err(wrong(format!(
                "two tensors of the shared state are named {key:?}"
            ))),
            Err(place) => {
                let tensor = SharedTensor {
                    key,
                    data_type,
                    allow_content_inequality,
                    bytes,
                };
                self.tensors.insert(place, tensor);
                self.offered = offered;
                Ok(())
            }
        }
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Computes all digests, on as many threads as the machine has and the content is worth, and no
    /// more than `threads` if that is not zero.
    pub(crate) fn offer(
        &self,
        kind: DigestKind,
        strategy: SyncStrategy,
        torn: bool,
        threads: u16,
    ) -> Offered {
        let digests = digest_all(kind, &self.tensors, threads);
        let entries = self
            .tensors
            .iter()
            .zip(&digests)
            .map(|(t, digest)| StateEntry {
                key: t.key.clone(),
                data_type: t.data_type,
                count: t.count(),
                allow_content_inequality: t.allow_content_inequality,
                digest: digest.root,
            });
        let offer = StateOffer {
            revision: self.revision,
            strategy,
            // Tensors are kept in the order of their keys, each key once.
            entries: Arc::new(entries.collect()),
            torn,
        };
        Offered { offer, digests }
    }

    /// The tensors, in the order of their keys.
    pub(crate) fn tensors_mut(&mut self) -> &mut [SharedTensor<'a>] {
        &mut self.tensors
    }
}

/// Bytes of a tensor in an offer, beside its key: type, count, flag and digest at their longest.
const ENTRY_BYTES: usize = 56;

/// Bytes of an offer's tensors: a member that comes back in the middle of a synchronisation brings
/// its offer in its first words, beside some numbers.
const OFFER_LIMIT: usize = CONTROL_HELLO_LIMIT - 1024;

impl SharedTensor<'_> {
    /// Number of elements.
    pub(crate) fn count(&self) -> u64 {
        (self.bytes.len() / self.data_type.size()) as u64
    }
}

/// Digests of all tensors, by tensor.
fn digest_all(kind: DigestKind, tensors: &[SharedTensor<'_>], most: u16) -> Vec<TensorDigest> {
    let chunks: Vec<&[u8]> = tensors
        .iter()
        .flat_map(|t| t.bytes.chunks(CHUNK_BYTES as usize))
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let allowed = match most {
        0 => cores.min(THREADS),
        most => usize::from(most),
    };
    let threads = allowed.min(chunks.len() / CHUNKS_PER_THREAD).max(1);
    let next = AtomicUsize::new(0);
    // Threads take one chunk after the other: none waits for another that the system holds up.
    let work = || {
        let mut done = Vec::new();
        while let Some((index, chunk)) = take(&next, &chunks) {
            done.push((index, chunk_digest(kind, chunk)));
        }
        done
    };
    let mut digests: Vec<Option<ContentDigest>> = vec![None; chunks.len()];
    std::thread::scope(|scope| {
        let mut helpers = Vec::new();
        for _ in 1..threads {
            let thread = threads::named("pccl-digest");
            // Without it, this thread does more of the work.
            let help = || {
                trap::pass(Trap::Digest);
                work()
            };
            helpers.extend(thread.and_then(|t| t.spawn_scoped(scope, help)).ok());
        }
        let own = work();
        let others = helpers.into_iter().filter_map(|h| h.join().ok());
        for (index, digest) in others.flatten().chain(own) {
            if let Some(place) = digests.get_mut(index) {
                *place = Some(digest);
            }
        }
    });
    // What a thread that panicked had taken is left.
    let digests: Vec<ContentDigest> = digests
        .into_iter()
        .zip(&chunks)
        .map(|(digest, chunk)| digest.unwrap_or_else(|| chunk_digest(kind, chunk)))
        .collect();
    let mut rest = digests.as_slice();
    tensors
        .iter()
        .map(|t| {
            let count = t.bytes.len().div_ceil(CHUNK_BYTES as usize);
            let (own, others) = rest.split_at(count.min(rest.len()));
            rest = others;
            TensorDigest {
                root: root(kind, t.data_type, t.count(), own),
                chunks: own.to_vec(),
            }
        })
        .collect()
}

fn take<'c>(next: &AtomicUsize, chunks: &[&'c [u8]]) -> Option<(usize, &'c [u8])> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    chunks.get(index).map(|chunk| (index, *chunk))
}

/// Threads that share the work at most, unless more are asked for: with more, the memory is the
/// limit.
const THREADS: usize = 16;

/// Chunks from which on another thread is worth its start.
const CHUNKS_PER_THREAD: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::digest::digest_tensor;

    #[test]
    fn digests_are_those_of_one_thread_whatever_the_sizes() {
        let sizes = [
            0,
            4,
            CHUNK_BYTES as usize * 40 + 12,
            8,
            0,
            CHUNK_BYTES as usize,
        ];
        let mut buffers: Vec<Vec<u8>> = sizes
            .iter()
            .map(|n| (0..*n).map(|i| (i / 1000) as u8).collect())
            .collect();
        let expected: Vec<_> = buffers
            .iter()
            .map(|b| digest_tensor(DigestKind::Fast, DataType::F32, b.len() as u64 / 4, b))
            .collect();
        let mut state = SharedState::new(3);
        for (i, buffer) in buffers.iter_mut().enumerate() {
            let key = format!("t{i}");
            state.add(key, DataType::F32, buffer, false).unwrap();
        }
        for threads in [1, 3] {
            let offered = state.offer(
                DigestKind::Fast,
                SyncStrategy::EnforcePopular,
                false,
                threads,
            );
            assert_eq!(offered.digests, expected);
        }
        let offered = state.offer(DigestKind::Fast, SyncStrategy::EnforcePopular, false, 0);
        assert_eq!(offered.digests, expected);
        assert!(offered.offer.is_canonical());
        assert_eq!(offered.offer.revision, 3);
        let counts: Vec<_> = offered.offer.entries.iter().map(|e| e.count).collect();
        assert_eq!(counts, sizes.map(|n| n as u64 / 4));
    }

    #[test]
    fn tensors_are_kept_in_the_order_of_their_keys() {
        let (mut a, mut b, mut c) = ([0; 4], [0; 8], [0; 2]);
        let mut state = SharedState::new(0);
        state.add("b", DataType::U8, &mut a, false).unwrap();
        state.add("a", DataType::U8, &mut b, true).unwrap();
        let twice = state.add("b", DataType::U8, &mut c, false);
        assert!(matches!(
            twice,
            Err(UsageError::Argument { name: "key", .. })
        ));
        let offer = state
            .offer(DigestKind::Fast, SyncStrategy::ReceiveOnly, true, 0)
            .offer;
        let keys: Vec<_> = offer.entries.iter().map(|e| e.key.as_str()).collect();
        assert_eq!(keys, ["a", "b"]);
        assert!(offer.torn && state.len() == 2 && !state.is_empty());
    }

    #[test]
    fn half_an_element_and_endless_keys_are_refused() {
        let (mut a, mut b) = ([0; 6], [0; 8]);
        let mut state = SharedState::new(0);
        assert!(state.add("a", DataType::F32, &mut a, false).is_err());
        let long = "k".repeat(KEY_LIMIT + 1);
        assert!(state.add(long, DataType::F32, &mut b, false).is_err());
        assert!(state.is_empty());
    }

    #[test]
    fn a_state_is_no_larger_than_what_a_member_can_bring_back() {
        let mut state = SharedState::new(u64::MAX);
        let key = |i: usize| format!("{i:0width$}", width = KEY_LIMIT);
        let room = OFFER_LIMIT / (KEY_LIMIT + ENTRY_BYTES);
        for i in 0..room {
            state.add(key(i), DataType::F64, &mut [], false).unwrap();
        }
        assert!(state.add(key(room), DataType::F64, &mut [], false).is_err());
        let offer = state
            .offer(DigestKind::Fast, SyncStrategy::EnforcePopular, false, 1)
            .offer;
        let words = crate::wire::frame::encode(&offer, CONTROL_HELLO_LIMIT).unwrap();
        assert!(words.len() < CONTROL_HELLO_LIMIT - 512);
    }
}
