//! Weights in narrow formats: packed from floats or from GGUF blocks, and taken apart just before use.
//!
//! In the order of groups (see [`Order`](crate::Order)) a weight's value is the f32 value that its format defines, rounded
//! to bf16 once. The kernels expand a range of a panel to the VNNI tiles of a bf16 panel and multiply those, so a narrow
//! weight gives, bit for bit, what the same values as a bf16 weight would give on the same instruction set, at every
//! batch size.
//!
//! In the other orders no weight is rounded: see [`codes`] for that of pairs and [`values`] for that of vectors.

mod block;
mod codes;
mod encode;
mod expand;
mod integer;
mod pack;
mod plan;
mod scalar;
mod source;
#[cfg(test)]
mod tests;
mod values;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use block::{block_bytes, dequantize_row};
pub(crate) use codes::multiply as multiply_codes;
pub use encode::round_to_grid;
pub use expand::expand;
pub(crate) use integer::{Bits, run as multiply_integers};
pub use pack::{pack_blocks, pack_floats, unpack_panel_row};
pub(crate) use source::{NarrowPanels, multiply};
pub(crate) use values::multiply as multiply_values;

/// A format of fewer than 16 bits a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Narrow {
    /// 8 bits, groups of 64 along k, symmetric: `scale * code`. 8.25 bits a weight.
    Int8,
    /// 4 bits, groups of 64 along k, asymmetric: `min + scale * code`. 4.5 bits a weight.
    Int4,
    /// GGUF: 4 bits, blocks of 32, symmetric.
    Q4_0,
    /// GGUF: 4 bits, blocks of 32, with a min.
    Q4_1,
    /// GGUF: 5 bits, blocks of 32, symmetric.
    Q5_0,
    /// GGUF: 5 bits, blocks of 32, with a min.
    Q5_1,
    /// GGUF: 8 bits, blocks of 32, symmetric.
    Q8_0,
    /// GGUF: 2 bits, blocks of 256, a 4-bit scale and min for each 16.
    Q2K,
    /// GGUF: 3 bits, blocks of 256, a 6-bit scale for each 16.
    Q3K,
    /// GGUF: 4 bits, blocks of 256, a 6-bit scale and min for each 32.
    Q4K,
    /// GGUF: 5 bits, blocks of 256, a 6-bit scale and min for each 32.
    Q5K,
    /// GGUF: 6 bits, blocks of 256, an 8-bit scale for each 16.
    Q6K,
    /// Floats of 8 bits (E4M3), blocks of 64, with a scale that is an f32. 8.5 bits a weight.
    Fp8,
}

impl Narrow {
    /// Every narrow format, in the order of their numbers.
    pub const ALL: [Narrow; 13] = [
        Narrow::Int8,
        Narrow::Int4,
        Narrow::Q4_0,
        Narrow::Q4_1,
        Narrow::Q5_0,
        Narrow::Q5_1,
        Narrow::Q8_0,
        Narrow::Q2K,
        Narrow::Q3K,
        Narrow::Q4K,
        Narrow::Q5K,
        Narrow::Q6K,
        Narrow::Fp8,
    ];

    /// Elements along k that share a block; `k` of a GGUF weight is a multiple of it.
    pub fn block(self) -> usize {
        plan::Plan::of(self).unit_k
    }

    /// Whether codes are whole numbers, which x can be multiplied with that is rounded to such itself.
    pub fn is_whole(self) -> bool {
        !plan::Plan::of(self).floats
    }

    /// Bytes of one panel (32 rows) of `k` columns.
    pub fn panel_bytes(self, k: usize) -> usize {
        plan::Plan::of(self).panel_bytes(k)
    }
}
