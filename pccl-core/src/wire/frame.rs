//! How a connection opens, and how messages are framed on it.
//!
//! Whoever dials sends a [`Preamble`] of [`PREAMBLE_BYTES`] bytes; whoever accepts answers with
//! one that names the version chosen. Then both sides send frames: length (u32, little-endian),
//! CRC32 of the body (u32, little-endian), body. The body is one message in postcard's encoding.
//! Connections between members leave this framing after the reply to the hello.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// First bytes of every connection.
pub const MAGIC: [u8; 4] = *b"PCCL";

/// Size of a [`Preamble`].
pub const PREAMBLE_BYTES: usize = 9;

/// Bytes before the body of a frame: its length and its checksum.
pub const FRAME_HEADER_BYTES: usize = 8;

/// Oldest and newest version of the wire that this library speaks.
///
/// Version 1 is what the first release speaks; before it, only builds of one commit understand one
/// another. From then on whoever changes what travels (the tests hold recorded bytes of it) raises
/// `high`, and `low` too unless the bytes of the older version are still sent to those who chose it.
pub const VERSIONS: VersionRange = VersionRange { low: 1, high: 1 };

/// Most bytes of the first frame between members. A hello has some sixty; nobody who has not shown
/// a token is given more room than a page.
pub const PEER_HELLO_LIMIT: usize = 4 * 1024;

/// Most bytes of the proof of a ticket, which comes first inside TLS; it has some forty.
pub const PROOF_LIMIT: usize = 256;

/// Most bytes of the first frame to the master: a member that comes back brings its report with
/// it, which names every operation that it waits in. A thousand of these have some hundred bytes
/// each; and a synchronisation names every tensor, of which a large model has tens of thousands.
pub const CONTROL_HELLO_LIMIT: usize = 4 * 1024 * 1024;

/// Bytes of it that the master takes from everybody at once. What is longer waits its turn, so that
/// strangers cannot make it hold much.
pub const CONTROL_HELLO_AT_ONCE: usize = 64 * 1024;

/// Most bytes of any other frame: a group of ten thousand members fits, and so do the digests of
/// the tensors of a large model.
pub const FRAME_LIMIT: usize = 16 * 1024 * 1024;

/// Why bytes are no frame, or a message fits into none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The system refused memory for a message.
    #[error("the system refused memory for a message")]
    NoMemory,
    /// Something else talks here.
    #[error("the other end does not speak this protocol (it began with {0:02x?})")]
    Magic([u8; 4]),
    /// The version range is upside down or contains zero.
    #[error("impossible version range {0} to {1}")]
    Range(u16, u16),
    /// The purpose is none that is known.
    #[error("unknown purpose {0} of a connection")]
    Purpose(u8),
    /// No version in common.
    #[error("no protocol version in common: own {own}, other end {other}; update one side")]
    Version {
        /// What this end speaks.
        own: VersionRange,
        /// What the other end speaks.
        other: VersionRange,
    },
    /// A frame claims, or a message needs, more than it may have.
    #[error("a frame of {length} bytes; the limit is {limit}")]
    TooLarge {
        /// Bytes of the body.
        length: usize,
        /// Bytes that there may be.
        limit: usize,
    },
    /// The bytes changed on the way.
    #[error("the checksum of a frame of {0} bytes does not match")]
    Checksum(usize),
    /// The body is not the message that was expected.
    #[error("a frame of {length} bytes is no valid message: {cause}")]
    Malformed {
        /// Bytes of the body.
        length: usize,
        /// What the decoder said.
        cause: String,
    },
}

impl FrameError {
    /// Whether the other end began a TLS handshake where there is none.
    pub fn is_tls(&self) -> bool {
        // A record of a handshake, of whichever version.
        matches!(self, Self::Magic([0x16, 3, ..]))
    }
}

/// Versions of the wire, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionRange {
    /// Oldest; at least one.
    pub low: u16,
    /// Newest; at least `low`.
    pub high: u16,
}

