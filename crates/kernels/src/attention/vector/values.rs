//! Values of pages, of which one may end inside.

use super::block::Pass;
use super::simd::Simd;
use super::widened::Widened;
use crate::attention::Page;
use crate::attention::layout::BLOCK_TOKENS;

/// Values of a page, and how many of its tokens are known.
pub(in crate::attention) struct ValuePage<'v, C> {
    pub(super) plane: &'v [C],
    pub(super) kept: usize,
}

impl<C> Clone for ValuePage<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for ValuePage<'_, C> {}

impl<C> ValuePage<'_, C> {
    /// No page.
    pub(super) const NONE: Self = ValuePage { plane: &[], kept: 0 };
}

impl<S: Simd<W>, E: Widened, const W: usize> Pass<'_, '_, S, E, W> {
    /// Values of the page whose first token is at `position`.
    ///
    /// # Safety
    /// Inside `S::run`.
    #[inline(always)]
    pub(super) unsafe fn values_of(&self, position: usize) -> ValuePage<'_, E::Cell> {
        let page = self.page(position);
        let kept = (self.task.spans[self.item.block.span].end() - position).min(BLOCK_TOKENS);
        if E::CODED || kept == BLOCK_TOKENS {
            return ValuePage { plane: page.v, kept };
        }
        // SAFETY: one page of a block ends inside.
        ValuePage { plane: unsafe { self.cut_values(&page, kept) }, kept }
    }

    /// A page's first `tokens` values, and zeros for what was never written (0 * NaN is NaN).
    ///
    /// # Safety
    /// `v_tail` has room for a page of values.
    #[inline(always)]
    unsafe fn cut_values<'s>(&'s self, page: &Page<'_, E::Cell>, tokens: usize) -> &'s [E::Cell] {
        // SAFETY: by this function's contract.
        let to = unsafe { std::slice::from_raw_parts_mut(self.v_tail, page.v.len()) };
        for (to, from) in to.chunks_exact_mut(BLOCK_TOKENS).zip(page.v.chunks_exact(BLOCK_TOKENS)) {
            to[..tokens].copy_from_slice(&from[..tokens]);
            to[tokens..].fill(bytemuck::Zeroable::zeroed());
        }
        to
    }
}
