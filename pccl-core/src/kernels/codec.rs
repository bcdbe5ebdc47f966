//! One block of quantised floats: from numbers to parameters and codes, and back.
//!
//! Everything here is single operations of IEEE 754 on the type of the partial sums, and choices
//! between their results, so every processor comes to the same bits. Loops over elements have no
//! branches, so that the compiler makes vector code of them.

use super::number::{Arithmetic, Number};
use crate::types::{QuantizationAlgorithm, QuantizedType};

/// A float that blocks are computed in.
pub(super) trait Real: Arithmetic + PartialOrd {
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// One half.
    const HALF: Self;
    /// Greatest finite number.
    const LARGEST: Self;
    /// Positive infinity.
    const INFINITY: Self;
    /// The canonical NaN.
    const NAN: Self;
    /// Two to the number of fraction bits: from here on there are integers only, up to twice of
    /// it all of them.
    const INTEGERS: Self;

    /// `self + other`.
    fn plus(self, other: Self) -> Self;
    /// `self - other`.
    fn minus(self, other: Self) -> Self;
    /// `self * other`.
    fn times(self, other: Self) -> Self;
    /// `self / other`.
    fn over(self, other: Self) -> Self;
    /// Without its sign.
    fn magnitude(self) -> Self;
    /// With the sign of `other`.
    fn signed_as(self, other: Self) -> Self;
    /// Whether the sign bit is set.
    fn is_negative(self) -> bool;
    /// Next greater number of a number that is not negative.
    fn next(self) -> Self;
    /// An integer below 2^16.
    fn from_code(code: u32) -> Self;
    /// Nearest integer, ties to even, of a number from zero to below 2^16.
    fn to_code(self) -> u32;
}

macro_rules! real {
    ($type:ty, $bits:ty, $fraction:expr, $nan:expr) => {
        impl Real for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const HALF: Self = 0.5;
            const LARGEST: Self = <$type>::MAX;
            const INFINITY: Self = <$type>::INFINITY;
            const NAN: Self = <$type>::from_bits($nan);
            const INTEGERS: Self = ((1 as $bits) << $fraction) as Self;

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn over(self, other: Self) -> Self {
                self / other
            }

            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }

            #[inline(always)]
            fn signed_as(self, other: Self) -> Self {
                self.copysign(other)
            }

            #[inline(always)]
            fn is_negative(self) -> bool {
                self.is_sign_negative()
            }

            #[inline(always)]
            fn next(self) -> Self {
                Self::from_bits(self.to_bits() + 1)
            }

            #[inline(always)]
            fn from_code(code: u32) -> Self {
                // Processors convert signed integers in one step.
                code as i32 as Self
            }

            #[inline(always)]
            fn to_code(self) -> u32 {
                // The sum is rounded to an integer, which is what its last bits say.
                ((self + Self::INTEGERS).to_bits() & 0xFFFF) as u32
            }
        }
    };
}

real!(f32, u32, 23, 0x7FC0_0000);
real!(f64, u64, 52, 0x7FF8_0000_0000_0000);

/// What blocks of one kind are written and read with.
#[derive(Clone, Copy)]
pub(super) struct Codec<A> {
    /// Quantises numbers, at most a block of them, into parameters and codes.
    pub(super) encode: fn(&[A], &mut [u8]),
    /// Reads numbers from parameters and codes. What is finite there is at most the given number
    /// in magnitude here.
    pub(super) decode: fn(&[u8], A, &mut [A]),
}

impl<A: Real> Codec<A> {
    /// For codes of a type, laid out by an algorithm.
    pub(super) fn new(by: QuantizationAlgorithm, to: QuantizedType) -> Self {
        match to {
            QuantizedType::U8 => Self::of::<Unsigned8>(by),
            QuantizedType::I8 => Self::of::<Signed8>(by),
            QuantizedType::I16 => Self::of::<Signed16>(by),
            QuantizedType::U16 => Self::of::<Unsigned16>(by),
        }
    }

