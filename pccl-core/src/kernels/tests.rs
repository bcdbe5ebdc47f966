use proptest::prelude::*;

use super::*;
use crate::types::ARITHMETIC_VERSION;

/// What one element must become, written without a look at the kernels: on wide integers, the
/// standard library's total order, and the `half` crate.
mod reference {
    use std::cmp::Ordering;

    use super::super::{DataType, ReduceOp};

    /// `incoming OP own` for one element, in bytes of the partial type.
    pub(super) fn fold(t: DataType, op: ReduceOp, incoming: &[u8], own: &[u8]) -> Vec<u8> {
        let own = widen(t, own);
        match t.partial() {
            DataType::F32 => {
                let (a, b) = (f32_of(incoming), f32_of(&own));
                let value = match op {
                    ReduceOp::Sum | ReduceOp::Avg => a + b,
                    ReduceOp::Prod => a * b,
                    _ if a.is_nan() || b.is_nan() => f32::NAN,
                    ReduceOp::Max if a.total_cmp(&b) == Ordering::Less => b,
                    ReduceOp::Min if a.total_cmp(&b) == Ordering::Greater => b,
                    ReduceOp::Max | ReduceOp::Min => a,
                };
                f32_bytes(value)
            }
            DataType::F64 => {
                let (a, b) = (f64_of(incoming), f64_of(&own));
                let value = match op {
                    ReduceOp::Sum | ReduceOp::Avg => a + b,
                    ReduceOp::Prod => a * b,
                    _ if a.is_nan() || b.is_nan() => f64::NAN,
                    ReduceOp::Max if a.total_cmp(&b) == Ordering::Less => b,
                    ReduceOp::Min if a.total_cmp(&b) == Ordering::Greater => b,
                    ReduceOp::Max | ReduceOp::Min => a,
                };
                f64_bytes(value)
            }
            integer => {
                let (a, b) = (integer_of(integer, incoming), integer_of(integer, &own));
                let value = match op {
                    ReduceOp::Sum | ReduceOp::Avg => a + b,
                    ReduceOp::Prod => a.wrapping_mul(b),
                    ReduceOp::Max if a < b => b,
                    ReduceOp::Min if a > b => b,
                    ReduceOp::Max | ReduceOp::Min => a,
                };
                value.to_le_bytes()[..integer.size()].to_vec()
            }
        }
    }

    /// One element from the partial of all contributions.
    pub(super) fn finish(t: DataType, op: ReduceOp, n: u32, partial: &[u8]) -> Vec<u8> {
        let average = op == ReduceOp::Avg;
        match t {
            DataType::F32 if average => f32_bytes(f32_of(partial) / n as f32),
            DataType::F64 if average => f64_bytes(f64_of(partial) / f64::from(n)),
            DataType::F16 | DataType::BF16 => {
                let sum = f32_of(partial);
                let value = if average { sum / n as f32 } else { sum };
                let bits = match t {
                    DataType::F16 if value.is_nan() => 0x7E00,
                    DataType::F16 => half::f16::from_f32_const(value).to_bits(),
                    _ if value.is_nan() => 0x7FC0,
                    _ => half::bf16::from_f32_const(value).to_bits(),
                };
                bits.to_le_bytes().to_vec()
            }
            _ if average => {
                let value = integer_of(t, partial) / i128::from(n);
                value.to_le_bytes()[..t.size()].to_vec()
            }
            _ => partial.to_vec(),
        }
    }

    /// One contribution as a partial. A NaN keeps its fraction, quiet or not.
    pub(super) fn widen(t: DataType, own: &[u8]) -> Vec<u8> {
        let (value, nan) = match (t, own) {
            (DataType::F16, &[low, high]) => {
                let bits = u32::from(u16::from_le_bytes([low, high]));
                let nan = (bits & 0x8000) << 16 | 0x7F80_0000 | (bits & 0x3FF) << 13;
                (half::f16::from_le_bytes([low, high]).to_f32_const(), nan)
            }
            (DataType::BF16, &[low, high]) => {
                let bits = u32::from(u16::from_le_bytes([low, high]));
                (
                    half::bf16::from_le_bytes([low, high]).to_f32_const(),
                    bits << 16,
                )
            }
            _ => return own.to_vec(),
        };
        let bits = if value.is_nan() { nan } else { value.to_bits() };
        bits.to_le_bytes().to_vec()
    }

