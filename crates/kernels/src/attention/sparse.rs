//! Sparse attention: of all keys that a query sees only those with the highest scores count, and only their values
//! are read (FlexGen, section 5).
//!
//! ```text
//! keys    |s s s s|s s s s|s s s s|s s s s|     scores of all, kept
//! choose  |. . x .|. . . .|x x . .|. . . .|     the highest share, for each query and head
//! values  |  read |       |  read |       |     softmax over those chosen, pages without one are left alone
//! ```
//!
//! Every row is treated so, a prompt's too: what a token comes to must not depend on the step that computes it. FlexGen
//! chooses while it decodes only. A query that sees few keys attends to all of them.
//!
//! Where values are elsewhere while keys are here, a call of its own says which of them count ([`Chosen`]), they are
//! brought, and then rows attend as ever: scores are computed twice, and so are the same bits, wherever values come from.

use super::layout::BLOCK_TOKENS;
use crate::mat::MatMut;

/// Which values count of the decodes whose keys were scored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    kv_heads: usize,
    /// Pages of a row that there is room for.
    pages: usize,
    /// `[spans][kv_heads][pages]`, a bit for each token of a page.
    tokens: Vec<u32>,
}

const _: () = assert!(BLOCK_TOKENS == u32::BITS as usize, "a bit for each token of a page");

impl Chosen {
    /// None, of so many rows.
    pub(super) fn none(spans: usize, kv_heads: usize, pages: usize) -> Chosen {
        Chosen::new(kv_heads, pages, vec![0; spans * kv_heads * pages])
    }

    /// As a device has found them: `tokens: [spans][kv_heads][pages]`, token `t` of a page bit `t` of its word.
    ///
    /// # Panics
    /// If that is not a multiple of a span's words.
    pub fn new(kv_heads: usize, pages: usize, tokens: Vec<u32>) -> Chosen {
        assert!(tokens.is_empty() || tokens.len().is_multiple_of(kv_heads * pages), "words of whole spans");
        Chosen { kv_heads, pages, tokens }
    }

    /// `[spans * kv_heads][pages]`.
    pub(super) fn rows(&mut self) -> MatMut<'_, u32> {
        let rows = self.tokens.len().checked_div(self.pages).unwrap_or(0);
        MatMut::new(&mut self.tokens, rows, self.pages)
    }

    /// Which tokens of a page of a span some query of a head chose: token `t` is bit `t`.
    ///
    /// # Panics
    /// If there is no such span, head or page.
    pub fn tokens(&self, span: usize, kv_head: usize, page: usize) -> u32 {
        assert!(kv_head < self.kv_heads && page < self.pages, "head {kv_head}, page {page}");
        self.tokens[(span * self.kv_heads + kv_head) * self.pages + page]
    }
}

/// Adds to `row`, a word for each page, the positions from `first` on whose score was left as it is.
pub(super) fn mark(scores: &[f32], first: usize, row: &mut [u32]) {
    for (position, _) in (first..).zip(scores).filter(|(_, score)| **score != f32::NEG_INFINITY) {
        row[position / BLOCK_TOKENS] |= 1 << (position % BLOCK_TOKENS);
    }
}

/// How many of `seen` keys count: `share` of them, but no fewer than a page holds.
pub(super) fn kept(share: f32, seen: usize) -> usize {
    let wanted = (f64::from(share) * seen as f64).ceil() as usize;
    wanted.max(BLOCK_TOKENS).min(seen)
}

/// Leaves the `keep` highest scores as they are and makes the others minus infinity; of equal ones the first stay. A
/// score that is no number counts as the highest. `order` has room for the scores.
pub(super) fn choose(scores: &mut [f32], keep: usize, order: &mut [f32]) {
    if keep >= scores.len() {
        return;
    }
    let order = &mut order[..scores.len()];
    order.copy_from_slice(scores);
    // A NaN's sign must not decide.
    order.iter_mut().filter(|s| s.is_nan()).for_each(|s| *s = f32::NAN);
    let (_, lowest, _) = order.select_nth_unstable_by(keep - 1, |a, b| b.total_cmp(a));
    let lowest = *lowest;
    let above = |s: f32| s.is_nan() && !lowest.is_nan() || s > lowest;
    let mut equal = keep - scores.iter().filter(|s| above(**s)).count();
    for s in scores.iter_mut().filter(|s| !above(**s)) {
        let stays = equal > 0 && (*s == lowest || s.is_nan());
        if stays { equal -= 1 } else { *s = f32::NEG_INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(scores: &[f32], keep: usize) -> Vec<usize> {
        let mut scores = scores.to_vec();
        let mut order = vec![0.0; scores.len() + 3];
        choose(&mut scores, keep, &mut order);
        (0..scores.len()).filter(|i| scores[*i] != f32::NEG_INFINITY).collect()
    }

    #[test]
    fn the_highest_stay_and_of_equal_ones_the_first() {
        assert_eq!(chosen(&[1.0, 5.0, 3.0, 4.0], 2), [1, 3]);
        assert_eq!(chosen(&[2.0, 2.0, 9.0, 2.0, 2.0], 3), [0, 1, 2]);
        assert_eq!(chosen(&[0.0, -0.0, 0.0], 1).len(), 1);
        assert_eq!(chosen(&[1.0, 2.0], 2), [0, 1]);
        assert_eq!(chosen(&[1.0, f32::NAN, 7.0, -f32::NAN], 3), [1, 2, 3]);
    }

    #[test]
    fn what_is_left_is_marked_by_page_and_token() {
        let mut row = [1, 0, 0];
        let scores: Vec<f32> = (0..40).map(|i| if i % 39 == 0 { 1.0 } else { f32::NEG_INFINITY }).collect();
        mark(&scores, 30, &mut row);
        assert_eq!(row, [1 | 1 << 30, 0, 1 << 5]);
    }

    #[test]
    fn a_share_of_all_is_all_and_few_are_all_kept() {
        assert_eq!(kept(1.0, 1000), 1000);
        assert_eq!(kept(0.1, 1001), 101);
        assert_eq!(kept(0.1, 100), 32);
        assert_eq!(kept(0.1, 20), 20);
    }
}
