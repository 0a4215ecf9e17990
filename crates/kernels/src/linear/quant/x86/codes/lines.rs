//! Codes out of their planes into lines of a tile in bf16: bits go to where an index of a word is, and a permutation looks
//! up what it stands for.
//!
//! A line is a pair of k of 16 rows. It has them in order, but where codes lie by line in fewer than 8 bits: there two lanes
//! beside each other hold both k of a row, and in another half-vector of the row 8 further down, so that taking bits out of
//! 64 gives rows 0, 8, 1, 9, ... for nothing.

use std::arch::x86_64::*;

use super::super::super::plan::{CodeOrder, Layout, Plan};
use super::super::bytes::eight_k_by_row;
use super::super::floats;

/// Lines of a tile in eight k.
pub(super) const LINES: usize = 4;
/// Eights of k in a group.
pub(super) const EIGHTS: usize = 4;

/// Whether lines have rows in their order.
pub(super) const fn in_order<L: Layout>() -> bool {
    matches!(L::PLAN.order(), CodeOrder::ByRow) || L::PLAN.low_bits == 8
}

/// From the order of lanes to that of rows.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn to_rows<L: Layout>(lanes: __m512) -> __m512 {
    let of_row = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    if in_order::<L>() { lanes } else { _mm512_permutexvar_ps(of_row, lanes) }
}

/// From the order of rows to that of lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn to_lanes<L: Layout>(rows: __m512) -> __m512 {
    let of_lane = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    if in_order::<L>() { rows } else { _mm512_permutexvar_ps(of_lane, rows) }
}

/// The lines of a tile in eight k of a group.
///
/// # Safety
/// The machine has these features; `group` points at a group of a panel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx512vbmi")]
pub(super) unsafe fn lines<L: Layout>(group: *const u8, tile: usize, eight: usize) -> [__m512i; LINES] {
    let (low, high) = L::PLAN.planes(tile);
    // SAFETY: the planes lie in the group.
    unsafe {
        let (low, high) = (group.add(low), group.add(high));
        match (L::PLAN.order(), L::PLAN.low_bits) {
            (CodeOrder::ByRow, _) => nibbles_by_row::<L>(low, eight),
            (CodeOrder::ByLine, 8) => bytes::<L>(low, eight),
            (CodeOrder::ByLine, _) => bits::<L>(low, high, eight),
        }
    }
}

/// Words of four k for each four rows: two of k of all rows are taken out of their own 64 bits.
///
/// # Safety
/// As [`lines`]; `low` points at a tile's plane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx512vbmi")]
unsafe fn nibbles_by_row<L: Layout>(low: *const u8, eight: usize) -> [__m512i; LINES] {
    static PAIRS: [[u8; 64]; 2] = [nibbles_of_pair(0), nibbles_of_pair(1)];
    // SAFETY: the caller's; 64 bytes of places each.
    let (words, pairs) = unsafe { (eight_k_by_row(low, eight), [load(&PAIRS[0]), load(&PAIRS[1])]) };
    let four = [_mm512_unpacklo_epi64(words, words), _mm512_unpackhi_epi64(words, words)];
    let line = |i: usize| looked_up::<L>(_mm512_multishift_epi64_epi8(pairs[i % 2], four[i / 2]));
    [line(0), line(1), line(2), line(3)]
}

/// From which bit on the code of each word of a line lies in 64 bits: four k of four rows, the second half of a quarter
/// taking the last two rows.
const fn nibbles_of_pair(pair: usize) -> [u8; 64] {
    let mut places = [0; 64];
    let mut i = 0;
    while i < 64 {
        let (row, k) = (i / 4 % 4, 2 * pair + i % 4 / 2);
        places[i] = (16 * k + 4 * row) as u8;
        i += 1;
    }
    places
}

/// Planes of fewer than 8 bits.
///
/// # Safety
/// As [`lines`]; both point at a tile's planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx512vbmi")]
unsafe fn bits<L: Layout>(low: *const u8, high: *const u8, eight: usize) -> [__m512i; LINES] {
    let (low_bits, high_bits) = (L::PLAN.low_bits, L::PLAN.high_bits);
    let mut lines = [_mm512_setzero_si512(); LINES];
    for (i, line) in lines.iter_mut().enumerate() {
        // SAFETY: the caller's.
        *line = unsafe {
            let mut index = taken(low, low_bits, 0, eight, i);
            if high_bits > 0 {
                let top = taken(high, high_bits, low_bits, eight, i);
                let bottom = _mm512_set1_epi16((1 << low_bits) - 1);
                index = _mm512_ternarylogic_epi32::<0xca>(bottom, index, top);
            }
            looked_up::<L>(index)
        };
    }
    lines
}

