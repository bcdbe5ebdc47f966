//! What an operation is asked to do: element types, operators, descriptors.

mod algorithm;
mod quantization;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{ContentDigest, Digest, PeerGroup, Tag};

pub use algorithm::{Algorithm, Choice, NoSuchAlgorithm};
pub use quantization::{Quantization, QuantizationAlgorithm, QuantizedType, Reduction};

/// Version of everything that decides which bits come out: order of summation, rounding, special
/// values, block boundaries, digests. Part of every descriptor digest, so that peers that would
/// compute different bits never start an operation together. Raised whenever a golden vector of
/// the kernels changes; independent of the version of the wire.
pub const ARITHMETIC_VERSION: u32 = 2;

/// Element type of a tensor. The discriminants are those of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum DataType {
    /// Unsigned, 8 bits.
    U8 = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Signed, 16 bits.
    I16 = 2,
    /// Unsigned, 16 bits.
    U16 = 3,
    /// Unsigned, 32 bits.
    U32 = 4,
    /// Signed, 32 bits.
    I32 = 5,
    /// Unsigned, 64 bits.
    U64 = 6,
    /// Signed, 64 bits.
    I64 = 7,
    /// IEEE 754 binary16.
    F16 = 8,
    /// The upper half of a binary32.
    BF16 = 9,
    /// IEEE 754 binary32.
    F32 = 10,
    /// IEEE 754 binary64.
    F64 = 11,
}

impl DataType {
    /// All of them, in the order of the ABI.
    pub const ALL: [Self; 12] = [
        Self::U8,
        Self::I8,
        Self::I16,
        Self::U16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Element type of partial sums on their way around the ring. Floats of 16 bits travel as
    /// [`DataType::F32`] and are rounded once, by the owner of the slice; all others as they are.
    pub const fn partial(self) -> Self {
        match self {
            Self::F16 | Self::BF16 => Self::F32,
            other => other,
        }
    }

    /// Whether this is a floating point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }
}

/// How contributions are combined. The discriminants are those of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum; integers wrap.
    Sum = 0,
    /// Sum divided by the number of contributions; integers wrap first, then truncate to zero.
    Avg = 1,
    /// Product; integers wrap.
    Prod = 2,
    /// Maximum; NaN if any contribution is NaN; -0 is less than +0.
    Max = 3,
    /// Minimum; NaN if any contribution is NaN; -0 is less than +0.
    Min = 4,
}

impl ReduceOp {
    /// All of them, in the order of the ABI.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Avg, Self::Prod, Self::Max, Self::Min];
}

/// What one all-reduce does; equal at all members or the operation fails with a mismatch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ReduceDescriptor {
    /// Number of elements. Zero is allowed.
    pub count: u64,
    /// Element type of send and receive buffer.
    pub data_type: DataType,
    /// Operator.
    pub op: ReduceOp,
    /// How data travels; as it is if there is none.
    pub quantization: Option<Quantization>,
    /// By which algorithm; if none, the size of the tensor and the links of the group decide.
    pub algorithm: Option<Algorithm>,
}

impl ReduceDescriptor {
    /// As given, or none where quantisation would save nothing: what peers agree on. (Rule 23)
    pub fn effective_quantization(&self) -> Option<Quantization> {
        self.quantization
            .filter(|q| self.data_type.is_float() && !q.is_pointless(self.data_type))
    }

    /// Bytes of the send buffer, and of the receive buffer. `None` if they overflow 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.count.checked_mul(self.data_type.size() as u64)
    }

    /// Digest of the descriptor and of everything else that decides the bits of the result:
    /// algorithm, type of the partial sums, quantisation and its block size, version of the
    /// arithmetic. What master and neighbours compare: the master with the algorithm that was asked
    /// for, since the choice of another follows from the epoch; neighbours with the one that is
    /// used. (Rules 4 and 10)
    pub fn digest(&self) -> Digest {
        let mut bytes = [0u8; 22];
        let (version, rest) = bytes.split_at_mut(4);
        version.copy_from_slice(&ARITHMETIC_VERSION.to_le_bytes());
        let (count, rest) = rest.split_at_mut(8);
        count.copy_from_slice(&self.count.to_le_bytes());
        let (types, rest) = rest.split_at_mut(4);
        types.copy_from_slice(&[
            self.data_type as u8,
            self.op as u8,
            self.algorithm.map_or(0, |algorithm| algorithm as u8),
            self.data_type.partial() as u8,
        ]);
        if let Some(quantization) = self.effective_quantization() {
            let (kind, block) = rest.split_at_mut(2);
            kind.copy_from_slice(&[quantization.algorithm as u8, quantization.to as u8]);
            block.copy_from_slice(&Quantization::block(self.data_type).to_le_bytes());
        }
        Digest(twox_hash::XxHash3_128::oneshot(&bytes))
    }
}

