//! A worker's own memory, cut up.

use super::block::Shape;
use super::softmax::Sight;
use super::tiles::{LANES, TILE};
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS};

/// Bytes of one tile of queries' scores of a group.
const SCORES: usize = GROUP_TOKENS * LANES * size_of::<f32>();

/// Pointers into a worker's memory; every piece begins on a cache line.
#[derive(Clone, Copy)]
pub(super) struct Local {
    /// `[tiles][steps of 32 dims]` tiles of `[16 pairs of dims][16 queries]`.
    pub q: *mut u8,
    /// Positions that each tile's queries see.
    pub sight: *mut Sight,
    /// Scores of a group for two tiles of queries.
    pub s: [*mut f32; 2],
    /// Their weights.
    pub p: [*mut u8; 2],
    /// State of the split being read.
    pub split: *mut f32,
    /// State of the splits before it.
    pub total: *mut f32,
    /// Values of a page that ends inside: `[head_dim][32 tokens]`.
    pub v_tail: *mut u8,
    /// A group's keys with rows of whole tiles, for head sizes that are not: `[128][32 * steps]`.
    pub k_padded: *mut u8,
}

impl Local {
    /// Bytes that a shape takes.
    pub(super) fn bytes(shape: &Shape) -> usize {
        let mut end = 0;
        Local::lay_out(shape, |bytes| {
            end += bytes;
            std::ptr::null_mut()
        });
        end
    }

    /// Cuts up `memory`, which begins on a cache line.
    pub(super) fn carve(shape: &Shape, memory: &mut [u8]) -> Local {
        let mut rest = memory;
        Local::lay_out(shape, move |bytes| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(bytes);
            rest = after;
            piece.as_mut_ptr()
        })
    }

    fn lay_out(shape: &Shape, mut take: impl FnMut(usize) -> *mut u8) -> Local {
        let state = shape.state_len() * size_of::<f32>();
        Local {
            q: take(shape.tiles * shape.steps() * TILE),
            sight: take((shape.tiles * size_of::<Sight>()).next_multiple_of(64)).cast(),
            s: [take(SCORES).cast(), take(SCORES).cast()],
            p: [take(SCORES / 2), take(SCORES / 2)],
            split: take(state).cast(),
            total: take(state).cast(),
            v_tail: take(shape.head_dim * BLOCK_TOKENS * 2),
            k_padded: take(if shape.is_padded() { GROUP_TOKENS * shape.steps() * 64 } else { 0 }),
        }
    }
}