/// A plane's codes of a line, `up` bits up in words of which the other bits are anything.
///
/// # Safety
/// As [`bits`].
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi")]
unsafe fn taken(plane: *const u8, bits: usize, up: usize, eight: usize, line: usize) -> __m512i {
    static PLACES: [[[u8; 64]; EIGHTS * LINES]; 4] =
        [places_of(1, 2), places_of(1, 4), places_of(2, 0), places_of(2, 4)];
    static NIBBLES: [[u8; 64]; EIGHTS * LINES] = places_of(4, 0);
    let places = match (bits, up) {
        (1, 2) => &PLACES[0],
        (1, 4) => &PLACES[1],
        (2, 0) => &PLACES[2],
        (2, 4) => &PLACES[3],
        _ => &NIBBLES,
    };
    // A vector has 32 / bits half-vectors, eight of them eight k.
    let vector = 8 * eight * bits / 32;
    // SAFETY: the caller's.
    unsafe {
        let words = _mm512_loadu_si512(plane.add(64 * vector).cast());
        _mm512_multishift_epi64_epi8(load(&places[LINES * eight + line]), words)
    }
}

/// For each line of a group: from which bit on, of two lanes' 64, each byte of a word is taken, so that the code is `up`
/// bits up in it.
const fn places_of(bits: usize, up: usize) -> [[u8; 64]; EIGHTS * LINES] {
    let mut places = [[0; 64]; EIGHTS * LINES];
    let mut i = 0;
    while i < 64 * EIGHTS * LINES {
        let (line, k, eight_down) = (i / 64, i % 4 / 2, i / 4 % 2);
        let half_vector = 2 * line + eight_down;
        let place = 32 * k + half_vector % (32 / bits) * bits;
        places[line][i % 64] = ((place + 64 - up) % 64) as u8;
        i += 1;
    }
    places
}

/// What the lowest bits of each word stand for, in bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn looked_up<L: Layout>(index: __m512i) -> __m512i {
    // SAFETY: 64 bytes each.
    let table = unsafe { [load(const { &table::<L>(0) }), load(const { &table::<L>(32) })] };
    if L::PLAN.low_bits + L::PLAN.high_bits > 5 {
        _mm512_permutex2var_epi16(table[0], index, table[1])
    } else {
        _mm512_permutexvar_epi16(index, table[0])
    }
}

/// Numbers of 32 codes from one on, over again where there are fewer.
const fn table<L: Layout>(first: usize) -> [u16; 32] {
    let plan: Plan = L::PLAN;
    let mut table = [0; 32];
    let mut i = 0;
    while i < 32 {
        let code = (first + i) % (1 << (plan.low_bits + plan.high_bits)) as usize;
        let number = code as f32 - plan.offset as f32;
        table[i] = (number.to_bits() >> 16) as u16;
        i += 1;
    }
    table
}

/// Bytes, whole numbers of either sign or floats, in the order of lines.
///
/// # Safety
/// As [`lines`]; `low` points at a tile's plane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn bytes<L: Layout>(low: *const u8, eight: usize) -> [__m512i; LINES] {
    let mut lines = [_mm512_setzero_si512(); LINES];
    for (i, line) in lines.iter_mut().enumerate() {
        // SAFETY: 32 bytes for each line; vectors of plain numbers either way.
        *line = unsafe {
            let at = low.add(32 * (LINES * eight + i));
            if L::PLAN.floats {
                floats::in_bf16(_mm256_loadu_si256(at.cast()))
            } else {
                let floats = |half: usize| {
                    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.add(16 * half).cast())))
                };
                std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(floats(1), floats(0)))
            }
        };
    }
    lines
}

/// # Safety
/// The machine has AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<T>(bytes: &[T]) -> __m512i {
    debug_assert_eq!(size_of_val(bytes), 64);
    // SAFETY: as long as a vector.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
