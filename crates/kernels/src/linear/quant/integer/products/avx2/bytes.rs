//! Codes by numbers as bytes: a step is four k of all rows of a tile.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::super::super::plan::{GROUP, Layout};
use super::super::super::codes::{self, EIGHT_ROWS, STEP, TILE_CODES};
use super::super::super::rounded::{Bytes, Group, UPPER};
use super::Products;

/// Rows of bytes at once.
const ROWS: usize = 4;

impl<const BYTES: usize> Products for Bytes<BYTES> {
    const ROWS: usize = ROWS / BYTES;
    type Codes = [u8; TILE_CODES];

    #[inline(always)]
    unsafe fn read<L: Layout>(low: *const u8, high: *const u8, codes: &mut [u8; TILE_CODES]) {
        // SAFETY: passed on.
        unsafe { codes::write::<L>(low, high, codes.as_mut_ptr()) };
    }

    #[inline(always)]
    unsafe fn whole<L: Layout, const R: usize>(
        codes: &[u8; TILE_CODES],
        part: usize,
        x: *const Group<Self>,
    ) -> [[__m256i; R]; 2] {
        // SAFETY: passed on.
        unsafe { whole::<L, BYTES, R>(codes, part, x) }
    }
}

/// # Safety
/// As [`Products::whole`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn whole<L: Layout, const BYTES: usize, const R: usize>(
    codes: &[u8; TILE_CODES],
    part: usize,
    x: *const Group<Bytes<BYTES>>,
) -> [[__m256i; R]; 2] {
    // SAFETY: passed on.
    let bytes = unsafe {
        if R * BYTES == ROWS {
            four_rows::<L, BYTES, R>(codes, part, x)
        } else {
            multiply::<L, BYTES, R>(codes, part, std::array::from_fn(|r| &*x.add(r)))
        }
    };
    std::array::from_fn(|v| {
        bytes.map(|bytes| {
            bytes.iter().skip(1).fold(bytes[0][v], |upper, lower| {
                _mm256_add_epi32(_mm256_slli_epi32::<{ UPPER.ilog2() as i32 }>(upper), lower[v])
            })
        })
    })
}

/// The sums for each byte of the numbers, for a tile's 16 rows of weights and `R` of x.
#[inline]
#[target_feature(enable = "avx2")]
fn multiply<L: Layout, const BYTES: usize, const R: usize>(
    codes: &[u8; TILE_CODES],
    part: usize,
    x: [&Group<Bytes<BYTES>>; R],
) -> [[[__m256i; 2]; BYTES]; R] {
    let steps = GROUP / 4 / L::PLAN.runs();
    let mut sums = [[[_mm256_setzero_si256(); 2]; BYTES]; R];
    let mut words = sums;
    for step in part * steps..(part + 1) * steps {
        // SAFETY: eight steps of codes.
        let codes: [__m256i; 2] = std::array::from_fn(|v| unsafe {
            _mm256_loadu_si256(codes.as_ptr().add(STEP * step + EIGHT_ROWS * v).cast())
        });
        for (x, words) in x.iter().zip(&mut words) {
            for (numbers, words) in x.numbers.iter().zip(words) {
                // SAFETY: eight steps of four numbers.
                let four = unsafe { numbers.as_ptr().add(4 * step).cast::<i32>().read_unaligned() };
                for (codes, words) in codes.iter().zip(words) {
                    let products = products_of::<L>(*codes, _mm256_set1_epi32(four));
                    *words = _mm256_add_epi16(*words, products);
                }
            }
        }
        if (step + 1).is_multiple_of(const { steps_in_16_bits::<L>() }) {
            flush(&mut words, &mut sums);
        }
    }
    sums
}

/// Adds sums of 16 bits to those of 32, and begins them again.
#[inline]
#[target_feature(enable = "avx2")]
fn flush<const BYTES: usize, const R: usize>(
    words: &mut [[[__m256i; 2]; BYTES]; R],
    sums: &mut [[[__m256i; 2]; BYTES]; R],
) {
    let ones = _mm256_set1_epi16(1);
    for (words, sum) in
        words.as_flattened_mut().as_flattened_mut().iter_mut().zip(sums.as_flattened_mut().as_flattened_mut())
    {
        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(*words, ones));
        *words = _mm256_setzero_si256();
    }
}

/// Sums of two products each.
#[inline]
#[target_feature(enable = "avx2")]
fn products_of<L: Layout>(codes: __m256i, numbers: __m256i) -> __m256i {
    if L::PLAN.low_bits == 8 {
        // The instruction takes numbers without a sign on one side: the sign goes to the other.
        _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(numbers, codes))
    } else {
        _mm256_maddubs_epi16(codes, numbers)
    }
}

/// [`multiply`] for four rows of bytes in a row from `x` on.
///
/// The compiler would read x for both tiles at once and have no registers for it: the steps are written out.
///
/// # Safety
/// The machine has AVX2; `x` is the first of `R` groups that lie behind each other, and `R` times `BYTES` is four.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn four_rows<L: Layout, const BYTES: usize, const R: usize>(
    codes: &[u8; TILE_CODES],
    part: usize,
    x: *const Group<Bytes<BYTES>>,
) -> [[[__m256i; 2]; BYTES]; R] {
    let steps = GROUP / 4 / L::PLAN.runs();
    let mut sums = [[[_mm256_setzero_si256(); 2]; BYTES]; R];
    let mut words = sums;
    for step in part * steps..(part + 1) * steps {
        // SAFETY: eight steps of codes, and of four numbers in each row of bytes.
        unsafe {
            let at = (codes.as_ptr().add(STEP * step), x.cast::<i8>().add(4 * step));
            if L::PLAN.low_bits == 8 {
                signed_step_of_four::<BYTES>(at, flat(&mut sums));
            } else {
                step_of_four::<BYTES>(at, flat(&mut words));
            }
        }
        if L::PLAN.low_bits < 8 && (step + 1).is_multiple_of(const { steps_in_16_bits::<L>() }) {
            flush(&mut words, &mut sums);
        }
    }
    sums
}

