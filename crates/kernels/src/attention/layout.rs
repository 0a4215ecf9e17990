//! How keys and values lie in memory: pages of 32 tokens, head after head inside a page.
//!
//! ```text
//! one layer of one block:  head 0: K [32 tokens][head_dim], V [head_dim][32 tokens]   head 1: K, V   ...
//! ```
//!
//! Head-major, so that a tensor-parallel shard of a block is one contiguous piece. V lies transposed, so
//! that a page is at once the left operand of `V^T * P^T` and no kernel turns it round. What the planes K and V of
//! 4 bits hold is told in `int4.rs`, what 8 bits mean in `fp8/mod.rs`, what f16 does
//! with numbers beyond its range in `f16.rs`.

use std::ops::Range;

/// Tokens in a block.
pub const BLOCK_TOKENS: usize = 32;
/// The online softmax moves its maximum once for this many absolute positions.
pub const GROUP_TOKENS: usize = 128;
/// A sequence is cut at multiples of this, wherever its queries begin; the parts are merged in order.
pub const SPLIT_TOKENS: usize = 512;

/// What keys and values are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// Two bytes an element.
    Bf16,
    /// Four bytes an element, for the f32 path.
    F32,
    /// Two bytes an element, with more mantissa than bf16 and less range, up to 65504: told of in `f16.rs`.
    F16,
    /// A byte an element, a number of four bits of exponent and three of mantissa (e4m3fn): told of in `fp8/mod.rs`.
    Fp8,
    /// Half a byte an element, and a scale and a least value for each group of up to 64 elements of a token's head.
    Int4,
}

/// Elements of a group of [`KvDtype::Int4`]: a head's first 64 dims, the next, and so on; the last may have fewer.
pub const KV_GROUP: usize = 64;

/// The shape of one layer's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Heads of keys and values (of this rank).
    pub kv_heads: usize,
    /// Elements of one head: a multiple of 16, at most 256.
    pub head_dim: usize,
    /// How an element is stored.
    pub dtype: KvDtype,
}

impl KvLayout {
    /// Bytes of one layer of one block: K and V of all heads.
    pub fn block_bytes(&self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Bytes of K and V of one head in one block.
    pub fn head_bytes(&self) -> usize {
        2 * self.plane_bytes()
    }

    /// Bytes of K (or of V) of one head in one block.
    pub fn plane_bytes(&self) -> usize {
        let elements = BLOCK_TOKENS * self.head_dim;
        match self.dtype {
            KvDtype::Bf16 | KvDtype::F16 => 2 * elements,
            KvDtype::F32 => 4 * elements,
            KvDtype::Fp8 => elements,
            KvDtype::Int4 => elements / 2 + self.groups() * BLOCK_TOKENS * 4,
        }
    }

    /// Groups of a token's head that have a scale of their own.
    pub fn groups(&self) -> usize {
        self.head_dim.div_ceil(KV_GROUP)
    }

    /// Where K of `head` begins inside the layer's pages, in bytes; V follows it.
    pub fn k_start(&self, block: u32, head: usize) -> usize {
        (block as usize * self.kv_heads + head) * self.head_bytes()
    }

    /// Asserts what every kernel needs of a layout.
    pub(crate) fn check(&self) {
        let d = self.head_dim;
        assert!(spec::head_dim_supported(d), "head_dim {d}: a multiple of 16 up to 256");
    }
}

/// Rows of a batch that belong to one sequence, at consecutive positions.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// The sequence's blocks: position `p` is token `p % 32` of block `blocks[p / 32]`.
    pub blocks: &'a [u32],
    /// Absolute position of the first row.
    pub start: usize,
    /// Which rows of the batch.
    pub rows: Range<usize>,
}

impl Span<'_> {
    /// How many positions are written once these rows are: the last row attends to all of them.
    pub fn end(&self) -> usize {
        self.start + self.rows.len()
    }

    /// The block that holds `position`.
    pub fn block_of(&self, position: usize) -> u32 {
        self.blocks[position / BLOCK_TOKENS]
    }

    /// Asserts that the span's blocks reach its last position and lie inside `n_blocks`.
    pub(crate) fn check(&self, n_rows: usize, n_blocks: usize) {
        let used = self.end().div_ceil(BLOCK_TOKENS);
        assert!(self.rows.end <= n_rows, "span rows {:?} of a batch of {n_rows}", self.rows);
        assert!(self.blocks.len() >= used, "{} blocks for {} positions", self.blocks.len(), self.end());
        let inside = self.blocks[..used].iter().all(|&b| (b as usize) < n_blocks);
        assert!(inside, "a block of the span lies outside the {n_blocks} of the cache");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_follow_one_another() {
        let layout = KvLayout { kv_heads: 3, head_dim: 64, dtype: KvDtype::Bf16 };
        assert_eq!(layout.block_bytes(), 3 * 2 * 32 * 64 * 2);
        assert_eq!(layout.k_start(2, 1), 2 * layout.block_bytes() + layout.head_bytes());
    }

    #[test]
    fn four_bits_take_little_more_than_a_quarter() {
        for (head_dim, percent) in [(64, 28), (80, 30), (96, 29), (128, 28)] {
            let bytes = |dtype| KvLayout { kv_heads: 2, head_dim, dtype }.block_bytes();
            assert_eq!(100 * bytes(KvDtype::Int4) / bytes(KvDtype::Bf16), percent, "{head_dim}");
            assert!(bytes(KvDtype::Int4).is_multiple_of(64));
        }
    }

    #[test]
    #[should_panic(expected = "1 blocks for 33 positions")]
    fn a_span_needs_its_blocks() {
        Span { blocks: &[0], start: 32, rows: 0..1 }.check(1, 1);
    }
}