    fn of<C: Code>(by: QuantizationAlgorithm) -> Self {
        match by {
            QuantizationAlgorithm::MinMax => Self {
                encode: encode::<A, C, MinMax<A>>,
                decode: decode::<A, C, MinMax<A>>,
            },
            QuantizationAlgorithm::ZeroPointScale => Self {
                encode: encode::<A, C, ZeroPointScale<A>>,
                decode: decode::<A, C, ZeroPointScale<A>>,
            },
        }
    }
}

/// Bytes of the parameters of a block.
pub(super) const fn head<A>() -> usize {
    2 * size_of::<A>()
}

/// Whether the parameters of a block are such as [`Codec::encode`] writes: finite.
pub(super) fn has_parameters<A: Real>(block: &[u8]) -> bool {
    A::chunks(block)
        .iter()
        .take(2)
        .filter(|bytes| A::load(**bytes).magnitude() <= A::LARGEST)
        .count()
        == 2
}

/// A code as it travels.
trait Code: Number {
    /// Greatest code.
    const LAST: u32;

    /// From zero to [`Code::LAST`].
    fn index(self) -> u32;

    /// The code of an index.
    fn of(index: u32) -> Self;
}

macro_rules! code {
    ($($name:ident, $bits:ty, $flip:expr;)*) => {$(
        /// Codes of this type; `flip` turns an index into one.
        #[derive(Clone, Copy)]
        struct $name($bits);

        impl Number for $name {
            type Bytes = [u8; size_of::<$bits>()];

            #[inline(always)]
            fn chunks(bytes: &[u8]) -> &[Self::Bytes] {
                bytes.as_chunks().0
            }

            #[inline(always)]
            fn chunks_mut(bytes: &mut [u8]) -> &mut [Self::Bytes] {
                bytes.as_chunks_mut().0
            }

            #[inline(always)]
            fn load(bytes: Self::Bytes) -> Self {
                Self(<$bits>::from_le_bytes(bytes))
            }

            #[inline(always)]
            fn store(self) -> Self::Bytes {
                self.0.to_le_bytes()
            }
        }

        impl Code for $name {
            const LAST: u32 = <$bits>::MAX as u32;

            #[inline(always)]
            fn index(self) -> u32 {
                u32::from(self.0 ^ $flip)
            }

            #[inline(always)]
            fn of(index: u32) -> Self {
                Self(index as $bits ^ $flip)
            }
        }
    )*};
}

code! {
    Unsigned8, u8, 0;
    Signed8, u8, 0x80;
    Unsigned16, u16, 0;
    Signed16, u16, 0x8000;
}

/// How codes lie among the numbers between the least and the greatest of a block.
trait Grid<A>: Copy {
    /// For the finite numbers of a block, which are not all equal, and codes up to `last`.
    fn over(low: A, high: A, last: A) -> Self;

    /// For a block whose finite numbers are all equal, or that has none; all have the code zero.
    fn flat(value: A) -> Self;

    /// From the parameters. The second one is not negative.
    fn from_parameters(parameters: [A; 2]) -> Self;

    /// Its parameters.
    fn parameters(self) -> [A; 2];

    /// Which code is the nearest, before rounding.
    fn position(self, value: A) -> A;

    /// Number of a code, where the numbers of all codes are finite.
    fn value(self, code: A) -> A;

    /// Number of a code, anywhere; infinite if it is too large.
    fn distant_value(self, code: A) -> A;
}

/// `low + code * step`.
#[derive(Clone, Copy)]
struct MinMax<A> {
    low: A,
    step: A,
    /// One, or one half where the block's range is too large for the type.
    part: A,
    part_of_low: A,
    part_of_step: A,
}

impl<A: Real> Grid<A> for MinMax<A> {
    fn over(low: A, high: A, last: A) -> Self {
        let part = part_of_range(low, high);
        let part_of_low = low.times(part);
        let part_of_step = step(high.times(part).minus(part_of_low), last);
        Self {
            low,
            step: part_of_step.over(part),
            part,
            part_of_low,
            part_of_step,
        }
    }

    fn flat(value: A) -> Self {
        Self::from_parameters([value, A::ZERO])
    }

    fn from_parameters([low, step]: [A; 2]) -> Self {
        Self {
            low,
            step,
            part: A::ONE,
            part_of_low: low,
            part_of_step: step,
        }
    }

