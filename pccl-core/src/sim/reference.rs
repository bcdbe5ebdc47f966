//! What an all-reduce must give, computed in one place from all contributions.
//!
//! Written apart from the plan and the engine; only the arithmetic of single elements is shared.

use crate::kernels::{self, KernelError};
use crate::types::ReduceDescriptor;

/// Result of the contributions of a ring's members, in the order of the ring.
///
/// The tensor is cut into one slice per member; slice `s` is added up along the ring from member
/// `s` on. (Rule 9)
pub(super) fn all_reduce(
    descriptor: ReduceDescriptor,
    inputs: &[&[u8]],
) -> Result<Vec<u8>, KernelError> {
    let world = inputs.len();
    let data_type = descriptor.data_type;
    let count = descriptor.count as usize;
    let mut result = vec![0; count * data_type.size()];
    let mut from = 0;
    for slice in 0..world {
        let length = count / world + usize::from(slice < count % world);
        let bytes = from * data_type.size()..(from + length) * data_type.size();
        from += length;
        let own = |hop: usize| {
            let input = inputs[(slice + hop) % world];
            input.get(bytes.clone()).unwrap_or_default()
        };
        let mut partial = vec![0; length * data_type.partial().size()];
        kernels::start(data_type, own(0), &mut partial)?;
        for hop in 1..world {
            kernels::fold_into_incoming(data_type, descriptor.op, &mut partial, own(hop))?;
        }
        let out = &mut result[bytes.clone()];
        kernels::finish(data_type, descriptor.op, world as u32, &partial, out)?;
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{DataType, ReduceOp};

    #[test]
    fn slices_are_added_up_from_their_own_member() {
        let descriptor = ReduceDescriptor {
            count: 3,
            data_type: DataType::F32,
            op: ReduceOp::Sum,
        };
        // With 2^24 the order decides whether the ones survive.
        let rows = [[16_777_216.0f32; 3], [1.0; 3], [1.0; 3]];
        let bytes: Vec<&[u8]> = rows.iter().map(|r| bytemuck::cast_slice(r)).collect();
        let result = all_reduce(descriptor, &bytes).unwrap();
        let sums: &[f32] = &result
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect::<Vec<_>>();
        assert_eq!(sums, [16_777_216.0, 16_777_218.0, 16_777_216.0]);
    }
}
