//! Decompresses a chunk that a seeder has sent.

use zstd::zstd_safe::{find_frame_compressed_size, get_frame_content_size};

use crate::state::digest::CHUNK_BYTES;

/// Decompresses a chunk into the room that it has, and takes no more memory than that and the
/// decompressor's own, whatever the bytes claim: they must be one frame from the first to the last,
/// of a window of at most a chunk, that says how long its content is.
pub(super) fn unpack(packed: &[u8], into: &mut [u8]) -> Result<(), String> {
    let wanted = into.len();
    match get_frame_content_size(packed) {
        Ok(Some(claimed)) if claimed == wanted as u64 => {}
        Ok(Some(claimed)) => return Err(format!("{claimed} bytes of a chunk that has {wanted}")),
        Ok(None) => return Err("a compressed chunk of unknown length".into()),
        Err(_) => return Err("a compressed chunk that is none".into()),
    }
    match window(packed) {
        Some(window) if window <= CHUNK_BYTES => {}
        Some(window) => {
            return Err(format!(
                "a chunk compressed with a window of {window} bytes"
            ));
        }
        None => return Err("a compressed chunk that is none".into()),
    }
    if find_frame_compressed_size(packed) != Ok(packed.len()) {
        return Err("a compressed chunk that does not end where it has to".into());
    }
    let mut unpacker = zstd::bulk::Decompressor::new().map_err(|e| e.to_string())?;
    match unpacker.decompress_to_buffer(packed, into) {
        Ok(n) if n == wanted => Ok(()),
        Ok(n) => Err(format!("{n} compressed bytes of a chunk that has {wanted}")),
        Err(cause) => Err(format!("a chunk that cannot be decompressed: {cause}")),
    }
}

/// Window that a frame asks for (RFC 8878, 3.1.1.1.2); that of a frame of one segment is its content.
fn window(frame: &[u8]) -> Option<u64> {
    let [descriptor, window] = *frame.get(4..6)?.first_chunk()?;
    if descriptor & SINGLE_SEGMENT != 0 {
        return Some(0);
    }
    let base = 1_u64 << (10 + (window >> 3));
    Some(base + base / 8 * u64::from(window & 7))
}

const SINGLE_SEGMENT: u8 = 1 << 5;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What compresses to a small part of itself.
    pub(in crate::runtime::sync) fn plain(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 64) as u8).collect()
    }

    /// A frame of raw blocks with the header given: the content size, if any, takes eight bytes.
    fn raw(window: u8, claimed: Option<u64>, content: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x28, 0xB5, 0x2F, 0xFD];
        frame.push(if claimed.is_some() { 0xC0 } else { 0 });
        frame.push(window);
        frame.extend(claimed.iter().flat_map(|n| n.to_le_bytes()));
        // A block of one byte, repeated, is all that such a test needs: type 1.
        for (at, byte) in content.iter().enumerate() {
            let last = u32::from(at + 1 == content.len());
            let header = last | 1 << 1 | (BLOCK as u32) << 3;
            frame.extend_from_slice(&header.to_le_bytes()[..3]);
            frame.push(*byte);
        }
        frame
    }

    /// Bytes of a block of [`raw`].
    const BLOCK: usize = 64 * 1024;

    /// Frames that are not a chunk of so many bytes, a multiple of [`BLOCK`], each with its name.
    pub(in crate::runtime::sync) fn hostile(len: usize) -> Vec<(&'static str, Vec<u8>)> {
        let pack = |bytes: &[u8]| zstd::bulk::compress(bytes, 1).unwrap();
        let honest = pack(&plain(len));
        let blocks = vec![7; len / BLOCK];
        // Windows of 2 GiB and of 64 KiB.
        let (huge, small) = (21 << 3, 6 << 3);
        let skippable = [0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0, 1, 2, 3, 4];
        vec![
            ("too much", pack(&plain(len + 1))),
            ("far too much", pack(&vec![0; 64 << 20])),
            ("too little", pack(&plain(len - 1))),
            ("nothing", pack(&[])),
            ("no bytes", Vec::new()),
            ("garbage", plain(1000)),
            ("a claim of 2^60", raw(small, Some(1 << 60), &blocks)),
            (
                "more than claimed",
                raw(small, Some(len as u64), &[blocks.as_slice(), &[7]].concat()),
            ),
            (
                "less than claimed",
                raw(small, Some(len as u64), &blocks[1..]),
            ),
            ("an unknown length", raw(small, None, &blocks)),
            ("a window of 2 GiB", raw(huge, Some(len as u64), &blocks)),
            ("trailing bytes", [honest.as_slice(), &[0]].concat()),
            ("a second frame", [honest.clone(), pack(&[])].concat()),
            ("a frame to skip", [honest.as_slice(), &skippable].concat()),
            ("a torn frame", honest[..honest.len() - 1].to_vec()),
        ]
    }

    #[test]
    fn what_an_honest_seeder_packs_is_unpacked() {
        for len in [BLOCK, CHUNK_BYTES as usize, 12_345] {
            let packed = zstd::bulk::compress(&plain(len), 1).unwrap();
            let mut into = vec![0; len];
            unpack(&packed, &mut into).unwrap();
            assert!(into == plain(len));
        }
        let mut into = vec![0; 2 * BLOCK];
        unpack(&raw(6 << 3, Some(2 * BLOCK as u64), &[7, 8]), &mut into).unwrap();
        assert!(into[..BLOCK].iter().all(|b| *b == 7) && into[BLOCK..].iter().all(|b| *b == 8));
    }

    #[test]
    fn frames_that_are_no_chunk_are_refused() {
        for len in [2 * BLOCK, CHUNK_BYTES as usize] {
            for (name, packed) in hostile(len) {
                let mut into = vec![0; len];
                assert!(unpack(&packed, &mut into).is_err(), "{name}");
            }
        }
    }

    #[test]
    fn random_changes_never_do_harm() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize
        };
        let packed = zstd::bulk::compress(&plain(BLOCK), 1).unwrap();
        let mut into = vec![0; BLOCK];
        for _ in 0..2_000 {
            let mut packed = packed.clone();
            for _ in 0..1 + random() % 3 {
                let at = random() % packed.len();
                packed[at] = random() as u8;
            }
            // Content that has changed is told by its digest.
            let _ = unpack(&packed, &mut into);
        }
    }
}
