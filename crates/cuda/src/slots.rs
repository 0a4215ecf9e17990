//! Where rows of a batch go in the pages.

use std::ops::Range;

use kernels::attention::{BLOCK_TOKENS, RopeBy, Span};

/// Slot of a row that belongs to no sequence.
const NO_SLOT: u32 = u32::MAX;

/// The rows from the first to the last that belong to one of these.
pub(crate) fn covered(spans: &[Span<'_>]) -> Range<usize> {
    let first = spans.iter().map(|span| span.rows.start).min();
    let end = spans.iter().map(|span| span.rows.end).max();
    first.unwrap_or(0)..end.unwrap_or(0)
}

/// The row of the rotary tables for each of these rows, and its place in the pages.
pub(crate) fn slots(spans: &[Span<'_>], rows: Range<usize>, by: RopeBy) -> (Vec<u32>, Vec<u32>) {
    let (mut turns, mut slots) = (vec![0; rows.len()], vec![NO_SLOT; rows.len()]);
    for span in spans {
        for (i, row) in span.rows.clone().map(|row| row - rows.start).enumerate() {
            let position = span.start + i;
            turns[row] = by.index(position, rows.start + row) as u32;
            slots[row] = span.block_of(position) * BLOCK_TOKENS as u32 + (position % BLOCK_TOKENS) as u32;
        }
    }
    (turns, slots)
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
        let (turns, there) = slots(&spans, rows.clone(), RopeBy::Position);
        assert_eq!(turns, [5, 0, 31, 32]);
        assert_eq!(there, [2 * 32 + 5, NO_SLOT, 4 * 32 + 31, 9 * 32]);
        assert_eq!(slots(&spans, rows, RopeBy::Row), (vec![6, 0, 8, 9], there));
        assert_eq!(covered(&[]), 0..0);
    }
}
