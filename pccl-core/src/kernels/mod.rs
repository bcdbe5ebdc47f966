//! Arithmetic of reductions on bytes: which bits come out is decided here and nowhere else.
//!
//! A contribution starts in the element type. On its way it is a *partial* in
//! [`DataType::partial`] (16-bit floats travel as `f32`, all others as they are), and the owner of
//! a slice turns the last partial into elements again. (Rule 9)
//!
//! - [`start`] turns a contribution into a partial.
//! - [`fold`] and [`fold_into_incoming`] compute `incoming OP own` as a partial.
//! - [`finish`] turns the partial of all contributions into elements; AVG divides here.
//! - [`fold_finish`] and [`fold_finish_in_place`] do the last fold and the finish in one pass.
//!
//! Floats can travel quantised instead, on a [`Coding`]; then [`encode`], [`fold_quantized`],
//! [`fold_finish_quantized`] and [`decode`] take the places of these.
//!
//! What every processor must agree on:
//!
//! - `incoming` is the left operand, `own` the right one. With the rules below no operator can
//!   tell them apart, so only the *grouping* of a sum matters, and the plan fixes that.
//! - Integers wrap in the element type; AVG divides the wrapped sum, truncating to zero.
//! - Every operation on floats is a single IEEE 754 one, rounded to nearest even: no fused
//!   multiply-add, no extended precision. 16-bit floats are rounded once, at the finish.
//! - Processors differ in sign and payload of a NaN, so every NaN that results is replaced by the
//!   one canonical quiet NaN of its type. MAX and MIN of anything with a NaN are that NaN.
//! - For MAX and MIN, -0 is less than +0.
//!
//! Threads that call these functions must have the default floating point environment: a thread
//! that flushes denormals to zero computes other sums than its peers.
//!
//! Slices may start at any address. All functions take equally many elements in every slice and
//! refuse anything else before they write a byte.

mod codec;
mod form;
mod half;
mod number;
mod quantized;
#[cfg(test)]
mod tests;

use crate::types::{DataType, ReduceOp};
use half::{Bf16, F16};
use number::{Arithmetic, Element, Number};

pub use form::Form;
pub use quantized::{Coding, decode, encode, fold_finish_quantized, fold_quantized};

/// Why a kernel did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KernelError {
    /// The slices do not hold the same whole number of elements.
    #[error("slices of {data_type:?} differ in length, or end within an element")]
    Length {
        /// Element type of the call.
        data_type: DataType,
    },
    /// AVG over no contributions.
    #[error("an average of no contributions")]
    NoContributions,
    /// A block of quantised data has parameters that are not finite.
    #[error("a block of quantised data has impossible parameters")]
    Parameters,
    /// The partial type is wider than the element type, so that partials need their own memory.
    #[error("partials of {data_type:?} do not fit in place")]
    NotInPlace {
        /// Element type of the call.
        data_type: DataType,
    },
}

/// Whether the partial of all contributions still differs from the elements of the result.
///
/// Where it does not, [`finish`] is a copy, and a last [`fold`] may write to the result.
pub const fn needs_finish(data_type: DataType, op: ReduceOp) -> bool {
    matches!(op, ReduceOp::Avg) || data_type.size() != data_type.partial().size()
}

/// Calls `$run::<E>($args)` with the Rust type `E` of a data type.
macro_rules! with_element {
    ($data_type:expr, $run:ident($($arg:expr),*)) => {
        match $data_type {
            DataType::U8 => $run::<u8>($($arg),*),
            DataType::I8 => $run::<i8>($($arg),*),
            DataType::I16 => $run::<i16>($($arg),*),
            DataType::U16 => $run::<u16>($($arg),*),
            DataType::U32 => $run::<u32>($($arg),*),
            DataType::I32 => $run::<i32>($($arg),*),
            DataType::U64 => $run::<u64>($($arg),*),
            DataType::I64 => $run::<i64>($($arg),*),
            DataType::F16 => $run::<F16>($($arg),*),
            DataType::BF16 => $run::<Bf16>($($arg),*),
            DataType::F32 => $run::<f32>($($arg),*),
            DataType::F64 => $run::<f64>($($arg),*),
        }
    };
}

/// Turns a contribution into a partial: `own` in elements, `out` in partials.
pub fn start(data_type: DataType, own: &[u8], out: &mut [u8]) -> Result<(), KernelError> {
    let count = elements(data_type, own)?;
    expect_partials(data_type, count, out)?;
    with_element!(data_type, start_as(own, out));
    Ok(())
}

