//! Numbers as they lie in memory, and their arithmetic, one element at a time.
//!
//! Everything is written without branches, so that the compiler makes vector code of the loops.

/// A number of fixed size in little-endian bytes at any address.
pub(super) trait Number: Copy {
    /// Its bytes.
    type Bytes: Copy;

    /// The whole numbers in a slice of bytes.
    fn chunks(bytes: &[u8]) -> &[Self::Bytes];

    /// The whole numbers in a slice of bytes, to be written.
    fn chunks_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];

    /// Number of its bytes.
    fn load(bytes: Self::Bytes) -> Self;

    /// Bytes of the number.
    fn store(self) -> Self::Bytes;
}

/// A number that partials are made of.
pub(super) trait Arithmetic: Number {
    /// The number of contributions as AVG needs it.
    type Divisor: Copy;

    /// Sum. Integers wrap; a NaN is canonical.
    fn sum(self, other: Self) -> Self;

    /// Product. Integers wrap; a NaN is canonical.
    fn product(self, other: Self) -> Self;

    /// The greater one; the canonical NaN if either is a NaN.
    fn greater(self, other: Self) -> Self;

    /// The lesser one; the canonical NaN if either is a NaN.
    fn lesser(self, other: Self) -> Self;

    /// What [`Arithmetic::divide`] takes for `contributions`, which are not zero.
    fn divisor(contributions: u32) -> Self::Divisor;

    /// Quotient. Integers truncate to zero; a NaN is canonical.
    fn divide(self, divisor: Self::Divisor) -> Self;
}

/// A number that tensors are made of.
pub(super) trait Element: Number {
    /// What its partials are made of.
    type Partial: Arithmetic;

    /// The same value as a partial.
    fn widen(self) -> Self::Partial;

    /// The nearest element, ties to even; the canonical NaN for a NaN.
    fn narrow(partial: Self::Partial) -> Self;
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Number for $type {
            type Bytes = [u8; size_of::<$type>()];

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
                Self::from_le_bytes(bytes)
            }

            #[inline(always)]
            fn store(self) -> Self::Bytes {
                self.to_le_bytes()
            }
        }

        impl Element for $type {
            type Partial = Self;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            #[inline(always)]
            fn narrow(partial: Self) -> Self {
                partial
            }
        }
    )*};
}

number!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// Arithmetic of an integer. AVG divides in `$wide`, which holds every value of the type.
///
/// Vector units divide floats but not integers, hence floats where they are exact: for integers
/// x and n with |x| < 2^(p-1) and p bits of precision, x / n is either an integer or further than
/// half a unit in the last place from the next one, so rounding never reaches it.
/// A divisor too large to be exact in `$wide` is larger than every x, and the quotient is 0.
macro_rules! integer {
    ($($type:ty, $wide:ty;)*) => {$(
        impl Arithmetic for $type {
            type Divisor = $wide;

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn divisor(contributions: u32) -> $wide {
                contributions as $wide
            }

            #[inline(always)]
            fn divide(self, divisor: $wide) -> Self {
                (self as $wide / divisor) as Self
            }
        }
    )*};
}

integer! {
    u8, f32;
    i8, f32;
    u16, f32;
    i16, f32;
    u32, f64;
    i32, f64;
    u64, u64;
    i64, i64;
}

/// Arithmetic of a float with bits in `$bits`, seen as signed in `$signed`.
macro_rules! float {
    ($type:ty, $bits:ty, $signed:ty, $canonical:expr) => {
        impl Arithmetic for $type {
            type Divisor = Self;

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                canonical(self + other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                canonical(self * other)
            }

            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                let greater = if order(self) > order(other) {
                    self
                } else {
                    other
                };
                unless_nan(self, other, greater)
            }

            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                let lesser = if order(self) < order(other) {
                    self
                } else {
                    other
                };
                unless_nan(self, other, lesser)
            }

            #[inline(always)]
            fn divisor(contributions: u32) -> Self {
                contributions as Self
            }

            #[inline(always)]
            fn divide(self, divisor: Self) -> Self {
                canonical(self / divisor)
            }
        }

        /// The choice is made among bits: among floats a compiler may take any NaN for any other.
        #[inline(always)]
        fn canonical(value: $type) -> $type {
            <$type>::from_bits(if value.is_nan() {
                $canonical
            } else {
                value.to_bits()
            })
        }

        #[inline(always)]
        fn unless_nan(a: $type, b: $type, value: $type) -> $type {
            let nan = a.is_nan() | b.is_nan();
            <$type>::from_bits(if nan { $canonical } else { value.to_bits() })
        }

        /// An integer that is ordered as the floats are, -0 before +0.
        #[inline(always)]
        fn order(value: $type) -> $signed {
            let bits = value.to_bits() as $signed;
            bits ^ ((bits >> (<$signed>::BITS - 1)) as $bits >> 1) as $signed
        }
    };
}

mod single {
    use super::Arithmetic;

    float!(f32, u32, i32, 0x7FC0_0000);
}

mod double {
    use super::Arithmetic;

    float!(f64, u64, i64, 0x7FF8_0000_0000_0000);
}
