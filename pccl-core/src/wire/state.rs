//! What travels on a connection that chunks of the shared state are fetched over.
//!
//! The reader asks, the seeder answers in the order of the requests. Messages are framed as on
//! control connections; the bytes of a chunk follow the [`StateReply::Chunk`] that announces them,
//! as they are.

use serde::{Deserialize, Serialize};

use super::control::OpName;
use crate::ids::ContentDigest;

/// Most bytes of a frame with a [`StateRequest`]: the longest key, and some numbers.
pub const REQUEST_LIMIT: usize = KEY_LIMIT + 256;

/// Most bytes of a frame with a [`StateReply`]: a full page of digests.
pub const REPLY_LIMIT: usize = DIGESTS_PER_REQUEST as usize * size_of::<ContentDigest>() + 256;

/// Most bytes of a tensor's key.
pub const KEY_LIMIT: usize = 4 * 1024;

/// Most digests that one request may ask for: the list of a tensor of 4 GiB.
pub const DIGESTS_PER_REQUEST: u32 = 4096;

/// Most chunks that one request may ask for. Two requests of a reader are under way at a time, so
/// that a long path stays full.
pub const CHUNKS_PER_REQUEST: u32 = 8;

/// Reader to seeder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateRequest {
    /// The synchronisation that the reader takes part in. A seeder in another one serves nothing.
    pub op: OpName,
    /// Which tensor.
    pub key: String,
    /// What of it.
    pub part: StatePart,
}

/// A part of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StatePart {
    /// Digests of so many chunks, from the first one on, in one [`StateReply::Digests`].
    Digests {
        /// Number of the first chunk.
        first: u64,
        /// How many; at most [`DIGESTS_PER_REQUEST`].
        count: u32,
    },
    /// So many chunks, each behind a [`StateReply::Chunk`].
    Chunks {
        /// Number of the first chunk.
        first: u64,
        /// How many; at most [`CHUNKS_PER_REQUEST`].
        count: u32,
    },
}

/// Seeder to reader.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StateReply {
    /// The digests that were asked for, in order.
    Digests(Vec<ContentDigest>),
    /// The bytes of this chunk follow.
    Chunk {
        /// Its number.
        chunk: u64,
        /// Its bytes.
        length: u32,
    },
    /// The request is not served.
    No(StateRefusal),
    /// The chunk follows in so many bytes, compressed: one frame of zstd from the first to the last,
    /// with the size of its content in its header, and a window of at most a chunk.
    Packed {
        /// Its number.
        chunk: u64,
        /// Its bytes.
        length: u32,
        /// Bytes that follow; fewer.
        packed: u32,
    },
}

/// Why a request is not served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StateRefusal {
    /// The seeder is in another synchronisation.
    OtherUse,
    /// The seeder has no such tensor to give.
    NoSuchTensor,
    /// The tensor has no such chunk, or too many were asked for.
    OutOfRange,
}

impl std::fmt::Display for StateRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::OtherUse => "it is in another synchronisation",
            Self::NoSuchTensor => "it has no such tensor to give",
            Self::OutOfRange => "it has no such chunk",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Round, Tag};
    use crate::types::{OpKey, OpKind};
    use crate::wire::frame;

    #[test]
    fn the_largest_messages_fit_their_limits() {
        let key = OpKey {
            kind: OpKind::Sync,
            tag: Tag(u64::MAX),
        };
        let request = StateRequest {
            op: OpName {
                round: Round(u64::MAX),
                key,
                attempt: u32::MAX,
            },
            key: "k".repeat(KEY_LIMIT),
            part: StatePart::Chunks {
                first: u64::MAX,
                count: u32::MAX,
            },
        };
        assert!(frame::encode(&request, REQUEST_LIMIT).is_ok());
        let page = vec![ContentDigest([0xFF; 32]); DIGESTS_PER_REQUEST as usize];
        assert!(frame::encode(&StateReply::Digests(page), REPLY_LIMIT).is_ok());
    }

    #[test]
    fn messages_have_their_recorded_bytes() {
        let key = OpKey {
            kind: OpKind::Sync,
            tag: Tag(0),
        };
        let request = StateRequest {
            op: OpName {
                round: Round(2),
                key,
                attempt: 1,
            },
            key: "w".into(),
            part: StatePart::Chunks {
                first: 300,
                count: 8,
            },
        };
        let body = |frame: Vec<u8>| frame[frame::FRAME_HEADER_BYTES..].to_vec();
        let bytes = body(frame::encode(&request, REQUEST_LIMIT).unwrap());
        assert_eq!(bytes, [2, 1, 0, 1, 1, b'w', 1, 0xAC, 2, 8]);
        let chunk = StateReply::Chunk {
            chunk: 3,
            length: 128,
        };
        let bytes = body(frame::encode(&chunk, REPLY_LIMIT).unwrap());
        assert_eq!(bytes, [1, 3, 0x80, 1]);
        let reply = |reply| body(frame::encode(&reply, REPLY_LIMIT).unwrap());
        let packed = StateReply::Packed {
            chunk: 3,
            length: 128,
            packed: 300,
        };
        assert_eq!(reply(packed), [3, 3, 0x80, 1, 0xAC, 2]);
        assert_eq!(reply(StateReply::No(StateRefusal::OutOfRange)), [2, 2]);
        let page = vec![ContentDigest([7; 32])];
        let bytes = [vec![0, 1], vec![7; 32]].concat();
        assert_eq!(reply(StateReply::Digests(page)), bytes);
        let list = StateRequest {
            part: StatePart::Digests { first: 1, count: 2 },
            ..request
        };
        let bytes = body(frame::encode(&list, REQUEST_LIMIT).unwrap());
        assert_eq!(bytes, [2, 1, 0, 1, 1, b'w', 0, 1, 2]);
    }
}