impl fmt::Display for ReduceDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} x {:?}", self.op, self.count, self.data_type)?;
        if let Some(q) = self.quantization {
            write!(f, ", as {:?} by {:?}", q.to, q.algorithm)?;
        }
        match self.algorithm {
            None => Ok(()),
            Some(algorithm) => write!(f, ", by {algorithm}"),
        }
    }
}

/// How a member takes part in a state synchronisation. The discriminants are those of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum SyncStrategy {
    /// The content that most members hold wins; everybody else receives it.
    EnforcePopular = 0,
    /// Never a candidate, never sends.
    ReceiveOnly = 1,
    /// A candidate that never receives; if its content is not elected, its call fails.
    SendOnly = 2,
}

/// One named tensor as a member offers it to the others.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct StateEntry {
    /// Compared by name, not by position.
    pub key: String,
    /// Element type.
    pub data_type: DataType,
    /// Number of elements.
    pub count: u64,
    /// Whether members may hold different content without being out of date.
    pub allow_content_inequality: bool,
    /// Digest of the content (root of the chunk tree), computed over bytes, type and length.
    pub digest: ContentDigest,
}

/// Which digests of the shared state a run uses; all its members the same.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub enum DigestKind {
    /// XXH3, 128 bits, at the speed of memory: finds every accident, and no forger.
    #[default]
    Fast,
    /// BLAKE3, 256 bits: nobody can make other content with the digest that was agreed, so that a
    /// seeder need not be trusted.
    Cryptographic,
}

/// What a member brings to a state synchronisation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateOffer {
    /// The member's revision of the state.
    pub revision: u64,
    /// How it takes part.
    pub strategy: SyncStrategy,
    /// Its tensors, sorted by key, each key once. Members that offer the same may share one list.
    pub entries: Arc<Vec<StateEntry>>,
    /// Whether its last fetch broke off, so that its content may be torn.
    pub torn: bool,
}

impl StateOffer {
    /// An offer with its tensors in canonical order; refused if two of them share a key.
    pub fn new(
        revision: u64,
        strategy: SyncStrategy,
        mut entries: Vec<StateEntry>,
        torn: bool,
    ) -> Result<Self, DuplicateKey> {
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        for pair in entries.windows(2) {
            if let [a, b] = pair
                && a.key == b.key
            {
                return Err(DuplicateKey(a.key.clone()));
            }
        }
        Ok(Self {
            revision,
            strategy,
            entries: Arc::new(entries),
            torn,
        })
    }

    /// Whether the tensors are sorted by key and no key occurs twice: what [`StateOffer::new`]
    /// makes, and what has to be checked of an offer that came over the wire.
    pub fn is_canonical(&self) -> bool {
        self.entries.is_sorted_by(|a, b| a.key < b.key)
    }
}

/// Two tensors of a shared state have the same key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("two tensors of the shared state have the key {0:?}")]
pub struct DuplicateKey(pub String);

/// What sort of thing an operation is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum OpKind {
    /// A collective: its tag is the user's.
    Collective,
    /// A synchronisation of the shared state: its tag is zero.
    Sync,
}

/// Which operation, as the user sees it: one of a key is open at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OpKey {
    /// Collective or synchronisation.
    pub kind: OpKind,
    /// The user's tag.
    pub tag: Tag,
}

impl fmt::Display for OpKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            OpKind::Collective => write!(f, "all-reduce with tag {}", self.tag.0),
            OpKind::Sync => f.write_str("synchronisation of the shared state"),
        }
    }
}

/// A call in which all members of the run take part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum UnanimousCall {
    /// Admit the newcomers that wait.
    UpdateTopology,
    /// Choose a better order for the links there are.
    OptimizeTopology,
    /// Ask whether newcomers wait. Allowed while operations run; completes no round.
    ArePeersPending,
}

impl fmt::Display for UnanimousCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UpdateTopology => "update_topology",
            Self::OptimizeTopology => "optimize_topology",
            Self::ArePeersPending => "are_peers_pending",
        })
    }
}

