//! AVX-512 with VNNI: a vector is four k of all rows of a tile, and one instruction multiplies and adds them.
//!
//! It takes codes without a sign: those of 8 bits are counted from -128, and 128 times the sum of the numbers goes off.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::super::plan::{GROUP, Layout, TILE};
use super::super::super::x86::{by_row, fetch_at};
use super::super::codes::wide::{STEPS, steps};
use super::super::rounded::{Bytes, Group, UPPER};
use super::{CHUNK, Family};
use crate::linear::epilogue::Sums;
use crate::linear::pairs::with_rows;

/// Rows of a band: two sums of each, and two totals, beside two vectors of codes and one of numbers.
const BAND: usize = 7;

/// How far ahead the stored bytes are fetched.
const AHEAD_BYTES: usize = 4096;

/// Of a tile in one group: codes of 4 k in each step, as numbers without a sign, and scales and mins of each part.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    codes: [__m512i; STEPS],
    scale: [__m512; 2],
    min: [__m512; 2],
}

/// Calls a function of so many rows for every eight of the sums, and for four, two and one of those that are left.
macro_rules! in_eights {
    ($sums:expr, $x:expr, |$at:ident, $now:ident| $call:ident::<$layout:path, $bytes:ident>($($arg:expr),*)) => {{
        let (mut rest, mut $at): (&mut [Sums], _) = ($sums, $x);
        while !rest.is_empty() {
            let $now;
            let count = if rest.len() < 8 { 1 << rest.len().ilog2() } else { 8 };
            ($now, rest) = rest.split_at_mut(count);
            match count {
                8 => $call::<$layout, $bytes, 8>($($arg),*),
                4 => $call::<$layout, $bytes, 4>($($arg),*),
                2 => $call::<$layout, $bytes, 2>($($arg),*),
                _ => $call::<$layout, $bytes, 1>($($arg),*),
            }
            $at = $at.add(count);
        }
    }};
}

/// Tiles that are made for all rows of x at once.
pub(super) type Chunk = [[Tile; 2]; CHUNK];

/// The family for numbers of `BYTES` bytes.
pub(super) struct Vnni<const BYTES: usize>;

impl<const BYTES: usize> Family for Vnni<BYTES> {
    type Numbers = Bytes<BYTES>;
    type Chunk = Chunk;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn add<L: Layout>(
        panel: *const u8,
        groups: usize,
        x: (*const Group<Bytes<BYTES>>, usize),
        sums: &mut [Sums],
        chunk: &mut Chunk,
    ) {
        // SAFETY: passed on.
        unsafe { add::<L, BYTES>(panel, groups, x, sums, chunk) }
    }
}

/// # Safety
/// As [`Family::add`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn add<L: Layout, const BYTES: usize>(
    panel: *const u8,
    groups: usize,
    (x, stride): (*const Group<Bytes<BYTES>>, usize),
    sums: &mut [Sums],
    chunk: &mut Chunk,
) {
    // SAFETY: the caller's.
    unsafe {
        if sums.len() <= const { rows_in_registers::<L>() } {
            return in_eights!(sums, x, |x, now| in_registers::<L, BYTES>(panel, groups, (x, stride), now));
        }
        for first in (0..groups).step_by(CHUNK) {
            let count = CHUNK.min(groups - first);
            for (i, tiles) in chunk.iter_mut().enumerate().take(count) {
                for (tile, made) in tiles.iter_mut().enumerate() {
                    fetch::<L>(panel, first + i, tile);
                    *made = read::<L>(panel, first + i, tile);
                }
            }
            let x = x.add(first * stride);
            let chunk = &chunk[..count];
            if BYTES == 1 && L::PLAN.runs() == 1 {
                add_bands::<L::Alike, BYTES>(chunk, (x, stride), sums);
            } else {
                in_eights!(sums, x, |x, now| add_rows::<L::Alike, BYTES>(chunk, (x, stride), now));
            }
        }
    }
}

/// Rows of x up to which codes are made again for every eight of them: it costs less than to keep the sums of others.
const fn rows_in_registers<L: Layout>() -> usize {
    if L::PLAN.low_bits == 8 { 48 } else { 16 }
}

/// Asks for what will be read later: as much as a tile, because what can be under way is little, and what is needed now
/// would wait.
#[inline(always)]
fn fetch<L: Layout>(panel: *const u8, group: usize, tile: usize) {
    let half = L::PLAN.group_bytes() / 2;
    fetch_at(panel.wrapping_add(L::PLAN.locate(group).group + tile * half + AHEAD_BYTES), half);
}

/// Reads a tile in one group.
///
/// # Safety
/// The machine has these features; the panel has the group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn read<L: Layout>(panel: *const u8, group: usize, tile: usize) -> Tile {
    let place = L::PLAN.locate(group);
    // SAFETY: planes and scales lie in the group and its unit.
    unsafe {
        let (low, high) = L::PLAN.planes(tile);
        let mut codes = steps::<L>(panel.add(place.group + low), panel.add(place.group + high));
        if L::PLAN.low_bits == 8 {
            for codes in &mut codes {
                *codes = _mm512_xor_si512(*codes, _mm512_set1_epi8(-128));
            }
        }
        let [scale, min] = by_row::<L>(panel.add(place.unit), panel.add(place.group), tile);
        Tile { codes, scale, min }
    }
}