impl VersionRange {
    /// Newest version that both ranges contain.
    pub fn common(self, other: Self) -> Option<u16> {
        let newest = self.high.min(other.high);
        (newest >= self.low.max(other.low)).then_some(newest)
    }
}

impl std::fmt::Display for VersionRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", self.low, self.high)
    }
}

/// Whom a dialler means to talk to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Party {
    /// A master: a [`super::control::ControlHello`] follows.
    Control = 1,
    /// A member: a [`super::lane::PeerHello`] follows.
    Peer = 2,
    /// Only in answers: whoever listens here speaks inside TLS only, with those that hold a ticket of
    /// the run or are members of it. The connection ends with it.
    Secured = 3,
}

/// First bytes of a connection, in both directions.
///
/// Layout: magic 0..4, oldest version 4..6, newest version 6..8 (both little-endian), party 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preamble {
    /// From the dialler: what it speaks. From the acceptor: the version chosen, twice; or, if
    /// there is none in common, what it speaks.
    pub versions: VersionRange,
    /// Whom the dialler wants; the acceptor says what it is.
    pub party: Party,
}

impl Preamble {
    /// What a dialler sends.
    pub fn dial(party: Party) -> Self {
        Self {
            versions: VERSIONS,
            party,
        }
    }

    /// What the acceptor answers to `self`, and the version chosen. Even if there is none the
    /// answer is sent, so that the dialler can say why; then the connection is closed.
    pub fn answer(&self, own: VersionRange, party: Party) -> (Self, Result<u16, FrameError>) {
        let chosen = own.common(self.versions);
        let versions = chosen.map_or(own, |v| VersionRange { low: v, high: v });
        let refused = FrameError::Version {
            own,
            other: self.versions,
        };
        (Self { versions, party }, chosen.ok_or(refused))
    }

    /// Version that the acceptor chose, as the dialler reads its answer `self`. A range that is
    /// not within what the dialler speaks is the acceptor's own.
    pub fn chosen(&self, own: VersionRange) -> Result<u16, FrameError> {
        let VersionRange { low, high } = self.versions;
        if low == high && own.low <= low && high <= own.high {
            return Ok(high);
        }
        Err(FrameError::Version {
            own,
            other: self.versions,
        })
    }

    /// To bytes.
    pub fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        let [m0, m1, m2, m3] = MAGIC;
        let [l0, l1] = self.versions.low.to_le_bytes();
        let [h0, h1] = self.versions.high.to_le_bytes();
        [m0, m1, m2, m3, l0, l1, h0, h1, self.party as u8]
    }

    /// From bytes.
    pub fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Result<Self, FrameError> {
        let [m0, m1, m2, m3, l0, l1, h0, h1, party] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(FrameError::Magic([m0, m1, m2, m3]));
        }
        let (low, high) = (u16::from_le_bytes([l0, l1]), u16::from_le_bytes([h0, h1]));
        if low == 0 || low > high {
            return Err(FrameError::Range(low, high));
        }
        let party = match party {
            1 => Party::Control,
            2 => Party::Peer,
            3 => Party::Secured,
            other => return Err(FrameError::Purpose(other)),
        };
        Ok(Self {
            versions: VersionRange { low, high },
            party,
        })
    }
}

/// One message as a frame.
///
/// Fails only if the message needs more than `limit` bytes, which is the limit of the receiver.
pub fn encode<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, FrameError> {
    let header = vec![0; FRAME_HEADER_BYTES];
    let mut frame = postcard::to_extend(message, header).map_err(|e| FrameError::Malformed {
        length: 0,
        cause: e.to_string(),
    })?;
    let length = frame.len() - FRAME_HEADER_BYTES;
    let claimed = u32::try_from(length).unwrap_or(u32::MAX);
    if length > limit || claimed == u32::MAX {
        return Err(FrameError::TooLarge { length, limit });
    }
    let (header, body) = frame.split_at_mut(FRAME_HEADER_BYTES);
    let crc = crc32fast::hash(body);
    let (length, checksum) = header.split_at_mut(4);
    length.copy_from_slice(&claimed.to_le_bytes());
    checksum.copy_from_slice(&crc.to_le_bytes());
    Ok(frame)
}

