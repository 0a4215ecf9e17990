//! Rows of x by panels in registers: one instruction multiplies a pair of k of one row with those of 16 outputs.

use std::arch::x86_64::*;

use crate::linear::epilogue::Sums;
use crate::linear::pack::{GROUP, TILE_BYTES};
use crate::linear::source::PAIR_BYTES;

/// Rows whose sums with a panel fit the registers, beside what is multiplied: 24 of 32.
pub(super) const ROWS: usize = 12;
/// Bytes of a row of x in one group of k.
pub(super) const ROW_BYTES: usize = 2 * GROUP;

/// Whether sums begin at zero or go on from what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Zero,
    Sums,
}

/// What to bring into the caches meanwhile: some lines for each pair of k from `at` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    pub(super) at: *const u8,
    /// Bytes from those of one pair of k to those of the next.
    pub(super) step: usize,
}

/// `sums += x * w` over `groups` groups of 32 k, each output one sum in order of k (of a pair the odd one first).
///
/// # Safety
/// The machine has AVX-512 with bf16; `x` points at `groups` times `R` rows of 64 bytes, `w` at `groups` pairs of tiles,
/// `sums` at `R` rows.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn multiply<const R: usize, const LINES: usize>(
    start: Start,
    x: *const u8,
    w: *const u8,
    groups: usize,
    sums: *mut Sums,
    fetch: Fetch,
) {
    let mut total = [[_mm512_setzero_ps(); 2]; R];
    // SAFETY: loads and stores stay inside what the caller promises; a prefetch cannot fault.
    unsafe {
        if start == Start::Sums {
            for r in 0..R {
                let sums = sums.add(r).cast::<f32>();
                total[r] = [_mm512_loadu_ps(sums), _mm512_loadu_ps(sums.add(16))];
            }
        }
        for group in 0..groups {
            let x = x.add(group * R * ROW_BYTES).cast::<i32>();
            for j in 0..GROUP / 2 {
                let next = fetch.at.wrapping_add((group * GROUP / 2 + j) * fetch.step);
                for line in 0..LINES {
                    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(64 * line).cast());
                }
                let at = w.add(group * PAIR_BYTES + j * 64);
                let lines = [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(TILE_BYTES).cast())];
                for r in 0..R {
                    let x = _mm512_set1_epi32(x.add(r * (ROW_BYTES / 4) + j).read_unaligned());
                    for half in 0..2 {
                        total[r][half] = add_pairs(total[r][half], x, lines[half]);
                    }
                }
            }
        }
        for r in 0..R {
            let sums = sums.add(r).cast::<f32>();
            _mm512_storeu_ps(sums, total[r][0]);
            _mm512_storeu_ps(sums.add(16), total[r][1]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) fn add_pairs(sum: __m512, x: __m512i, w: __m512i) -> __m512 {
    // SAFETY: 512 bits of plain numbers either way.
    let (x, w) =
        unsafe { (std::mem::transmute::<__m512i, __m512bh>(x), std::mem::transmute::<__m512i, __m512bh>(w)) };
    _mm512_dpbf16_ps(sum, x, w)
}

/// Products of registers alone, `steps` times 24: nothing can be faster. Gives a number that depends on all of them.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) fn multiply_registers(steps: usize) -> f32 {
    const SUMS: usize = 2 * ROWS;
    let mut sums = [_mm512_setzero_ps(); SUMS];
    let (x, w) = (_mm512_set1_epi32(0x3f80_3f80), _mm512_set1_epi32(0x3c00_3c00));
    for _ in 0..steps {
        let x = std::hint::black_box(x);
        for sum in &mut sums {
            *sum = add_pairs(*sum, x, w);
        }
    }
    let mut all = sums[0];
    for sum in &sums[1..] {
        all = _mm512_add_ps(all, *sum);
    }
    _mm512_reduce_add_ps(all)
}
