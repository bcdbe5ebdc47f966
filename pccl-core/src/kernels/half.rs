//! Floats of 16 bits, to and from `f32`.
//!
//! Done with integers and exact additions instead of the processors' own conversions: those exist
//! on few baselines, and this way there is one code path, without branches, to trust everywhere.

use super::number::{Element, Number};

/// Bits of an IEEE 754 binary16.
#[derive(Clone, Copy)]
pub(super) struct F16(u16);

/// Bits of a bfloat16, the upper half of a binary32.
#[derive(Clone, Copy)]
pub(super) struct Bf16(u16);

macro_rules! number {
    ($($type:ident),*) => {$(
        impl Number for $type {
            type Bytes = [u8; 2];

            #[inline(always)]
            fn chunks(bytes: &[u8]) -> &[[u8; 2]] {
                u16::chunks(bytes)
            }

            #[inline(always)]
            fn chunks_mut(bytes: &mut [u8]) -> &mut [[u8; 2]] {
                u16::chunks_mut(bytes)
            }

            #[inline(always)]
            fn load(bytes: [u8; 2]) -> Self {
                Self(u16::load(bytes))
            }

            #[inline(always)]
            fn store(self) -> [u8; 2] {
                self.0.store()
            }
        }
    )*};
}

number!(F16, Bf16);

impl Element for F16 {
    type Partial = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.0);
        let sign = (bits & 0x8000) << 16;
        // Exponent and fraction where a binary32 has them; then the difference of the biases.
        let magnitude = (bits & 0x7FFF) << FRACTION_SHIFT;
        let exponent = magnitude & F16_EXPONENT;
        let normal = magnitude + BIAS_DIFFERENCE;
        // Infinity and NaN have the largest exponent in both formats.
        let special = normal + BIAS_DIFFERENCE;
        // A denormal is a fraction without the leading one: put one there, take it off as a float.
        let leading = SMALLEST_NORMAL.to_bits();
        let denormal = f32::from_bits(magnitude + leading) - SMALLEST_NORMAL;
        let value = if exponent == F16_EXPONENT {
            special
        } else if exponent == 0 {
            denormal.to_bits()
        } else {
            normal
        };
        f32::from_bits(value | sign)
    }

    #[inline(always)]
    fn narrow(partial: f32) -> Self {
        let bits = partial.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7FFF_FFFF;
        // Half of the last place, less one if the last place is even: ties go to even. A carry
        // into the exponent is right, up to infinity.
        let odd = (magnitude >> FRACTION_SHIFT) & 1;
        let half = (1 << (FRACTION_SHIFT - 1)) - 1;
        let normal = magnitude
            .wrapping_sub(BIAS_DIFFERENCE)
            .wrapping_add(half + odd)
            >> FRACTION_SHIFT;
        // Adding a number whose last place is that of the denormals makes the float unit round.
        let rounded = f32::from_bits(magnitude) + DENORMAL_ROUNDER;
        let denormal = rounded.to_bits().wrapping_sub(DENORMAL_ROUNDER.to_bits());
        let value = if magnitude > F32_INFINITY {
            F16_NAN
        } else if magnitude >= OVERFLOW {
            sign | F16_INFINITY
        } else if magnitude < SMALLEST_NORMAL.to_bits() {
            sign | denormal
        } else {
            sign | normal
        };
        Self(value as u16)
    }
}

impl Element for Bf16 {
    type Partial = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn narrow(partial: f32) -> Self {
        let bits = partial.to_bits();
        // Ties go to even; a carry into the exponent is right, up to infinity.
        let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
        let nan = bits & 0x7FFF_FFFF > F32_INFINITY;
        Self(if nan { BF16_NAN } else { rounded } as u16)
    }
}

const F32_FRACTION_BITS: u32 = 23;
const F32_INFINITY: u32 = 0x7F80_0000;
/// Fraction bits that a binary32 has more than a binary16.
const FRACTION_SHIFT: u32 = F32_FRACTION_BITS - 10;
/// Exponent of a binary16, at the place of that of a binary32.
const F16_EXPONENT: u32 = 0x7C00 << FRACTION_SHIFT;
/// Difference of the biases of the exponents, at the place of the exponent of a binary32.
const BIAS_DIFFERENCE: u32 = (127 - 15) << F32_FRACTION_BITS;
const F16_INFINITY: u32 = 0x7C00;
const F16_NAN: u32 = 0x7E00;
const BF16_NAN: u32 = 0x7FC0;
/// 2^-14, the least normal number of binary16.
const SMALLEST_NORMAL: f32 = f32::from_bits((127 - 14) << F32_FRACTION_BITS);
/// 0.5: its last place is 2^-24, that of the denormals of binary16.
const DENORMAL_ROUNDER: f32 = 0.5;
/// Bits of 2^16, from where on everything is infinite. From 65520 on the rounding carries there.
const OVERFLOW: u32 = (127 + 16) << F32_FRACTION_BITS;
