//! Batches and blocks enumerated, each placed by the linear programme; the best few are worth a closer look.

use super::lp::{BlockSize, Placed, Question, place};
use std::cmp::Ordering;

/// Sequences of a batch that are tried.
const BATCH_SIZES: [u32; 22] =
    [1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384];
/// Batches of a block that are tried.
const BLOCKS: [u32; 13] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20];

/// Blocks that are tried.
pub fn blocks() -> impl Iterator<Item = BlockSize> {
    let of = |batch_size| BLOCKS.into_iter().map(move |num_batches| BlockSize { batch_size, num_batches });
    BATCH_SIZES.into_iter().flat_map(of)
}

/// Those one step from a block, of those that are tried: in its batches' size, in their number, or in one against the other.
pub fn around(block: BlockSize) -> impl Iterator<Item = BlockSize> {
    const STEPS: [[isize; 2]; 6] = [[1, 0], [-1, 0], [0, 1], [0, -1], [1, -1], [-1, 1]];
    let at = |list: &[u32], value| list.iter().position(|&tried| tried == value);
    let step =
        |list: &[u32], from: Option<usize>, by: isize| list.get(from?.checked_add_signed(by)?).copied();
    let (size, number) = (at(&BATCH_SIZES, block.batch_size), at(&BLOCKS, block.num_batches));
    STEPS.into_iter().filter_map(move |[larger, more]| {
        let batch_size = step(&BATCH_SIZES, size, larger)?;
        Some(BlockSize { batch_size, num_batches: step(&BLOCKS, number, more)? })
    })
}

/// Tokens a second, as the programme sees it.
fn rate(question: &Question, placed: &Placed) -> f64 {
    let seqs = f64::from(placed.block.batch_size) * f64::from(placed.block.num_batches);
    seqs * f64::from(question.generated) / placed.seconds
}

/// The best `keep` blocks, best first.
pub fn search(question: &Question, keep: usize) -> Vec<Placed> {
    search_up_to(question, u32::MAX, keep)
}

/// The best `keep` blocks of up to `most` sequences, best first.
pub fn search_up_to(question: &Question, most: u32, keep: usize) -> Vec<Placed> {
    let blocks = blocks().filter(|block| block.batch_size * block.num_batches <= most);
    let mut found: Vec<Placed> = blocks.filter_map(|block| place(question, block)).collect();
    let order =
        |a: &Placed, b: &Placed| rate(question, b).partial_cmp(&rate(question, a)).unwrap_or(Ordering::Equal);
    found.sort_by(order);
    found.truncate(keep);
    found
}

/// Where a tier is said to bind, one more GiB of it adds this share of the tokens a second at the least.
pub const GAIN: f64 = 0.005;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_those_around_them_that_are_tried() {
        let near = |batch_size, num_batches| {
            around(BlockSize { batch_size, num_batches })
                .map(|b| (b.batch_size, b.num_batches))
                .collect::<Vec<_>>()
        };
        assert_eq!(near(32, 4), [(40, 4), (28, 4), (32, 5), (32, 3), (40, 3), (28, 5)]);
        assert_eq!(near(1, 1), [(2, 1), (1, 2)]);
        assert_eq!(near(384, 20), [(256, 20), (384, 18)]);
        assert_eq!(near(33, 4), [], "it is none of them");
    }
}
