use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::kernels::{fold, fold_finish};
use crate::types::{ARITHMETIC_VERSION, QuantizationAlgorithm, QuantizedType};

const FLOATS: [DataType; 4] = [DataType::F16, DataType::BF16, DataType::F32, DataType::F64];
const ALGORITHMS: [QuantizationAlgorithm; 2] = [
    QuantizationAlgorithm::MinMax,
    QuantizationAlgorithm::ZeroPointScale,
];

/// One block at a time, from the formulas of the module's documentation, without the kernels.
mod reference {
    use super::QuantizationAlgorithm as Algorithm;

    macro_rules! reference {
        ($module:ident, $type:ty, $p:expr) => {
            pub(in super::super) mod $module {
                use super::Algorithm;

                /// Parameters and codes of a block; codes as they count, not as they travel.
                pub(in super::super::super) fn encode(
                    by: Algorithm,
                    full: u32,
                    xs: &[$type],
                ) -> ([$type; 2], Vec<u32>) {
                    let special = xs.iter().any(|x| !x.is_finite());
                    let l = full - if special { 3 } else { 0 };
                    let finite: Vec<$type> = xs.iter().copied().filter(|x| x.is_finite()).collect();
                    let lo = finite.iter().copied().reduce(<$type>::min).unwrap_or(0.0) + 0.0;
                    let hi = finite.iter().copied().reduce(<$type>::max).unwrap_or(0.0) + 0.0;
                    let part = if (hi - lo).is_finite() { 1.0 } else { 0.5 };
                    let enough = |range: $type, steps: $type| {
                        let step = range / steps;
                        if step * steps < range {
                            step.next_up()
                        } else {
                            step
                        }
                    };
                    let range = hi * part - lo * part;
                    let last = l as $type;
                    let (a, s) = match by {
                        _ if lo == hi && by == Algorithm::MinMax => (lo, 0.0),
                        _ if lo == hi && lo == 0.0 => (0.0, 0.0),
                        _ if lo == hi => (lo.signum(), lo.abs()),
                        Algorithm::MinMax => (lo, enough(range, last) / part),
                        Algorithm::ZeroPointScale => {
                            let largest = lo.abs().max(hi.abs());
                            let least = largest / <$type>::powi(2.0, $p);
                            let s = (enough(range, last - 1.0) / part).max(least);
                            ((lo / s).round_ties_even(), s)
                        }
                    };
                    let code = |x: &$type| {
                        if x.is_nan() {
                            return l + 3;
                        }
                        if x.is_infinite() {
                            return if *x > 0.0 { l + 2 } else { l + 1 };
                        }
                        if lo == hi {
                            return 0;
                        }
                        let q = match by {
                            Algorithm::MinMax => (x * part - lo * part) / (s * part),
                            Algorithm::ZeroPointScale => x / s - a,
                        };
                        q.clamp(0.0, last).round_ties_even() as u32
                    };
                    let sign = if special { -1.0 } else { 1.0 };
                    ([a, s.copysign(sign)], xs.iter().map(code).collect())
                }

                /// Numbers of a block, kept within `limit`.
                pub(in super::super::super) fn decode(
                    by: Algorithm,
                    full: u32,
                    [a, s]: [$type; 2],
                    codes: &[u32],
                    limit: $type,
                ) -> Vec<$type> {
                    let l = full - if s.is_sign_negative() { 3 } else { 0 };
                    let s = s.abs();
                    let near = |q: u32| match by {
                        Algorithm::MinMax => a + q as $type * s,
                        Algorithm::ZeroPointScale => (q as $type + a) * s,
                    };
                    let beyond = near(0) < -limit || near(l) > limit;
                    let number = |q: u32| match by {
                        Algorithm::MinMax if beyond => {
                            let half = a * 0.5 + q as $type * (s * 0.5);
                            (half + half).clamp(-limit, limit)
                        }
                        _ if beyond => near(q).clamp(-limit, limit),
                        _ => near(q),
                    };
                    let of = |q: &u32| match q.checked_sub(l) {
                        Some(1) => <$type>::NEG_INFINITY,
                        Some(2) => <$type>::INFINITY,
                        Some(3) => <$type>::NAN,
                        _ => number(*q),
                    };
                    codes.iter().map(of).collect()
                }
            }
        };
    }