    fn integer_of(t: DataType, bytes: &[u8]) -> i128 {
        let signed = matches!(
            t,
            DataType::I8 | DataType::I16 | DataType::I32 | DataType::I64
        );
        let negative = signed && bytes[bytes.len() - 1] >= 0x80;
        let mut all = [if negative { 0xFF } else { 0 }; 16];
        all[..bytes.len()].copy_from_slice(bytes);
        i128::from_le_bytes(all)
    }

    fn f32_of(bytes: &[u8]) -> f32 {
        f32::from_le_bytes(bytes.try_into().unwrap())
    }

    fn f64_of(bytes: &[u8]) -> f64 {
        f64::from_le_bytes(bytes.try_into().unwrap())
    }

    fn f32_bytes(value: f32) -> Vec<u8> {
        let bits = if value.is_nan() {
            0x7FC0_0000
        } else {
            value.to_bits()
        };
        bits.to_le_bytes().to_vec()
    }

    fn f64_bytes(value: f64) -> Vec<u8> {
        let bits = if value.is_nan() {
            0x7FF8_0000_0000_0000
        } else {
            value.to_bits()
        };
        bits.to_le_bytes().to_vec()
    }
}

/// Bits that go wrong first: zeros, ones, extremes, denormals, infinities, NaNs of all kinds.
fn special_bits(t: DataType) -> &'static [u64] {
    match t {
        DataType::F16 => &[
            0, 0x8000, 0x3C00, 0xBC00, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00,
            0xFC00, 0x7E00, 0xFE00, 0x7C01, 0xFFFF, 0x6BFF, 0x3555,
        ],
        DataType::BF16 => &[
            0, 0x8000, 0x3F80, 0xBF80, 0x0001, 0x8001, 0x007F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80,
            0xFF80, 0x7FC0, 0xFFC0, 0x7F81, 0xFFFF, 0x3EAB, 0x4B00,
        ],
        DataType::F32 => &[
            0,
            0x8000_0000,
            0x3F80_0000,
            0xBF80_0000,
            1,
            0x8000_0001,
            0x007F_FFFF,
            0x0080_0000,
            0x7F7F_FFFF,
            0xFF7F_FFFF,
            0x7F80_0000,
            0xFF80_0000,
            0x7FC0_0000,
            0xFFC0_0000,
            0x7F80_0001,
            0xFFFF_FFFF,
            0x3EAA_AAAB,
            0x4B80_0000,
        ],
        DataType::F64 => &[
            0,
            1 << 63,
            0x3FF0_0000_0000_0000,
            0xBFF0_0000_0000_0000,
            1,
            (1 << 63) | 1,
            0x000F_FFFF_FFFF_FFFF,
            0x0010_0000_0000_0000,
            0x7FEF_FFFF_FFFF_FFFF,
            0xFFEF_FFFF_FFFF_FFFF,
            0x7FF0_0000_0000_0000,
            0xFFF0_0000_0000_0000,
            0x7FF8_0000_0000_0000,
            0xFFF8_0000_0000_0000,
            0x7FF0_0000_0000_0001,
            u64::MAX,
            0x3FD5_5555_5555_5555,
            0x4340_0000_0000_0000,
        ],
        _ => &[
            0,
            1,
            2,
            3,
            0x7F,
            0x80,
            0xFF,
            0x7FFF,
            0x8000,
            0xFFFF,
            0x7FFF_FFFF,
            0x8000_0000,
            0xFFFF_FFFF,
            0x7FFF_FFFF_FFFF_FFFF,
            1 << 63,
            u64::MAX,
            u64::MAX - 1,
            0x5555,
        ],
    }
}

