//! Digests of tensors: a tree of one level, so that chunks can be digested in parallel, fetched
//! from different members, and verified one by one.

use std::ops::Range;

use twox_hash::XxHash3_128;

use crate::ids::{ContentDigest, Digest};
use crate::types::{DataType, DigestKind};

/// Bytes of a chunk; the last one of a tensor may be shorter. Small enough that verifying one is
/// quick and losing one is cheap, large enough that a request per chunk costs nothing.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// Digests of one tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorDigest {
    /// Stands for content, data type and number of elements.
    pub root: ContentDigest,
    /// One per chunk, in order.
    pub chunks: Vec<ContentDigest>,
}

/// Digests of a tensor of `count` elements in `bytes`, computed by the calling thread alone.
///
/// Whoever has threads to spare computes [`chunk_digest`]s in parallel, and then the [`root`].
pub fn digest_tensor(
    kind: DigestKind,
    data_type: DataType,
    count: u64,
    bytes: &[u8],
) -> TensorDigest {
    let chunks = bytes.chunks(CHUNK_BYTES as usize);
    let chunks: Vec<ContentDigest> = chunks.map(|chunk| chunk_digest(kind, chunk)).collect();
    TensorDigest {
        root: root(kind, data_type, count, &chunks),
        chunks,
    }
}

/// Digest of one chunk.
pub fn chunk_digest(kind: DigestKind, bytes: &[u8]) -> ContentDigest {
    match kind {
        DigestKind::Fast => ContentDigest::fast(XxHash3_128::oneshot(bytes)),
        DigestKind::Cryptographic => ContentDigest(*blake3::hash(bytes).as_bytes()),
    }
}

/// Digest over the digests of all chunks of a tensor, its data type and number of elements.
pub fn root(
    kind: DigestKind,
    data_type: DataType,
    count: u64,
    chunks: &[ContentDigest],
) -> ContentDigest {
    match kind {
        DigestKind::Fast => {
            let mut hasher = XxHash3_128::new();
            hasher.write(DOMAIN.as_bytes());
            hasher.write(&[data_type as u8]);
            hasher.write(&count.to_le_bytes());
            for chunk in chunks {
                // The other half is zero.
                let (half, _) = chunk.0.split_at(size_of::<u128>());
                hasher.write(half);
            }
            ContentDigest::fast(hasher.finish_128())
        }
        DigestKind::Cryptographic => {
            let mut hasher = blake3::Hasher::new_derive_key(DOMAIN);
            hasher.update(&[data_type as u8]);
            hasher.update(&count.to_le_bytes());
            for chunk in chunks {
                hasher.update(&chunk.0);
            }
            ContentDigest(*hasher.finalize().as_bytes())
        }
    }
}

/// Digest of a whole state: of its revision, and of all tensors that must be equal, by key. What
/// members that have synchronised compare.
pub fn state_digest<'k>(
    revision: u64,
    tensors: impl IntoIterator<Item = (&'k str, ContentDigest)>,
) -> Digest {
    let mut hasher = XxHash3_128::new();
    hasher.write(STATE_DOMAIN);
    hasher.write(&revision.to_le_bytes());
    for (key, digest) in tensors {
        hasher.write(&(key.len() as u64).to_le_bytes());
        hasher.write(key.as_bytes());
        hasher.write(&digest.0);
    }
    Digest(hasher.finish_128())
}

/// Number of chunks of a tensor of so many bytes.
pub fn chunk_count(bytes: u64) -> u64 {
    bytes.div_ceil(CHUNK_BYTES)
}

/// Where in a tensor of so many bytes a chunk lies; `None` if it has no such chunk.
pub fn chunk_range(bytes: u64, chunk: u64) -> Option<Range<u64>> {
    let start = chunk.checked_mul(CHUNK_BYTES)?;
    (start < bytes).then(|| start..bytes.min(start.saturating_add(CHUNK_BYTES)))
}

/// Sets roots apart from digests of anything else.
const DOMAIN: &str = "pccl tensor 1";