/// All of k for a few rows, whose sums stay in registers, as do the codes.
///
/// # Safety
/// As [`Family::add`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn in_registers<L: Layout, const BYTES: usize, const R: usize>(
    panel: *const u8,
    groups: usize,
    (x, stride): (*const Group<Bytes<BYTES>>, usize),
    sums: &mut [Sums],
) {
    let sums: &mut [Sums; R] = sums.try_into().expect("rows that were counted");
    let mut total = [[_mm512_setzero_ps(); R]; 2];
    for group in 0..groups {
        // SAFETY: the caller's.
        unsafe {
            let x: [&Group<Bytes<BYTES>>; R] = std::array::from_fn(|r| &*x.add(group * stride + r));
            for (tile, total) in total.iter_mut().enumerate() {
                // By one row whole bytes go so fast that the processor's own guesses do better.
                if R > 1 || L::PLAN.low_bits < 8 {
                    fetch::<L>(panel, group, tile);
                }
                add_tile::<L, BYTES, R>(&read::<L>(panel, group, tile), x, total);
            }
        }
    }
    for (tile, total) in total.iter().enumerate() {
        store(total, sums, tile);
    }
}

/// A chunk by `R` rows.
///
/// # Safety
/// As [`Family::add`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn add_rows<L: Layout, const BYTES: usize, const R: usize>(
    chunk: &[[Tile; 2]],
    (x, stride): (*const Group<Bytes<BYTES>>, usize),
    sums: &mut [Sums],
) {
    let sums: &mut [Sums; R] = sums.try_into().expect("rows that were counted");
    for tile in 0..2 {
        // SAFETY: the caller's; a tile's 16 rows, of a panel's 32.
        let mut total: [__m512; R] =
            std::array::from_fn(|r| unsafe { _mm512_loadu_ps(sums[r].as_ptr().add(TILE * tile)) });
        for (i, tiles) in chunk.iter().enumerate() {
            // SAFETY: the caller's.
            let x: [&Group<Bytes<BYTES>>; R] = std::array::from_fn(|r| unsafe { &*x.add(i * stride + r) });
            add_tile::<L, BYTES, R>(&tiles[tile], x, &mut total);
        }
        store(&total, sums, tile);
    }
}

/// A chunk by all rows, numbers of one byte and groups of one part: bands of as many rows as keep all sums of both tiles in
/// registers, so that a number that was fetched meets both.
///
/// # Safety
/// As [`Family::add`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn add_bands<L: Layout, const BYTES: usize>(
    chunk: &[[Tile; 2]],
    (mut x, stride): (*const Group<Bytes<BYTES>>, usize),
    mut sums: &mut [Sums],
) {
    while !sums.is_empty() {
        let count = BAND.min(sums.len());
        let (now, rest) = sums.split_at_mut(count);
        // SAFETY: the caller's.
        unsafe {
            with_rows!(count, [1, 2, 3, 4, 5, 6, 7], R => add_band::<L, BYTES, R>(chunk, (x, stride), now));
            x = x.add(count);
        }
        sums = rest;
    }
}

