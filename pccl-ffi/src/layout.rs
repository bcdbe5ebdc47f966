//! The structures of `include/pccl.h`, field for field.
//!
//! Enumerations are plain numbers here: a C program can hand over any value, and a Rust `enum` must
//! not hold one that it does not name. The sizes and offsets of PCCL 1.0 are asserted below for
//! 64-bit targets; `tests/c/layout.c` asserts the same of the header.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{align_of, offset_of, size_of};

/// A C enumeration: four bytes, any value.
pub type Enum = c_int;

/// `ccoip_ipv4_address_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Ipv4Address {
    /// Octets in network order.
    pub data: [u8; 4],
}

/// `ccoip_ipv6_address_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Ipv6Address {
    /// Octets in network order.
    pub data: [u8; 16],
}

/// `ccoip_inet_address_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InetAddress {
    /// 0 for IPv4, 1 for IPv6.
    pub protocol: Enum,
    /// Counts for IPv4.
    pub ipv4: Ipv4Address,
    /// Counts for IPv6.
    pub ipv6: Ipv6Address,
}

/// `ccoip_socket_address_t`; passed by value to `pcclCreateMaster`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SocketAddress {
    /// Address.
    pub inet: InetAddress,
    /// Port in host order.
    pub port: u16,
}

/// `pcclCommCreateParams_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommCreateParams {
    /// Where the master is.
    pub master_address: SocketAddress,
    /// Group to join.
    pub peer_group: u32,
    /// Connections per neighbour; zero chooses.
    pub p2p_connection_pool_size: u32,
}

/// `pcclReduceInfo_t`.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct ReduceInfo {
    /// Members that contributed.
    pub local_world_size: u32,
    /// Bytes of data sent.
    pub tx_bytes: u64,
    /// Bytes of data received.
    pub rx_bytes: u64,
}

/// `pcclReduceOperandDescriptor_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OperandDescriptor {
    /// Element type.
    pub datatype: Enum,
    /// Without effect.
    pub distribution_hint: Enum,
}

/// `pcclQuantizationOptions_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QuantizationOptions {
    /// Element type on the wire.
    pub quantized_datatype: Enum,
    /// How elements become that type.
    pub algorithm: Enum,
}

/// `pcclReduceDescriptor_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReduceDescriptor {
    /// Elements.
    pub count: usize,
    /// Operator.
    pub op: Enum,
    /// Name of the operation.
    pub tag: u64,
    /// What the elements are.
    pub src_descriptor: OperandDescriptor,
    /// How they travel.
    pub quantization_options: QuantizationOptions,
}

/// `pcclReduceOpDescriptor_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReduceOpDescriptor {
    /// Contribution.
    pub sendbuf: *mut c_void,
    /// Place of the result.
    pub recvbuf: *mut c_void,
    /// The operation.
    pub descriptor: ReduceDescriptor,
}

/// `pcclComm_t`: what C programs hold pointers to. The pointers are names (see [`crate::registry`]); there
/// is nothing behind them.
#[derive(Debug)]
#[repr(C)]
pub struct CommHandle {
    _opaque: [u8; 0],
}

/// `pcclMasterInstance_t`; as [`CommHandle`].
#[derive(Debug)]
#[repr(C)]
pub struct MasterHandle {
    _opaque: [u8; 0],
}

/// `pcclAsyncReduceOp_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AsyncReduceOp {
    /// The communicator that launched it.
    pub comm: *mut CommHandle,
    /// The operation's name.
    pub tag: u64,
}

/// `pcclTensorInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TensorInfo {
    /// Name, by which members' tensors are matched.
    pub name: *const c_char,
    /// Content.
    pub data: *mut c_void,
    /// Elements.
    pub count: usize,
    /// Element type.
    pub datatype: Enum,
    /// Where the content is.
    pub device_type: Enum,
    /// A C `bool`: a byte, since a program may have left anything in it.
    pub allow_content_inequality: u8,
}

/// `pcclSharedState_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SharedState {
    /// Revision; set on success.
    pub revision: u64,
    /// Tensors.
    pub count: usize,
    /// The first of them.
    pub infos: *mut TensorInfo,
}

/// `pcclSharedStateSyncInfo_t`.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct SyncInfo {
    /// Bytes of content sent.
    pub tx_bytes: u64,
    /// Bytes of content received.
    pub rx_bytes: u64,
}

/// `pcclSyncProgress_t`.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct SyncProgress {
    /// Bytes to fetch.
    pub total_bytes: u64,
    /// Bytes fetched.
    pub fetched_bytes: u64,
    /// Time since it is known what to fetch.
    pub elapsed_ms: u64,
    /// On average.
    pub bytes_per_second: u64,
    /// Time that the rest takes; the largest number if that is not known.
    pub left_ms: u64,
}

/// `pcclSyncSource_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SyncSource {
    /// Who gave.
    pub member: u64,
    /// How much.
    pub bytes: u64,
}

/// `pcclDivergence_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Divergence {
    /// Name of the tensor, cut to fit, ending with a zero.
    pub tensor: [u8; TEXT],
    /// First byte that differed.
    pub begin: u64,
    /// Byte behind the last that differed.
    pub end: u64,
    /// Revision at which all had the same.
    pub since: u64,
    /// One of those that had the elected content.
    pub holder: u64,
    /// How many they were.
    pub holders: u64,
    /// Whether `since` is known.
    pub has_since: bool,
}

/// `pcclBuildInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BuildInfo {
    /// Whether shared state may lie in CUDA memory.
    pub has_cuda_support: bool,
}

