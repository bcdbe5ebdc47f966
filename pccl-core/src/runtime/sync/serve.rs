//! Gives chunks of the own state to a reader.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::cancel::Cancel;
use super::fetch::room_for_a_chunk;
use super::framed::Framed;
use crate::ids::ContentDigest;
use crate::runtime::share::{SHARE, Turns};
use crate::state::digest::chunk_range;
use crate::state::packing::{Packing, SAMPLE_BYTES, worth};
use crate::transport::channel::Parts;
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
    parts: Parts,
    cancel: &Cancel,
    silence: Duration,
) -> Result<(), String> {
    let _registered = cancel.register(&parts.0)?;
    // Readers may have to wait for others between two requests; a dead one is found by keepalive.
    let link = Framed::new(parts, REQUEST_LIMIT, None, silence);
    let mut link = link.map_err(|e| e.to_string())?;
    let mut giver = Giver {
        seed,
        packing: Packing::new(),
        packer: None,
        since: Instant::now(),
        turns: SHARE.turns(),
        cancel,
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
    turns: Turns<'s>,
    cancel: &'s Cancel,
}

impl Giver<'_, '_> {
    /// Sends a chunk as it lies in memory, or compressed if that is faster.
    fn give(&mut self, chunk: u64, bytes: &[u8], link: &mut Framed) -> Result<(), String> {
        let length = bytes.len() as u32;
        let packed = self.pack(bytes);
        let begin = Instant::now();
        let (turns, cancel) = (&mut self.turns, self.cancel);
        let (moved, paused) = match packed {
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
                (content.len(), send(content, link, turns, cancel)?)
            }
            None => {
                link.send(&StateReply::Chunk { chunk, length }, REPLY_LIMIT)?;
                (bytes.len(), send(bytes, link, turns, cancel)?)
            }
        };
        let now = Instant::now();
        let spent = |since| now.duration_since(since).saturating_sub(paused);
        let (cycle, write) = (spent(self.since), spent(begin));
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

/// Sends content, and leaves operations of this process their share. Returns how long it paused.
fn send(
    content: &[u8],
    link: &mut Framed,
    turns: &mut Turns<'_>,
    cancel: &Cancel,
) -> Result<Duration, String> {
    let mut paused = Duration::ZERO;
    for piece in content.chunks(PIECE_BYTES) {
        let begin = Instant::now();
        link.send_bytes(piece)?;
        let now = Instant::now();
        let pause = turns.pause(now - begin, now);
        if !pause.is_zero() {
            cancel.pause(pause);
            paused += now.elapsed();
        }
    }
    Ok(paused)
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

/// Readers that chunks are compressed for at a time: serving takes at most 32 MiB, and as many readers
/// as there may be, all asking for a page of digests, have half of that.
const PACKERS: usize = 4;

/// Bytes sent between two looks at whether operations run.
const PIECE_BYTES: usize = 128 * 1024;

impl<'t> Given<'t> {
    fn chunk(&self, chunk: u64) -> Option<&'t [u8]> {
        let range = chunk_range(self.bytes.len() as u64, chunk)?;
        self.bytes.get(range.start as usize..range.end as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::runtime::share::Share;
    use crate::state::digest::CHUNK_BYTES;
    use crate::transport::listener::READERS;
    use crate::transport::secure::Room;

    #[test]
    fn serving_takes_no_more_memory_than_it_may() {
        let all = AtomicUsize::new(0);
        let chunk: Vec<u8> = (0..CHUNK_BYTES).map(|i| (i * i / 7) as u8 % 64).collect();
        let mut packers = Vec::new();
        while let Some(mut packer) = Packer::new(&all) {
            packer.pack(&chunk).unwrap();
            packers.push(packer);
        }
        assert_eq!(packers.len(), PACKERS);
        let packing: usize = packers
            .iter_mut()
            .map(|p| p.buffer.capacity() + p.compressor.context_mut().sizeof())
            .sum();
        // A reader's request; a page of digests, twice: as they are, and as they travel; and TLS.
        let reader = REQUEST_LIMIT + 2 * REPLY_LIMIT + Room::SERVE.most();
        let most = packing + READERS * reader;
        assert!(most <= 32 << 20, "{packing} and {READERS} times {reader}");
        packers.pop();
        assert!(Packer::new(&all).is_some());
    }

    #[test]
    fn half_of_the_time_is_left_to_operations_that_run() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut reader, _) = listener.accept().unwrap();
        let reading = std::thread::spawn(move || reader.read_to_end(&mut Vec::new()).unwrap());
        let limit = Duration::from_secs(60);
        let mut link = Framed::new((stream, None), REQUEST_LIMIT, None, limit).unwrap();
        let (share, cancel) = (Share::new(), Cancel::new());
        let content = vec![7; PIECE_BYTES];
        let mut turns = share.turns();
        let quiet = send(&content, &mut link, &mut turns, &cancel).unwrap();
        assert_eq!(quiet, Duration::ZERO);
        let begin = Instant::now();
        let mut paused = Duration::ZERO;
        for _ in 0..64 {
            share.moved(1 << 20);
            paused += send(&content, &mut link, &mut turns, &cancel).unwrap();
        }
        let sending = begin.elapsed() - paused;
        // All but what a busy machine makes longer than any pause.
        assert!(paused > sending / 2, "{paused:?} of {sending:?}");
        // Whoever ends the call waits for no pause.
        cancel.end();
        cancel.pause(limit);
        drop(link);
        assert_eq!(reading.join().unwrap(), 65 * PIECE_BYTES);
    }
}
