//! Whether it pays to compress chunks for a reader: where its link is slower than the compressor,
//! and the content shrinks. Pure: times are handed in.

use std::time::Duration;

/// What is known of one link, and of the compressor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Packing {
    /// Bytes per second that the link takes; none before it has ever been full.
    link: Option<f64>,
    /// Bytes per second that the compressor reads.
    packer: f64,
    /// Chunks packed since one was sent as it is.
    packed: u32,
}

impl Packing {
    /// Nothing is known yet: chunks go as they are.
    pub fn new() -> Self {
        Self {
            link: None,
            packer: PACKER,
            packed: 0,
        }
    }

    /// Whether to try with the next chunk. Now and then one goes as it is, since a link that is
    /// never full does not show how fast it has become.
    pub fn pays(&self) -> bool {
        self.packed < IN_A_ROW && self.link.is_some_and(|link| link < self.packer)
    }

    /// Bytes were sent. `cycle` is the time since the ones before, or since there was something to
    /// send; `write` the part of it in which the system took them.
    pub fn sent(&mut self, bytes: usize, cycle: Duration, write: Duration, packed: bool) {
        self.packed = if packed { self.packed + 1 } else { 0 };
        let rate = rate(bytes, cycle);
        // A link that takes bytes as fast as memory had room; a full one shows its rate.
        let full = write > ROOM && self::rate(bytes, write) < MEMORY;
        self.link = match self.link {
            Some(link) if full => Some((link + rate) / 2.0),
            None if full => Some(rate),
            Some(link) => Some(link.max(rate)),
            None => None,
        };
    }

    /// The compressor read so many bytes.
    pub fn read(&mut self, bytes: usize, took: Duration) {
        self.packer = (self.packer + rate(bytes, took)) / 2.0;
    }
}

impl Default for Packing {
    fn default() -> Self {
        Self::new()
    }
}

fn rate(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64().max(1e-9)
}

/// What bytes must shrink to at least, of their number: a tenth less, or it is not worth the
/// reader's time.
pub fn worth(bytes: usize) -> usize {
    bytes - bytes / 10
}

/// Bytes of a chunk that are tried first.
pub const SAMPLE_BYTES: usize = 64 * 1024;

/// Speed of a compressor that has not run yet, in bytes per second: what the fastest level does on
/// an old machine.
const PACKER: f64 = 100e6;

/// Below this, a copy into the system's buffers is slower than any link looks.
const MEMORY: f64 = 1e9;

/// Time that one write may take without a word about the link.
const ROOM: Duration = Duration::from_millis(2);

/// Chunks packed before one goes as it is.
const IN_A_ROW: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_link_that_was_never_full_gets_chunks_as_they_are() {
        let mut packing = Packing::new();
        for _ in 0..100 {
            assert!(!packing.pays());
            packing.sent(MIB, MS, MS / 4, false);
        }
    }

    #[test]
    fn packing_pays_on_links_that_are_slower_than_the_compressor() {
        let mut packing = Packing::new();
        packing.sent(MIB, 30 * MS, 30 * MS, false);
        assert!(packing.pays());
        // The compressor turns out to be slower still.
        for _ in 0..20 {
            packing.read(MIB, 300 * MS);
        }
        assert!(!packing.pays());
    }

    #[test]
    fn packed_bytes_that_fill_no_link_do_not_make_it_look_slow() {
        let mut packing = Packing::new();
        packing.sent(MIB, 4 * MS, 4 * MS, false);
        let before = packing;
        packing.sent(MIB / 100, 4 * MS, MS / 10, true);
        assert_eq!(packing.link, before.link);
    }

    #[test]
    fn a_link_that_becomes_fast_is_noticed() {
        let mut packing = Packing::new();
        packing.sent(MIB, 100 * MS, 100 * MS, false);
        let mut raw = 0;
        for _ in 0..10 * IN_A_ROW {
            let packs = packing.pays();
            raw += u32::from(!packs);
            match packs {
                true => packing.sent(MIB / 2, 5 * MS, MS / 10, true),
                false => packing.sent(MIB, MS, MS / 2, false),
            }
        }
        assert!(!packing.pays() && raw > 8 * IN_A_ROW);
    }

    #[test]
    fn a_tenth_is_what_it_must_be_worth() {
        assert_eq!((worth(1000), worth(9), worth(0)), (900, 9, 0));
    }
}
