//! Where rows of a batch go in the pages.

use std::ops::Range;

use kernels::attention::{BLOCK_TOKENS, Span};

/// Slot of a row that belongs to no sequence.
const NO_SLOT: u32 = u32::MAX;

/// The rows from the first to the last that belong to one of these.
pub(crate) fn covered(spans: &[Span<'_>]) -> Range<usize> {
    let first = spans.iter().map(|span| span.rows.start).min();
    let end = spans.iter().map(|span| span.rows.end).max();
    first.unwrap_or(0)..end.unwrap_or(0)
}

/// The position of each of these rows, counted from the rotary tables' first, and its place in the pages.
pub(crate) fn slots(spans: &[Span<'_>], rows: Range<usize>, first: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut positions, mut slots) = (vec![0; rows.len()], vec![NO_SLOT; rows.len()]);
    for span in spans {
        for (i, row) in span.rows.clone().map(|row| row - rows.start).enumerate() {
            let position = span.start + i;
            positions[row] = (position - first) as u32;
            slots[row] = span.block_of(position) * BLOCK_TOKENS as u32 + (position % BLOCK_TOKENS) as u32;
        }
    }
    (positions, slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_from_the_first_that_is_covered() {
        let spans =
            [Span { blocks: &[4, 9], start: 31, rows: 8..10 }, Span { blocks: &[2], start: 5, rows: 6..7 }];
        let rows = covered(&spans);
        assert_eq!(rows, 6..10);
        let (positions, slots) = slots(&spans, rows, 5);
        assert_eq!(positions, [0, 0, 26, 27]);
        assert_eq!(slots, [2 * 32 + 5, NO_SLOT, 4 * 32 + 31, 9 * 32]);
        assert_eq!(covered(&[]), 0..0);
    }
}