/// Sets digests of states apart from digests of anything else.
const STATE_DOMAIN: &[u8] = b"pccl state 1";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHUNK: usize = CHUNK_BYTES as usize;
    const FAST: DigestKind = DigestKind::Fast;

    fn ramp(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    #[test]
    fn roots_are_the_golden_ones() {
        let root_of = |t: DataType, len: usize| {
            digest_tensor(FAST, t, (len / t.size()) as u64, &ramp(len)).root
        };
        let golden = [
            (DataType::U8, 0, 0x88c26b40_edce60c0_a73acb91_076e7427),
            (DataType::F32, 0, 0x6006f1fb_ae68e09a_ef332700_26f37cef),
            (DataType::U8, 1, 0x4b48422b_4a3ce90b_22f3d79f_3eba2c37),
            (DataType::BF16, 4096, 0xa0884c07_43fb9cf7_4397299e_ed2757b2),
            (DataType::F64, CHUNK, 0xd00b8ccd_971ce007_e6c1dbd4_0e256c7f),
            (
                DataType::F32,
                CHUNK * 2 + 4,
                0x139f571c_7a9d9175_685d37e0_03c1faa5,
            ),
        ];
        for (t, len, expected) in golden {
            assert_eq!(
                root_of(t, len),
                ContentDigest::fast(expected),
                "{t:?} of {len} bytes"
            );
        }
    }

    #[test]
    fn cryptographic_roots_are_the_golden_ones() {
        let golden = [
            (
                DataType::U8,
                0,
                "eae9510587f9638accfd082690ca76f77856431751491fe7fb0cbe1cb2c7de4b",
            ),
            (
                DataType::BF16,
                4096,
                "db7c71d2418337f4b7da0bdd0555a248866c76b75aa1fb593bf812224f70b98d",
            ),
            (
                DataType::F32,
                CHUNK * 2 + 4,
                "a8f7bb4a7da6987b010314f45ee3e48e77bd36df208d7085639f063005f85c47",
            ),
        ];
        for (t, len, expected) in golden {
            let count = (len / t.size()) as u64;
            let root = digest_tensor(DigestKind::Cryptographic, t, count, &ramp(len)).root;
            let hex: String = root.0.iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(hex, expected, "{t:?} of {len} bytes");
        }
        // That of the empty input is BLAKE3's own test vector.
        let empty = chunk_digest(DigestKind::Cryptographic, &[]).to_string();
        assert_eq!(empty, "af1349b9f5f9a1a6");
    }

    #[test]
    fn chunks_put_together_are_the_tensor() {
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let bytes = ramp(len);
            let whole = digest_tensor(FAST, DataType::U8, len as u64, &bytes);
            let parts: Vec<ContentDigest> = (0..chunk_count(len as u64))
                .map(|i| chunk_range(len as u64, i).unwrap())
                .map(|r| chunk_digest(FAST, &bytes[r.start as usize..r.end as usize]))
                .collect();
            assert_eq!(whole.chunks, parts, "{len} bytes");
            assert_eq!(whole.root, root(FAST, DataType::U8, len as u64, &parts));
            assert_eq!(chunk_range(len as u64, chunk_count(len as u64)), None);
        }
    }

    #[test]
    fn no_chunk_lies_beyond_the_largest_tensor() {
        assert_eq!(chunk_range(u64::MAX, u64::MAX), None);
        let last = chunk_count(u64::MAX) - 1;
        assert_eq!(
            chunk_range(u64::MAX, last),
            Some(last * CHUNK_BYTES..u64::MAX)
        );
    }

    #[test]
    fn type_and_length_are_part_of_the_digest() {
        let bytes = [0u8; 8];
        let roots = [
            digest_tensor(FAST, DataType::U8, 8, &bytes).root,
            digest_tensor(FAST, DataType::I8, 8, &bytes).root,
            digest_tensor(FAST, DataType::F32, 2, &bytes).root,
            digest_tensor(FAST, DataType::I32, 2, &bytes).root,
            digest_tensor(FAST, DataType::U8, 7, &bytes[..7]).root,
            digest_tensor(FAST, DataType::U8, 0, &[]).root,
            digest_tensor(FAST, DataType::F32, 0, &[]).root,
        ];
        for (i, root) in roots.iter().enumerate() {
            assert!(!roots[..i].contains(root), "{i}");
        }
    }

    #[test]
    fn revision_and_keys_are_part_of_a_states_digest() {
        let (a, b) = (ContentDigest::fast(1), ContentDigest::fast(2));
        let digests = [
            state_digest(1, []),
            state_digest(2, []),
            state_digest(1, [("x", a)]),
            state_digest(1, [("x", b)]),
            state_digest(1, [("y", a)]),
            state_digest(1, [("x", a), ("y", b)]),
            state_digest(1, [("x", b), ("y", a)]),
        ];
        for (i, digest) in digests.iter().enumerate() {
            assert!(!digests[..i].contains(digest), "{i}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_changed_byte_changes_the_root_and_one_chunk(
            len in 1..CHUNK * 2 + 100,
            at in any::<prop::sample::Index>(),
            flip in 1..=255u8,
        ) {
            let mut bytes = ramp(len);
            let before = digest_tensor(FAST, DataType::U8, len as u64, &bytes);
            let at = at.index(len);
            bytes[at] ^= flip;
            let after = digest_tensor(FAST, DataType::U8, len as u64, &bytes);
            prop_assert_ne!(before.root, after.root);
            for (i, (b, a)) in before.chunks.iter().zip(&after.chunks).enumerate() {
                prop_assert_eq!(b == a, i != at / CHUNK);
            }
        }
    }
}
