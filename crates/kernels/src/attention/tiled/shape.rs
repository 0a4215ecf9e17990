//! How large things are in a block of queries.

use super::local::{Local, SKEW, VALUE_PAGE};
use super::tiles::LANES;
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, KV_GROUP, KvDtype, KvLayout};
use crate::attention::plan;
use std::ops::Range;

/// Most groups of dims of a head.
pub(super) const MAX_GROUPS: usize = 4;
/// Pages in a group.
pub(super) const PAGES: usize = GROUP_TOKENS / BLOCK_TOKENS;
/// Queries of a block, unless one row has more heads.
pub(in crate::attention) const BLOCK_LANES: usize = 64;

/// How large a block is.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Shape {
    /// Elements of a head.
    pub head_dim: usize,
    /// Tiles of queries.
    pub tiles: usize,
    /// Groups of dims whose codes have a scale of their own; none where pages hold no codes.
    pub groups: usize,
    /// Whether pages hold fewer bits than products take, so that all operands are laid out anew.
    pub narrow: bool,
}

/// Whether there are products of pairs of bf16 for what the pages hold.
pub(in crate::attention) fn pairs_suit(layout: KvLayout) -> bool {
    !matches!(layout.dtype, KvDtype::F32 | KvDtype::F16)
}

impl Shape {
    /// The shape of a full block.
    pub(in crate::attention) fn new(layout: KvLayout, group: usize) -> Shape {
        let tiles = (plan::rows_of_block(BLOCK_LANES, group) * group).div_ceil(LANES);
        let groups = if layout.dtype == KvDtype::Int4 { layout.groups() } else { 0 };
        let narrow = matches!(layout.dtype, KvDtype::Fp8 | KvDtype::Int4);
        Shape { head_dim: layout.head_dim, tiles, groups, narrow }
    }

    /// Steps of 32 dims in a dot product of a query and a key.
    pub(super) fn steps(&self) -> usize {
        self.head_dim.div_ceil(32)
    }

    /// Whether a key ends inside a step.
    pub(super) fn is_padded(&self) -> bool {
        !self.head_dim.is_multiple_of(32)
    }

    /// Whether keys are laid out anew before they are operands.
    pub(super) fn lays_keys(&self) -> bool {
        self.is_padded() || self.narrow
    }

    /// Bytes of a page of keys that are laid out anew.
    pub(super) fn key_page(&self) -> usize {
        BLOCK_TOKENS * self.steps() * 64 + SKEW
    }

    /// Bytes for the pages of keys of a group, and for its values in a group of dims in their place.
    pub(super) fn laid_bytes(&self) -> usize {
        let keys = if self.lays_keys() { PAGES * self.key_page() } else { 0 };
        if self.narrow { keys.max(PAGES * VALUE_PAGE) } else { keys }
    }

    /// Groups of dims whose values are laid out anew.
    pub(super) fn laid_values(&self) -> usize {
        if self.narrow { self.head_dim.div_ceil(KV_GROUP) } else { 0 }
    }

    /// f32 numbers of the state of a tile: maxima, sums, offsets `[groups][16]`, means `[head_dim][16]`.
    pub(super) fn state_of_tile(&self) -> usize {
        (2 + self.groups + self.head_dim) * LANES
    }

    /// f32 numbers of the state of a block.
    pub(in crate::attention) fn state_len(&self) -> usize {
        self.tiles * self.state_of_tile()
    }

    /// Bytes of a worker's own memory.
    pub(in crate::attention) fn local_bytes(&self) -> usize {
        Local::bytes(self)
    }

    /// The dims from `first` on that share a scale.
    pub(super) fn dims(&self, first: usize) -> Range<usize> {
        first..self.head_dim.min(first + KV_GROUP)
    }

    /// The products that a score is put together from: one, or one for each group of dims that has a scale.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> {
        const EACH: usize = KV_GROUP / 32;
        let steps = self.steps();
        let each = if self.groups > 0 { EACH } else { steps };
        (0..steps).step_by(each).enumerate().map(move |(group, step)| Part {
            group,
            step,
            steps: each.min(steps - step),
        })
    }

    /// Bytes from one key to the next.
    pub(super) fn key_stride(&self) -> usize {
        if self.lays_keys() { self.steps() * 64 } else { self.head_dim * 2 }
    }
}

/// Some steps of 32 dims of a dot product.
pub(super) struct Part {
    /// Of the dims, by number.
    pub group: usize,
    /// The first, and how many.
    pub step: usize,
    pub steps: usize,
}
