//! Pages of plain numbers: widened to f32 once for all queries of a block, or met as they lie.

use super::block::{Ahead, PAGES, Pass, TOTALS};
use super::direct::met;
use super::products::dots;
use super::simd::Simd;
use super::values::ValuePage;
use super::widened::Numbers;
use crate::attention::Page;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS};

impl<S: Simd<W>, E: Numbers, const W: usize> Pass<'_, '_, S, E, W> {
    /// [`Widened::scores`].
    ///
    /// # Safety
    /// As for [`Widened::scores`].
    #[inline(always)]
    pub(super) unsafe fn scores_of_numbers(&self, i: usize, page: &Page<'_, E::Cell>, ahead: &[E::Cell]) {
        if met::<E, W>(self.lanes, self.head_dim()) {
            // SAFETY: as for this function.
            return unsafe { self.scores_as_they_lie(i, page, ahead) };
        }
        let (d, ahead) = (self.head_dim(), Ahead::new(ahead, BLOCK_TOKENS / W));
        for token in (0..BLOCK_TOKENS).step_by(W) {
            // SAFETY: `wide` holds W keys, `s` a group for each query.
            unsafe {
                ahead.bring::<S, W>(token / W);
                for j in 0..W {
                    E::key::<S, W>(page, d, token + j, self.wide.add(j * d));
                }
                for lane in 0..self.lanes {
                    let s = dots::<S, W>(self.wide, d, self.q.add(lane * d), d);
                    S::store(self.s.add(lane * GROUP_TOKENS + i * BLOCK_TOKENS + token), s);
                }
            }
        }
    }

    /// [`Widened::weigh`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(super) unsafe fn weigh_numbers(
        &self,
        v: &[ValuePage<'_, E::Cell>],
        ahead: &[&[E::Cell]; PAGES],
        state: *mut f32,
    ) {
        if met::<E, W>(self.lanes, self.head_dim()) {
            // SAFETY: as for this function.
            return unsafe { self.weigh_as_they_lie(v, ahead, state) };
        }
        let ahead = ahead.map(|values| Ahead::new(values, self.head_dim() / W));
        for dims in (0..self.head_dim()).step_by(W) {
            // SAFETY: as for this function.
            unsafe {
                for ahead in &ahead {
                    ahead.bring::<S, W>(dims / W);
                }
                self.means(dims, v, state);
            }
        }
    }

    /// Adds a group's weighted values in dims `dims .. dims + W` for all queries.
    ///
    /// # Safety
    /// As for [`Widened::weigh`].
    #[inline(always)]
    unsafe fn means(&self, dims: usize, v: &[ValuePage<'_, E::Cell>], state: *mut f32) {
        let tokens = v.len() * BLOCK_TOKENS;
        // SAFETY: a page of values has all dims; `wide` holds W dims of a group; means follow totals.
        unsafe {
            for (i, v) in v.iter().enumerate() {
                E::values::<S, W>(v.plane.as_ptr(), dims, self.wide.add(i * BLOCK_TOKENS));
            }
            for lane in 0..self.lanes {
                let added = dots::<S, W>(self.wide, GROUP_TOKENS, self.s.add(lane * GROUP_TOKENS), tokens);
                let at = state.add(lane * self.state_of_query() + TOTALS + dims);
                S::store(at, S::fma(S::load(at), S::splat(*self.shrink.add(lane)), added));
            }
        }
    }
}
