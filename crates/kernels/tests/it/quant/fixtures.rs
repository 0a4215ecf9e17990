//! Narrow weights to test with: GGUF's from files, our own from seeded noise. The crate's own tests have them too.

use kernels::Mat;
use kernels::linear::quant::{Narrow, block_bytes, pack_blocks, pack_floats};
use kernels::linear::{RowOrder, panels};

/// Columns of the fixtures that `scripts/make_gguf_fixtures.py` writes.
pub(super) const K: usize = 512;

macro_rules! fixture {
    ($format:expr, $name:literal) => {
        (
            $format,
            include_bytes!(concat!("../../fixtures/gguf/", $name, ".blocks")),
            include_bytes!(concat!("../../fixtures/gguf/", $name, ".values")),
        )
    };
}

pub(super) static FIXTURES: [(Narrow, &[u8], &[u8]); 11] = [
    fixture!(Narrow::Q4_0, "q4_0"),
    fixture!(Narrow::Q4_1, "q4_1"),
    fixture!(Narrow::Q5_0, "q5_0"),
    fixture!(Narrow::Q5_1, "q5_1"),
    fixture!(Narrow::Q8_0, "q8_0"),
    fixture!(Narrow::Q2K, "q2_k"),
    fixture!(Narrow::Q3K, "q3_k"),
    fixture!(Narrow::Q4K, "q4_k"),
    fixture!(Narrow::Q5K, "q5_k"),
    fixture!(Narrow::Q6K, "q6_k"),
    fixture!(Narrow::Fp8, "fp8"),
];

/// Numbers in -1..1 that look random.
pub(super) fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// A packed matrix of `n` by `k` of any narrow format, from seeded noise.
pub(super) fn packed(format: Narrow, order: RowOrder, n: usize, k: usize) -> Vec<u8> {
    let all = 0..panels(order, n);
    let mut out = vec![7; all.len() * format.panel_bytes(k)];
    match block_bytes(format) {
        None => pack_floats(format, Mat::new(&noise(n * k, 3), n, k), order, all, &mut out),
        Some(bytes) => {
            let (_, blocks, _) = FIXTURES.into_iter().find(|f| f.0 == format).expect("a fixture");
            // The fixture's blocks over and over, from another one in each row.
            let per_row = k / format.block();
            let have = blocks.len() / bytes;
            let source: Vec<u8> = (0..n * per_row)
                .flat_map(|i| &blocks[(i + i / per_row * 3) % have * bytes..][..bytes])
                .copied()
                .collect();
            pack_blocks(format, Mat::new(&source, n, per_row * bytes), k, order, all, &mut out);
        }
    }
    out
}
