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

use super::layout::BLOCK_TOKENS;

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
    fn a_share_of_all_is_all_and_few_are_all_kept() {
        assert_eq!(kept(1.0, 1000), 1000);
        assert_eq!(kept(0.1, 1001), 101);
        assert_eq!(kept(0.1, 100), 32);
        assert_eq!(kept(0.1, 20), 20);
    }
}