    reference!(single, f32, 23);
    reference!(double, f64, 52);
}

fn coding(data_type: DataType, algorithm: QuantizationAlgorithm, to: QuantizedType) -> Coding {
    let quantization = Quantization { algorithm, to };
    Coding {
        data_type,
        quantization,
    }
}

/// Every coding that is worth it.
fn codings() -> impl Iterator<Item = Coding> {
    FLOATS.into_iter().flat_map(|data_type| {
        ALGORITHMS.into_iter().flat_map(move |by| {
            QuantizedType::ALL
                .into_iter()
                .filter(move |to| to.size() < data_type.size())
                .map(move |to| coding(data_type, by, to))
        })
    })
}

/// An element's bytes; the value is rounded to the type.
fn element(data_type: DataType, value: f64) -> Vec<u8> {
    match data_type {
        DataType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DataType::BF16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DataType::F64 => value.to_le_bytes().to_vec(),
        _ => (value as f32).to_le_bytes().to_vec(),
    }
}

fn bytes(data_type: DataType, values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|v| element(data_type, *v)).collect()
}

fn values(data_type: DataType, bytes: &[u8]) -> Vec<f64> {
    let value = |b: &[u8]| match data_type {
        DataType::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
        DataType::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        DataType::F64 => f64::from_le_bytes(b.try_into().unwrap()),
        _ => f64::from(f32::from_le_bytes(b.try_into().unwrap())),
    };
    bytes.chunks(data_type.size()).map(value).collect()
}

fn encoded(coding: Coding, own: &[u8]) -> Vec<u8> {
    let count = own.len() / coding.data_type.size();
    let mut out = vec![0xA5; coding.form().bytes(count as u64) as usize];
    encode(coding, own, &mut out).unwrap();
    out
}

fn decoded(coding: Coding, coded: &[u8]) -> Vec<u8> {
    let count = coding.form().elements(coded.len() as u64).unwrap();
    let mut out = vec![0xA5; count as usize * coding.data_type.size()];
    decode(coding, coded, &mut out).unwrap();
    out
}

fn around(coding: Coding, of: &[f64]) -> Vec<f64> {
    let own = bytes(coding.data_type, of);
    values(coding.data_type, &decoded(coding, &encoded(coding, &own)))
}

/// Bytes of codes as they travel.
fn code_bytes(to: QuantizedType, code: u32) -> Vec<u8> {
    match to {
        QuantizedType::U8 => vec![code as u8],
        QuantizedType::I8 => vec![(code as i32 - 128) as i8 as u8],
        QuantizedType::U16 => (code as u16).to_le_bytes().to_vec(),
        QuantizedType::I16 => ((code as i32 - 32_768) as i16).to_le_bytes().to_vec(),
    }
}

fn last_code(to: QuantizedType) -> u32 {
    if to.size() == 1 { 255 } else { 65_535 }
}

/// What the formulas make of contributions: their blocks, and the elements in them again.
fn expected(coding: Coding, own: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (t, Quantization { algorithm: by, to }) = (coding.data_type, coding.quantization);
    let full = last_code(to);
    let (mut coded, mut back) = (Vec::new(), Vec::new());
    for block in values(t, own).chunks(Quantization::block(t) as usize) {
        let codes = if t == DataType::F64 {
            let (parameters, codes) = reference::double::encode(by, full, block);
            coded.extend(parameters.iter().flat_map(|p| p.to_le_bytes()));
            let numbers = reference::double::decode(by, full, parameters, &codes, f64::MAX);
            back.extend(numbers.into_iter().flat_map(canonical_f64));
            codes
        } else {
            let block: Vec<f32> = block.iter().map(|v| *v as f32).collect();
            let (parameters, codes) = reference::single::encode(by, full, &block);
            coded.extend(parameters.iter().flat_map(|p| p.to_le_bytes()));
            let limit = match t {
                DataType::F16 => f16::MAX.to_f32(),
                DataType::BF16 => bf16::MAX.to_f32(),
                _ => f32::MAX,
            };
            let numbers = reference::single::decode(by, full, parameters, &codes, limit);
            for number in numbers {
                match t {
                    DataType::F32 if number.is_nan() => {
                        back.extend(0x7FC0_0000u32.to_le_bytes());
                    }
                    DataType::F32 => back.extend(number.to_le_bytes()),
                    DataType::F16 if number.is_nan() => back.extend(0x7E00u16.to_le_bytes()),
                    DataType::F16 => back.extend(f16::from_f32_const(number).to_le_bytes()),
                    _ if number.is_nan() => back.extend(0x7FC0u16.to_le_bytes()),
                    _ => back.extend(bf16::from_f32_const(number).to_le_bytes()),
                }
            }
            codes
        };
        coded.extend(codes.into_iter().flat_map(|code| code_bytes(to, code)));
    }
    (coded, back)
}

