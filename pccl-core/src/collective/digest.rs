//! Digest of the result of a collective, computed while its pieces are still in the cache.

use std::ops::Range;

use twox_hash::XxHash3_128;

use crate::ids::Digest;

/// Bytes of a block; the last one of a result may be shorter. Small enough that a block whose last
/// byte has just arrived is mostly in the cache.
pub const BLOCK_BYTES: usize = 256 << 10;

/// A block of a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Which, counted from the start of the result.
    pub index: usize,
    /// Its bytes in the result.
    pub range: Range<usize>,
}

/// Digest of a result whose pieces become ready in any order and size.
///
/// Pieces are reported to [`ResultDigest::ready`], which names the blocks that are complete now;
/// their bytes go to [`ResultDigest::absorb`]. Blocks lie at fixed places, so results are equal if
/// and (but for one case in 2^128) only if their digests are, however they came together.
#[derive(Clone, Debug)]
pub struct ResultDigest {
    total: usize,
    blocks: Vec<State>,
    unabsorbed: usize,
}

impl ResultDigest {
    /// For a result of so many bytes, none of which is ready.
    pub fn new(total: usize) -> Self {
        let blocks: Vec<State> = (0..total.div_ceil(BLOCK_BYTES))
            .map(|index| State::Missing(block_range(total, index).len()))
            .collect();
        Self {
            total,
            unabsorbed: blocks.len(),
            blocks,
        }
    }

    /// Notes that the bytes in `range` are final, and returns the blocks that this completes, to
    /// be absorbed.
    ///
    /// Every byte becomes ready once. If a caller breaks that, or goes beyond the end, blocks may
    /// count as complete too early, or never; nothing else happens.
    pub fn ready(&mut self, range: Range<usize>) -> impl Iterator<Item = Block> + use<> {
        let total = self.total;
        let end = range.end.min(total);
        let first = range.start / BLOCK_BYTES;
        // Blocks inside of the range are complete by it alone, those at its ends perhaps. So what
        // is completed lies side by side.
        let mut completed = first..first;
        for index in first..end.div_ceil(BLOCK_BYTES) {
            let block = block_range(total, index);
            let bytes = end
                .min(block.end)
                .saturating_sub(range.start.max(block.start));
            let Some(state) = self.blocks.get_mut(index) else {
                break;
            };
            let State::Missing(missing) = state else {
                debug_assert!(bytes == 0, "block {index} was complete already");
                continue;
            };
            debug_assert!(bytes <= *missing, "a byte of block {index} is ready twice");
            *missing = missing.saturating_sub(bytes);
            if *missing == 0 && bytes > 0 {
                *state = State::Complete;
                if completed.is_empty() {
                    completed.start = index;
                }
                completed.end = index + 1;
            }
        }
        completed.map(move |index| Block {
            index,
            range: block_range(total, index),
        })
    }

    /// Takes in the bytes of a complete block. Anything else is ignored, and [`Self::finish`] has
    /// no answer then.
    pub fn absorb(&mut self, index: usize, bytes: &[u8]) {
        if bytes.len() != block_range(self.total, index).len() {
            return;
        }
        if let Some(state @ State::Complete) = self.blocks.get_mut(index) {
            *state = State::Absorbed(Digest(XxHash3_128::oneshot(bytes)));
            self.unabsorbed -= 1;
        }
    }

    /// Whether all blocks have been absorbed.
    pub fn is_complete(&self) -> bool {
        self.unabsorbed == 0
    }

    /// Digest of the result; `None` while a block is missing.
    pub fn finish(&self) -> Option<Digest> {
        let mut hasher = XxHash3_128::new();
        hasher.write(DOMAIN);
        hasher.write(&(self.total as u64).to_le_bytes());
        for block in &self.blocks {
            let State::Absorbed(digest) = block else {
                return None;
            };
            hasher.write(&digest.0.to_le_bytes());
        }
        Some(Digest(hasher.finish_128()))
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// So many bytes are not ready yet.
    Missing(usize),
    Complete,
    Absorbed(Digest),
}

/// Empty behind the end.
fn block_range(total: usize, index: usize) -> Range<usize> {
    let start = index.saturating_mul(BLOCK_BYTES).min(total);
    start..start.saturating_add(BLOCK_BYTES).min(total)
}

/// Sets digests of results apart from those of anything else.
const DOMAIN: &[u8] = b"pccl result 1";

#[cfg(test)]
mod tests {
    use std::iter::once;

