//! What travels between members: the opening of a connection, and data frames.
//!
//! A data frame is a fixed header of [`HEADER_BYTES`] bytes, little-endian, and a payload of
//! `length` bytes. On lanes without TLS the header carries a CRC32 of itself (with the field
//! zero) and the payload. (Rule 11) The header has a checksum of its own besides: a receiver that
//! believed a harmed length would wait for a payload that nobody sends.

use crc32fast::Hasher;
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
    /// How long the connection took to open, in microseconds: the dialler's measure of the path,
    /// by which both ends choose how to use it.
    pub round_trip: u32,
}

/// What a connection between members is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Purpose {
    /// Data of operations.
    Lane {
        /// Connections per edge that the dialler wants; the larger of both ends' wishes holds. Zero:
        /// as many as the path can use.
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
        /// Connections per edge that it wants; zero as in [`Purpose::Lane`].
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
    /// Part of a slice: contributions so far, in the partial type, or quantised.
    Partial = 2,
    /// Part of a finished slice, in the element type, or quantised.
    Result = 3,
    /// Room at the receiver: partials of `slice` may be sent up to `offset`, counted in bytes on
    /// the wire from the slice's start. Only grows.
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

    /// Most bytes of payload that a frame of this kind may have.
    pub fn payload_limit(self) -> u32 {
        match self {
            Self::Open => OPEN_LIMIT,
            Self::Partial | Self::Result => PAYLOAD_LIMIT,
            Self::Grant | Self::Credit | Self::Bye | Self::Alive => 0,
        }
    }
}

/// Header of a data frame.
///
/// Layout (bytes): kind 0, flags 1 (zero), reserved 2..4 (zero), length 4..8, from 8..16,
/// to 16..24, offset 24..32, slice 32..36, crc 36..40, CRC32 of all that 40..44, reserved 44..48
/// (zero).
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
    /// results, and in the *partial* type for partials. Of quantised data, which comes in whole
    /// blocks: byte offset in the quantised slice.
    pub offset: u64,
    /// Which slice (rank of the member where it starts) the payload belongs to.
    pub slice: u32,
    /// CRC32 of header (this field zero) and payload; zero where the lane protects itself.
    pub crc: u32,
}

impl DataHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            if let Some(to) = bytes.get_mut(at..at + field.len()) {
                to.copy_from_slice(field);
            }
            at += field.len();
        };
        put(&[self.kind as u8, 0, 0, 0]);
        put(&self.length.to_le_bytes());
        put(&self.from.to_le_bytes());
        put(&self.to.to_le_bytes());
        put(&self.offset.to_le_bytes());
        put(&self.slice.to_le_bytes());
        put(&self.crc.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// The header in bytes, if they are one: the checksum fits, a known kind, nothing in the
    /// reserved fields, and no longer a payload than the kind may have.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, DataFrameError> {
        if u32_at(bytes, SEALED_BYTES) != seal_of(bytes) {
            return Err(DataFrameError::Checksum);
        }
        let [kind, reserved @ .., _, _, _, _] = u64_at(bytes, 0).to_le_bytes();
        let kind = FrameKind::from_byte(kind).ok_or(DataFrameError::Kind(kind))?;
        if reserved != [0; 3] || u32_at(bytes, 44) != 0 {
            return Err(DataFrameError::Reserved);
        }
        let header = Self {
            kind,
            length: u32_at(bytes, 4),
            from: u64_at(bytes, 8),
            to: u64_at(bytes, 16),
            offset: u64_at(bytes, 24),
            slice: u32_at(bytes, 32),
            crc: u32_at(bytes, 36),
        };
        let limit = kind.payload_limit();
        if header.length > limit {
            return Err(DataFrameError::TooLarge {
                kind,
                length: header.length,
                limit,
            });
        }
        Ok(header)
    }

    /// Checksum of the header with its checksum zero; that of the frame once the payload has been
    /// added.
    pub fn checksum(&self) -> Hasher {
        let mut hasher = Hasher::new();
        let bytes = Self { crc: 0, ..*self }.encode();
        hasher.update(
            bytes
                .first_chunk::<SEALED_BYTES>()
                .unwrap_or(&[0; SEALED_BYTES]),
        );
        hasher.update(&[0; HEADER_BYTES - SEALED_BYTES]);
        hasher
    }
}

