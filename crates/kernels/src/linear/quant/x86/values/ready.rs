//! Groups of a panel made ready: scales and mins as f32, and codes as bytes in the order in which they are multiplied, so that
//! what comes after is the same for all formats.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::super::plan::{CodeOrder, GROUP, Layout, PANEL};
use super::super::avx2::affine_of;
use super::super::floats;
use super::super::fused::fetch_at;
use super::super::words::words;

/// Outputs of a vector.
pub(super) const EIGHT: usize = 8;
/// Vectors of outputs in a panel.
pub(super) const VECTORS: usize = PANEL / EIGHT;

/// Groups that are multiplied while those after them are on their way from memory.
pub(super) const AHEAD: usize = 4;

/// A group of a panel.
pub(super) struct Ready {
    /// For each half of its k, where those differ.
    scale: [[f32; PANEL]; 2],
    min: [[f32; PANEL]; 2],
    /// For each vector the codes of its outputs, in the order that their [`Form`] says.
    codes: [Codes; VECTORS],
}

/// Codes of a vector's outputs for all k.
#[repr(align(32))]
#[derive(Clone, Copy)]
struct Codes([u8; EIGHT * GROUP]);

/// How codes lie in [`Ready`].
pub(super) trait Form {
    /// Whether they are signed; those have no min.
    const SIGNED: bool = false;

    /// Those of a k, as floats.
    ///
    /// # Safety
    /// The machine has AVX2 and F16C; `k` is one of a group.
    unsafe fn at(codes: *const u8, k: usize) -> __m256;
}

/// Bytes, k after k.
pub(super) struct Bytes;
/// Signed bytes, k after k.
pub(super) struct Signed;
/// Floats of 8 bits, k after k.
pub(super) struct Floats;
/// For each eight k the words of the even ones, four bytes of each output, and those of the odd ones.
pub(super) struct Words;

impl Form for Bytes {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn at(codes: *const u8, k: usize) -> __m256 {
        // SAFETY: the caller's.
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(codes.add(EIGHT * k).cast()) }))
    }
}

impl Form for Signed {
    const SIGNED: bool = true;

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn at(codes: *const u8, k: usize) -> __m256 {
        // SAFETY: the caller's.
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(unsafe { _mm_loadl_epi64(codes.add(EIGHT * k).cast()) }))
    }
}

impl Form for Floats {
    const SIGNED: bool = true;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn at(codes: *const u8, k: usize) -> __m256 {
        // SAFETY: the caller's.
        let codes = unsafe { _mm_loadl_epi64(codes.add(EIGHT * k).cast()) };
        floats::eight(_mm_unpacklo_epi8(_mm_setzero_si128(), codes))
    }
}

impl Form for Words {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn at(codes: *const u8, k: usize) -> __m256 {
        // SAFETY: the caller's; the table has 32 bytes for each byte of a word.
        unsafe {
            let words = _mm256_load_si256(codes.add(32 * (2 * (k / 8) + k % 2)).cast());
            let byte = _mm256_load_si256(BYTES.0[k % 8 / 2].as_ptr().cast());
            _mm256_cvtepi32_ps(_mm256_shuffle_epi8(words, byte))
        }
    }
}

/// What brings a byte of each word down, alone.
static BYTES: Aligned<[[u8; 32]; 4]> = {
    let (mut bytes, mut byte) = ([[0x80; 32]; 4], 0);
    while byte < 4 {
        let mut word = 0;
        while word < 8 {
            bytes[byte][4 * word] = (4 * (word % 4) + byte) as u8;
            word += 1;
        }
        byte += 1;
    }
    Aligned(bytes)
};

#[repr(align(32))]
struct Aligned<T>(T);

impl Ready {
    pub(super) const NOTHING: Ready = Ready {
        scale: [[0.0; PANEL]; 2],
        min: [[0.0; PANEL]; 2],
        codes: [Codes([0; EIGHT * GROUP]); VECTORS],
    };

    /// What the weights of a vector of outputs are at a k of a run.
    ///
    /// # Safety
    /// The machine has these features; the codes lie in this form.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn values<F: Form>(&self, run: usize, vector: usize, k: usize) -> __m256 {
        // SAFETY: the caller's, and eight of a panel's 32 rows.
        unsafe {
            let codes = F::at(self.codes[vector].0.as_ptr(), k);
            let of = |all: &[f32; PANEL]| _mm256_loadu_ps(all.as_ptr().add(EIGHT * vector));
            let (scale, min) = (of(&self.scale[run]), of(&self.min[run]));
            if F::SIGNED { _mm256_mul_ps(codes, scale) } else { _mm256_fmadd_ps(codes, scale, min) }
        }
    }
}

/// Makes groups of a panel ready.
///
/// # Safety
/// The machine has AVX2, FMA and F16C; the panel holds the groups.
pub(super) type Prepare = unsafe fn(panel: *const u8, groups: Range<usize>, out: &mut [Ready]);

/// Of one format; asks for the groups that follow, too, but for those of [signed](Signed) codes.
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
            for vector in 0..VECTORS {
                for run in 0..L::PLAN.runs() {
                    let (scale, min) = affine_of::<L>(unit, group, EIGHT * vector, run);
                    _mm256_storeu_ps(out.scale[run].as_mut_ptr().add(EIGHT * vector), scale);
                    _mm256_storeu_ps(out.min[run].as_mut_ptr().add(EIGHT * vector), min);
                }
            }
            for (tile, codes) in out.codes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
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

/// Nibbles of four rows in a word for each k.
///
/// # Safety
/// As [`prepare`]; `low` points at a tile's plane.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn by_row(low: *const u8, out: &mut [Codes; 2]) {
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

fn at_k(codes: &mut Codes, k: usize) -> *mut __m128i {
    codes.0[EIGHT * k..EIGHT * (k + 2)].as_mut_ptr().cast()
}

/// Bytes of pairs of k of eight rows.
///
/// # Safety
/// As [`by_row`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes(low: *const u8, out: &mut [Codes; 2]) {
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
unsafe fn planes<L: Layout>(low: *const u8, high: *const u8, out: &mut [Codes; 2]) {
    let put = |eight_k: usize, vector: usize, words: [__m256i; 2]| {
        let at = out[vector].0[64 * eight_k..64 * (eight_k + 1)].as_mut_ptr().cast::<__m256i>();
        // SAFETY: two vectors for each eight k.
        unsafe {
            _mm256_store_si256(at, words[0]);
            _mm256_store_si256(at.add(1), words[1]);
        }
    };
    // SAFETY: the caller's.
    unsafe { words::<L>(low, high, put) };
}
