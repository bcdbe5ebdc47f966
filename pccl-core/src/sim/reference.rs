//! What an all-reduce must give, computed in one place from all contributions.
//!
//! Written apart from the plan and the engine; only the arithmetic of single elements is shared.

use crate::kernels::{self, Coding, KernelError};
use crate::types::{ReduceDescriptor, ReduceOp};

/// How contributions get to where they are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Along the ring, each to the next.
    Around,
    /// Straight to the owner of a slice.
    Straight,
    /// All to the member of this rank.
    Through(usize),
}

/// Result of the contributions of a group's members, in the order of the ring.
///
/// The tensor is cut into one slice per member; slice `s` is added up in the order of the ring from
/// member `s` on. What goes through a hub is one slice, and the hub is its first member. (Rule 9)
pub(super) fn all_reduce(
    descriptor: ReduceDescriptor,
    way: Way,
    inputs: &[&[u8]],
) -> Result<Vec<u8>, KernelError> {
    let world = inputs.len();
    let (slices, first) = match way {
        Way::Through(hub) if world > 1 => (1, hub % world),
        _ => (world, 0),
    };
    let data_type = descriptor.data_type;
    let count = descriptor.count as usize;
    let mut result = vec![0; count * data_type.size()];
    let mut from = 0;
    for slice in 0..slices {
        let length = count / slices + usize::from(slice < count % slices);
        let bytes = from * data_type.size()..(from + length) * data_type.size();
        from += length;
        let own = |hop: usize| {
            let input = inputs[(first + slice + hop) % world];
            input.get(bytes.clone()).unwrap_or_default()
        };
        let out = bytes.clone();
        if let Some(coding) = Coding::of(&descriptor) {
            match way {
                Way::Around => quantized(coding, descriptor.op, world, own, &mut result[out])?,
                _ => straight(coding, descriptor.op, world, own, &mut result[out])?,
            }
            continue;
        }
        let mut partial = vec![0; length * data_type.partial().size()];
        kernels::start(data_type, own(0), &mut partial)?;
        for hop in 1..world {
            kernels::fold_into_incoming(data_type, descriptor.op, &mut partial, own(hop))?;
        }
        let out = &mut result[out];
        kernels::finish(data_type, descriptor.op, world as u32, &partial, out)?;
    }
    Ok(result)
}

/// One slice of data that travels quantised: quantised anew at every hop, and once more at the end.
fn quantized<'a>(
    coding: Coding,
    op: ReduceOp,
    world: usize,
    own: impl Fn(usize) -> &'a [u8],
    out: &mut [u8],
) -> Result<(), KernelError> {
    if world == 1 {
        out.copy_from_slice(own(0));
        return Ok(());
    }
    let elements = out.len() / coding.data_type().size();
    let mut coded = vec![0; coding.form().bytes(elements as u64) as usize];
    kernels::encode(coding, own(0), &mut coded)?;
    for hop in 1..world {
        let incoming = coded.clone();
        if hop + 1 < world {
            kernels::fold_quantized(coding, op, &incoming, own(hop), &mut coded)?;
        } else {
            let world = world as u32;
            kernels::fold_finish_quantized(coding, op, world, &incoming, own(hop), &mut coded)?;
        }
    }
    kernels::decode(coding, &coded, out)
}

/// One slice of data that travels quantised to its owner, which does not quantise its own.
fn straight<'a>(
    coding: Coding,
    op: ReduceOp,
    world: usize,
    own: impl Fn(usize) -> &'a [u8],
    out: &mut [u8],
) -> Result<(), KernelError> {
    if world == 1 {
        out.copy_from_slice(own(0));
        return Ok(());
    }
    let data_type = coding.data_type();
    let elements = out.len() / data_type.size();
    let mut coded = vec![0; coding.form().bytes(elements as u64) as usize];
    let mut sum = vec![0; elements * data_type.partial().size()];
    kernels::start(data_type, own(0), &mut sum)?;
    for hop in 1..world {
        let mut incoming = vec![0; sum.len()];
        kernels::encode(coding, own(hop), &mut coded)?;
        kernels::decode(coding.widened(), &coded, &mut incoming)?;
        kernels::fold_into_incoming(data_type.partial(), op, &mut sum, &incoming)?;
    }
    kernels::finish(data_type, op, world as u32, &sum, out)?;
    kernels::encode(coding, out, &mut coded)?;
    kernels::decode(coding, &coded, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DataType;

    #[test]
    fn slices_are_added_up_from_their_own_member() {
        let descriptor = ReduceDescriptor {
            count: 3,
            data_type: DataType::F32,
            op: ReduceOp::Sum,
            quantization: None,
            algorithm: None,
        };
        // With 2^24 the order decides whether the ones survive.
        let rows = [[16_777_216.0f32; 3], [1.0; 3], [1.0; 3]];
        let bytes: Vec<&[u8]> = rows.iter().map(|r| bytemuck::cast_slice(r)).collect();
        let result = all_reduce(descriptor, Way::Around, &bytes).unwrap();
        let sums: &[f32] = &result
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect::<Vec<_>>();
        assert_eq!(sums, [16_777_216.0, 16_777_218.0, 16_777_216.0]);
        assert_eq!(all_reduce(descriptor, Way::Straight, &bytes), Ok(result));
        let through = all_reduce(descriptor, Way::Through(1), &bytes).unwrap();
        let last: &[f32; 3] = &[16_777_218.0; 3];
        assert_eq!(through, bytemuck::cast_slice::<f32, u8>(last));
    }
}
