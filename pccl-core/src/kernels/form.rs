//! How the elements of a slice lie on the wire.

/// In cells of equally many elements, from the start of a slice on; the last cell of a slice may be
/// shorter. Data that travels as it is has cells of one element; quantised data has blocks, each
/// with parameters in front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// Elements of a cell.
    cell: u64,
    /// Bytes in front of them.
    head: u64,
    /// Bytes of each.
    width: u64,
}

impl Form {
    /// One element after the other, each of `width` bytes.
    pub const fn plain(width: u64) -> Self {
        Self::blocks(1, 0, width)
    }

    /// Blocks of `cell` elements, of `width` bytes each, behind `head` bytes. Zeros count as one,
    /// but for the head.
    pub const fn blocks(cell: u64, head: u64, width: u64) -> Self {
        const fn positive(n: u64) -> u64 {
            if n == 0 { 1 } else { n }
        }
        Self {
            cell: positive(cell),
            head,
            width: positive(width),
        }
    }

    /// Elements of a cell: data is cut at multiples of this only.
    pub const fn cell(&self) -> u64 {
        self.cell
    }

    /// Bytes of a whole cell.
    pub const fn cell_bytes(&self) -> u64 {
        self.head + self.cell * self.width
    }

    /// Bytes of so many elements, from the start of a cell on. Saturates.
    pub const fn bytes(&self, elements: u64) -> u64 {
        let cells = (elements / self.cell).saturating_mul(self.cell_bytes());
        match elements % self.cell {
            0 => cells,
            rest => cells.saturating_add(self.head + rest * self.width),
        }
    }

    /// Elements in so many bytes, from the start of a cell on; none if the bytes end within an
    /// element, or behind a head.
    pub const fn elements(&self, bytes: u64) -> Option<u64> {
        let (cells, rest) = (bytes / self.cell_bytes(), bytes % self.cell_bytes());
        let whole = cells * self.cell;
        if rest == 0 {
            return Some(whole);
        }
        if rest <= self.head || !(rest - self.head).is_multiple_of(self.width) {
            return None;
        }
        Some(whole + (rest - self.head) / self.width)
    }

    /// Elements of the whole cells that so many bytes hold.
    pub const fn whole(&self, bytes: u64) -> u64 {
        (bytes / self.cell_bytes()).saturating_mul(self.cell)
    }

    /// Elements of a slice of `length` elements that so many bytes hold, in whole cells or to the
    /// slice's end.
    pub const fn fitting(&self, bytes: u64, length: u64) -> u64 {
        let whole = self.whole(bytes);
        if whole >= length || bytes >= self.bytes(length) {
            length
        } else {
            whole
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: Form = Form::blocks(256, 8, 1);

    #[test]
    fn a_block_has_its_parameters_in_front() {
        assert_eq!(BLOCKS.cell_bytes(), 264);
        assert_eq!(BLOCKS.bytes(0), 0);
        assert_eq!(BLOCKS.bytes(1), 9);
        assert_eq!(BLOCKS.bytes(256), 264);
        assert_eq!(BLOCKS.bytes(257), 273);
        assert_eq!(BLOCKS.elements(8), None);
        assert_eq!(BLOCKS.elements(264 + 8), None);
        assert_eq!(Form::plain(4).elements(6), None);
    }

    #[test]
    fn room_is_counted_in_whole_blocks_up_to_the_end_of_the_slice() {
        assert_eq!(BLOCKS.fitting(263, 1_000), 0);
        assert_eq!(BLOCKS.fitting(600, 1_000), 512);
        assert_eq!(BLOCKS.fitting(BLOCKS.bytes(1_000) - 1, 1_000), 768);
        assert_eq!(BLOCKS.fitting(BLOCKS.bytes(1_000), 1_000), 1_000);
        assert_eq!(BLOCKS.fitting(u64::MAX, 1_000), 1_000);
        assert_eq!(Form::plain(4).fitting(7, 1_000), 1);
    }

    proptest! {
        #[test]
        fn bytes_and_elements_are_inverse(
            cell in 1u64..600,
            head in 0u64..20,
            width in 1u64..9,
            elements in 0u64..100_000,
        ) {
            let form = Form::blocks(cell, head, width);
            prop_assert_eq!(form.elements(form.bytes(elements)), Some(elements));
            prop_assert_eq!(form.whole(form.bytes(elements)), elements / cell * cell);
        }
    }
}
