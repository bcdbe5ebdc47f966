//! Kernels for data that travels quantised: in blocks of codes, from own contributions or from
//! incoming blocks. (Rule 9)
//!
//! A block is two *parameters* in the type of the partial sums (`f32`; `f64` for `f64`),
//! little-endian, and one *code* per element. It has [`Quantization::block`] elements; the last one
//! of a slice may have less. The formulas, and what becomes of everything that is not an ordinary
//! number, are in `docs/numerics.md`.
//!
//! An element differs from what it was by at most half a step of its block, and two units in the last
//! place of the block's largest magnitude.

#[cfg(test)]
mod tests;

use super::codec::{Codec, Real, has_parameters};
use super::form::Form;
use super::half::{Bf16, F16};
use super::number::{Arithmetic, Element};
use super::{KernelError, divisor, elements};
use crate::types::{DataType, Quantization, ReduceDescriptor, ReduceOp};

/// How the data of an operation is quantised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coding {
    data_type: DataType,
    quantization: Quantization,
}

impl Coding {
    /// Of an operation; none if its data travels as it is.
    pub fn of(descriptor: &ReduceDescriptor) -> Option<Self> {
        let quantization = descriptor.effective_quantization()?;
        Some(Self {
            data_type: descriptor.data_type,
            quantization,
        })
    }

    /// Type of the elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// How it lies on the wire.
    pub fn form(&self) -> Form {
        let parameter = self.data_type.partial().size() as u64;
        Form::blocks(
            u64::from(Quantization::block(self.data_type)),
            2 * parameter,
            self.quantization.to.size() as u64,
        )
    }

    /// The same codes, read into the type of the partial sums.
    pub fn widened(self) -> Self {
        Self {
            data_type: self.data_type.partial(),
            ..self
        }
    }

    fn length_error(&self) -> KernelError {
        KernelError::Length {
            data_type: self.data_type,
        }
    }

    /// Whether `coded` holds what `count` elements, from the start of a block on, become.
    fn expect(&self, count: usize, coded: &[u8]) -> Result<(), KernelError> {
        if self.form().bytes(count as u64) == coded.len() as u64 {
            Ok(())
        } else {
            Err(self.length_error())
        }
    }

    /// The same, for what came over the wire.
    fn expect_readable(&self, count: usize, coded: &[u8]) -> Result<(), KernelError> {
        self.expect(count, coded)?;
        let mut blocks = coded.chunks(self.block_bytes());
        let readable = match self.data_type {
            DataType::F64 => blocks.all(has_parameters::<f64>),
            _ => blocks.all(has_parameters::<f32>),
        };
        if readable {
            Ok(())
        } else {
            Err(KernelError::Parameters)
        }
    }

    fn block_bytes(&self) -> usize {
        self.form().cell_bytes() as usize
    }
}

/// A float that tensors are made of.
trait Float: Element<Partial: Real> {
    /// Its greatest finite number.
    const LARGEST: Self::Partial;
}

impl Float for F16 {
    const LARGEST: f32 = 65_504.0;
}

impl Float for Bf16 {
    const LARGEST: f32 = f32::from_bits(0x7F7F_0000);
}

impl Float for f32 {
    const LARGEST: Self = Self::MAX;
}

impl Float for f64 {
    const LARGEST: Self = Self::MAX;
}

/// Calls `$run::<E>($args)` with the Rust type `E` of a data type; there is no coding of others.
macro_rules! with_float {
    ($data_type:expr, $run:ident($($arg:expr),*)) => {
        match $data_type {
            DataType::F16 => $run::<F16>($($arg),*),
            DataType::BF16 => $run::<Bf16>($($arg),*),
            DataType::F64 => $run::<f64>($($arg),*),
            _ => $run::<f32>($($arg),*),
        }
    };
}

/// Quantises a contribution: `own` in elements, from the start of a block on, `out` in blocks.
pub fn encode(coding: Coding, own: &[u8], out: &mut [u8]) -> Result<(), KernelError> {
    coding.expect(elements(coding.data_type, own)?, out)?;
    with_float!(coding.data_type, encode_as(coding, own, out));
    Ok(())
}

/// `out = incoming OP own`: `own` in elements, `incoming` and `out` in blocks.
pub fn fold_quantized(
    coding: Coding,
    op: ReduceOp,
    incoming: &[u8],
    own: &[u8],
    out: &mut [u8],
) -> Result<(), KernelError> {
    let count = elements(coding.data_type, own)?;
    coding.expect(count, out)?;
    coding.expect_readable(count, incoming)?;
    let finish = None;
    with_float!(
        coding.data_type,
        fold_as(coding, op, finish, incoming, own, out)
    );
    Ok(())
}