fn canonical_f64(value: f64) -> [u8; 8] {
    if value.is_nan() {
        0x7FF8_0000_0000_0000u64.to_le_bytes()
    } else {
        value.to_le_bytes()
    }
}

fn check(coding: Coding, own: &[u8]) {
    let (coded, back) = expected(coding, own);
    let got = encoded(coding, own);
    assert_eq!(got, coded, "codes of {coding:?}");
    assert_eq!(decoded(coding, &got), back, "elements of {coding:?}");
}

/// Numbers as tensors have them, and as they go wrong: by a kind, and random bits.
fn number(t: DataType, kind: u8, bits: u64) -> f64 {
    let unit = bits as f64 / u64::MAX as f64 * 2.0 - 1.0;
    let (large, small) = match t {
        DataType::F16 => (f16::MAX.to_f64(), f16::MIN_POSITIVE_SUBNORMAL.to_f64()),
        DataType::BF16 => (bf16::MAX.to_f64(), bf16::MIN_POSITIVE_SUBNORMAL.to_f64()),
        DataType::F64 => (f64::MAX, 5e-324),
        _ => (f64::from(f32::MAX), 1e-45),
    };
    match kind {
        0 => unit,
        1 => unit * large,
        2 => (unit * 1_000.0).round() * small,
        3 => 1_000.0 + unit / 1_024.0,
        4 => (unit * 8.0).powi(5),
        5 => large.copysign(unit),
        _ => 0.0f64.copysign(unit),
    }
}

/// Elements of one kind, or of several, with now and then something that is not finite.
fn elements_of(t: DataType) -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop_oneof![(0..7u8).prop_map(|k| k..=k), Just(0..=6u8),];
    (kinds, prop_oneof![Just(0u32), Just(3), Just(200)]).prop_flat_map(move |(kinds, odd)| {
        let element = (kinds, any::<u64>(), 0..1_000u32);
        prop::collection::vec(element, 0..1_100).prop_map(move |elements| {
            let value = |(kind, bits, special): (u8, u64, u32)| match special {
                s if s >= odd => number(t, kind, bits),
                _ if bits % 3 == 0 => f64::NAN,
                _ if bits % 3 == 1 => f64::INFINITY,
                _ => f64::NEG_INFINITY,
            };
            elements
                .into_iter()
                .flat_map(|e| element_bytes(t, value(e)))
                .collect()
        })
    })
}

