//! A block of a few queries over a split: lanes are tokens where scores become weights, and dims where weights meet values, so
//! that softmax works on no idle lane. Every number is the same sum in the same order as with a query in each lane.

use super::adds::Adds;
use super::block::Pass;
use super::few;
use super::local::SCORES;
use super::pages::{Group, Tiled};
use super::products::Products;
use super::shape::MAX_GROUPS;
use super::softmax::{Sight, Totals};
use super::softmax_of_one::{OneAsTheyAre, weights_of_one};
use super::tiles::LANES;
use crate::attention::element::Stored;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS};
use crate::attention::plan;
use std::arch::x86_64::*;

/// Queries that are few: with more, products cost what idle lanes save.
pub(super) const FEW: usize = 8;

/// Pages that `L` queries read by themselves.
///
/// # Safety
/// All methods: the machine has AVX-512 with bf16 products, `local` room for a block, grids are there, and shapes suit.
pub(in crate::attention) trait Few: Stored {
    /// Scores of a group: `s: [L][128]`. `q`: tiles of queries, `q_sums: [groups of dims][16]`.
    unsafe fn scores<A: Adds, const L: usize>(
        group: &Group<'_, Self::Cell>,
        q: *const u8,
        q_sums: *const f32,
        s: *mut f32,
    );

    /// From a query's scores to weights at `p`: of `lane`, which has `offsets` beside its means, for each group of dims. What
    /// its means must be multiplied with, unless it is 1. Values that are plain numbers have no offsets.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn weights(
        _group: &Group<'_, Self::Cell>,
        s: &[f32],
        c: f32,
        sight: (i32, &Sight),
        lane: (&mut Totals, usize),
        _offsets: &mut [f32],
        p: *mut u8,
    ) -> Option<f32> {
        // SAFETY: by the trait's contract.
        unsafe { weights_of_one(s, c, sight, lane, &mut OneAsTheyAre { p }) }
    }

    /// Adds a group's values, weighted, to `means: [L][head_dim]`, dims in an order of their own; what `weights` left is at `p`,
    /// `[L][128]` for each group of dims.
    unsafe fn means<A: Adds, const L: usize>(group: &Group<'_, Self::Cell>, p: *const u8, means: *mut f32);

    /// Puts the dims of a query's means in order, if they are not.
    fn in_order(_means: &mut [f32]) {}
}

impl<P: Products, E: Tiled> Pass<'_, '_, P, E> {
    /// All groups of one split, into the state of the block's one tile.
    ///
    /// # Safety
    /// The machine has AVX-512 with bf16 products, queries are loaded, `state` has room for a block.
    pub(super) unsafe fn lean_split(&self, split: usize, state: *mut f32) {
        // SAFETY: as for this function.
        unsafe {
            match self.lanes {
                1 => self.lean::<1>(split, state),
                2 => self.lean::<2>(split, state),
                3 => self.lean::<3>(split, state),
                4 => self.lean::<4>(split, state),
                _ => self.lean::<FEW>(split, state),
            }
        }
    }

    /// # Safety
    /// As for `lean_split`; there are no more than `L` queries.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn lean<const L: usize>(&self, split: usize, state: *mut f32) {
        let d = self.shape.head_dim;
        let groups = self.shape.groups;
        // Means of each query side by side, where the second slot of scores is.
        let means = self.local.s[1];
        assert!(L * d * size_of::<f32>() <= SCORES * groups.max(1));
        let (mut totals, mut offsets) = (Totals::NONE, [[0.0; MAX_GROUPS]; L]);
        // SAFETY: there is room for the means; the state begins with its totals.
        unsafe {
            means.write_bytes(0, L * d);
            for group in plan::groups(self.task, &self.item.block, split) {
                self.lean_group::<L>(group * GROUP_TOKENS, &mut totals, &mut offsets, means);
            }
            state.cast::<Totals>().write(totals);
            for l in 0..L {
                E::in_order(std::slice::from_raw_parts_mut(means.add(l * d), d));
                for (g, offset) in offsets[l][..groups].iter().enumerate() {
                    state.add((2 + g) * LANES + l).write(*offset);
                }
            }
            for dims in (0..d).step_by(16) {
                let mut rows = [_mm512_setzero_ps(); L];
                for l in 0..L {
                    rows[l] = _mm512_loadu_ps(means.add(l * d + dims));
                }
                few::store_turned(rows, state.add((2 + groups + dims) * LANES));
            }
        }
    }

    /// The group of positions from `base` on.
    ///
    /// # Safety
    /// As for `lean`; `means: [L][head_dim]`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn lean_group<const L: usize>(
        &self,
        base: usize,
        totals: &mut Totals,
        offsets: &mut [[f32; MAX_GROUPS]; L],
        means: *mut f32,
    ) {
        // SAFETY: there is one tile.
        let sight = unsafe { &*self.local.sight };
        if sight.is_empty(base as i32) {
            return;
        }
        let (pages, n) = self.pages(base);
        let group = self.opened(&pages[..n], base);
        let (s, p, d) = (self.local.s[0], self.local.p[0], self.shape.head_dim);
        let c = self.task.softmax.scale * std::f32::consts::LOG2_E;
        // SAFETY: slots have room for a group of more queries than these.
        unsafe {
            E::grids(&group);
            E::scores::<P::Adds, L>(&group, self.local.q, self.local.q_sums, s);
            for l in 0..L {
                let s = std::slice::from_raw_parts_mut(s.add(l * GROUP_TOKENS), n * BLOCK_TOKENS);
                self.task.softmax.cap_scores(s);
                let p = p.add(l * GROUP_TOKENS * 2);
                let offsets = &mut offsets[l][..self.shape.groups];
                let shrink = E::weights(&group, s, c, (base as i32, sight), (totals, l), offsets, p);
                if let Some(shrink) = shrink {
                    std::slice::from_raw_parts_mut(means.add(l * d), d).iter_mut().for_each(|x| *x *= shrink);
                }
            }
            E::means::<P::Adds, L>(&group, p, means);
        }
    }
}