/// What a member knows of the sizes around it. Changes only when a call returns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Attributes {
    /// Accepted members of the run.
    pub global_world_size: u32,
    /// Accepted members of the own group.
    pub group_world_size: u32,
    /// Groups that have a member.
    pub peer_groups: u32,
    /// Members of the largest group.
    pub largest_group_world_size: u32,
}

impl Attributes {
    /// What an evicted member sees: it is alone.
    pub const ALONE: Self = Self {
        global_world_size: 1,
        group_world_size: 1,
        peer_groups: 1,
        largest_group_world_size: 1,
    };

    /// Sizes of a run with one entry of `groups` per member, seen from a member of `own`.
    pub fn count(groups: impl IntoIterator<Item = PeerGroup>, own: PeerGroup) -> Self {
        let mut sizes = std::collections::BTreeMap::<PeerGroup, u32>::new();
        for group in groups {
            *sizes.entry(group).or_default() += 1;
        }
        Self {
            global_world_size: sizes.values().sum(),
            group_world_size: sizes.get(&own).copied().unwrap_or(0),
            peer_groups: sizes.len() as u32,
            largest_group_world_size: sizes.values().copied().max().unwrap_or(0),
        }
    }
}

impl Default for Attributes {
    fn default() -> Self {
        Self::ALONE
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn digest_of_a_descriptor_is_the_golden_one() {
        let descriptor = ReduceDescriptor {
            count: 1_000_003,
            data_type: DataType::BF16,
            op: ReduceOp::Avg,
            quantization: None,
            algorithm: None,
        };
        let quantized = |algorithm, to| ReduceDescriptor {
            quantization: Some(Quantization { algorithm, to }),
            ..descriptor
        };
        let quantized = [
            descriptor,
            quantized(QuantizationAlgorithm::MinMax, QuantizedType::U8),
            quantized(QuantizationAlgorithm::ZeroPointScale, QuantizedType::I8),
        ];
        assert_eq!(
            (ARITHMETIC_VERSION, quantized.map(|d| d.digest().0)),
            (
                2,
                [
                    0x2c4b2d29_0c1c2441_ef94830d_e429fe60,
                    0x498ef821_bd69f1e9_2baa0b8f_8193ee36,
                    0x53268d9d_6432ff62_4103c2a9_47c9965d
                ]
            ),
        );
    }

    #[test]
    fn quantisation_is_in_the_digest_unless_it_is_pointless() {
        let plain = ReduceDescriptor {
            count: 10,
            data_type: DataType::F16,
            op: ReduceOp::Sum,
            quantization: None,
            algorithm: None,
        };
        let digest = |algorithm, to| {
            let quantization = Some(Quantization { algorithm, to });
            ReduceDescriptor {
                quantization,
                ..plain
            }
            .digest()
        };
        let pointless = digest(QuantizationAlgorithm::MinMax, QuantizedType::U16);
        assert_eq!(pointless, plain.digest());
        let others = BTreeSet::from([
            plain.digest(),
            digest(QuantizationAlgorithm::MinMax, QuantizedType::U8),
            digest(QuantizationAlgorithm::MinMax, QuantizedType::I8),
            digest(QuantizationAlgorithm::ZeroPointScale, QuantizedType::U8),
        ]);
        assert_eq!(others.len(), 4);
    }

    fn entry(key: &str) -> StateEntry {
        StateEntry {
            key: key.to_owned(),
            data_type: DataType::U8,
            count: 1,
            allow_content_inequality: false,
            digest: ContentDigest::default(),
        }
    }

    #[test]
    fn an_offer_is_sorted_by_key() {
        let entries = vec![entry("b"), entry("a"), entry("c")];
        let offer = StateOffer::new(0, SyncStrategy::EnforcePopular, entries, false).unwrap();
        assert_eq!(*offer.entries, [entry("a"), entry("b"), entry("c")]);
        assert!(offer.is_canonical());
    }

    #[test]
    fn an_offer_with_a_key_twice_is_refused() {
        let entries = vec![entry("b"), entry("a"), entry("b")];
        let mut offer =
            StateOffer::new(0, SyncStrategy::SendOnly, vec![entry("b")], false).unwrap();
        assert_eq!(
            StateOffer::new(0, SyncStrategy::SendOnly, entries, false),
            Err(DuplicateKey("b".to_owned()))
        );
        Arc::make_mut(&mut offer.entries).push(entry("b"));
        assert!(!offer.is_canonical());
    }
}
