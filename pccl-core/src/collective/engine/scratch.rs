//! Memory that is used again and again, so that moving a segment allocates nothing.

/// The system refused so many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, thiserror::Error)]
#[error("the system refused {bytes} bytes of memory")]
pub(super) struct NoMemory {
    bytes: usize,
}

/// Makes a buffer at least `len` bytes long; what is in it stays.
pub(super) fn grow(buffer: &mut Vec<u8>, len: usize) -> Result<(), NoMemory> {
    if let Some(more) = len.checked_sub(buffer.len()) {
        buffer
            .try_reserve_exact(more)
            .map_err(|_| NoMemory { bytes: more })?;
        buffer.resize(len, 0);
    }
    Ok(())
}

/// Blocks of one size; some that are not used at the moment are kept.
#[derive(Debug)]
pub(super) struct BlockPool {
    size: usize,
    keep: usize,
    free: Vec<Vec<u8>>,
}

impl BlockPool {
    /// Pool of blocks of `size` bytes that keeps at most `keep` bytes of free ones.
    pub(super) fn new(size: usize, keep: usize) -> Self {
        Self {
            size,
            keep: keep / size.max(1),
            free: Vec::new(),
        }
    }

    /// A block of which `useful` bytes will be used: shorter than others if that is less than the
    /// size, so that small operations cost little. What is in it is left over from its last use.
    pub(super) fn take(&mut self, useful: u64) -> Result<Vec<u8>, NoMemory> {
        let useful = usize::try_from(useful).unwrap_or(usize::MAX);
        if useful >= self.size
            && let Some(block) = self.free.pop()
        {
            return Ok(block);
        }
        let mut block = Vec::new();
        grow(&mut block, self.size.min(useful))?;
        Ok(block)
    }

    /// Bytes of free blocks.
    #[cfg(test)]
    pub(super) fn free_bytes(&self) -> usize {
        self.free.len() * self.size
    }

    /// Gives the memory of free blocks back.
    pub(super) fn clear(&mut self) {
        self.free = Vec::new();
    }

    /// Gives a block back.
    pub(super) fn give(&mut self, block: Vec<u8>) {
        if block.len() == self.size && self.free.len() < self.keep {
            self.free.push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_used_again_up_to_the_limit() {
        let mut pool = BlockPool::new(8, 17);
        let mut blocks: Vec<_> = (0..3).map(|_| pool.take(100).unwrap()).collect();
        blocks[2][0] = 7;
        blocks.into_iter().for_each(|b| pool.give(b));
        assert_eq!(pool.free.len(), 2);
        assert_eq!(pool.take(5).unwrap().len(), 5);
        pool.give(vec![0; 5]);
        assert_eq!(pool.free.len(), 2);
        pool.clear();
        assert_eq!(pool.free.len(), 0);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let mut buffer = vec![1];
        assert!(grow(&mut buffer, isize::MAX as usize).is_err());
        assert_eq!(buffer, [1]);
        grow(&mut buffer, 3).unwrap();
        assert_eq!(buffer, [1, 0, 0]);
    }
}