/// `out = incoming OP own`: `own` in elements, `incoming` and `out` in partials.
pub fn fold(
    data_type: DataType,
    op: ReduceOp,
    incoming: &[u8],
    own: &[u8],
    out: &mut [u8],
) -> Result<(), KernelError> {
    let count = elements(data_type, own)?;
    expect_partials(data_type, count, incoming)?;
    expect_partials(data_type, count, out)?;
    with_element!(data_type, fold_as(op, incoming, own, out));
    Ok(())
}

/// `incoming = incoming OP own`: `own` in elements, `incoming` in partials.
pub fn fold_into_incoming(
    data_type: DataType,
    op: ReduceOp,
    incoming: &mut [u8],
    own: &[u8],
) -> Result<(), KernelError> {
    let count = elements(data_type, own)?;
    expect_partials(data_type, count, incoming)?;
    with_element!(data_type, fold_into_incoming_as(op, incoming, own));
    Ok(())
}

/// Turns the partial of all `contributions` into elements: `partial` in partials, `out` in
/// elements.
pub fn finish(
    data_type: DataType,
    op: ReduceOp,
    contributions: u32,
    partial: &[u8],
    out: &mut [u8],
) -> Result<(), KernelError> {
    let count = elements(data_type, out)?;
    expect_partials(data_type, count, partial)?;
    let divisor = divisor(op, contributions)?;
    with_element!(data_type, finish_as(divisor, partial, out));
    Ok(())
}

/// [`finish`] where partials are elements: `partial` becomes the result.
///
/// Fails for the 16-bit floats, whose partials are wider than the result.
pub fn finish_in_place(
    data_type: DataType,
    op: ReduceOp,
    contributions: u32,
    partial: &mut [u8],
) -> Result<(), KernelError> {
    elements(data_type, partial)?;
    if data_type.size() != data_type.partial().size() {
        return Err(KernelError::NotInPlace { data_type });
    }
    if let Some(divisor) = divisor(op, contributions)? {
        with_element!(data_type, divide_in_place_as(divisor, partial));
    }
    Ok(())
}

/// The last fold and the finish in one pass: `incoming` in partials, `own` and `out` in elements.
pub fn fold_finish(
    data_type: DataType,
    op: ReduceOp,
    contributions: u32,
    incoming: &[u8],
    own: &[u8],
    out: &mut [u8],
) -> Result<(), KernelError> {
    let count = elements(data_type, own)?;
    expect_partials(data_type, count, incoming)?;
    if out.len() != own.len() {
        return Err(KernelError::Length { data_type });
    }
    let divisor = divisor(op, contributions)?;
    with_element!(data_type, fold_finish_as(op, divisor, incoming, own, out));
    Ok(())
}

/// [`fold_finish`] where the result replaces the contribution: `own` in elements, before and
/// after.
pub fn fold_finish_in_place(
    data_type: DataType,
    op: ReduceOp,
    contributions: u32,
    incoming: &[u8],
    own: &mut [u8],
) -> Result<(), KernelError> {
    let count = elements(data_type, own)?;
    expect_partials(data_type, count, incoming)?;
    let divisor = divisor(op, contributions)?;
    with_element!(
        data_type,
        fold_finish_in_place_as(op, divisor, incoming, own)
    );
    Ok(())
}

/// Number of elements in a slice of them.
fn elements(data_type: DataType, bytes: &[u8]) -> Result<usize, KernelError> {
    if bytes.len().is_multiple_of(data_type.size()) {
        Ok(bytes.len() / data_type.size())
    } else {
        Err(KernelError::Length { data_type })
    }
}

fn expect_partials(data_type: DataType, count: usize, bytes: &[u8]) -> Result<(), KernelError> {
    if count.checked_mul(data_type.partial().size()) == Some(bytes.len()) {
        Ok(())
    } else {
        Err(KernelError::Length { data_type })
    }
}

/// What to divide by at the finish, if at all.
fn divisor(op: ReduceOp, contributions: u32) -> Result<Option<u32>, KernelError> {
    match (op, contributions) {
        (ReduceOp::Avg, 0) => Err(KernelError::NoContributions),
        (ReduceOp::Avg, n) => Ok(Some(n)),
        _ => Ok(None),
    }
}

/// Calls `$run($args, f)` with the function `f` of an operator on partials.
macro_rules! with_operator {
    ($op:expr, $partial:ty, $run:ident::<$element:ty>($($arg:expr),*)) => {
        match $op {
            ReduceOp::Sum | ReduceOp::Avg => $run::<$element>($($arg),*, <$partial>::sum),
            ReduceOp::Prod => $run::<$element>($($arg),*, <$partial>::product),
            ReduceOp::Max => $run::<$element>($($arg),*, <$partial>::greater),
            ReduceOp::Min => $run::<$element>($($arg),*, <$partial>::lesser),
        }
    };
}