/// Why bytes are no data frame.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DataFrameError {
    /// The header was harmed on the way, or is none.
    #[error("a data frame whose header does not match its checksum")]
    Checksum,
    /// No such kind of frame.
    #[error("unknown kind {0} of a data frame")]
    Kind(u8),
    /// Something in the fields that must be zero.
    #[error("a data frame with something in its reserved fields")]
    Reserved,
    /// More payload than the kind may have.
    #[error("a {kind:?} frame with {length} bytes of payload; the limit is {limit}")]
    TooLarge {
        /// Its kind.
        kind: FrameKind,
        /// Bytes that it claims.
        length: u32,
        /// Bytes that it may have.
        limit: u32,
    },
    /// The payload is no [`OpenFrame`].
    #[error("an Open frame with {length} bytes that are none: {cause}")]
    Open {
        /// Bytes of payload.
        length: usize,
        /// What the decoder said.
        cause: String,
    },
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

impl OpenFrame {
    /// Appends the frame's payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), DataFrameError> {
        let bytes = postcard::to_stdvec(self).map_err(|e| DataFrameError::Open {
            length: 0,
            cause: e.to_string(),
        })?;
        out.extend_from_slice(&bytes);
        Ok(())
    }

    /// The frame in a payload; bytes behind it are an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, DataFrameError> {
        let error = |cause: String| DataFrameError::Open {
            length: bytes.len(),
            cause,
        };
        if bytes.len() > OPEN_LIMIT as usize {
            return Err(error(format!("the limit is {OPEN_LIMIT} bytes")));
        }
        match postcard::take_from_bytes(bytes) {
            Ok((frame, [])) => Ok(frame),
            Ok((_, rest)) => Err(error(format!("{} bytes behind the end", rest.len()))),
            Err(e) => Err(error(e.to_string())),
        }
    }
}

/// Bytes of the header that its own checksum covers; the checksum follows.
const SEALED_BYTES: usize = 40;

fn seal_of(bytes: &[u8; HEADER_BYTES]) -> u32 {
    crc32fast::hash(bytes.get(..SEALED_BYTES).unwrap_or_default())
}

