//! What an all-reduce has to give, computed element by element from rule 9.

use std::ops::Range;

use half::{bf16, f16};

use crate::kernels::{self, Coding};
use crate::types::{Algorithm, DataType, ReduceDescriptor, ReduceOp};

/// Result over the contributions of all ranks; in a star, of the hub first.
pub(super) fn result(
    descriptor: &ReduceDescriptor,
    contributions: &[Vec<u8>],
    hub: usize,
) -> Vec<u8> {
    let ReduceDescriptor { data_type, op, .. } = *descriptor;
    let mut contributions = contributions.to_vec();
    let n = contributions.len();
    let slices = match descriptor.algorithm {
        Some(Algorithm::Star) if n > 1 => {
            contributions.rotate_left(hub);
            1
        }
        _ => n,
    };
    match (Coding::of(descriptor), descriptor.algorithm) {
        (None, _) => reduce_in(slices, data_type, op, &contributions),
        (Some(coding), None | Some(Algorithm::Ring)) => around(coding, op, &contributions),
        (Some(coding), Some(_)) => straight(slices, coding, op, &contributions),
    }
}

/// Result of data that travels as it is, over the contributions of a ring.
pub(super) fn reduce(data_type: DataType, op: ReduceOp, contributions: &[Vec<u8>]) -> Vec<u8> {
    reduce_in(contributions.len(), data_type, op, contributions)
}

/// The same in so many slices; the contributions to each begin with that of its number.
fn reduce_in(slices: usize, data_type: DataType, op: ReduceOp, all: &[Vec<u8>]) -> Vec<u8> {
    match data_type {
        DataType::U8 => sums::<u8>(slices, op, all),
        DataType::I8 => sums::<i8>(slices, op, all),
        DataType::I16 => sums::<i16>(slices, op, all),
        DataType::U16 => sums::<u16>(slices, op, all),
        DataType::U32 => sums::<u32>(slices, op, all),
        DataType::I32 => sums::<i32>(slices, op, all),
        DataType::U64 => sums::<u64>(slices, op, all),
        DataType::I64 => sums::<i64>(slices, op, all),
        DataType::F16 => sums::<f16>(slices, op, all),
        DataType::BF16 => sums::<bf16>(slices, op, all),
        DataType::F32 => sums::<f32>(slices, op, all),
        DataType::F64 => sums::<f64>(slices, op, all),
    }
}

/// Elements of one of some equal slices, the first of which are longer.
fn slice(count: usize, slices: usize, slice: usize) -> Range<usize> {
    let (base, longer) = (count / slices, count % slices);
    let start = slice * base + slice.min(longer);
    start..start + base + usize::from(slice < longer)
}

/// Data that travels quantised straight to the owners of slices: each contribution is read from its
/// codes, but for the owner's, which is the first; and the result from its own.
fn straight(slices: usize, coding: Coding, op: ReduceOp, contributions: &[Vec<u8>]) -> Vec<u8> {
    let n = contributions.len();
    let (data_type, wide) = (coding.data_type(), coding.data_type().partial());
    let size = data_type.size();
    let count = contributions[0].len() / size;
    let mut out = vec![0; count * size];
    for s in 0..slices {
        let elements = slice(count, slices, s);
        let range = elements.start * size..elements.end * size;
        let own = |rank: usize| &contributions[(s + rank) % n][range.clone()];
        let mut coded = vec![0; coding.form().bytes(elements.len() as u64) as usize];
        let mut sum = vec![0; elements.len() * wide.size()];
        let mut read = sum.clone();
        kernels::start(data_type, own(0), &mut sum).unwrap();
        for rank in 1..n {
            kernels::encode(coding, own(rank), &mut coded).unwrap();
            kernels::decode(coding.widened(), &coded, &mut read).unwrap();
            let op = match op {
                ReduceOp::Avg => ReduceOp::Sum,
                other => other,
            };
            kernels::fold_finish_in_place(wide, op, 1, &read, &mut sum).unwrap();
        }
        let result = &mut out[range.clone()];
        kernels::finish(data_type, op, n as u32, &sum, result).unwrap();
        kernels::encode(coding, result, &mut coded).unwrap();
        kernels::decode(coding, &coded, result).unwrap();
    }
    out
}