fn element_bytes(t: DataType, value: f64) -> Vec<u8> {
    element(t, value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn blocks_are_those_of_the_formulas_to_the_bit(
        sixteen in elements_of(DataType::F16),
        brain in elements_of(DataType::BF16),
        single in elements_of(DataType::F32),
        double in elements_of(DataType::F64),
    ) {
        for coding in codings() {
            let own = match coding.data_type {
                DataType::F16 => &sixteen,
                DataType::BF16 => &brain,
                DataType::F32 => &single,
                _ => &double,
            };
            check(coding, own);
        }
    }

    /// Half a step, and the rounding of a few operations on numbers of that size.
    #[test]
    fn no_element_is_further_off_than_half_a_step(
        kind in 0..5u8,
        bits in prop::collection::vec(any::<u64>(), 1..600),
    ) {
        for coding in codings() {
            let t = coding.data_type;
            let own: Vec<f64> = bits.iter().map(|b| number(t, kind, *b)).collect();
            let own = values(t, &bytes(t, &own));
            let back = around(coding, &own);
            let block = Quantization::block(t) as usize;
            let blocks = own.chunks(block).zip(back.chunks(block));
            for (own, back) in blocks {
                let low = own.iter().copied().fold(f64::INFINITY, f64::min);
                let high = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let steps = f64::from(last_code(coding.quantization.to));
                let steps = match coding.quantization.algorithm {
                    QuantizationAlgorithm::MinMax => steps,
                    QuantizationAlgorithm::ZeroPointScale => steps - 1.0,
                };
                let largest = low.abs().max(high.abs());
                let (last_place, least) = match t {
                    DataType::F16 => (f64::powi(2.0, -10), f64::powi(2.0, -24)),
                    DataType::BF16 => (f64::powi(2.0, -7), f64::powi(2.0, -133)),
                    DataType::F32 => (f64::powi(2.0, -23), f64::powi(2.0, -149)),
                    _ => (f64::powi(2.0, -52), 5e-324),
                };
                let range = high / steps - low / steps;
                let bound = range / 2.0 + (2.0 * last_place * largest).max(least);
                for (own, back) in own.iter().zip(back) {
                    prop_assert!(
                        (own - back).abs() <= bound,
                        "{own} became {back} with {coding:?}, bound {bound}"
                    );
                }
            }
        }
    }

    #[test]
    fn folding_is_reading_adding_and_writing(
        a in elements_of(DataType::F32),
        b in elements_of(DataType::F32),
        n in 1..6u32,
    ) {
        let count = a.len().min(b.len()) / 4;
        let (a, b) = (&a[..count * 4], &b[..count * 4]);
        for coding in codings().filter(|c| c.data_type == DataType::F32) {
            let incoming = encoded(coding, a);
            let read = decoded(coding, &incoming);
            for op in ReduceOp::ALL {
                let mut sum = vec![0; count * 4];
                fold(DataType::F32, op, &read, b, &mut sum).unwrap();
                let mut out = vec![0; incoming.len()];
                fold_quantized(coding, op, &incoming, b, &mut out).unwrap();
                prop_assert_eq!(&out, &encoded(coding, &sum));
                fold_finish(DataType::F32, op, n, &read, b, &mut sum).unwrap();
                fold_finish_quantized(coding, op, n, &incoming, b, &mut out).unwrap();
                prop_assert_eq!(&out, &encoded(coding, &sum));
            }
        }
    }

    #[test]
    fn data_can_be_cut_between_blocks(
        own in elements_of(DataType::BF16),
        cut in 0..6usize,
    ) {
        for coding in codings().filter(|c| c.data_type == DataType::BF16) {
            let whole = encoded(coding, &own);
            let (a, b) = own.split_at(own.len().min(cut * 512));
            let mut parts = encoded(coding, a);
            parts.extend(encoded(coding, b));
            prop_assert_eq!(whole, parts);
        }
    }

    /// What a hostile peer sends has some meaning, the same on every processor, and harms nothing.
    #[test]
    fn any_codes_behind_finite_parameters_are_numbers_or_specials(
        first in any::<f32>(),
        second in any::<f32>(),
        codes in prop::collection::vec(any::<u8>(), 1..256),
    ) {
        for by in ALGORITHMS {
            let coding = coding(DataType::F32, by, QuantizedType::U8);
            let mut coded = [first.to_le_bytes(), second.to_le_bytes()].concat();
            coded.extend_from_slice(&codes);
            let mut out = vec![0; codes.len() * 4];
            let finite = first.is_finite() && second.is_finite();
            let read = decode(coding, &coded, &mut out);
            prop_assert_eq!(read.is_ok(), finite);
            let back: Vec<u32> = codes.iter().map(|c| u32::from(*c)).collect();
            if finite {
                let numbers =
                    reference::single::decode(by, 255, [first, second], &back, f32::MAX);
                for (got, want) in out.chunks(4).zip(numbers) {
                    let got = f32::from_le_bytes(got.try_into().unwrap());
                    prop_assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan());
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_comes_through_and_spoils_nothing_else() {
    for coding in codings() {
        let mut own: Vec<f64> = (0..200).map(|i| f64::from(i) / 16.0).collect();
        own[3] = f64::NAN;
        own[77] = f64::INFINITY;
        own[78] = f64::NEG_INFINITY;
        let back = around(coding, &own);
        for (i, (own, back)) in own.iter().zip(&back).enumerate() {
            match i {
                3 => assert!(back.is_nan(), "{coding:?}"),
                77 | 78 => assert_eq!(own, back, "{coding:?}"),
                _ => assert!(
                    (own - back).abs() <= 12.5 / 251.0 / 2.0 + 0.06,
                    "{coding:?} {i}"
                ),
            }
        }
    }
}

#[test]
fn blocks_of_nothing_finite_and_empty_ones_are_defined() {
    for coding in codings() {
        let all = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        let back = around(coding, &all);
        assert!(back[0].is_nan() && back[3].is_nan());
        assert_eq!(back[1..3], all[1..3]);
        assert!(encoded(coding, &[]).is_empty());
        assert!(decoded(coding, &[]).is_empty());
    }
}

#[test]
fn equal_elements_are_exact() {
    for coding in codings() {
        let t = coding.data_type;
        let smallest = match t {
            DataType::F16 => f16::MIN_POSITIVE_SUBNORMAL.to_f64(),
            DataType::F64 => 5e-324,
            _ => 1e-45,
        };
        for value in [
            0.0, 1.0, -3.0, 42.0, 43.0, 65_504.0, -0.1, smallest, -smallest,
        ] {
            let own = values(t, &bytes(t, &[value; 300]));
            assert_eq!(around(coding, &own), own, "{coding:?}");
        }
        assert_eq!(around(coding, &[-0.0; 3]).map_signs(), [false; 3]);
    }
}

trait Signs {
    fn map_signs(&self) -> Vec<bool>;
}

impl Signs for Vec<f64> {
    fn map_signs(&self) -> Vec<bool> {
        self.iter().map(|v| v.is_sign_negative()).collect()
    }
}

#[test]
fn zeros_stay_zeros_around_a_zero_point_and_the_least_element_is_exact_otherwise() {
    for coding in codings() {
        let mut own: Vec<f64> = (0..256).map(|i| f64::from(i) - 100.5).collect();
        own[7] = 0.0;
        let back = around(coding, &own);
        match coding.quantization.algorithm {
            QuantizationAlgorithm::MinMax => assert_eq!(back[0], -100.5),
            QuantizationAlgorithm::ZeroPointScale => assert_eq!(back[7].to_bits(), 0),
        }
    }
}

/// The steps of a block of the smallest numbers there are would be rounded to nothing.
#[test]
fn denormals_keep_their_differences() {
    for coding in codings() {
        let t = coding.data_type;
        let smallest = match t {
            DataType::F16 => f16::MIN_POSITIVE_SUBNORMAL.to_f64(),
            DataType::BF16 => bf16::MIN_POSITIVE_SUBNORMAL.to_f64(),
            DataType::F64 => 5e-324,
            _ => 1e-45,
        };
        let own: Vec<f64> = (0..100).map(|i| f64::from(i - 30) * smallest).collect();
        let own = values(t, &bytes(t, &own));
        if matches!(t, DataType::F32 | DataType::F64) {
            assert_eq!(around(coding, &own), own, "{coding:?}");
        }
        let close = around(coding, &own).iter().zip(&own).all(|(a, b)| {
            // Subnormals of 16 bits are normal in 32, and have fractions there.
            (a - b).abs() <= smallest
        });
        assert!(close, "{coding:?}");
    }
}

#[test]
fn what_is_finite_stays_finite_and_signs_are_kept() {
    for coding in codings() {
        let t = coding.data_type;
        let most = match t {
            DataType::F16 => f16::MAX.to_f64(),
            DataType::BF16 => bf16::MAX.to_f64(),
            DataType::F32 => f64::from(f32::MAX),
            _ => f64::MAX,
        };
        for low in [-most, -1.0, 0.0, most / 2.0] {
            let own: Vec<f64> = (0..=64)
                .map(|i| low * (1.0 - f64::from(i) / 64.0) + most * (f64::from(i) / 64.0))
                .collect();
            let own = values(t, &bytes(t, &own));
            let back = around(coding, &own);
            for (own, back) in own.iter().zip(back) {
                assert!(back.is_finite(), "{coding:?}: {own} became {back}");
                let off = (own / 256.0 - back / 256.0).abs();
                assert!(
                    off <= most / 256.0 / 120.0,
                    "{coding:?}: {own} became {back}"
                );
            }
        }
    }
}

/// Sums beyond the type are infinite, as in data that travels as it is.
#[test]
fn sums_beyond_the_type_are_infinite() {
    for coding in codings().filter(|c| c.data_type == DataType::F16) {
        let own = bytes(DataType::F16, &[60_000.0, 1.0, -60_000.0]);
        let mut out = vec![0; encoded(coding, &own).len()];
        let incoming = encoded(coding, &own);
        fold_finish_quantized(coding, ReduceOp::Sum, 2, &incoming, &own, &mut out).unwrap();
        let sum = values(DataType::F16, &decoded(coding, &out));
        assert_eq!((sum[0], sum[2]), (f64::INFINITY, f64::NEG_INFINITY));
        fold_finish_quantized(coding, ReduceOp::Avg, 2, &incoming, &own, &mut out).unwrap();
        let average = values(DataType::F16, &decoded(coding, &out));
        assert!(average.iter().all(|v| v.is_finite()));
    }
}

#[test]
fn what_does_not_fit_is_refused_untouched() {
    let coding = coding(
        DataType::F32,
        QuantizationAlgorithm::MinMax,
        QuantizedType::U8,
    );
    let length = Err(KernelError::Length {
        data_type: DataType::F32,
    });
    let mut out = [7; 16];
    assert_eq!(encode(coding, &[0; 8], &mut out[..9]), length);
    assert_eq!(encode(coding, &[0; 7], &mut out[..10]), length);
    assert_eq!(decode(coding, &[0; 11], &mut out[..8]), length);
    let sum = ReduceOp::Sum;
    let folded = fold_quantized(coding, sum, &[0; 9], &[0; 8], &mut out[..10]);
    assert_eq!(folded, length);
    let mut infinite = f32::INFINITY.to_le_bytes().to_vec();
    infinite.extend([0; 6]);
    let refused = Err(KernelError::Parameters);
    assert_eq!(decode(coding, &infinite, &mut out[..8]), refused);
    let folded = fold_quantized(coding, sum, &infinite, &[0; 8], &mut out[..10]);
    assert_eq!(folded, refused);
    let averaged =
        fold_finish_quantized(coding, ReduceOp::Avg, 0, &[0; 10], &[0; 8], &mut out[..10]);
    assert_eq!(averaged, Err(KernelError::NoContributions));
    assert_eq!(out, [7; 16]);
}

/// A generator of its own, so that no other crate's version decides what golden means.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Digest of codes and result of three contributions of 1,009 elements, a part of them special.
fn golden_digest(coding: Coding) -> u128 {
    let t = coding.data_type;
    let mut state = t as u64;
    let contributions: Vec<Vec<u8>> = (0..3)
        .map(|_| {
            let mut value = || {
                let (bits, kind) = (splitmix(&mut state), splitmix(&mut state) % 300);
                match kind {
                    0 => f64::NAN,
                    1 => f64::INFINITY,
                    2 => f64::NEG_INFINITY,
                    3 => 0.0,
                    _ => (bits >> 11) as f64 / f64::powi(2.0, 43) - 512.0,
                }
            };
            let values: Vec<f64> = (0..1_009).map(|_| value()).collect();
            bytes(t, &values)
        })
        .collect();
    let mut all = encoded(coding, &contributions[0]);
    let mut coded = vec![0; all.len()];
    let sum = ReduceOp::Sum;
    fold_quantized(coding, sum, &all, &contributions[1], &mut coded).unwrap();
    all.extend_from_slice(&coded);
    let incoming = coded.clone();
    let own = &contributions[2];
    fold_finish_quantized(coding, ReduceOp::Avg, 3, &incoming, own, &mut coded).unwrap();
    all.extend_from_slice(&coded);
    all.extend_from_slice(&decoded(coding, &coded));
    twox_hash::XxHash3_128::oneshot(&all)
}

/// Fails if a bit of any block changed while the version of the arithmetic did not.
#[test]
fn blocks_are_those_of_this_arithmetic_version() {
    let computed: Vec<String> = codings()
        .map(|c| {
            let Quantization { algorithm, to } = c.quantization;
            let digest = golden_digest(c);
            format!(
                "{ARITHMETIC_VERSION} {:?} {to:?} {algorithm:?} {digest:032x}",
                c.data_type
            )
        })
        .collect();
    let version = format!("{ARITHMETIC_VERSION} ");
    let golden: Vec<&str> = include_str!("golden.txt")
        .lines()
        .filter(|line| line.starts_with(&version))
        .collect();
    assert_eq!(
        golden,
        computed,
        "if this is meant to be, raise ARITHMETIC_VERSION and append:\n{}",
        computed.join("\n")
    );
}