/// A contribution, from pairs of random bits and a choice among the special ones.
fn contribution(t: DataType, elements: &[(u64, usize)]) -> Vec<u8> {
    let specials = special_bits(t);
    let bits = elements
        .iter()
        .map(|(bits, choice)| *specials.get(*choice).unwrap_or(bits));
    bits.flat_map(|bits| bits.to_le_bytes().into_iter().take(t.size()))
        .collect()
}

/// Bytes that begin `shift` bytes behind where an allocation begins.
struct Shifted {
    bytes: Vec<u8>,
    shift: usize,
}

impl Shifted {
    fn new(content: &[u8], shift: usize) -> Self {
        let mut bytes = vec![0xA5; shift];
        bytes.extend_from_slice(content);
        Self { bytes, shift }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.shift..]
    }
}

/// Runs `f` for each element of two slices and joins what it returns.
fn each(
    a: &[u8],
    a_size: usize,
    b: &[u8],
    b_size: usize,
    f: impl Fn(&[u8], &[u8]) -> Vec<u8>,
) -> Vec<u8> {
    a.chunks(a_size)
        .zip(b.chunks(b_size))
        .flat_map(|(a, b)| f(a, b))
        .collect()
}

fn check_all_forms(t: DataType, op: ReduceOp, contributions: &[Vec<u8>], shifts: [usize; 3]) {
    let (size, wide) = (t.size(), t.partial().size());
    let count = contributions[0].len() / size;
    let n = contributions.len() as u32;
    let [s0, s1, s2] = shifts;

    let mut partial: Vec<u8> = contributions[0]
        .chunks(size)
        .flat_map(|own| reference::widen(t, own))
        .collect();
    let mut started = Shifted::new(&vec![0; count * wide], s0);
    start(t, Shifted::new(&contributions[0], s1).get(), started.get()).unwrap();
    assert_eq!(started.get(), partial, "start {t:?}");

    for own in &contributions[1..] {
        let expected = each(&partial, wide, own, size, |a, b| {
            reference::fold(t, op, a, b)
        });
        let result: Vec<u8> = expected
            .chunks(wide)
            .flat_map(|p| reference::finish(t, op, n, p))
            .collect();
        let mut incoming = Shifted::new(&partial, s0);
        let mut own = Shifted::new(own, s1);
        let mut out = Shifted::new(&vec![0; count * wide], s2);

        fold(t, op, incoming.get(), own.get(), out.get()).unwrap();
        assert_eq!(out.get(), expected, "fold {t:?} {op:?}");

        let mut elements = Shifted::new(&vec![0; count * size], s2);
        finish(t, op, n, out.get(), elements.get()).unwrap();
        assert_eq!(elements.get(), result, "finish {t:?} {op:?}");
        if !needs_finish(t, op) {
            assert_eq!(expected, result, "needs_finish {t:?} {op:?}");
        }
        if size == wide {
            finish_in_place(t, op, n, out.get()).unwrap();
            assert_eq!(out.get(), result, "finish_in_place {t:?} {op:?}");
        }

        elements.get().fill(0);
        fold_finish(t, op, n, incoming.get(), own.get(), elements.get()).unwrap();
        assert_eq!(elements.get(), result, "fold_finish {t:?} {op:?}");

        let mut in_place = Shifted::new(own.get(), s2);
        fold_finish_in_place(t, op, n, incoming.get(), in_place.get()).unwrap();
        assert_eq!(in_place.get(), result, "fold_finish_in_place {t:?} {op:?}");

        fold_into_incoming(t, op, incoming.get(), own.get()).unwrap();
        assert_eq!(incoming.get(), expected, "fold_into_incoming {t:?} {op:?}");
        partial = expected;
    }
}