/// Data that travels quantised around the ring: the kernels, slice by slice, with nothing in between.
fn around(coding: Coding, op: ReduceOp, contributions: &[Vec<u8>]) -> Vec<u8> {
    let n = contributions.len();
    let size = coding.data_type().size();
    let count = contributions[0].len() / size;
    let mut out = vec![0; count * size];
    for s in 0..n {
        let elements = slice(count, n, s);
        let range = elements.start * size..elements.end * size;
        let own = |hop: usize| &contributions[(s + hop) % n][range.clone()];
        let mut coded = vec![0; coding.form().bytes(elements.len() as u64) as usize];
        kernels::encode(coding, own(0), &mut coded).unwrap();
        for hop in 1..n - 1 {
            let incoming = coded.clone();
            kernels::fold_quantized(coding, op, &incoming, own(hop), &mut coded).unwrap();
        }
        let (incoming, n) = (coded.clone(), n as u32);
        let last = own(n as usize - 1);
        kernels::fold_finish_quantized(coding, op, n, &incoming, last, &mut coded).unwrap();
        kernels::decode(coding, &coded, &mut out[range.clone()]).unwrap();
    }
    out
}

/// Bytes of numbers that are worth reducing: small ones, so that floats do not all overflow, with
/// some special ones among them.
pub(super) fn numbers(
    data_type: DataType,
    count: usize,
    mut random: impl FnMut() -> u64,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let bits = random();
        let value = match bits % 37 {
            0 => 0.0,
            1 => -0.0,
            2 => f64::NAN,
            3 => f64::INFINITY,
            _ => (bits >> 40) as f64 / 65_536.0 - 100.0,
        };
        match data_type {
            DataType::F16 => bytes.extend(f16::from_f64(value).to_le_bytes()),
            DataType::BF16 => bytes.extend(bf16::from_f64(value).to_le_bytes()),
            DataType::F32 => bytes.extend((value as f32).to_le_bytes()),
            DataType::F64 => bytes.extend(value.to_le_bytes()),
            _ => bytes.extend_from_slice(&bits.to_le_bytes()[..data_type.size()]),
        }
    }
    bytes
}

trait Element: Copy {
    type Sum: Copy;
    fn read(bytes: &[u8]) -> Self::Sum;
    fn combine(op: ReduceOp, a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn divide(a: Self::Sum, n: usize) -> Self::Sum;
    fn write(a: Self::Sum) -> Vec<u8>;
}

fn sums<E: Element>(slices: usize, op: ReduceOp, contributions: &[Vec<u8>]) -> Vec<u8> {
    let n = contributions.len();
    let size = size_of::<E>();
    let count = contributions[0].len() / size;
    let mut out = Vec::new();
    for s in 0..slices {
        for e in slice(count, slices, s) {
            let at = |rank: usize| E::read(&contributions[rank % n][e * size..(e + 1) * size]);
            let mut sum = at(s);
            for rank in s + 1..s + n {
                sum = E::combine(op, sum, at(rank));
            }
            if op == ReduceOp::Avg {
                sum = E::divide(sum, n);
            }
            out.extend(E::write(sum));
        }
    }
    out
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl Element for $type {
            type Sum = Self;
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => a.wrapping_add(b),
                    ReduceOp::Prod => a.wrapping_mul(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                }
            }
            fn divide(a: Self, n: usize) -> Self {
                a / Self::try_from(n).unwrap()
            }
            fn write(a: Self) -> Vec<u8> {
                a.to_le_bytes().to_vec()
            }
        }
    )*};
}

macro_rules! float {
    ($type:ty, $sum:ty, $read:expr, $write:expr, $nan:expr) => {
        impl Element for $type {
            type Sum = $sum;
            fn read(bytes: &[u8]) -> $sum {
                $read(Self::from_le_bytes(bytes.try_into().unwrap()))
            }
            fn combine(op: ReduceOp, a: $sum, b: $sum) -> $sum {
                let nan = a.is_nan() || b.is_nan();
                let greater = a > b || (a == b && b.is_sign_negative());
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => a + b,
                    ReduceOp::Prod => a * b,
                    _ if nan => <$sum>::NAN,
                    ReduceOp::Max => {
                        if greater {
                            a
                        } else {
                            b
                        }
                    }
                    ReduceOp::Min => {
                        if greater {
                            b
                        } else {
                            a
                        }
                    }
                }
            }
            fn divide(a: $sum, n: usize) -> $sum {
                a / n as $sum
            }
            fn write(a: $sum) -> Vec<u8> {
                if a.is_nan() {
                    $nan.to_le_bytes().to_vec()
                } else {
                    $write(a).to_le_bytes().to_vec()
                }
            }
        }
    };
}

integer!(u8, i8, u16, i16, u32, i32, u64, i64);
float!(f32, f32, |v| v, |v: f32| v, 0x7FC0_0000u32);
float!(f64, f64, |v| v, |v: f64| v, 0x7FF8_0000_0000_0000u64);
float!(f16, f32, |v: Self| v.to_f32(), f16::from_f32, 0x7E00u16);
float!(bf16, f32, |v: Self| v.to_f32(), bf16::from_f32, 0x7FC0u16);