/// The last fold and the finish in one pass; AVG divides here. What is too large for an element
/// becomes infinite, as in data that travels as it is.
pub fn fold_finish_quantized(
    coding: Coding,
    op: ReduceOp,
    contributions: u32,
    incoming: &[u8],
    own: &[u8],
    out: &mut [u8],
) -> Result<(), KernelError> {
    let count = elements(coding.data_type, own)?;
    coding.expect(count, out)?;
    coding.expect_readable(count, incoming)?;
    let finish = Some(divisor(op, contributions)?.unwrap_or(1));
    with_float!(
        coding.data_type,
        fold_as(coding, op, finish, incoming, own, out)
    );
    Ok(())
}

/// Elements of a finished result: `coded` in blocks, `out` in elements.
pub fn decode(coding: Coding, coded: &[u8], out: &mut [u8]) -> Result<(), KernelError> {
    let count = elements(coding.data_type, out)?;
    coding.expect_readable(count, coded)?;
    with_float!(coding.data_type, decode_as(coding, coded, out));
    Ok(())
}

/// Numbers of the longest block; those of `f64`, which are half as many as would fit the array,
/// use a part of it.
const LONGEST: usize = Quantization::block(DataType::F64) as usize;

fn codec<E: Float>(coding: Coding) -> Codec<E::Partial> {
    Codec::new(coding.quantization.algorithm, coding.quantization.to)
}

fn block_elements(coding: Coding) -> usize {
    Quantization::block(coding.data_type) as usize
}

fn encode_as<E: Float>(coding: Coding, own: &[u8], out: &mut [u8]) {
    let codec = codec::<E>(coding);
    let mut numbers = [E::Partial::ZERO; LONGEST];
    let own = E::chunks(own).chunks(block_elements(coding));
    for (out, own) in out.chunks_mut(coding.block_bytes()).zip(own) {
        for (number, own) in numbers.iter_mut().zip(own) {
            *number = E::load(*own).widen();
        }
        (codec.encode)(numbers.get(..own.len()).unwrap_or_default(), out);
    }
}

fn fold_as<E: Float>(
    coding: Coding,
    op: ReduceOp,
    finish: Option<u32>,
    incoming: &[u8],
    own: &[u8],
    out: &mut [u8],
) {
    let codec = codec::<E>(coding);
    let mut numbers = [E::Partial::ZERO; LONGEST];
    let own = E::chunks(own).chunks(block_elements(coding));
    let incoming = incoming.chunks(coding.block_bytes());
    for (out, (incoming, own)) in out.chunks_mut(coding.block_bytes()).zip(incoming.zip(own)) {
        let Some(numbers) = numbers.get_mut(..own.len()) else {
            return;
        };
        (codec.decode)(incoming, E::Partial::LARGEST, numbers);
        combine::<E>(op, numbers, own);
        if let Some(divisor) = finish {
            finish_as::<E>(op, divisor, numbers);
        }
        (codec.encode)(numbers, out);
    }
}

fn combine<E: Float>(op: ReduceOp, numbers: &mut [E::Partial], own: &[E::Bytes]) {
    let pairs = numbers.iter_mut().zip(own);
    match op {
        ReduceOp::Sum | ReduceOp::Avg => {
            pairs.for_each(|(number, own)| *number = number.sum(E::load(*own).widen()));
        }
        ReduceOp::Prod => {
            pairs.for_each(|(number, own)| *number = number.product(E::load(*own).widen()));
        }
        ReduceOp::Max => {
            pairs.for_each(|(number, own)| *number = number.greater(E::load(*own).widen()));
        }
        ReduceOp::Min => {
            pairs.for_each(|(number, own)| *number = number.lesser(E::load(*own).widen()));
        }
    }
}

/// Divides averages, and rounds to elements, as if the result travelled as it is.
fn finish_as<E: Float>(op: ReduceOp, contributions: u32, numbers: &mut [E::Partial]) {
    if op == ReduceOp::Avg {
        let divisor = E::Partial::divisor(contributions);
        for number in numbers.iter_mut() {
            *number = number.divide(divisor);
        }
    }
    for number in numbers {
        *number = E::narrow(*number).widen();
    }
}

fn decode_as<E: Float>(coding: Coding, coded: &[u8], out: &mut [u8]) {
    let codec = codec::<E>(coding);
    let mut numbers = [E::Partial::ZERO; LONGEST];
    let out = E::chunks_mut(out).chunks_mut(block_elements(coding));
    for (coded, out) in coded.chunks(coding.block_bytes()).zip(out) {
        let Some(numbers) = numbers.get_mut(..out.len()) else {
            return;
        };
        (codec.decode)(coded, E::LARGEST, numbers);
        for (out, number) in out.iter_mut().zip(numbers) {
            *out = E::narrow(*number).store();
        }
    }
}