/// Contributions of equally many elements; about half of them special.
fn contributions() -> impl Strategy<Value = Vec<Vec<(u64, usize)>>> {
    (0..70usize, 2..5usize).prop_flat_map(|(count, n)| {
        let element = (any::<u64>(), 0..36usize);
        prop::collection::vec(prop::collection::vec(element, count), n)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_kernel_agrees_with_the_reference_to_the_bit(
        contributions in contributions(),
        shifts in prop::array::uniform3(0..9usize),
    ) {
        for t in DataType::ALL {
            let bytes: Vec<_> = contributions.iter().map(|c| contribution(t, c)).collect();
            for op in ReduceOp::ALL {
                check_all_forms(t, op, &bytes, shifts);
            }
        }
    }

    #[test]
    fn averages_of_integers_truncate_for_any_number_of_contributions(
        bits in any::<u64>(),
        choice in 0..36usize,
        n in prop_oneof![1..5u32, 1..70_000u32, 1..=u32::MAX, Just(u32::MAX)],
    ) {
        for t in DataType::ALL {
            let mut element = contribution(t, &[(bits, choice)]);
            let partial = reference::widen(t, &element);
            let expected = reference::finish(t, ReduceOp::Avg, n, &partial);
            finish(t, ReduceOp::Avg, n, &partial, &mut element).unwrap();
            prop_assert_eq!(element, expected, "{:?} by {}", t, n);
        }
    }
}

#[test]
fn every_pair_of_special_values_agrees_with_the_reference() {
    for t in DataType::ALL {
        let count = special_bits(t).len();
        let left: Vec<_> = (0..count * count).map(|i| (0, i / count)).collect();
        let right: Vec<_> = (0..count * count).map(|i| (0, i % count)).collect();
        for op in ReduceOp::ALL {
            check_all_forms(
                t,
                op,
                &[contribution(t, &left), contribution(t, &right)],
                [0; 3],
            );
        }
    }
}

#[test]
fn operands_can_be_exchanged() {
    for t in DataType::ALL.into_iter().filter(|t| t.partial() == *t) {
        let count = special_bits(t).len();
        let left = contribution(
            t,
            &(0..count * count)
                .map(|i| (0, i / count))
                .collect::<Vec<_>>(),
        );
        let right = contribution(
            t,
            &(0..count * count)
                .map(|i| (0, i % count))
                .collect::<Vec<_>>(),
        );
        for op in ReduceOp::ALL {
            let (mut a, mut b) = (left.clone(), right.clone());
            fold_into_incoming(t, op, &mut a, &right).unwrap();
            fold_into_incoming(t, op, &mut b, &left).unwrap();
            assert_eq!(a, b, "{t:?} {op:?}");
        }
    }
}

#[test]
fn every_16_bit_float_survives_the_way_through_partials() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (t, nan, infinity) in [
        (DataType::F16, 0x7E00, 0x7C00),
        (DataType::BF16, 0x7FC0, 0x7F80),
    ] {
        let mut partial = vec![0; all.len() * 2];
        start(t, &all, &mut partial).unwrap();
        let expected: Vec<u8> = all.chunks(2).flat_map(|e| reference::widen(t, e)).collect();
        assert_eq!(partial, expected, "{t:?}");
        let mut back = vec![0; all.len()];
        finish(t, ReduceOp::Sum, 2, &partial, &mut back).unwrap();
        for (back, bits) in back.chunks(2).zip(0..=u16::MAX) {
            let expected = if bits & 0x7FFF > infinity { nan } else { bits };
            assert_eq!(back, expected.to_le_bytes(), "{t:?} {bits:#06x}");
        }
    }
}

#[test]
fn rounding_to_16_bits_agrees_with_the_reference_around_every_tie() {
    for t in [DataType::F16, DataType::BF16] {
        let mut partials = Vec::new();
        for bits in 0..=u16::MAX {
            let value = reference::widen(t, &bits.to_le_bytes());
            let value = u32::from_le_bytes(value.try_into().unwrap());
            // Half of the last place of a normal, and of the larger denormals, of either format.
            for half in [0, 1 << 12, 1 << 15, 1 << 20, 1 << 22] {
                for nudge in [u32::MAX, 0, 1] {
                    partials.push(value.wrapping_add(half).wrapping_add(nudge));
                }
            }
        }
        partials.extend((0..=u32::MAX).step_by(9_973));
        let partials: Vec<u8> = partials.into_iter().flat_map(u32::to_le_bytes).collect();
        let mut out = vec![0; partials.len() / 2];
        finish(t, ReduceOp::Sum, 2, &partials, &mut out).unwrap();
        for (out, partial) in out.chunks(2).zip(partials.chunks(4)) {
            let expected = reference::finish(t, ReduceOp::Sum, 2, partial);
            assert_eq!(out, expected, "{t:?} {partial:02x?}");
        }
    }
}

#[test]
fn slices_that_do_not_match_are_refused_untouched() {
    let length = |data_type| Err(KernelError::Length { data_type });
    let mut out = [7; 12];
    let t = DataType::F32;
    assert_eq!(start(t, &[0; 8], &mut out), length(t));
    assert_eq!(start(t, &[0; 11], &mut out[..11]), length(t));
    assert_eq!(
        fold(t, ReduceOp::Sum, &[0; 8], &[0; 12], &mut out),
        length(t)
    );
    assert_eq!(
        fold_into_incoming(t, ReduceOp::Sum, &mut out, &[0; 8]),
        length(t)
    );
    assert_eq!(finish(t, ReduceOp::Sum, 2, &[0; 8], &mut out), length(t));
    assert_eq!(
        finish_in_place(t, ReduceOp::Sum, 2, &mut out[..3]),
        length(t)
    );
    assert_eq!(
        fold_finish(t, ReduceOp::Sum, 2, &[0; 12], &[0; 12], &mut out[..8]),
        length(t)
    );
    assert_eq!(
        fold_finish_in_place(t, ReduceOp::Sum, 2, &[0; 8], &mut out),
        length(t)
    );
    let t = DataType::F16;
    assert_eq!(start(t, &[0; 12], &mut out), length(t));
    assert_eq!(
        finish_in_place(t, ReduceOp::Sum, 2, &mut out),
        Err(KernelError::NotInPlace { data_type: t })
    );
    assert_eq!(
        finish(DataType::U8, ReduceOp::Avg, 0, &[0; 12], &mut out),
        Err(KernelError::NoContributions)
    );
    assert_eq!(out, [7; 12]);
}

/// A generator of its own, so that no other crate's version decides what golden means.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Digest of partial and result of three contributions of 1,009 elements, a part of them special.
fn golden_digest(t: DataType, op: ReduceOp) -> u128 {
    const COUNT: usize = 1_009;
    let mut state = t as u64;
    let contributions: Vec<_> = (0..3)
        .map(|_| {
            let elements: Vec<_> = (0..COUNT)
                .map(|_| (splitmix(&mut state), (splitmix(&mut state) % 64) as usize))
                .collect();
            contribution(t, &elements)
        })
        .collect();
    let mut partial = vec![0; COUNT * t.partial().size()];
    start(t, &contributions[0], &mut partial).unwrap();
    fold_into_incoming(t, op, &mut partial, &contributions[1]).unwrap();
    let mut result = vec![0; COUNT * t.size()];
    fold_finish(t, op, 3, &partial, &contributions[2], &mut result).unwrap();
    partial.extend_from_slice(&result);
    twox_hash::XxHash3_128::oneshot(&partial)
}

/// Fails if a bit of any result changed while the version of the arithmetic did not.
#[test]
fn results_are_those_of_this_arithmetic_version() {
    let computed: Vec<String> = DataType::ALL
        .into_iter()
        .flat_map(|t| ReduceOp::ALL.map(|op| (t, op)))
        .map(|(t, op)| {
            format!(
                "{ARITHMETIC_VERSION} {t:?} {op:?} {:032x}",
                golden_digest(t, op)
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
