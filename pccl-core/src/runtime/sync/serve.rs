//! Gives chunks of the own state to a reader.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::cancel::Cancel;
use super::framed::Framed;
use crate::ids::Digest;
use crate::state::digest::chunk_range;
use crate::wire::control::OpName;
use crate::wire::state::{
    CHUNKS_PER_REQUEST, DIGESTS_PER_REQUEST, REPLY_LIMIT, REQUEST_LIMIT, StatePart, StateRefusal,
    StateReply, StateRequest,
};

/// A tensor to give.
#[derive(Clone, Copy)]
pub(super) struct Given<'t> {
    pub(super) bytes: &'t [u8],
    pub(super) digests: &'t [Digest],
}

/// What there is to give, and to whom it counts.
pub(super) struct Seed<'t> {
    pub(super) op: OpName,
    pub(super) tensors: BTreeMap<&'t str, Given<'t>>,
    /// Bytes of chunks handed to sockets.
    pub(super) sent: AtomicU64,
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
    while let Some(request) = link.message::<StateRequest>()? {
        if let Err(refusal) = answer(seed, &request, &mut link)? {
            link.send(&StateReply::No(refusal), REPLY_LIMIT)?;
        }
    }
    Ok(())
}

fn answer(
    seed: &Seed<'_>,
    request: &StateRequest,
    link: &mut Framed,
) -> Result<Result<(), StateRefusal>, String> {
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
                let length = bytes.len() as u32;
                link.send(&StateReply::Chunk { chunk, length }, REPLY_LIMIT)?;
                link.send_bytes(bytes)?;
                seed.sent.fetch_add(length.into(), Ordering::Relaxed);
            }
        }
    }
    Ok(Ok(()))
}

impl<'t> Given<'t> {
    fn chunk(&self, chunk: u64) -> Option<&'t [u8]> {
        let range = chunk_range(self.bytes.len() as u64, chunk)?;
        self.bytes.get(range.start as usize..range.end as usize)
    }
}