fn seal(bytes: &mut [u8; HEADER_BYTES]) {
    let checksum = seal_of(bytes).to_le_bytes();
    if let Some(to) = bytes.get_mut(SEALED_BYTES..SEALED_BYTES + checksum.len()) {
        to.copy_from_slice(&checksum);
    }
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_le_bytes(field.copied().unwrap_or_default())
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_le_bytes(field.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::{Incarnation, Round, Tag};
    use crate::types::{OpKey, OpKind};

    fn header() -> DataHeader {
        DataHeader {
            kind: FrameKind::Partial,
            length: 0x0003_0201,
            from: 0x1817_1615_1413_1211,
            to: 0x2827_2625_2423_2221,
            offset: 0x3837_3635_3433_3231,
            slice: 0x4443_4241,
            crc: 0x5453_5251,
        }
    }

    fn open() -> OpenFrame {
        OpenFrame {
            op: OpName {
                round: Round(2),
                key: OpKey {
                    kind: OpKind::Collective,
                    tag: Tag(300),
                },
                attempt: 1,
            },
            epoch: Epoch(5),
            quoted: Serial {
                incarnation: Incarnation(1),
                counter: 9,
            },
            descriptor: Digest(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
            grant: u64::MAX,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn header_bytes_are_the_golden_ones() {
        let bytes = header().encode();
        assert_eq!(
            hex(&bytes),
            "0200000001020300111213141516171821222324252627283132333435363738\
             41424344515253543332f80300000000"
        );
        assert_eq!(DataHeader::decode(&bytes), Ok(header()));
    }

    #[test]
    fn open_bytes_are_the_golden_ones() {
        let mut bytes = Vec::new();
        open().encode(&mut bytes).unwrap();
        assert_eq!(
            hex(&bytes),
            "0200ac0201050109ef9bafcdf8acd19181deb7de9af1d9a2a302ffffffffffffffffff01"
        );
        assert_eq!(OpenFrame::decode(&bytes), Ok(open()));
    }

    #[test]
    fn the_checksum_covers_header_and_payload() {
        let mut hasher = header().checksum();
        hasher.update(b"payload");
        let crc = hasher.finalize();
        assert_eq!(crc, 0xb545_965c);
        let other = DataHeader {
            slice: 0,
            ..header()
        };
        let mut hasher = other.checksum();
        hasher.update(b"payload");
        assert_ne!(hasher.finalize(), crc);
        // The field itself does not count.
        let mut hasher = DataHeader { crc: 1, ..header() }.checksum();
        hasher.update(b"payload");
        assert_eq!(hasher.finalize(), crc);
    }

    #[test]
    fn reserved_fields_and_lengths_are_checked() {
        for at in [1, 2, 3, 44, 47] {
            let mut bytes = header().encode();
            bytes[at] = 1;
            seal(&mut bytes);
            assert_eq!(DataHeader::decode(&bytes), Err(DataFrameError::Reserved));
        }
        let mut bytes = header().encode();
        bytes[0] = 8;
        seal(&mut bytes);
        assert_eq!(DataHeader::decode(&bytes), Err(DataFrameError::Kind(8)));
        for (kind, limit) in [
            (FrameKind::Open, OPEN_LIMIT),
            (FrameKind::Partial, PAYLOAD_LIMIT),
            (FrameKind::Result, PAYLOAD_LIMIT),
            (FrameKind::Grant, 0),
            (FrameKind::Credit, 0),
            (FrameKind::Bye, 0),
            (FrameKind::Alive, 0),
        ] {
            let fits = DataHeader {
                kind,
                length: limit,
                ..header()
            };
            assert_eq!(DataHeader::decode(&fits.encode()), Ok(fits));
            let longer = DataHeader {
                length: limit + 1,
                ..fits
            };
            let error = DataHeader::decode(&longer.encode()).unwrap_err();
            assert!(matches!(error, DataFrameError::TooLarge { .. }));
        }
    }

    #[test]
    fn a_flipped_bit_of_a_header_is_noticed_before_its_length_is_believed() {
        for bit in 0..SEALED_BYTES * 8 {
            let mut bytes = header().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(DataHeader::decode(&bytes), Err(DataFrameError::Checksum));
        }
    }

    #[test]
    fn an_open_frame_ends_where_it_ends() {
        let mut bytes = Vec::new();
        open().encode(&mut bytes).unwrap();
        assert!(OpenFrame::decode(&bytes[..bytes.len() - 1]).is_err());
        bytes.push(0);
        assert!(OpenFrame::decode(&bytes).is_err());
        bytes.resize(OPEN_LIMIT as usize + 1, 0);
        assert!(OpenFrame::decode(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_inverts_encoding(bytes in any::<[[u8; 16]; 3]>()) {
            let mut bytes: [u8; HEADER_BYTES] = bytes.concat().try_into().unwrap();
            let _ = DataHeader::decode(&bytes);
            // Nearly right ones get further.
            bytes[0] = bytes[0] % 7 + 1;
            bytes[1..4].fill(0);
            bytes[44..].fill(0);
            seal(&mut bytes);
            if let Ok(header) = DataHeader::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }

        #[test]
        fn decoding_an_open_frame_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = OpenFrame::decode(&bytes);
        }
    }
}