/// `pcclCommConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CommConfig {
    /// Size that the program was compiled with.
    pub struct_size: usize,
    /// Where the master is, as text.
    pub master: *const c_char,
    /// What operators call the peer.
    pub name: *const c_char,
    /// Where to listen.
    pub listen: *const c_char,
    /// What to tell others.
    pub announce: *const c_char,
    /// Group to join.
    pub peer_group: u32,
    /// Connections per neighbour.
    pub pool_size: u32,
    /// Bytes of a data frame.
    pub segment_bytes: u32,
    /// Zero.
    pub reserved: u32,
    /// Limit of every call.
    pub time_limit_ms: u64,
}

/// `pcclMemberInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MemberInfo {
    /// Number in the run.
    pub id: u64,
    /// Name, cut to fit, ending with a zero.
    pub name: [u8; TEXT],
    /// First address, ending with a zero.
    pub address: [u8; TEXT],
}

/// `pcclBuffer_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Buffer {
    /// Memory.
    pub data: *mut c_void,
    /// Where it is.
    pub device_type: Enum,
    /// On which of them.
    pub device_index: i32,
    /// In whose order.
    pub stream: *mut c_void,
}

/// `pcclReduceCall_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReduceCall {
    /// Size that the program was compiled with.
    pub struct_size: usize,
    /// Contribution.
    pub send: Buffer,
    /// Place of the result.
    pub recv: Buffer,
    /// The operation.
    pub descriptor: ReduceDescriptor,
    /// Its limit; zero takes the communicator's.
    pub time_limit_ms: u64,
    /// By which algorithm; zero leaves that to the library.
    pub algorithm: u32,
    /// Zero.
    pub reserved: u32,
}

/// `pcclMasterConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MasterConfig {
    /// Size that the program was compiled with.
    pub struct_size: usize,
    /// Where to listen, as text.
    pub listen: *const c_char,
    /// Silence after which a peer is lost.
    pub peer_timeout_ms: u64,
}

/// `pcclLogCallback_t`, or none.
pub type LogCallback = Option<unsafe extern "C" fn(Enum, *const c_char, *mut c_void)>;

/// Bytes of a text in a structure.
pub(crate) const TEXT: usize = 64;

macro_rules! layout {
    ($($name:ident: $size:literal / $align:literal { $($field:ident @ $offset:literal),* $(,)? })*) => {
        #[cfg(target_pointer_width = "64")]
        const _: () = {
            $(
                assert!(size_of::<$name>() == $size);
                assert!(align_of::<$name>() == $align);
                $(assert!(offset_of!($name, $field) == $offset);)*
            )*
        };
    };
}

layout! {
    Ipv4Address: 4 / 1 { data @ 0 }
    Ipv6Address: 16 / 1 { data @ 0 }
    InetAddress: 24 / 4 { protocol @ 0, ipv4 @ 4, ipv6 @ 8 }
    SocketAddress: 28 / 4 { inet @ 0, port @ 24 }
    CommCreateParams: 36 / 4 { master_address @ 0, peer_group @ 28, p2p_connection_pool_size @ 32 }
    ReduceInfo: 24 / 8 { local_world_size @ 0, tx_bytes @ 8, rx_bytes @ 16 }
    OperandDescriptor: 8 / 4 { datatype @ 0, distribution_hint @ 4 }
    QuantizationOptions: 8 / 4 { quantized_datatype @ 0, algorithm @ 4 }
    ReduceDescriptor: 40 / 8 {
        count @ 0, op @ 8, tag @ 16, src_descriptor @ 24, quantization_options @ 32,
    }
    ReduceOpDescriptor: 56 / 8 { sendbuf @ 0, recvbuf @ 8, descriptor @ 16 }
    AsyncReduceOp: 16 / 8 { comm @ 0, tag @ 8 }
    TensorInfo: 40 / 8 {
        name @ 0, data @ 8, count @ 16, datatype @ 24, device_type @ 28, allow_content_inequality @ 32,
    }
    SharedState: 24 / 8 { revision @ 0, count @ 8, infos @ 16 }
    SyncInfo: 16 / 8 { tx_bytes @ 0, rx_bytes @ 8 }
    SyncProgress: 40 / 8 {
        total_bytes @ 0, fetched_bytes @ 8, elapsed_ms @ 16, bytes_per_second @ 24, left_ms @ 32,
    }
    SyncSource: 16 / 8 { member @ 0, bytes @ 8 }
    Divergence: 112 / 8 {
        tensor @ 0, begin @ 64, end @ 72, since @ 80, holder @ 88, holders @ 96, has_since @ 104,
    }
    BuildInfo: 1 / 1 { has_cuda_support @ 0 }
    CommConfig: 64 / 8 {
        struct_size @ 0, master @ 8, name @ 16, listen @ 24, announce @ 32, peer_group @ 40,
        pool_size @ 44, segment_bytes @ 48, reserved @ 52, time_limit_ms @ 56,
    }
    MemberInfo: 136 / 8 { id @ 0, name @ 8, address @ 72 }
    Buffer: 24 / 8 { data @ 0, device_type @ 8, device_index @ 12, stream @ 16 }
    ReduceCall: 112 / 8 {
        struct_size @ 0, send @ 8, recv @ 32, descriptor @ 56, time_limit_ms @ 96, algorithm @ 104,
        reserved @ 108,
    }
    MasterConfig: 24 / 8 { struct_size @ 0, listen @ 8, peer_timeout_ms @ 16 }
}