/// One message from the body of a frame; nothing may be left over.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    let malformed = |cause: String| FrameError::Malformed {
        length: body.len(),
        cause,
    };
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(malformed(format!("{} bytes too many", rest.len()))),
        Err(e) => Err(malformed(e.to_string())),
    }
}

/// Takes bytes as they come and gives whole frames.
///
/// Holds no more than was fed: a length that a frame only claims reserves nothing. Whoever feeds
/// takes all frames that are there before it feeds more, which keeps the buffer below one frame
/// and one feed. After an error the stream has no frame boundary any more, and every further call
/// gives the same error.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    taken: usize,
    limit: usize,
    failed: Option<FrameError>,
}

impl Decoder {
    /// A decoder of frames of at most `limit` bytes of body.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: Vec::new(),
            taken: 0,
            limit,
            failed: None,
        }
    }

    /// From the next frame on, another limit: once a dialler has proven who it is.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Appends bytes from the connection.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.compact();
            match self.buffer.try_reserve(bytes.len()) {
                Ok(()) => self.buffer.extend_from_slice(bytes),
                Err(_) => self.failed = Some(FrameError::NoMemory),
            }
        }
    }

    /// The preamble, once its bytes are there. Asked for at most once, before any frame.
    pub fn preamble(&mut self) -> Result<Option<Preamble>, FrameError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let Some(bytes) = self.rest().first_chunk::<PREAMBLE_BYTES>() else {
            return Ok(None);
        };
        match Preamble::decode(bytes) {
            Ok(preamble) => {
                self.taken += PREAMBLE_BYTES;
                Ok(Some(preamble))
            }
            Err(e) => Err(self.fail(e)),
        }
    }

    /// Body of the next frame, once all of it is there and its checksum holds.
    pub fn frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let Some((header, rest)) = self.rest().split_first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let [l0, l1, l2, l3, c0, c1, c2, c3] = *header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > self.limit {
            let limit = self.limit;
            return Err(self.fail(FrameError::TooLarge { length, limit }));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        if crc32fast::hash(body) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(self.fail(FrameError::Checksum(length)));
        }
        let start = self.taken + FRAME_HEADER_BYTES;
        self.taken = start + length;
        Ok(self.buffer.get(start..self.taken))
    }

    /// The next message, once all of it is there.
    pub fn message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let decoded = match self.frame()? {
            None => return Ok(None),
            Some(body) => decode(body),
        };
        match decoded {
            Ok(message) => Ok(Some(message)),
            Err(e) => Err(self.fail(e)),
        }
    }

    /// Bytes without which the next frame cannot be whole; zero if it is, or is none. For readers
    /// that must not take what follows it from the connection.
    pub fn missing(&self) -> usize {
        let rest = self.rest();
        let Some([l0, l1, l2, l3, ..]) = rest.first_chunk::<FRAME_HEADER_BYTES>() else {
            return FRAME_HEADER_BYTES - rest.len();
        };
        let length = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
        if length > self.limit {
            return 0;
        }
        (FRAME_HEADER_BYTES + length).saturating_sub(rest.len())
    }

    /// Bytes that are held, of which no frame has been made.
    pub fn held(&self) -> usize {
        self.rest().len()
    }

    /// Whether bytes are left that no frame has been made of.
    pub fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// Bytes that no frame has been made of: what follows the framed part of a connection.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.compact();
        self.buffer
    }

    fn rest(&self) -> &[u8] {
        self.buffer.get(self.taken..).unwrap_or_default()
    }

    fn fail(&mut self, error: FrameError) -> FrameError {
        self.buffer = Vec::new();
        self.taken = 0;
        self.failed = Some(error.clone());
        error
    }

    fn compact(&mut self) {
        if self.taken > 0 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
            // One large frame must not hold its room for the life of the connection.
            if self.buffer.capacity() > KEPT_BYTES {
                self.buffer.shrink_to(KEPT_BYTES);
            }
        }
    }
}

/// Room that an idle decoder keeps.
const KEPT_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests;
