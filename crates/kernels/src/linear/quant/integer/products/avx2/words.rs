//! Codes of 8 bits as words: a step is two k of all rows of a tile.
//!
//! With numbers of two bytes, products of bytes would take six instructions for 32 products (one side has no sign there, so that it
//! is put on the other first; and a sum fills 16 bits at once), not counting additions; here they take two. Numbers of one
//! byte are multiplied a little faster as bytes.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::super::super::plan::{GROUP, Layout};
use super::super::super::rounded::{Group, Words};
use super::Products;

/// Rows at once.
const ROWS: usize = 4;
/// Steps of a group.
const STEPS: usize = GROUP / 2;
/// Words of two k of eight rows.
const EIGHT_ROWS: usize = 16;
/// Words of a step.
const STEP: usize = 2 * EIGHT_ROWS;

impl Products for Words {
    const ROWS: usize = ROWS;
    /// In the order in which they are stored.
    type Codes = [i16; STEPS * STEP];

    #[inline(always)]
    unsafe fn read<L: Layout>(low: *const u8, _: *const u8, codes: &mut Self::Codes) {
        const { assert!(L::PLAN.low_bits == 8 && L::PLAN.runs() == 1) };
        // SAFETY: a byte for each word; the machine has AVX2.
        unsafe { widen(low, codes) };
    }

    #[inline(always)]
    unsafe fn whole<L: Layout, const R: usize>(
        codes: &Self::Codes,
        _: usize,
        x: *const Group<Words>,
    ) -> [[__m256i; R]; 2] {
        // SAFETY: passed on.
        unsafe { whole(codes.as_ptr(), x) }
    }
}

/// # Safety
/// The machine has AVX2; a byte can be read for each word.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn widen(bytes: *const u8, words: &mut [i16]) {
    for (i, words) in words.chunks_exact_mut(EIGHT_ROWS).enumerate() {
        // SAFETY: the caller's.
        unsafe {
            let bytes = _mm_loadu_si128(bytes.add(EIGHT_ROWS * i).cast());
            _mm256_storeu_si256(words.as_mut_ptr().cast(), _mm256_cvtepi8_epi16(bytes));
        }
    }
}

/// # Safety
/// As [`Products::whole`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn whole<const R: usize>(codes: *const i16, x: *const Group<Words>) -> [[__m256i; R]; 2] {
    let mut sums = [[_mm256_setzero_si256(); R]; 2];
    for step in 0..STEPS {
        // SAFETY: so many steps of codes, and of two numbers in each row.
        unsafe {
            let (codes, x) = (codes.add(STEP * step), x.cast::<i16>().add(2 * step));
            match sums.as_flattened_mut().try_into() {
                Ok(sums) => step_of_four(codes, x, sums),
                Err(_) => step_of_few(codes, x, &mut sums),
            }
        }
    }
    sums
}

/// Adds the products of one step.
///
/// # Safety
/// The machine has AVX2; both point at a step, of codes and of the first row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn step_of_few<const R: usize>(codes: *const i16, x: *const i16, sums: &mut [[__m256i; R]; 2]) {
    for (eight, sums) in sums.iter_mut().enumerate() {
        // SAFETY: two k of 16 rows, and two numbers of each row of x.
        unsafe {
            let codes = _mm256_loadu_si256(codes.add(EIGHT_ROWS * eight).cast());
            for (row, sum) in sums.iter_mut().enumerate() {
                let two = x.byte_add(row * size_of::<Group<Words>>()).cast::<i32>().read_unaligned();
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(codes, _mm256_set1_epi32(two)));
            }
        }
    }
}

/// The same for four rows. The compiler would read x for both halves of the tile at once and have no registers for it: it is
/// written out.
///
/// # Safety
/// As [`step_of_few`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn step_of_four(codes: *const i16, x: *const i16, sums: &mut [__m256i; 2 * ROWS]) {
    macro_rules! row {
        ($row:literal, $first:literal, $second:literal) => {
            concat!(
                "vpbroadcastd {b}, [{x} + ",
                $row,
                " * {row}]\n",
                "vpmaddwd {t}, {c0}, {b}\n",
                "vpmaddwd {b}, {c1}, {b}\n",
                "vpaddd {",
                $first,
                "}, {",
                $first,
                "}, {t}\n",
                "vpaddd {",
                $second,
                "}, {",
                $second,
                "}, {b}\n",
            )
        };
    }
    let [s0, s1, s2, s3, s4, s5, s6, s7] = sums;
    // SAFETY: the caller's; nothing but registers changes.
    unsafe {
        asm!(
            "vmovdqu {c0}, [{codes}]",
            "vmovdqu {c1}, [{codes} + {eight}]",
            row!(0, "s0", "s4"), row!(1, "s1", "s5"), row!(2, "s2", "s6"), row!(3, "s3", "s7"),
            codes = in(reg) codes, x = in(reg) x,
            eight = const size_of::<[i16; EIGHT_ROWS]>(), row = const size_of::<Group<Words>>(),
            s0 = inout(ymm_reg) *s0, s1 = inout(ymm_reg) *s1, s2 = inout(ymm_reg) *s2,
            s3 = inout(ymm_reg) *s3, s4 = inout(ymm_reg) *s4, s5 = inout(ymm_reg) *s5,
            s6 = inout(ymm_reg) *s6, s7 = inout(ymm_reg) *s7,
            c0 = out(ymm_reg) _, c1 = out(ymm_reg) _, b = out(ymm_reg) _, t = out(ymm_reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
}
