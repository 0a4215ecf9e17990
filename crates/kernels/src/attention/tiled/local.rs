//! A worker's own memory, cut up.

use super::shape::{PAGES, Shape};
use super::softmax::Sight;
use super::tiles::{LANES, TILE};
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS, KV_GROUP};

/// Bytes of one tile of queries' scores of a group.
pub(super) const SCORES: usize = GROUP_TOKENS * LANES * size_of::<f32>();

/// Pages of operands are so much more than they need apart: at a distance of 4 KB a load waits for stores that are not its own.
pub(super) const SKEW: usize = 192;
/// Bytes from a page of values in a group of dims to the next, laid out anew.
pub(super) const VALUE_PAGE: usize = KV_GROUP * BLOCK_TOKENS * 2 + SKEW;

/// Pointers into a worker's memory; every piece begins on a cache line.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Local {
    /// `[tiles][steps of 32 dims]` tiles of `[16 pairs of dims][16 queries]`.
    pub q: *mut u8,
    /// Positions that each tile's queries see.
    pub sight: *mut Sight,
    /// Scores of a group for two tiles of queries; of each group of dims, for codes.
    pub s: [*mut f32; 2],
    /// Their weights, likewise.
    pub p: [*mut u8; 2],
    /// State of the split being read.
    pub split: *mut f32,
    /// State of the splits before it.
    pub total: *mut f32,
    /// Values of a page that ends inside: `[head_dim][32 tokens]`.
    pub v_tail: *mut u8,
    /// A group's keys with rows of whole tiles, for head sizes that are not, and for fewer bits: `[128][32 * steps]`.
    pub k_pages: *mut u8,
    /// A group's values, for fewer bits: `[groups of dims][pages][64][32]`.
    pub v_pages: *mut u8,
    /// For codes: sums of the queries' dims, `[tiles][groups of dims][16]`.
    pub q_sums: *mut f32,
    /// Scales of a group's keys, and `minimum + 8 scale`.
    pub k_grids: Grids,
    /// Scales of a group's values, and `minimum + 8 scale`.
    pub v_grids: Grids,
}

/// What codes are multiplied with, and what is added: `[groups of dims][128]` each.
#[derive(Clone, Copy)]
pub(in crate::attention) struct Grids {
    pub scales: *mut f32,
    pub mins: *mut f32,
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
        let parts = shape.groups.max(1);
        let grids = shape.groups * GROUP_TOKENS * size_of::<f32>();
        let values = shape.head_dim * 2;
        Local {
            q: take(shape.tiles * shape.steps() * TILE),
            sight: take((shape.tiles * size_of::<Sight>()).next_multiple_of(64)).cast(),
            s: [take(parts * SCORES).cast(), take(parts * SCORES).cast()],
            p: [take(parts * SCORES / 2), take(parts * SCORES / 2)],
            split: take(state).cast(),
            total: take(state).cast(),
            v_tail: take(BLOCK_TOKENS * values),
            k_pages: take(shape.laid_bytes()),
            v_pages: take(shape.laid_values() * PAGES * VALUE_PAGE),
            q_sums: take(shape.tiles * shape.groups * LANES * size_of::<f32>()).cast(),
            k_grids: Grids { scales: take(grids).cast(), mins: take(grids).cast() },
            v_grids: Grids { scales: take(grids).cast(), mins: take(grids).cast() },
        }
    }
}