    fn parameters(self) -> [A; 2] {
        [self.low, self.step]
    }

    #[inline(always)]
    fn position(self, value: A) -> A {
        value
            .times(self.part)
            .minus(self.part_of_low)
            .over(self.part_of_step)
    }

    #[inline(always)]
    fn value(self, code: A) -> A {
        self.low.plus(code.times(self.step))
    }

    #[inline(always)]
    fn distant_value(self, code: A) -> A {
        let half = self
            .low
            .times(A::HALF)
            .plus(code.times(self.step.times(A::HALF)));
        half.plus(half)
    }
}

/// `(code + zero) * scale`.
#[derive(Clone, Copy)]
struct ZeroPointScale<A> {
    zero: A,
    scale: A,
}

impl<A: Real> Grid<A> for ZeroPointScale<A> {
    fn over(low: A, high: A, last: A) -> Self {
        let part = part_of_range(low, high);
        let range = high.times(part).minus(low.times(part));
        // One code less, since both ends are rounded to multiples of the scale.
        let scale = step(range, last.minus(A::ONE)).over(part);
        // Multiples must be integers that the type can count.
        let largest = greater(low.magnitude(), high.magnitude());
        let scale = greater(scale, largest.over(A::INTEGERS));
        let zero = nearest_integer(low.over(scale));
        Self { zero, scale }
    }

    fn flat(value: A) -> Self {
        let zero = if value == A::ZERO {
            A::ZERO
        } else {
            A::ONE.signed_as(value)
        };
        Self::from_parameters([zero, value.magnitude()])
    }

    fn from_parameters([zero, scale]: [A; 2]) -> Self {
        Self { zero, scale }
    }

    fn parameters(self) -> [A; 2] {
        [self.zero, self.scale]
    }

    #[inline(always)]
    fn position(self, value: A) -> A {
        value.over(self.scale).minus(self.zero)
    }

    #[inline(always)]
    fn value(self, code: A) -> A {
        code.plus(self.zero).times(self.scale)
    }

    #[inline(always)]
    fn distant_value(self, code: A) -> A {
        self.value(code)
    }
}

/// What the numbers of a block are multiplied by so that their difference is finite.
fn part_of_range<A: Real>(low: A, high: A) -> A {
    if high.minus(low) <= A::LARGEST {
        A::ONE
    } else {
        A::HALF
    }
}

/// A step of which `last` reach over the range.
fn step<A: Real>(range: A, last: A) -> A {
    let step = range.over(last);
    // Among denormals the quotient can be far too small.
    if step.times(last) < range {
        step.next()
    } else {
        step
    }
}

/// Nearest integer, ties to even, of a number whose magnitude is at most twice [`Real::INTEGERS`].
fn nearest_integer<A: Real>(value: A) -> A {
    let magnitude = value.magnitude();
    if magnitude < A::INTEGERS {
        magnitude
            .plus(A::INTEGERS)
            .minus(A::INTEGERS)
            .signed_as(value)
    } else {
        value
    }
}

#[inline(always)]
fn greater<A: Real>(a: A, b: A) -> A {
    if a > b { a } else { b }
}

#[inline(always)]
fn lesser<A: Real>(a: A, b: A) -> A {
    if a < b { a } else { b }
}

/// Numbers that are looked at together: enough for any vector unit.
const LANES: usize = 16;

