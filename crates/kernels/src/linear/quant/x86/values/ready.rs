//! Groups of a panel made ready: scales and mins as f32, and codes as bytes in the order in which they are multiplied, so that
//! what comes after is the same for all formats.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::super::integer::of_planes;
use super::super::super::plan::{CodeOrder, GROUP, Layout, PANEL, TILE};
use super::super::avx2::{Affine, affine};
use super::super::fused::fetch_at;

/// Outputs of a vector.
pub(super) const EIGHT: usize = 8;
/// Vectors of outputs in a panel.
pub(super) const VECTORS: usize = PANEL / EIGHT;

/// Groups that are multiplied while those after them are on their way from memory.
pub(super) const AHEAD: usize = 4;

/// A group of a panel.
pub(super) struct Ready {
    affine: [Affine; 2],
    /// For each vector the codes of its outputs, k after k.
    codes: [[[u8; EIGHT]; GROUP]; VECTORS],
}

/// Makes groups of a panel ready.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; the panel holds the groups.
pub(super) type Prepare = unsafe fn(panel: *const u8, groups: Range<usize>, out: &mut [Ready]);

impl Ready {
    pub(super) const NOTHING: Ready =
        Ready { affine: [Affine::ZERO; 2], codes: [[[0; EIGHT]; GROUP]; VECTORS] };

    /// What the weights of a vector of outputs are at a k of a run: `SIGNED` codes, which have no min, or others.
    ///
    /// # Safety
    /// The machine has these features.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn values<const SIGNED: bool>(&self, run: usize, vector: usize, k: usize) -> __m256 {
        let (affine, rows) = (&self.affine[vector / 2], EIGHT * (vector % 2));
        // SAFETY: eight codes, and eight of a tile's 16 rows.
        unsafe {
            let codes = _mm_loadl_epi64(self.codes[vector][k].as_ptr().cast());
            let of = |all: &[f32; TILE]| _mm256_loadu_ps(all.as_ptr().add(rows));
            let (scale, min) = (of(&affine.scale[run]), of(&affine.min[run]));
            if SIGNED {
                _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), scale)
            } else {
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)), scale, min)
            }
        }
    }
}

/// Of one format; asks for the groups that follow, too, but for those of [signed](super::Kind::signed) codes.
///
/// # Safety
/// As [`Prepare`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn prepare<L: Layout>(panel: *const u8, groups: Range<usize>, out: &mut [Ready]) {
    for (group, out) in groups.zip(out) {
        let place = L::PLAN.locate(group);
        // SAFETY: unit and group lie in the panel, and the planes in the group.
        unsafe {
            let (unit, group) = (panel.add(place.unit), panel.add(place.group));
            if L::PLAN.low_bits != 8 {
                fetch_at(group.wrapping_add(AHEAD * L::PLAN.group_bytes()), L::PLAN.group_bytes());
            }
            for (tile, codes) in out.codes.as_chunks_mut().0.iter_mut().enumerate() {
                out.affine[tile] = affine::<L>(unit, group, tile);
                let (low, high) = L::PLAN.planes(tile);
                let (low, high) = (group.add(low), group.add(high));
                match (L::PLAN.order(), L::PLAN.low_bits) {
                    (CodeOrder::ByRow, _) => by_row(low, codes),
                    (CodeOrder::ByLine, 8) => bytes(low, codes),
                    (CodeOrder::ByLine, _) => planes::<L>(low, high, codes),
                }
            }
        }
    }
}

/// The codes of a tile.
type Codes = [[[u8; EIGHT]; GROUP]; 2];

/// Nibbles of four rows in a word for each k.
///
/// # Safety
/// As [`prepare`]; `low` points at a tile's plane.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn by_row(low: *const u8, out: &mut Codes) {
    let nibble = _mm256_set1_epi8(15);
    for (vector, out) in out.iter_mut().enumerate() {
        for half in 0..2 {
            // SAFETY: 16 k of four rows, and of the four rows after them.
            let [first, second] = unsafe {
                let at = low.add(128 * vector + 32 * half);
                [_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(64).cast())]
            };
            // Eight nibbles at a k, four k of each eight at a time.
            let words = [_mm256_unpacklo_epi16(first, second), _mm256_unpackhi_epi16(first, second)];
            for (four, words) in words.into_iter().enumerate() {
                let even = _mm256_and_si256(words, nibble);
                let odd = _mm256_and_si256(_mm256_srli_epi16::<4>(words), nibble);
                let two = [_mm256_unpacklo_epi8(even, odd), _mm256_unpackhi_epi8(even, odd)];
                for (i, two) in two.into_iter().enumerate() {
                    let k = 16 * half + 4 * four + 2 * i;
                    // SAFETY: two k of eight codes each.
                    unsafe { _mm256_storeu2_m128i(at_k(out, k + 8), at_k(out, k), two) };
                }
            }
        }
    }
}

fn at_k(codes: &mut [[u8; EIGHT]; GROUP], k: usize) -> *mut __m128i {
    codes[k..k + 2].as_mut_ptr().cast()
}

/// Bytes of pairs of k of eight rows.
///
/// # Safety
/// As [`by_row`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes(low: *const u8, out: &mut Codes) {
    let apart =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    let [first, second] = out;
    for pair in 0..GROUP / 2 {
        // SAFETY: both eights of rows of a pair; two k of eight codes each.
        unsafe {
            let codes = _mm256_loadu_si256(low.add(32 * pair).cast());
            let codes = _mm256_shuffle_epi8(codes, apart);
            _mm256_storeu2_m128i(at_k(second, 2 * pair), at_k(first, 2 * pair), codes);
        }
    }
}

/// Planes of bits.
///
/// # Safety
/// As [`by_row`]; `high` points at the tile's high plane.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn planes<L: Layout>(low: *const u8, high: *const u8, out: &mut Codes) {
    let apart =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    let beside = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for eight in 0..GROUP / 8 {
        for (vector, out) in out.iter_mut().enumerate() {
            // SAFETY: the planes hold all of the group; two k of eight codes each.
            unsafe {
                let words = of_planes::<L>(low, high, eight, vector);
                // A quarter of each vector is one k.
                let [even, odd] =
                    words.map(|words| _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(words, apart), beside));
                let k = 8 * eight;
                _mm256_storeu2_m128i(at_k(out, k + 4), at_k(out, k), _mm256_unpacklo_epi64(even, odd));
                _mm256_storeu2_m128i(at_k(out, k + 6), at_k(out, k + 2), _mm256_unpackhi_epi64(even, odd));
            }
        }
    }
}
