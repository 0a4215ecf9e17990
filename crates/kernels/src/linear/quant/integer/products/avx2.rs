//! AVX2: a vector is four k of eight rows.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::super::plan::{GROUP, Layout, TILE};
use super::super::super::x86::{Affine, affine, fetch};
use super::super::codes::{self, EIGHT_ROWS, STEP, TILE_CODES};
use super::super::rounded::{Group, UPPER};
use super::CHUNK;
use crate::linear::epilogue::Sums;

/// Rows of x at once, which share the loads of codes: half as many where a number is two bytes.
const ROWS: usize = 4;

/// What is made of a panel's chunk: codes, and scales and mins, of both tiles.
#[repr(C, align(64))]
pub(super) struct Chunk {
    codes: [[[u8; TILE_CODES]; 2]; CHUNK],
    affine: [[Affine; 2]; CHUNK],
}

/// Adds a panel's products to the sums of all rows of x. `x` points at the first of them in the first group, and the groups
/// are `stride` apart.
///
/// # Safety
/// The machine has these features; the panel has so many groups, x too, with a row for each of the sums.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn add<L: Layout, const BYTES: usize>(
    panel: *const u8,
    groups: usize,
    (x, stride): (*const Group<BYTES>, usize),
    sums: &mut [Sums],
    chunk: &mut Chunk,
) {
    for first in (0..groups).step_by(CHUNK) {
        let count = CHUNK.min(groups - first);
        // SAFETY: the caller's.
        unsafe {
            for i in 0..count {
                read::<L>(panel, first + i, &mut chunk.codes[i], &mut chunk.affine[i]);
            }
            add_chunk::<L, BYTES>(chunk, count, (x.add(first * stride), stride), sums);
        }
    }
}

/// Codes and scales of a group of a panel.
///
/// # Safety
/// The machine has these features; the panel holds the group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn read<L: Layout>(
    panel: *const u8,
    group: usize,
    codes: &mut [[u8; TILE_CODES]; 2],
    scales: &mut [Affine; 2],
) {
    let place = L::PLAN.locate(group);
    // SAFETY: planes and scales lie in the group and its unit; a fetch cannot fault.
    unsafe {
        fetch(panel.add(place.group), L::PLAN.group_bytes());
        for tile in 0..2 {
            let (low, high) = L::PLAN.planes(tile);
            let (low, high) = (panel.add(place.group + low), panel.add(place.group + high));
            codes::write::<L>(low, high, codes[tile].as_mut_ptr());
            scales[tile] = affine::<L>(panel.add(place.unit), panel.add(place.group), tile);
        }
    }
}

/// A chunk by all rows.
///
/// # Safety
/// As [`add`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_chunk<L: Layout, const BYTES: usize>(
    chunk: &Chunk,
    groups: usize,
    (x, stride): (*const Group<BYTES>, usize),
    sums: &mut [Sums],
) {
    let some = ROWS / BYTES;
    for (sums, row) in sums.chunks_mut(some).zip((0..).step_by(some)) {
        // SAFETY: the caller's.
        unsafe {
            let x = (x.add(row), stride);
            match sums.len() {
                1 => add_rows::<L, BYTES, 1>(chunk, groups, x, sums),
                2 => add_rows::<L, BYTES, 2>(chunk, groups, x, sums),
                3 => add_rows::<L, BYTES, 3>(chunk, groups, x, sums),
                _ => add_rows::<L, BYTES, ROWS>(chunk, groups, x, sums),
            }
        }
    }
}

/// With `R` rows.
///
/// # Safety
/// As [`add`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add_rows<L: Layout, const BYTES: usize, const R: usize>(
    chunk: &Chunk,
    groups: usize,
    (x, stride): (*const Group<BYTES>, usize),
    sums: &mut [Sums],
) {
    assert!(groups <= CHUNK);
    let sums: &mut [Sums; R] = sums.try_into().expect("rows that were counted");
    for tile in 0..2 {
        for i in 0..groups {
            // SAFETY: the caller's; eight of a tile's 16 rows, of a panel's 32.
            unsafe {
                let x: [&Group<BYTES>; R] = std::array::from_fn(|r| &*x.add(i * stride + r));
                let affine = &chunk.affine[i][tile];
                for part in 0..L::PLAN.parts() {
                    let products = whole::<L, BYTES, R>(&chunk.codes[i][tile], part, x);
                    for (v, products) in products.into_iter().enumerate() {
                        let scale = _mm256_loadu_ps(affine.scale[part].as_ptr().add(8 * v));
                        let min = _mm256_loadu_ps(affine.min[part].as_ptr().add(8 * v));
                        for r in 0..R {
                            let at = sums[r].as_mut_ptr().add(TILE * tile + 8 * v);
                            let product = _mm256_cvtepi32_ps(products[r]);
                            let product = _mm256_mul_ps(product, _mm256_set1_ps(x[r].size));
                            let mut total = _mm256_fmadd_ps(scale, product, _mm256_loadu_ps(at));
                            if L::PLAN.shifted() {
                                total = _mm256_fmadd_ps(min, _mm256_set1_ps(x[r].sums[part]), total);
                            }
                            _mm256_storeu_ps(at, total);
                        }
                    }
                }
            }
        }
    }
}

/// The sums of products of whole numbers of a part of k: of the tile's first eight rows of weights, and of the others.
#[inline]
#[target_feature(enable = "avx2")]
fn whole<L: Layout, const BYTES: usize, const R: usize>(
    codes: &[u8; TILE_CODES],
    part: usize,
    x: [&Group<BYTES>; R],
) -> [[__m256i; R]; 2] {
    let bytes = if R * BYTES == ROWS {
        // SAFETY: as many rows as make four of bytes, which lie behind each other.
        unsafe { four_rows::<L, BYTES, R>(codes, part, x[0]) }
    } else {
        multiply::<L, BYTES, R>(codes, part, x)
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
    x: [&Group<BYTES>; R],
) -> [[[__m256i; 2]; BYTES]; R] {
    let steps = GROUP / 4 / L::PLAN.parts();
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
    x: *const Group<BYTES>,
) -> [[[__m256i; 2]; BYTES]; R] {
    let steps = GROUP / 4 / L::PLAN.parts();
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
    i / BYTES * size_of::<Group<BYTES>>() + i % BYTES * GROUP
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
    let mut steps = GROUP / 4 / L::PLAN.parts();
    while steps * 2 * 127 * largest > i16::MAX as usize {
        steps /= 2;
    }
    steps
}