    use proptest::prelude::*;

    use super::*;

    fn ramp(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    fn digest(bytes: &[u8], pieces: impl IntoIterator<Item = Range<usize>>) -> Option<Digest> {
        let mut digest = ResultDigest::new(bytes.len());
        for piece in pieces {
            for block in digest.ready(piece) {
                digest.absorb(block.index, &bytes[block.range]);
            }
        }
        assert_eq!(digest.is_complete(), digest.finish().is_some());
        digest.finish()
    }

    fn whole(bytes: &[u8]) -> Digest {
        digest(bytes, once(0..bytes.len())).unwrap()
    }

    #[test]
    fn digests_are_the_golden_ones() {
        let golden = [
            (0, 0x1a324a1c_a3df7c3b_ee5b7df4_82c3b23e),
            (1, 0xfbbb2176_e170a9e6_6cc413a7_cfa8e874),
            (BLOCK_BYTES, 0x985c8570_1652d216_6c21356d_4170093b),
            (3 * BLOCK_BYTES + 5, 0x3e610863_880d3e2e_a912bfc2_2f9776c9),
        ];
        for (len, expected) in golden {
            assert_eq!(whole(&ramp(len)).0, expected, "{len} bytes");
        }
    }

    #[test]
    fn an_empty_result_is_complete_from_the_start() {
        assert_eq!(ResultDigest::new(0).finish(), Some(whole(&[])));
        assert_ne!(whole(&[]), whole(&[0]));
    }

    #[test]
    fn there_is_no_digest_before_the_last_block() {
        let bytes = ramp(BLOCK_BYTES * 2 + 1);
        assert_eq!(digest(&bytes, []), None);
        assert_eq!(digest(&bytes, once(0..BLOCK_BYTES * 2)), None);
        assert_eq!(digest(&bytes, once(1..bytes.len())), None);
        let mut digest = ResultDigest::new(bytes.len());
        assert_eq!(digest.ready(0..bytes.len()).count(), 3);
        assert_eq!(digest.finish(), None);
    }

    #[test]
    fn what_is_no_complete_block_is_not_absorbed() {
        let bytes = ramp(BLOCK_BYTES + 10);
        let mut digest = ResultDigest::new(bytes.len());
        digest.absorb(0, &bytes[..BLOCK_BYTES]);
        assert_eq!(digest.ready(0..bytes.len()).count(), 2);
        digest.absorb(0, &bytes[..BLOCK_BYTES - 1]);
        digest.absorb(2, &[]);
        digest.absorb(usize::MAX, &[]);
        assert_eq!(digest.finish(), None);
        digest.absorb(0, &bytes[..BLOCK_BYTES]);
        digest.absorb(1, &bytes[BLOCK_BYTES..]);
        assert_eq!(digest.finish(), Some(whole(&bytes)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn order_and_size_of_the_pieces_do_not_matter(
            len in 0..BLOCK_BYTES * 4,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
            order in any::<u64>(),
        ) {
            let bytes = ramp(len);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).collect();
            cuts.extend([0, len]);
            cuts.sort_unstable();
            let mut pieces: Vec<Range<usize>> =
                cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
            pieces.sort_by_cached_key(|p| (p.start as u64 ^ order).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            prop_assert_eq!(digest(&bytes, pieces), Some(whole(&bytes)));
        }

        #[test]
        fn any_changed_byte_changes_the_digest(
            len in 1..BLOCK_BYTES * 2 + 100,
            at in any::<prop::sample::Index>(),
            flip in 1..=255u8,
        ) {
            let mut bytes = ramp(len);
            let before = whole(&bytes);
            bytes[at.index(len)] ^= flip;
            prop_assert_ne!(whole(&bytes), before);
        }
    }
}
