//! What an in-place buffer held before it was overwritten. (Rule 8)

use super::scratch::{BlockPool, NoMemory};
use crate::collective::buffers::Lent;
use crate::collective::ranges::{RangeSet, Span};

/// Original bytes of the parts of a buffer that have been overwritten, in blocks that come into
/// being as the parts do.
#[derive(Debug, Default)]
pub(super) struct Backup {
    /// By place in the buffer; an empty one holds nothing yet.
    blocks: Vec<Vec<u8>>,
    /// Bytes of the buffer.
    saved: RangeSet,
}

impl Backup {
    /// Keeps the bytes in `span` that are not kept yet; must come before they are overwritten.
    pub(super) fn save(
        &mut self,
        lent: &Lent,
        span: Span,
        pool: &mut BlockPool,
    ) -> Result<(), NoMemory> {
        while let Some(gap) = self.saved.first_gap(span) {
            let mut at = gap.start;
            while at < gap.end {
                let end = gap.end.min(block_end(at));
                let block = self.block(at, lent.len(), pool)?;
                let inside = (at % BLOCK) as usize..(end - at + at % BLOCK) as usize;
                if let (Some(to), Some(from)) = (block.get_mut(inside), lent.recv(at, end - at)) {
                    to.copy_from_slice(from);
                }
                at = end;
            }
            // Ranges are saved as they come in; that they are not too many was checked there.
            if self.saved.insert(gap).is_err() {
                return Err(NoMemory::default());
            }
        }
        Ok(())
    }

    /// Puts everything back.
    pub(super) fn restore(&self, lent: &mut Lent) {
        for span in self.saved.iter() {
            let mut at = span.start;
            while at < span.end {
                let end = span.end.min(block_end(at));
                let inside = (at % BLOCK) as usize..(end - at + at % BLOCK) as usize;
                let kept = self.blocks.get((at / BLOCK) as usize);
                if let (Some(from), Some(to)) = (
                    kept.and_then(|block| block.get(inside)),
                    lent.recv_mut(at, end - at),
                ) {
                    to.copy_from_slice(from);
                }
                at = end;
            }
        }
    }

    /// Gives the blocks back.
    pub(super) fn release(self, pool: &mut BlockPool) {
        self.blocks.into_iter().for_each(|block| pool.give(block));
    }

    fn block(
        &mut self,
        at: u64,
        len: usize,
        pool: &mut BlockPool,
    ) -> Result<&mut Vec<u8>, NoMemory> {
        let index = (at / BLOCK) as usize;
        if self.blocks.len() <= index {
            self.blocks.resize_with(index + 1, Vec::new);
        }
        match self.blocks.get_mut(index) {
            Some(block) => {
                if block.is_empty() {
                    *block = pool.take((len as u64).saturating_sub(at / BLOCK * BLOCK))?;
                }
                Ok(block)
            }
            None => Err(NoMemory::default()),
        }
    }
}

fn block_end(at: u64) -> u64 {
    (at / BLOCK + 1).saturating_mul(BLOCK)
}

/// Bytes of a block: many segments, so that blocks are few, and little beside a tensor that is
/// worth the trouble.
pub(super) const BLOCK: u64 = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::buffers::OwnedBuffers;

    #[test]
    fn what_was_overwritten_comes_back() {
        let original: Vec<u8> = (0..BLOCK as usize + 1000)
            .map(|i| (i % 251) as u8)
            .collect();
        let mut pool = BlockPool::new(BLOCK as usize, BLOCK as usize);
        let mut buffers = OwnedBuffers::in_place(original.clone());
        let mut lent = buffers.lend();
        let mut backup = Backup::default();
        for (start, end) in [(10, 20), (5, 30), (BLOCK - 7, BLOCK + 9)] {
            backup
                .save(&lent, Span::new(start, end), &mut pool)
                .unwrap();
            lent.recv_mut(start, end - start).unwrap().fill(255);
        }
        backup.restore(&mut lent);
        backup.release(&mut pool);
        drop(lent);
        assert_eq!(buffers.recv(), original);
    }
}
