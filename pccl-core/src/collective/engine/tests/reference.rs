//! What an all-reduce has to give, computed element by element from rule 9.

use half::{bf16, f16};

use crate::kernels::{self, Coding};
use crate::types::{DataType, ReduceOp};

/// Result over the contributions of all ranks.
pub(super) fn reduce(data_type: DataType, op: ReduceOp, contributions: &[Vec<u8>]) -> Vec<u8> {
    match data_type {
        DataType::U8 => all::<u8>(op, contributions),
        DataType::I8 => all::<i8>(op, contributions),
        DataType::I16 => all::<i16>(op, contributions),
        DataType::U16 => all::<u16>(op, contributions),
        DataType::U32 => all::<u32>(op, contributions),
        DataType::I32 => all::<i32>(op, contributions),
        DataType::U64 => all::<u64>(op, contributions),
        DataType::I64 => all::<i64>(op, contributions),
        DataType::F16 => all::<f16>(op, contributions),
        DataType::BF16 => all::<bf16>(op, contributions),
        DataType::F32 => all::<f32>(op, contributions),
        DataType::F64 => all::<f64>(op, contributions),
    }
}

/// The same of data that travels quantised: the kernels, slice by slice, with nothing in between.
pub(super) fn reduce_quantized(coding: Coding, op: ReduceOp, contributions: &[Vec<u8>]) -> Vec<u8> {
    let n = contributions.len();
    let size = coding.data_type().size();
    let count = contributions[0].len() / size;
    let (base, longer) = (count / n, count % n);
    let mut out = vec![0; count * size];
    for slice in 0..n {
        let start = (slice * base + slice.min(longer)) * size;
        let length = base + usize::from(slice < longer);
        let range = start..start + length * size;
        let own = |hop: usize| &contributions[(slice + hop) % n][range.clone()];
        let mut coded = vec![0; coding.form().bytes(length as u64) as usize];
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

fn all<E: Element>(op: ReduceOp, contributions: &[Vec<u8>]) -> Vec<u8> {
    let n = contributions.len();
    let size = size_of::<E>();
    let count = contributions[0].len() / size;
    let mut out = Vec::new();
    let (base, longer) = (count / n, count % n);
    for slice in 0..n {
        let start = slice * base + slice.min(longer);
        let end = start + base + usize::from(slice < longer);
        for e in start..end {
            let at = |rank: usize| E::read(&contributions[rank % n][e * size..(e + 1) * size]);
            let mut sum = at(slice);
            for rank in slice + 1..slice + n {
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