fn start_as<E: Element>(own: &[u8], out: &mut [u8]) {
    for (out, own) in E::Partial::chunks_mut(out).iter_mut().zip(E::chunks(own)) {
        *out = E::load(*own).widen().store();
    }
}

fn fold_as<E: Element>(op: ReduceOp, incoming: &[u8], own: &[u8], out: &mut [u8]) {
    with_operator!(op, E::Partial, fold_with::<E>(incoming, own, out));
}

fn fold_with<E: Element>(
    incoming: &[u8],
    own: &[u8],
    out: &mut [u8],
    combine: impl Fn(E::Partial, E::Partial) -> E::Partial,
) {
    let operands = E::Partial::chunks(incoming).iter().zip(E::chunks(own));
    for (out, (incoming, own)) in E::Partial::chunks_mut(out).iter_mut().zip(operands) {
        *out = combine(E::Partial::load(*incoming), E::load(*own).widen()).store();
    }
}

fn fold_into_incoming_as<E: Element>(op: ReduceOp, incoming: &mut [u8], own: &[u8]) {
    with_operator!(op, E::Partial, fold_into_incoming_with::<E>(incoming, own));
}

fn fold_into_incoming_with<E: Element>(
    incoming: &mut [u8],
    own: &[u8],
    combine: impl Fn(E::Partial, E::Partial) -> E::Partial,
) {
    for (incoming, own) in E::Partial::chunks_mut(incoming)
        .iter_mut()
        .zip(E::chunks(own))
    {
        *incoming = combine(E::Partial::load(*incoming), E::load(*own).widen()).store();
    }
}

fn finish_as<E: Element>(divisor: Option<u32>, partial: &[u8], out: &mut [u8]) {
    let pairs = E::chunks_mut(out)
        .iter_mut()
        .zip(E::Partial::chunks(partial));
    match divisor.map(E::Partial::divisor) {
        None => pairs.for_each(|(out, partial)| {
            *out = E::narrow(E::Partial::load(*partial)).store();
        }),
        Some(divisor) => pairs.for_each(|(out, partial)| {
            *out = E::narrow(E::Partial::load(*partial).divide(divisor)).store();
        }),
    }
}

fn divide_in_place_as<E: Element>(divisor: u32, partial: &mut [u8]) {
    let divisor = E::Partial::divisor(divisor);
    for value in E::Partial::chunks_mut(partial) {
        *value = E::Partial::load(*value).divide(divisor).store();
    }
}

fn fold_finish_as<E: Element>(
    op: ReduceOp,
    divisor: Option<u32>,
    incoming: &[u8],
    own: &[u8],
    out: &mut [u8],
) {
    match divisor.map(E::Partial::divisor) {
        None => with_operator!(op, E::Partial, fold_finish_with::<E>(incoming, own, out)),
        Some(divisor) => fold_finish_with::<E>(incoming, own, out, |incoming, own| {
            incoming.sum(own).divide(divisor)
        }),
    }
}

fn fold_finish_with<E: Element>(
    incoming: &[u8],
    own: &[u8],
    out: &mut [u8],
    combine: impl Fn(E::Partial, E::Partial) -> E::Partial,
) {
    let operands = E::Partial::chunks(incoming).iter().zip(E::chunks(own));
    for (out, (incoming, own)) in E::chunks_mut(out).iter_mut().zip(operands) {
        let partial = combine(E::Partial::load(*incoming), E::load(*own).widen());
        *out = E::narrow(partial).store();
    }
}

fn fold_finish_in_place_as<E: Element>(
    op: ReduceOp,
    divisor: Option<u32>,
    incoming: &[u8],
    own: &mut [u8],
) {
    match divisor.map(E::Partial::divisor) {
        None => with_operator!(
            op,
            E::Partial,
            fold_finish_in_place_with::<E>(incoming, own)
        ),
        Some(divisor) => fold_finish_in_place_with::<E>(incoming, own, |incoming, own| {
            incoming.sum(own).divide(divisor)
        }),
    }
}

fn fold_finish_in_place_with<E: Element>(
    incoming: &[u8],
    own: &mut [u8],
    combine: impl Fn(E::Partial, E::Partial) -> E::Partial,
) {
    for (own, incoming) in E::chunks_mut(own)
        .iter_mut()
        .zip(E::Partial::chunks(incoming))
    {
        let partial = combine(E::Partial::load(*incoming), E::load(*own).widen());
        *own = E::narrow(partial).store();
    }
}
