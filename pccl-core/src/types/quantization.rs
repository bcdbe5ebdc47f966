//! How data of floats is made smaller on its way.

use serde::{Deserialize, Serialize};

use super::{Algorithm, DataType, ReduceOp};

/// How the elements of an all-reduce travel, if not as they are: in blocks, each of which has two
/// parameters and one code per element. (Rule 9; the formulas are in `docs/numerics.md`.)
///
/// The result is the same at all members, to the bit, and differs from the exact one: at each hop
/// of the ring by at most half a step of the block, and by half a step once more at the end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Quantization {
    /// How the codes of a block are laid out.
    pub algorithm: QuantizationAlgorithm,
    /// What the codes are.
    pub to: QuantizedType,
}

impl Quantization {
    /// What a request of the C ABI or of Python means, which may name any type to quantise to; none
    /// if data travels as it is, since types of 32 or 64 bits, or as wide as the data, would save
    /// nothing. An error says what makes no sense. (Rule 23)
    pub fn requested(
        algorithm: QuantizationAlgorithm,
        asked: DataType,
        data: DataType,
        op: ReduceOp,
    ) -> Result<Option<Self>, String> {
        let to = QuantizedType::from_data_type(asked);
        // Whether there is sense in it does not depend on what is quantised to.
        let any = to.unwrap_or(QuantizedType::U8);
        if let Some(why) = (Self { algorithm, to: any }).refusal(data, op) {
            return Err(why);
        }
        if asked.size() >= 4 || asked.size() >= data.size() {
            return Ok(None);
        }
        match to {
            Some(to) => Ok(Some(Self { algorithm, to })),
            None => Err(format!(
                "{asked:?} is no type that data is quantised to; give an integer type of 8 or \
                 16 bits"
            )),
        }
    }

    /// Elements of one block, for elements of type `data`; blocks count from the start of a slice,
    /// and the last one of a slice may be shorter.
    ///
    /// So large that parameters add 3 % to codes of 8 bits, whatever they are made of.
    pub const fn block(data: DataType) -> u32 {
        64 * data.partial().size() as u32
    }

    /// Whether elements of type `data` travel as they are although this is asked for: codes as wide
    /// as the elements would save nothing. (Rule 23)
    pub const fn is_pointless(self, data: DataType) -> bool {
        self.to.size() >= data.size()
    }

    /// Why this makes no sense for a reduction; `None` if it does. (Rule 23)
    pub fn refusal(self, data: DataType, op: ReduceOp) -> Option<String> {
        if !data.is_float() {
            return Some(format!(
                "{data:?} elements cannot be quantised; only floating point ones can"
            ));
        }
        if self.algorithm == QuantizationAlgorithm::ZeroPointScale
            && !matches!(op, ReduceOp::Sum | ReduceOp::Avg)
        {
            return Some(format!(
                "zero point and scale goes with sum and average, not with {op:?}"
            ));
        }
        None
    }
}

/// How the codes of a block are laid out. The discriminants are those of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum QuantizationAlgorithm {
    /// In equal steps from the least to the greatest element of the block. The least one, and blocks
    /// of equal elements, are exact.
    MinMax = 1,
    /// In multiples of a scale, around a zero point: zeros, and blocks of equal elements, are exact.
    /// For sums and averages only.
    ZeroPointScale = 2,
}

/// Integer type that floats are quantised to. The discriminants are those of the C ABI, as of
/// [`DataType`].
///
/// Signed types differ from unsigned ones in what travels, and in nothing else: their codes are
/// less by half of the range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum QuantizedType {
    /// Unsigned, 8 bits.
    U8 = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Signed, 16 bits.
    I16 = 2,
    /// Unsigned, 16 bits.
    U16 = 3,
}

impl QuantizedType {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::U8, Self::I8, Self::I16, Self::U16];

    /// The one that is the same as an element type, if there is one.
    pub const fn from_data_type(data: DataType) -> Option<Self> {
        match data {
            DataType::U8 => Some(Self::U8),
            DataType::I8 => Some(Self::I8),
            DataType::I16 => Some(Self::I16),
            DataType::U16 => Some(Self::U16),
            _ => None,
        }
    }

    /// Bytes of one code.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::I16 | Self::U16 => 2,
        }
    }
}

/// Operator of a reduction, and how its data travels. Every [`ReduceOp`] is one by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reduction {
    /// Operator.
    pub op: ReduceOp,
    /// How data travels; as it is if there is none.
    pub quantization: Option<Quantization>,
    /// By which algorithm, if the library is not to choose one.
    pub algorithm: Option<Algorithm>,
}

impl Reduction {
    /// The same by this algorithm. All members must ask for the same one; where the group has no
    /// plan for it, the operation fails at all of them.
    #[must_use]
    pub const fn by(self, algorithm: Algorithm) -> Self {
        Self {
            algorithm: Some(algorithm),
            ..self
        }
    }
}

impl From<ReduceOp> for Reduction {
    fn from(op: ReduceOp) -> Self {
        Self {
            op,
            quantization: None,
            algorithm: None,
        }
    }
}

impl ReduceOp {
    /// The operator, with data that travels quantised.
    pub const fn quantized(self, algorithm: QuantizationAlgorithm, to: QuantizedType) -> Reduction {
        Reduction {
            op: self,
            quantization: Some(Quantization { algorithm, to }),
            algorithm: None,
        }
    }

    /// The operator, by this algorithm: see [`Reduction::by`].
    pub const fn by(self, algorithm: Algorithm) -> Reduction {
        Reduction {
            op: self,
            quantization: None,
            algorithm: Some(algorithm),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALGORITHMS: [QuantizationAlgorithm; 2] = [
        QuantizationAlgorithm::MinMax,
        QuantizationAlgorithm::ZeroPointScale,
    ];

    #[test]
    fn what_makes_no_sense_is_refused() {
        for data in DataType::ALL {
            for op in ReduceOp::ALL {
                for algorithm in ALGORITHMS {
                    let to = QuantizedType::I8;
                    let sum = matches!(op, ReduceOp::Sum | ReduceOp::Avg);
                    let fits = sum || algorithm == QuantizationAlgorithm::MinMax;
                    let refusal = Quantization { algorithm, to }.refusal(data, op);
                    assert_eq!(
                        refusal.is_none(),
                        data.is_float() && fits,
                        "{data:?} {op:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn codes_as_wide_as_the_data_are_pointless() {
        for (data, to, pointless) in [
            (DataType::F16, QuantizedType::U16, true),
            (DataType::BF16, QuantizedType::I16, true),
            (DataType::F16, QuantizedType::I8, false),
            (DataType::F32, QuantizedType::U16, false),
        ] {
            let algorithm = QuantizationAlgorithm::MinMax;
            assert_eq!(Quantization { algorithm, to }.is_pointless(data), pointless);
        }
    }
}
