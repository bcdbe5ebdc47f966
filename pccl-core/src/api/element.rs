//! Element types that the library computes with.

use half::{bf16, f16};

use crate::types::DataType;

/// An element of a tensor: the ten integer and floating point types of Rust that have 8 to 64
/// bits, and the two 16-bit floats of the crate `half`. Sealed: the kernels know these and no
/// others.
pub trait Element: sealed::Sealed + bytemuck::Pod + Default + Send + Sync {
    /// How the type is called on the wire.
    const DATA_TYPE: DataType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $data_type:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DATA_TYPE: DataType = DataType::$data_type;
            }
            const _: () = assert!(size_of::<$rust>() == DataType::$data_type.size());
        )*
    };
}

elements! {
    u8 => U8,
    i8 => I8,
    u16 => U16,
    i16 => I16,
    u32 => U32,
    i32 => I32,
    u64 => U64,
    i64 => I64,
    f16 => F16,
    bf16 => BF16,
    f32 => F32,
    f64 => F64,
}
