//! By which pattern data moves, and who decides that. (Rule 10)

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ReduceDescriptor;
use crate::ids::MemberId;

/// By which pattern an all-reduce moves its data. The discriminants are those of the C ABI, where
/// zero leaves the choice to the library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Algorithm {
    /// Around the ring of the group's order: every link carries as little as can be, in 2(n-1) hops.
    Ring = 1,
    /// Through one member, the hub: two hops, and the only way for members that can reach nobody
    /// else; the hub carries the data of all.
    Star = 2,
    /// Every pair exchanges: two hops, every member carries as little as can be, and quantised data
    /// is quantised twice, whatever the size of the group.
    Direct = 3,
}

impl Algorithm {
    /// All of them, in the order of the ABI.
    pub const ALL: [Self; 3] = [Self::Ring, Self::Star, Self::Direct];

    /// The one of this number in the ABI, if there is one.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Ring),
            2 => Some(Self::Star),
            3 => Some(Self::Direct),
            _ => None,
        }
    }

    /// Its name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Star => "star",
            Self::Direct => "direct",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not the name of an algorithm.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no algorithm; there are ring, star and direct")]
pub struct NoSuchAlgorithm(pub String);

impl FromStr for Algorithm {
    type Err = NoSuchAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = |algorithm: &Self| name.eq_ignore_ascii_case(algorithm.name());
        let found = Self::ALL.into_iter().find(named);
        found.ok_or_else(|| NoSuchAlgorithm(name.to_owned()))
    }
}

/// What a group can do on the edges that work, and what it does with how many bytes: made by the
/// master, published with the group's epoch, and compared with nothing but integers. (Rule 10)
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// Whether the edges of the order, taken as a ring, work.
    pub ring: bool,
    /// Whether all pairs have an edge that is proven.
    pub direct: bool,
    /// Who adds in a star: a member that has an edge to every other one. None if nobody has.
    pub hub: Option<MemberId>,
    /// Tensors of fewer bytes go by star.
    pub star_below: u64,
    /// Larger ones of fewer bytes than this go direct.
    pub direct_below: u64,
    /// The same of tensors that travel quantised.
    pub quantized_direct_below: u64,
}

impl Choice {
    /// Everything goes around the ring.
    pub const RING: Self = Self {
        ring: true,
        direct: false,
        hub: None,
        star_below: 0,
        direct_below: 0,
        quantized_direct_below: 0,
    };

    /// Whether there is a plan for the algorithm.
    pub fn offers(&self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Ring => self.ring,
            Algorithm::Star => self.hub.is_some(),
            Algorithm::Direct => self.direct,
        }
    }

    /// The algorithm of an operation: what it asks for, there being a plan for it or not, or else
    /// what its size makes the best of what there is.
    pub fn algorithm(&self, descriptor: &ReduceDescriptor) -> Algorithm {
        if let Some(asked) = descriptor.algorithm {
            return asked;
        }
        let bytes = descriptor.bytes().unwrap_or(u64::MAX);
        let direct_below = match descriptor.effective_quantization() {
            Some(_) => self.quantized_direct_below,
            None => self.direct_below,
        };
        if self.hub.is_some() && bytes < self.star_below {
            Algorithm::Star
        } else if self.direct && (bytes < direct_below || !self.ring) {
            Algorithm::Direct
        } else if self.ring || self.hub.is_none() {
            Algorithm::Ring
        } else {
            Algorithm::Star
        }
    }
}

impl Default for Choice {
    fn default() -> Self {
        Self::RING
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DataType, Quantization, QuantizationAlgorithm, QuantizedType, ReduceOp};

    fn floats(count: u64) -> ReduceDescriptor {
        ReduceDescriptor {
            count,
            data_type: DataType::F32,
            op: ReduceOp::Sum,
            quantization: None,
            algorithm: None,
        }
    }

    const ALL: Choice = Choice {
        ring: true,
        direct: true,
        hub: Some(MemberId(3)),
        star_below: 401,
        direct_below: 4_001,
        quantized_direct_below: 40_001,
    };

    #[test]
    fn size_decides_where_nobody_asks() {
        let by = |count| ALL.algorithm(&floats(count));
        assert_eq!([by(0), by(100)], [Algorithm::Star; 2]);
        assert_eq!([by(101), by(1_000)], [Algorithm::Direct; 2]);
        assert_eq!([by(1_001), by(u64::MAX)], [Algorithm::Ring; 2]);
        let quantized = ReduceDescriptor {
            quantization: Some(Quantization {
                algorithm: QuantizationAlgorithm::MinMax,
                to: QuantizedType::U8,
            }),
            ..floats(10_000)
        };
        assert_eq!(ALL.algorithm(&quantized), Algorithm::Direct);
    }

    #[test]
    fn what_there_is_no_plan_for_is_not_chosen_but_can_be_asked_for() {
        let star = Choice {
            ring: false,
            direct: false,
            ..ALL
        };
        assert_eq!(star.algorithm(&floats(1 << 40)), Algorithm::Star);
        let asked = ReduceDescriptor {
            algorithm: Some(Algorithm::Direct),
            ..floats(1)
        };
        assert_eq!(star.algorithm(&asked), Algorithm::Direct);
        assert!(!star.offers(Algorithm::Direct) && star.offers(Algorithm::Star));
        let direct = Choice { ring: false, ..ALL };
        assert_eq!(direct.algorithm(&floats(1 << 40)), Algorithm::Direct);
        assert_eq!(Choice::RING.algorithm(&floats(1)), Algorithm::Ring);
    }

    #[test]
    fn names_and_numbers_are_those_of_the_algorithms() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().to_uppercase().parse(), Ok(algorithm));
            assert_eq!(Algorithm::from_number(algorithm as u32), Some(algorithm));
        }
        assert_eq!(Algorithm::from_number(0), None);
        assert!("rings".parse::<Algorithm>().is_err());
    }
}