/// Least and greatest of the finite numbers, and whether there are others.
fn extremes<A: Real>(values: &[A]) -> (A, A, bool) {
    let mut low = [A::INFINITY; LANES];
    let mut high = [A::ZERO.minus(A::INFINITY); LANES];
    // Zero, unless there is something that is not finite.
    let mut poison = [A::ZERO; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (i, value) in chunk.iter().enumerate() {
            low[i] = lesser(*value, low[i]);
            high[i] = greater(*value, high[i]);
            poison[i] = poison[i].plus(value.times(A::ZERO));
        }
    }
    for (i, value) in rest.iter().enumerate() {
        low[i] = lesser(*value, low[i]);
        high[i] = greater(*value, high[i]);
        poison[i] = poison[i].plus(value.times(A::ZERO));
    }
    let poison = poison.into_iter().fold(A::ZERO, A::plus);
    let special = poison != A::ZERO;
    if special {
        low = [A::INFINITY; LANES];
        high = [A::ZERO.minus(A::INFINITY); LANES];
        for value in values {
            if value.magnitude() <= A::LARGEST {
                low[0] = lesser(*value, low[0]);
                high[0] = greater(*value, high[0]);
            }
        }
    }
    let low = low.into_iter().fold(A::INFINITY, lesser);
    let high = high.into_iter().fold(A::ZERO.minus(A::INFINITY), greater);
    // Of zeros with both signs either may have come out: take the positive one.
    (low.plus(A::ZERO), high.plus(A::ZERO), special)
}

/// Codes that stand for what is not finite, behind those that numbers have: negative infinity,
/// infinity, NaN. A block without any gives these codes to numbers.
const SPECIAL_CODES: u32 = 3;

fn encode<A: Real, C: Code, G: Grid<A>>(values: &[A], out: &mut [u8]) {
    let (low, high, special) = extremes(values);
    let last_code = C::LAST - if special { SPECIAL_CODES } else { 0 };
    let last = A::from_code(last_code);
    let flat = low >= high;
    let grid = match (flat, low > high) {
        // There is no finite number.
        (_, true) => G::flat(A::ZERO),
        (true, _) => G::flat(low),
        (false, _) => G::over(low, high, last),
    };
    let [first, second] = grid.parameters();
    let second = if special {
        second.signed_as(A::ZERO.minus(A::ONE))
    } else {
        second
    };
    let Some((parameters, codes)) = out.split_at_mut_checked(head::<A>()) else {
        return;
    };
    for (to, parameter) in A::chunks_mut(parameters).iter_mut().zip([first, second]) {
        *to = parameter.store();
    }
    let pairs = C::chunks_mut(codes).iter_mut().zip(values);
    // A grid without a step would divide by zero.
    let code_of = |value: A| lesser(greater(grid.position(value), A::ZERO), last).to_code();
    match (flat, special) {
        (false, false) => pairs.for_each(|(code, value)| *code = C::of(code_of(*value)).store()),
        (true, false) => pairs.for_each(|(code, _)| *code = C::of(0).store()),
        (_, true) => pairs.for_each(|(code, value)| {
            let index = if value.magnitude() <= A::LARGEST {
                if flat { 0 } else { code_of(*value) }
            } else if *value < A::ZERO {
                last_code + 1
            } else if *value > A::ZERO {
                last_code + 2
            } else {
                last_code + 3
            };
            *code = C::of(index).store();
        }),
    }
}

fn decode<A: Real, C: Code, G: Grid<A>>(block: &[u8], limit: A, out: &mut [A]) {
    let Some((parameters, codes)) = block.split_at_checked(head::<A>()) else {
        return;
    };
    let [first, second] = A::chunks(parameters) else {
        return;
    };
    let (first, second) = (A::load(*first), A::load(*second));
    let special = second.is_negative();
    let grid = G::from_parameters([first, second.magnitude()]);
    let last_code = C::LAST - if special { SPECIAL_CODES } else { 0 };
    let last = A::from_code(last_code);
    // Numbers grow with their codes: none is out of bounds if the first and the last are not.
    let negative = A::ZERO.minus(limit);
    let near = grid.value(A::ZERO) >= negative && grid.value(last) <= limit;
    let pairs = out.iter_mut().zip(C::chunks(codes));
    if near && !special {
        return pairs.for_each(|(out, code)| {
            *out = grid.value(A::from_code(C::load(*code).index()));
        });
    }
    pairs.for_each(|(out, code)| {
        let index = C::load(*code).index();
        let number = A::from_code(index);
        let value = if near {
            grid.value(number)
        } else {
            lesser(greater(grid.distant_value(number), negative), limit)
        };
        *out = if index <= last_code {
            value
        } else if index == last_code + 1 {
            A::ZERO.minus(A::INFINITY)
        } else if index == last_code + 2 {
            A::INFINITY
        } else {
            A::NAN
        };
    });
}
