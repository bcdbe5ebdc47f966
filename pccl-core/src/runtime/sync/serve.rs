//! Gives chunks of the own state to a reader.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::cancel::Cancel;
use super::fetch::room_for_a_chunk;
use super::framed::Framed;
use crate::ids::ContentDigest;
use crate::state::digest::chunk_range;
use crate::state::packing::{Packing, SAMPLE_BYTES, worth};
use crate::trap::{self, Trap};
use crate::wire::control::OpName;
use crate::wire::state::{
    CHUNKS_PER_REQUEST, DIGESTS_PER_REQUEST, REPLY_LIMIT, REQUEST_LIMIT, StatePart, StateRefusal,
    StateReply, StateRequest,
};

/// A tensor to give.
#[derive(Clone, Copy)]
pub(super) struct Given<'t> {
    pub(super) bytes: &'t [u8],
    pub(super) digests: &'t [ContentDigest],
}

/// What there is to give, and to whom it counts.
pub(super) struct Seed<'t> {
    pub(super) op: OpName,
    pub(super) tensors: BTreeMap<&'t str, Given<'t>>,
    /// Bytes of chunks handed to sockets.
    pub(super) sent: AtomicU64,
    /// Whether chunks may be compressed.
    pub(super) packs: bool,
    /// Readers that chunks are compressed for.
    pub(super) packers: AtomicUsize,
}

/// Serves one reader until it closes, or all ends. The error is for people.
pub(super) fn serve(
    seed: &Seed<'_>,
    stream: TcpStream,
    cancel: &Cancel,
    silence: Duration,
) -> Result<(), String> {
    let _registered = cancel.register(&stream)?;
    // Readers may have to wait for others between two requests; a dead one is found by keepalive.
    let link = Framed::new(stream, REQUEST_LIMIT, None, silence);
    let mut link = link.map_err(|e| e.to_string())?;
    let mut giver = Giver {
        seed,
        packing: Packing::new(),
        packer: None,
        since: Instant::now(),
    };
    while let Some(request) = link.message::<StateRequest>()? {
        trap::pass(Trap::Serve);
        giver.since = Instant::now();
        if let Err(refusal) = answer(&mut giver, &request, &mut link)? {
            link.send(&StateReply::No(refusal), REPLY_LIMIT)?;
        }
    }
    Ok(())
}

fn answer(
    giver: &mut Giver<'_, '_>,
    request: &StateRequest,
    link: &mut Framed,
) -> Result<Result<(), StateRefusal>, String> {
    let seed = giver.seed;
    if request.op != seed.op {
        return Ok(Err(StateRefusal::OtherUse));
    }
    let Some(tensor) = seed.tensors.get(request.key.as_str()) else {
        return Ok(Err(StateRefusal::NoSuchTensor));
    };
    let (first, count, limit) = match request.part {
        StatePart::Digests { first, count } => (first, count, DIGESTS_PER_REQUEST),
        StatePart::Chunks { first, count } => (first, count, CHUNKS_PER_REQUEST),
    };
    let start = usize::try_from(first).unwrap_or(usize::MAX);
    let end = start.saturating_add(count as usize);
    let Some(digests) = tensor.digests.get(start..end).filter(|_| count <= limit) else {
        return Ok(Err(StateRefusal::OutOfRange));
    };
    match request.part {
        StatePart::Digests { .. } => {
            link.send(&StateReply::Digests(digests.to_vec()), REPLY_LIMIT)?;
        }
        StatePart::Chunks { .. } => {
            for chunk in first..first + u64::from(count) {
                let Some(bytes) = tensor.chunk(chunk) else {
                    return Ok(Err(StateRefusal::OutOfRange));
                };
                giver.give(chunk, bytes, link)?;
            }
        }
    }
    Ok(Ok(()))
}

/// Gives chunks to one reader.
struct Giver<'s, 't> {
    seed: &'s Seed<'t>,
    packing: Packing,
    packer: Option<Packer<'s>>,
    /// When there was something to send that has not been.
    since: Instant,
}

impl Giver<'_, '_> {
    /// Sends a chunk as it lies in memory, or compressed if that is faster.
    fn give(&mut self, chunk: u64, bytes: &[u8], link: &mut Framed) -> Result<(), String> {
        let length = bytes.len() as u32;
        let packed = self.pack(bytes);
        let begin = Instant::now();
        let moved = match packed {
            Some(packed) => {
                let Some(content) = self.packer.as_ref().and_then(|p| p.buffer.get(..packed))
                else {
                    return Err("a compressed chunk is longer than its buffer".into());
                };
                let packed = packed as u32;
                let reply = StateReply::Packed {
                    chunk,
                    length,
                    packed,
                };
                link.send(&reply, REPLY_LIMIT)?;
                link.send_bytes(content)?;
                content.len()
            }
            None => {
                link.send(&StateReply::Chunk { chunk, length }, REPLY_LIMIT)?;
                link.send_bytes(bytes)?;
                bytes.len()
            }
        };
        let now = Instant::now();
        let (cycle, write) = (now - self.since, now - begin);
        self.packing.sent(moved, cycle, write, packed.is_some());
        self.since = now;
        self.seed.sent.fetch_add(length.into(), Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of the compressed chunk, if it is worth it.
    fn pack(&mut self, bytes: &[u8]) -> Option<usize> {
        if !self.seed.packs || !self.packing.pays() {
            return None;
        }
        if self.packer.is_none() {
            self.packer = Packer::new(&self.seed.packers);
        }
        let packer = self.packer.as_mut()?;
        let middle = bytes.len().saturating_sub(SAMPLE_BYTES) / 2;
        let sample = bytes.get(middle..)?;
        packer.pack(sample.get(..SAMPLE_BYTES).unwrap_or(sample))?;
        let begin = Instant::now();
        let packed = packer.pack(bytes);
        self.packing.read(bytes.len(), begin.elapsed());
        packed
    }
}

/// A compressor, and where its output goes.
struct Packer<'s> {
    compressor: zstd::bulk::Compressor<'static>,
    buffer: Vec<u8>,
    all: &'s AtomicUsize,
}

impl<'s> Packer<'s> {
    /// None if there are enough.
    fn new(all: &'s AtomicUsize) -> Option<Self> {
        let more = |n: usize| (n < PACKERS).then_some(n + 1);
        all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        let compressor = zstd::bulk::Compressor::new(LEVEL).ok();
        let made = compressor.zip(room_for_a_chunk().ok());
        if made.is_none() {
            all.fetch_sub(1, Ordering::Relaxed);
        }
        let (compressor, buffer) = made?;
        Some(Self {
            compressor,
            buffer,
            all,
        })
    }

    /// Compresses into the buffer; none if that does not make it shorter by a tenth.
    fn pack(&mut self, bytes: &[u8]) -> Option<usize> {
        let room = self.buffer.get_mut(..worth(bytes.len()))?;
        // The only error is that there is not enough room.
        self.compressor.compress_to_buffer(bytes, room).ok()
    }
}

impl Drop for Packer<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Fastest that shrinks the numbers of models at all.
const LEVEL: i32 = 1;

/// Readers that chunks are compressed for at a time: with 3 MiB for each, serving stays below
/// 32 MiB.
const PACKERS: usize = 8;

impl<'t> Given<'t> {
    fn chunk(&self, chunk: u64) -> Option<&'t [u8]> {
        let range = chunk_range(self.bytes.len() as u64, chunk)?;
        self.bytes.get(range.start as usize..range.end as usize)
    }
}