/// A chunk by `R` rows.
///
/// # Safety
/// As [`Family::add`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn add_band<L: Layout, const BYTES: usize, const R: usize>(
    chunk: &[[Tile; 2]],
    (x, stride): (*const Group<Bytes<BYTES>>, usize),
    sums: &mut [Sums],
) {
    let mut totals = [[_mm512_setzero_ps(); 2]; R];
    // SAFETY: the caller's; a tile's 16 rows, of a panel's 32; 32 numbers of a group.
    unsafe {
        for r in 0..R {
            let sums = sums.get_unchecked(r).as_ptr();
            totals[r] = [_mm512_loadu_ps(sums), _mm512_loadu_ps(sums.add(TILE))];
        }
        for (i, tiles) in chunk.iter().enumerate() {
            let x = x.add(i * stride);
            let mut products = [[_mm512_setzero_si512(); 2]; R];
            for step in 0..STEPS {
                let codes = [tiles[0].codes[step], tiles[1].codes[step]];
                for r in 0..R {
                    let four = (*x.add(r)).numbers[0].as_ptr().add(4 * step).cast::<i32>();
                    let four = _mm512_set1_epi32(four.read_unaligned());
                    products[r][0] = _mm512_dpbusd_epi32(products[r][0], codes[0], four);
                    products[r][1] = _mm512_dpbusd_epi32(products[r][1], codes[1], four);
                }
            }
            for r in 0..R {
                let x = &*x.add(r);
                for (tile, made) in tiles.iter().enumerate() {
                    add_product::<L, BYTES>(made, 0, products[r][tile], x, &mut totals[r][tile]);
                }
            }
        }
        for r in 0..R {
            let sums = sums.get_unchecked_mut(r).as_mut_ptr();
            _mm512_storeu_ps(sums, totals[r][0]);
            _mm512_storeu_ps(sums.add(TILE), totals[r][1]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store<const R: usize>(total: &[__m512; R], sums: &mut [Sums; R], tile: usize) {
    for (total, sums) in total.iter().zip(sums) {
        // SAFETY: a tile's 16 rows, of a panel's 32.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr().add(TILE * tile), *total) };
    }
}

/// Adds the products of one tile in one group, part by part.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn add_tile<L: Layout, const BYTES: usize, const R: usize>(
    tile: &Tile,
    x: [&Group<Bytes<BYTES>>; R],
    total: &mut [__m512; R],
) {
    for part in 0..L::PLAN.runs() {
        let products = whole::<L, BYTES, R>(&tile.codes, part, x);
        for r in 0..R {
            add_product::<L, BYTES>(tile, part, products[r], x[r], &mut total[r]);
        }
    }
}

/// Adds what the product of a part of k stands for.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_product<L: Layout, const BYTES: usize>(
    tile: &Tile,
    part: usize,
    mut product: __m512i,
    x: &Group<Bytes<BYTES>>,
    total: &mut __m512,
) {
    if L::PLAN.low_bits == 8 {
        const { assert!(L::PLAN.runs() == 1 || L::PLAN.low_bits != 8, "the sum is that of all 32 k") };
        product = _mm512_sub_epi32(product, _mm512_slli_epi32::<7>(_mm512_set1_epi32(x.sum)));
    }
    let product = _mm512_mul_ps(_mm512_cvtepi32_ps(product), _mm512_set1_ps(x.size));
    *total = _mm512_fmadd_ps(tile.scale[part], product, *total);
    if L::PLAN.shifted() {
        *total = _mm512_fmadd_ps(tile.min[part], _mm512_set1_ps(x.sums[part]), *total);
    }
}

/// The sums of products of whole numbers of a part of k, of all their bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn whole<L: Layout, const BYTES: usize, const R: usize>(
    codes: &[__m512i; STEPS],
    part: usize,
    x: [&Group<Bytes<BYTES>>; R],
) -> [__m512i; R] {
    let mut products = multiply::<L, R>(codes, part, x.map(|x| &x.numbers[0]));
    for byte in 1..BYTES {
        let lower = multiply::<L, R>(codes, part, x.map(|x| &x.numbers[byte]));
        for r in 0..R {
            let upper = _mm512_slli_epi32::<{ UPPER.ilog2() }>(products[r]);
            products[r] = _mm512_add_epi32(upper, lower[r]);
        }
    }
    products
}

/// The whole sums of a part of k, for a tile's 16 rows of weights and `R` of x.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn multiply<L: Layout, const R: usize>(
    codes: &[__m512i; STEPS],
    part: usize,
    x: [&[i8; GROUP]; R],
) -> [__m512i; R] {
    let mut sums = [_mm512_setzero_si512(); R];
    for r in 0..R {
        // SAFETY: eight steps of four numbers.
        unsafe {
            if L::PLAN.runs() == 1 {
                let [c0, c1, c2, c3, c4, c5, c6, c7] = *codes;
                let second = four_steps([c4, c5, c6, c7], x[r].as_ptr().add(16));
                sums[r] = _mm512_add_epi32(four_steps([c0, c1, c2, c3], x[r].as_ptr()), second);
            } else {
                let codes = [codes[4 * part], codes[4 * part + 1], codes[4 * part + 2], codes[4 * part + 3]];
                sums[r] = four_steps(codes, x[r].as_ptr().add(16 * part));
            }
        }
    }
    sums
}

/// Sums of products of four steps' codes and four numbers each.
///
/// Written out, because the compiler would put the numbers of all steps and rows into vectors first, for which there are no
/// registers.
///
/// # Safety
/// The machine has the instruction; 16 bytes can be read at `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn four_steps(codes: [__m512i; 4], x: *const i8) -> __m512i {
    let mut sum = _mm512_setzero_si512();
    // SAFETY: the caller's; nothing but a register changes.
    unsafe {
        asm!(
            "vpdpbusd {sum}, {c0}, dword ptr [{x}]{{1to16}}",
            "vpdpbusd {sum}, {c1}, dword ptr [{x} + 4]{{1to16}}",
            "vpdpbusd {sum}, {c2}, dword ptr [{x} + 8]{{1to16}}",
            "vpdpbusd {sum}, {c3}, dword ptr [{x} + 12]{{1to16}}",
            sum = inout(zmm_reg) sum, x = in(reg) x,
            c0 = in(zmm_reg) codes[0], c1 = in(zmm_reg) codes[1],
            c2 = in(zmm_reg) codes[2], c3 = in(zmm_reg) codes[3],
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    sum
}
