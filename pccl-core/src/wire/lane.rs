//! What travels between members: the opening of a connection, and data frames.
//!
//! A data frame is a fixed header of [`HEADER_BYTES`] bytes, little-endian, and a payload of
//! `length` bytes. On lanes without TLS the header carries a CRC32 of itself (with the field
//! zero) and the payload. (Rule 11)

use serde::{Deserialize, Serialize};

use super::control::OpName;
use crate::ids::{Digest, Epoch, MemberId, RunId, Serial, Token};

/// Size of a data frame's header.
pub const HEADER_BYTES: usize = 48;

/// Most bytes of one data frame's payload: what a receiver must have room for per lane.
pub const PAYLOAD_LIMIT: u32 = 4 * 1024 * 1024;

/// Most bytes of an [`OpenFrame`]; it has some sixty.
pub const OPEN_LIMIT: u32 = 512;

/// First words on a connection between members.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerHello {
    /// The run.
    pub run: RunId,
    /// Who dials.
    pub from: MemberId,
    /// Whom it means to reach: somebody else may have its address by now.
    pub to: MemberId,
    /// Proves `from`.
    pub token: Token,
    /// What the connection is for.
    pub purpose: Purpose,
}

/// What a connection between members is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Purpose {
    /// Data of operations.
    Lane {
        /// Connections per edge that the dialler wants; the larger of both ends' wishes holds.
        wanted: u16,
    },
    /// Chunks of the shared state.
    State,
}

/// Answer to a [`PeerHello`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerReply {
    /// Welcome.
    Welcome {
        /// Proves the one that was dialled.
        token: Token,
        /// Connections per edge that it wants.
        wanted: u16,
    },
    /// Turned down, with the reason.
    Refused {
        /// Why.
        reason: PeerRefusal,
    },
}

/// Why a member turned a connection down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PeerRefusal {
    /// Another run, or another member, lives here.
    NotMe,
    /// The dialler is not in the group, as far as this member knows.
    Unknown,
    /// Enough connections on this edge, or in all.
    TooMany,
    /// No synchronisation is open that the dialler may read from.
    NoSync,
}

/// What a data frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// The sender has opened a use of a key; the payload is an [`OpenFrame`].
    Open = 1,
    /// Part of a slice: contributions so far, in the partial type.
    Partial = 2,
    /// Part of a finished slice, in the element type.
    Result = 3,
    /// Room at the receiver: partials of `slice` may be sent up to `offset`, counted in bytes of
    /// the partial type from the slice's start. Only grows.
    Grant = 4,
    /// Early frames that came on this lane have been taken or dropped: gives `offset` bytes
    /// (headers counted) of the edge's standing credit back.
    Credit = 5,
    /// The sender closes the lane in good order. Nothing is lost.
    Bye = 6,
    /// The sender lives, but has had nothing to send on this lane for a heartbeat interval while
    /// an operation is open on the edge. (Rule 17)
    Alive = 7,
}

impl FrameKind {
    /// Kind of a byte, if it is one.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Open,
            2 => Self::Partial,
            3 => Self::Result,
            4 => Self::Grant,
            5 => Self::Credit,
            6 => Self::Bye,
            7 => Self::Alive,
            _ => return None,
        })
    }
}

/// Header of a data frame.
///
/// Layout (bytes): kind 0, flags 1 (zero), reserved 2..4 (zero), length 4..8, from 8..16,
/// to 16..24, offset 24..32, slice 32..36, crc 36..40, reserved 40..48 (zero).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataHeader {
    /// What the frame is.
    pub kind: FrameKind,
    /// Bytes of payload.
    pub length: u32,
    /// Serial of the operation at the sender, as announced by its OPEN on the same edge.
    pub from: u64,
    /// Serial of the operation at the receiver, learned from its OPEN; zero while unknown. Early
    /// frames (to zero) travel on the lane of the OPEN, behind it.
    pub to: u64,
    /// Where the payload belongs: byte offset in the tensor, counted in the *element* type for
    /// results, and in the *partial* type for partials.
    pub offset: u64,
    /// Which slice (rank of the member where it starts) the payload belongs to.
    pub slice: u32,
    /// CRC32 of header (this field zero) and payload; zero where the lane protects itself.
    pub crc: u32,
}

/// Payload of an [`FrameKind::Open`] frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenFrame {
    /// Which use.
    pub op: OpName,
    /// Epoch of the group that its plan is made from.
    pub epoch: Epoch,
    /// Last verdict that the sender had when it opened the use.
    pub quoted: Serial,
    /// Digest of the descriptor; a difference is reported to the master by both ends.
    pub descriptor: Digest,
    /// How far partials of any one slice may be sent at once, as in a [`FrameKind::Grant`]. Does
    /// not bind the slice that the sender of this frame finishes: its partials need no room.
    pub grant: u64,
}
