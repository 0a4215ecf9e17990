//! AVX-512 for codes that lie as bytes or nibbles: a permutation of bytes puts 16 codes into bits of as many floats at once,
//! which saves widening them and converting integers.
//!
//! ```text
//! 0x47000000 | code << 8    = 32768 + code       code of 8 bits, counted from -128
//! 0x43000000 | code << 16   = 128 + code         code of 4 bits
//! ```
//!
//! What is too much is taken off: exactly, before the scale or, where it can be, in the min.

use std::arch::x86_64::*;

use super::super::plan::{CodeOrder, Layout, TILE};
use super::avx512::{LINES, Rows, in_bf16};

/// A float that codes are put into, and at which of its bytes.
const fn base<L: Layout>() -> (f32, usize) {
    if L::PLAN.low_bits == 8 { (32_768.0, 1) } else { (128.0, 2) }
}

/// Whether the min takes off what a float has too much. It is exact then: a scale has 11 bits and this has nine, and an
/// f16 is too small for anything to overflow.
pub(super) const fn zero_in_min<L: Layout>() -> bool {
    let plan = &L::PLAN;
    match plan.order() {
        _ if plan.bf16_scales => false,
        CodeOrder::ByRow => plan.offset != 0,
        CodeOrder::ByLine => plan.low_bits == 8,
    }
}

/// What a float has too much: what it is for a code that stands for zero.
pub(super) const fn zero<L: Layout>() -> f32 {
    let offset = match L::PLAN.low_bits {
        8 => 128,
        _ if zero_in_min::<L>() => L::PLAN.offset,
        _ => 0,
    };
    base::<L>().0 + offset as f32
}

/// Codes of 8 bits by line.
///
/// # Safety
/// The machine has these features; `low` points at a tile's plane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx512vbmi")]
pub(super) unsafe fn of_bytes<L: Layout>(low: *const u8, eight: usize, affine: Rows) -> [__m512i; LINES] {
    let two = |two: usize| {
        // SAFETY: 32 bytes for each line.
        let codes = unsafe { _mm512_loadu_si512(low.add(32 * LINES * eight + 64 * two).cast()) };
        two_lines::<L>(_mm512_xor_si512(codes, _mm512_set1_epi8(-128)), affine)
    };
    let (first, second) = (two(0), two(1));
    [first[0], first[1], second[0], second[1]]
}

/// Codes of 4 bits by row.
///
/// # Safety
/// The machine has these features; `low` points at a tile's plane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx512vbmi")]
pub(super) unsafe fn of_nibbles<L: Layout>(low: *const u8, eight: usize, affine: Rows) -> [__m512i; LINES] {
    // SAFETY: the caller's.
    let words = unsafe { eight_k_by_row(low, eight) };
    let nibble = _mm512_set1_epi8(15);
    let even = _mm512_and_si512(words, nibble);
    let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(words), nibble);
    let first = two_lines::<L>(_mm512_unpacklo_epi8(even, odd), affine);
    let second = two_lines::<L>(_mm512_unpackhi_epi8(even, odd), affine);
    [first[0], first[1], second[0], second[1]]
}

/// Eight k of a tile whose codes lie by row: a quarter has four rows, which are a word for each k.
///
/// # Safety
/// The machine has these features; `low` points at a tile's plane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(in crate::linear::quant) unsafe fn eight_k_by_row(low: *const u8, eight: usize) -> __m512i {
    // SAFETY: 64 bytes for every four rows, a quarter of them for eight k.
    unsafe {
        let rows = |four: usize| _mm_loadu_si128(low.add(64 * four + 16 * eight).cast());
        let words = _mm512_castsi128_si512(rows(0));
        let words = _mm512_mask_broadcast_i32x4(words, 0x00f0, rows(1));
        let words = _mm512_mask_broadcast_i32x4(words, 0x0f00, rows(2));
        _mm512_mask_broadcast_i32x4(words, 0xf000, rows(3))
    }
}

/// Two lines out of a vector that holds their codes as bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx512vbmi")]
fn two_lines<L: Layout>(codes: __m512i, affine: Rows) -> [__m512i; 2] {
    let line = |line: usize| {
        let floats = [floats::<L>(codes, line, 0), floats::<L>(codes, line, 1)];
        in_bf16(affine.of(floats))
    };
    [line(0), line(1)]
}

/// The codes of rows 0-7, or of rows 8-15, of a line as floats, but for what the min takes off.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn floats<L: Layout>(codes: __m512i, line: usize, eight: usize) -> __m512 {
    let of_lines =
        const { &[[indices::<L>(0, 0), indices::<L>(0, 1)], [indices::<L>(1, 0), indices::<L>(1, 1)]] };
    let number = _mm512_castps_si512(_mm512_set1_ps(const { base::<L>().0 }));
    let places = const { 0x1111_1111_1111_1111 << base::<L>().1 };
    // SAFETY: 64 bytes.
    let indices = unsafe { _mm512_loadu_si512(of_lines[line][eight].as_ptr().cast()) };
    let floats = _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(number, places, indices, codes));
    if const { zero_in_min::<L>() } {
        floats
    } else {
        _mm512_sub_ps(floats, _mm512_set1_ps(const { zero::<L>() }))
    }
}

/// For each of 16 floats, a pair of k of eight rows, which byte its code is: at the place where it goes.
const fn indices<L: Layout>(line: usize, eight: usize) -> [u8; 64] {
    let mut indices = [0; 64];
    let mut i = 0;
    while i < TILE {
        let (row, k) = (8 * eight + i / 2, 2 * line + i % 2);
        let code = match L::PLAN.low_bits {
            8 => 2 * TILE * line + TILE * eight + i,
            _ => TILE * (row / 4) + 4 * k + row % 4,
        };
        indices[4 * i + base::<L>().1] = code as u8;
        i += 1;
    }
    indices
}