/// The vectors of four rows of bytes.
fn flat<const BYTES: usize, const R: usize>(
    all: &mut [[[__m256i; 2]; BYTES]; R],
) -> &mut [__m256i; 2 * ROWS] {
    all.as_flattened_mut().as_flattened_mut().try_into().expect("two of each row")
}

/// Where row `i` of bytes begins behind the first.
const fn row_at<const BYTES: usize>(i: usize) -> usize {
    i / BYTES * size_of::<Group<Bytes<BYTES>>>() + i % BYTES * GROUP
}

/// Adds the products of one step to the sums of 16 bits of four rows of bytes.
///
/// # Safety
/// The machine has AVX2; both point at a step, of codes and of the first row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn step_of_four<const BYTES: usize>(
    (codes, x): (*const u8, *const i8),
    words: &mut [__m256i; 2 * ROWS],
) {
    macro_rules! row {
        ($at:literal, $first:literal, $second:literal) => {
            concat!(
                "vpbroadcastd {b}, [{x} + {",
                $at,
                "}]\n",
                "vpmaddubsw {t}, {c0}, {b}\n",
                "vpmaddubsw {b}, {c1}, {b}\n",
                "vpaddw {",
                $first,
                "}, {",
                $first,
                "}, {t}\n",
                "vpaddw {",
                $second,
                "}, {",
                $second,
                "}, {b}\n",
            )
        };
    }
    let [w0, w1, w2, w3, w4, w5, w6, w7] = words;
    // SAFETY: the caller's; nothing but registers changes.
    unsafe {
        asm!(
            "vmovdqa {c0}, [{codes}]",
            "vmovdqa {c1}, [{codes} + 32]",
            row!("x0", "w0", "w1"), row!("x1", "w2", "w3"), row!("x2", "w4", "w5"), row!("x3", "w6", "w7"),
            codes = in(reg) codes, x = in(reg) x,
            x0 = const row_at::<BYTES>(0), x1 = const row_at::<BYTES>(1),
            x2 = const row_at::<BYTES>(2), x3 = const row_at::<BYTES>(3),
            w0 = inout(ymm_reg) *w0, w1 = inout(ymm_reg) *w1, w2 = inout(ymm_reg) *w2,
            w3 = inout(ymm_reg) *w3, w4 = inout(ymm_reg) *w4, w5 = inout(ymm_reg) *w5,
            w6 = inout(ymm_reg) *w6, w7 = inout(ymm_reg) *w7,
            c0 = out(ymm_reg) _, c1 = out(ymm_reg) _, b = out(ymm_reg) _, t = out(ymm_reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
}

/// The same for codes with a sign, to sums of 32 bits. The instruction takes numbers without a sign on one side: the sign
/// goes to the other.
///
/// # Safety
/// As [`step_of_four`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn signed_step_of_four<const BYTES: usize>(
    (codes, x): (*const u8, *const i8),
    sums: &mut [__m256i; 2 * ROWS],
) {
    macro_rules! row {
        ($at:literal, $first:literal, $second:literal) => {
            concat!(
                "vpbroadcastd {b}, [{x} + {",
                $at,
                "}]\n",
                "vpsignb {t}, {b}, {c0}\n",
                "vpmaddubsw {t}, {a0}, {t}\n",
                "vpmaddwd {t}, {t}, {ones}\n",
                "vpaddd {",
                $first,
                "}, {",
                $first,
                "}, {t}\n",
                "vpsignb {b}, {b}, {c1}\n",
                "vpmaddubsw {b}, {a1}, {b}\n",
                "vpmaddwd {b}, {b}, {ones}\n",
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
            "vmovdqa {c0}, [{codes}]",
            "vmovdqa {c1}, [{codes} + 32]",
            "vpabsb {a0}, {c0}",
            "vpabsb {a1}, {c1}",
            row!("x0", "s0", "s1"), row!("x1", "s2", "s3"), row!("x2", "s4", "s5"), row!("x3", "s6", "s7"),
            codes = in(reg) codes, x = in(reg) x, ones = in(ymm_reg) _mm256_set1_epi16(1),
            x0 = const row_at::<BYTES>(0), x1 = const row_at::<BYTES>(1),
            x2 = const row_at::<BYTES>(2), x3 = const row_at::<BYTES>(3),
            s0 = inout(ymm_reg) *s0, s1 = inout(ymm_reg) *s1, s2 = inout(ymm_reg) *s2,
            s3 = inout(ymm_reg) *s3, s4 = inout(ymm_reg) *s4, s5 = inout(ymm_reg) *s5,
            s6 = inout(ymm_reg) *s6, s7 = inout(ymm_reg) *s7,
            c0 = out(ymm_reg) _, c1 = out(ymm_reg) _, a0 = out(ymm_reg) _, a1 = out(ymm_reg) _,
            b = out(ymm_reg) _, t = out(ymm_reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
}

/// After how many steps, which the steps of a part are a multiple of, sums of 16 bits may be full: a step adds two products
/// of a code and at most 127.
const fn steps_in_16_bits<L: Layout>() -> usize {
    let bits = L::PLAN.low_bits + L::PLAN.high_bits;
    let largest = if bits == 8 { 127 } else { (1 << bits) - 1 };
    let mut steps = GROUP / 4 / L::PLAN.runs();
    while steps * 2 * 127 * largest > i16::MAX as usize {
        steps /= 2;
    }
    steps
}
