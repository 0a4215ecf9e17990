//! From weights to weighted values.

use super::block::{PAGES, Pass, TOTALS, bring};
use super::direct::met;
use super::products::{dots, scaled};
use super::simd::Simd;
use super::widened::Widened;
use crate::attention::Page;
use crate::attention::element::Element;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, KV_GROUP};

/// Values of a page, and how many of its tokens are known.
pub(super) struct ValuePage<'v, C> {
    pub(super) plane: &'v [C],
    kept: usize,
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

impl<S: Simd<W>, E: Widened, O: Element, const W: usize> Pass<'_, '_, S, E, O, W> {
    /// Values of the page whose first token is at `position`.
    ///
    /// # Safety
    /// Inside `S::run`.
    #[inline(always)]
    pub(super) unsafe fn values_of(&self, position: usize) -> ValuePage<'_, E::Cell> {
        let page = self.page(position);
        let kept = (self.task.spans[self.block.span].end() - position).min(BLOCK_TOKENS);
        if E::CODED || kept == BLOCK_TOKENS {
            return ValuePage { plane: page.v, kept };
        }
        // SAFETY: one page of a block ends inside.
        ValuePage { plane: unsafe { self.cut_values(&page, kept) }, kept }
    }

    /// Adds pages of values, weighted, while values that come later are brought nearer.
    ///
    /// # Safety
    /// As for `one_split`; `s` has the weights of the pages.
    #[inline(always)]
    pub(super) unsafe fn weigh(
        &self,
        v: &[ValuePage<'_, E::Cell>],
        ahead: &[&[E::Cell]; PAGES],
        state: *mut f32,
    ) {
        if met::<S, E, W>(self.lanes) {
            // SAFETY: as for this function.
            return unsafe { self.weigh_as_they_lie(v, ahead, state) };
        }
        for dims in (0..self.head_dim()).step_by(W) {
            // SAFETY: as for this function.
            unsafe {
                for ahead in ahead {
                    bring::<S, _, W>(ahead, dims / W, self.head_dim() / W);
                }
                if E::CODED && dims.is_multiple_of(KV_GROUP) {
                    self.scale_weights(dims / KV_GROUP, v);
                }
                self.means(dims, v, state);
            }
        }
    }

    /// Adds a group's weighted values in dims `dims .. dims + W` for all queries.
    ///
    /// # Safety
    /// As for `one_split`.
    #[inline(always)]
    unsafe fn means(&self, dims: usize, v: &[ValuePage<'_, E::Cell>], state: *mut f32) {
        let tokens = v.len() * BLOCK_TOKENS;
        // SAFETY: a page of values has all dims; `wide` holds W dims of a group; means follow totals.
        unsafe {
            for (i, v) in v.iter().enumerate() {
                E::values::<S, W>(v.plane.as_ptr(), dims, self.wide.add(i * BLOCK_TOKENS));
            }
            let (weights, offsets) = if E::CODED { self.scaled_weights() } else { (self.s, self.s) };
            for lane in 0..self.lanes {
                let mut added =
                    dots::<S, W>(self.wide, GROUP_TOKENS, weights.add(lane * GROUP_TOKENS), tokens);
                if E::CODED {
                    added = S::add(added, S::splat(*offsets.add(lane)));
                }
                let at = state.add(lane * self.state_of_query() + TOTALS + dims);
                S::store(at, S::fma(S::load(at), S::splat(*self.shrink.add(lane)), added));
            }
        }
    }

    /// Weights times scales, and the sums of weights times minima.
    fn scaled_weights(&self) -> (*mut f32, *mut f32) {
        let weights = self.coded.wrapping_add(2 * GROUP_TOKENS);
        (weights, weights.wrapping_add(self.lanes * GROUP_TOKENS))
    }

    /// Makes [`scaled_weights`](Self::scaled_weights) for a group of dims.
    ///
    /// # Safety
    /// As for `one_split`.
    #[inline(always)]
    unsafe fn scale_weights(&self, group: usize, v: &[ValuePage<'_, E::Cell>]) {
        let (scales, mins) = (self.coded, self.coded.wrapping_add(GROUP_TOKENS));
        let (to, offsets) = self.scaled_weights();
        // SAFETY: `coded` holds grids and weights of a group of tokens.
        unsafe {
            for (i, v) in v.iter().enumerate() {
                let at = i * BLOCK_TOKENS;
                E::grids::<S, W>(v.plane, self.head_dim(), group, v.kept, scales.add(at), mins.add(at));
            }
            for lane in 0..self.lanes {
                let at = lane * GROUP_TOKENS;
                let sum = scaled::<S, W>(self.s.add(at), scales, mins, to.add(at), v.len() * BLOCK_TOKENS);
                *offsets.add(lane) = sum;
            }
        }
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
