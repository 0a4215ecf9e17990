//! IQ4_NL: places in a table of 16 whole numbers, times a scale. The numbers have 8 bits, so the blocks of Q8_0 hold the same weights
//! exactly, with kernels that are there.

use crate::stored::Stored;

/// ggml's table.
const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Bytes of blocks of Q8_0 that hold what `bytes` of IQ4_NL do.
pub(super) fn q8_0_bytes(bytes: usize) -> usize {
    bytes / Stored::IQ4_NL.block_bytes() * Stored::Q8_0.block_bytes()
}

/// Blocks of IQ4_NL as blocks of Q8_0.
///
/// # Panics
/// If `out` is not as long as [`q8_0_bytes`] says.
pub(super) fn to_q8_0(bytes: &[u8], out: &mut [u8]) {
    assert_eq!(out.len(), q8_0_bytes(bytes.len()), "blocks of another count");
    let blocks = bytes.chunks_exact(Stored::IQ4_NL.block_bytes());
    for (block, out) in blocks.zip(out.chunks_exact_mut(Stored::Q8_0.block_bytes())) {
        let (scale, places) = block.split_at(2);
        out[..2].copy_from_slice(scale);
        // The lower halves of all bytes come first.
        let (first, second) = out[2..].split_at_mut(places.len());
        for ((place, first), second) in places.iter().zip(first).zip(second) {
            *first = TABLE[usize::from(place & 15)].cast_unsigned();
            *second = TABLE[usize::from(place >> 4)].cast_unsigned();
        }
    }
}
