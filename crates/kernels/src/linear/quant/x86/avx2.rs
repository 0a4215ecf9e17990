//! AVX2: as AVX-512, in vectors of eight lanes, rounding to bf16 by integers.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::plan::{CodeOrder, GROUP, Layout, PANEL, Sub, TILE};
use super::avx2_rows;
use super::floats::eight as floats_of_words;

/// Values of a tile.
pub(super) const VALUES: usize = TILE * GROUP;

/// Scale and min of a tile's 16 rows for each 16 k of a group.
#[repr(align(32))]
pub(in crate::linear::quant) struct Affine {
    pub(in crate::linear::quant) scale: [[f32; TILE]; 2],
    pub(in crate::linear::quant) min: [[f32; TILE]; 2],
}

impl Affine {
    pub(super) const ZERO: Affine = Affine { scale: [[0.0; TILE]; 2], min: [[0.0; TILE]; 2] };
}

/// Expands `groups` of a panel.
///
/// # Safety
/// The machine has these features; `panel` holds the groups and `out` has room for their tiles.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn expand<L: Layout>(panel: &[u8], groups: Range<usize>, out: &mut [bf16]) {
    assert!(L::PLAN.panel_bytes(groups.end * GROUP) <= panel.len());
    assert!(groups.len() * 2 * VALUES <= out.len());
    let (panel, out) = (panel.as_ptr(), out.as_mut_ptr());
    for (i, group) in groups.enumerate() {
        let place = L::PLAN.locate(group);
        for tile in 0..2 {
            let (low, high) = L::PLAN.planes(tile);
            // SAFETY: unit, group and planes lie in the panel, and the tiles in `out`: the contract, and the two lengths above.
            unsafe {
                let affine = affine::<L>(panel.add(place.unit), panel.add(place.group), tile);
                let (low, high) = (panel.add(place.group + low), panel.add(place.group + high));
                let out = out.add((2 * i + tile) * VALUES);
                match L::PLAN.order() {
                    CodeOrder::ByRow => avx2_rows::one_tile(low, &affine, out),
                    CodeOrder::ByLine => one_tile::<L>(low, high, &affine, out),
                }
            }
        }
    }
}

/// # Safety
/// `unit` and `group` point at a unit and a group of a panel.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::linear::quant) unsafe fn affine<L: Layout>(
    unit: *const u8,
    group: *const u8,
    tile: usize,
) -> Affine {
    let mut affine = Affine::ZERO;
    for rows in [0, 8] {
        for half in 0..2 {
            // SAFETY: the caller's; eight of 16 numbers each.
            unsafe {
                let (scale, min) = affine_of::<L>(unit, group, TILE * tile + rows, half);
                _mm256_storeu_ps(affine.scale[half].as_mut_ptr().add(rows), scale);
                _mm256_storeu_ps(affine.min[half].as_mut_ptr().add(rows), min);
            }
        }
    }
    affine
}

/// Scale and min of eight rows from this one on, for a half of a group's k.
///
/// # Safety
/// As [`affine`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn affine_of<L: Layout>(
    unit: *const u8,
    group: *const u8,
    row: usize,
    half: usize,
) -> (__m256, __m256) {
    let plan = &L::PLAN;
    // SAFETY: the scales of 32 rows, then the mins, two bytes each, where the plan has them; then a byte for each
    // row and 16 k, where it has those.
    unsafe {
        let d = words::<L>(unit.add(2 * row));
        let second = unit.add(2 * (PANEL + row));
        if plan.floats {
            let lower = _mm256_cvtepu16_epi32(_mm_loadu_si128(second.cast()));
            return (_mm256_or_ps(d, _mm256_castsi256_ps(lower)), _mm256_setzero_ps());
        }
        let m = if plan.has_min { words::<L>(second) } else { _mm256_setzero_ps() };
        let (mut scale, mut min) = (d, m);
        match plan.sub {
            Sub::None => {}
            Sub::ScaleMin => {
                scale = _mm256_mul_ps(d, floats(unsigned(group.add(row))));
                min = negative(_mm256_mul_ps(m, floats(unsigned(group.add(PANEL + row)))));
            }
            Sub::Nibbles => {
                let bytes = unsigned(group.add(PANEL * half + row));
                let nibble = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
                scale = _mm256_mul_ps(d, floats(nibble));
                min = negative(_mm256_mul_ps(m, floats(_mm256_srli_epi32::<4>(bytes))));
            }
            Sub::Signed => {
                let bytes = _mm_loadl_epi64(group.add(PANEL * half + row).cast());
                scale = _mm256_mul_ps(d, floats(_mm256_cvtepi8_epi32(bytes)));
            }
        }
        if plan.offset != 0 {
            min = _mm256_mul_ps(scale, _mm256_set1_ps(-f32::from(plan.offset)));
        }
        (scale, min)
    }
}

/// Eight words as floats.
///
/// # Safety
/// 16 bytes can be read at `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn words<L: Layout>(at: *const u8) -> __m256 {
    // SAFETY: the caller's.
    let words = unsafe { _mm_loadu_si128(at.cast()) };
    if L::PLAN.bf16_scales {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words)))
    } else {
        _mm256_cvtph_ps(words)
    }
}

/// Eight bytes as numbers.
///
/// # Safety
/// They can be read at `at`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn unsigned(at: *const u8) -> __m256i {
    // SAFETY: the caller's.
    _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(at.cast()) })
}

#[inline]
#[target_feature(enable = "avx2")]
fn floats(numbers: __m256i) -> __m256 {
    _mm256_cvtepi32_ps(numbers)
}

#[inline]
#[target_feature(enable = "avx2")]
fn negative(x: __m256) -> __m256 {
    _mm256_sub_ps(_mm256_set1_ps(-0.0), x)
}

/// A tile whose codes lie by line.
///
/// # Safety
/// `low` and `high` point at a tile's planes, `out` at room for its values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn one_tile<L: Layout>(low: *const u8, high: *const u8, affine: &Affine, out: *mut bf16) {
    for half in 0..2 {
        // Rows 0 to 7, then 8 to 15: half of a line.
        for eight in 0..2 {
            // SAFETY: eight of 16 rows.
            let (scale, min) = unsafe {
                let of = |all: &[f32; TILE]| _mm256_loadu_ps(all.as_ptr().add(8 * eight));
                (of(&affine.scale[half]), of(&affine.min[half]))
            };
            for line in 8 * half..8 * half + 8 {
                // SAFETY: 32 half-vectors lie in the planes; 16 values are half of one of 16 lines.
                unsafe {
                    let values = if L::PLAN.low_bits == 8 {
                        of_bytes::<L>(low.add(16 * (2 * line + eight)), scale, min)
                    } else {
                        of_planes::<L>(low, high, 2 * line + eight, scale, min)
                    };
                    _mm256_storeu_si256(out.add(2 * TILE * line + TILE * eight).cast(), values);
                }
            }
        }
    }
}

/// A half-vector of bytes in bf16: those of the even k of eight rows, and those of the odd k, put together again.
///
/// # Safety
/// 16 bytes can be read at `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn of_bytes<L: Layout>(at: *const u8, scale: __m256, min: __m256) -> __m256i {
    // SAFETY: the caller's.
    let codes = unsafe { _mm_loadu_si128(at.cast()) };
    let both_k = |even: __m256, odd: __m256| {
        let values = |codes| rounded(_mm256_fmadd_ps(codes, scale, min));
        _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(values(even)), values(odd))
    };
    if L::PLAN.floats {
        // An odd byte is the upper one of its word, and an even one comes there.
        let odd = _mm_and_si128(codes, _mm_set1_epi16(0xff00_u16.cast_signed()));
        return both_k(floats_of_words(_mm_slli_epi16::<8>(codes)), floats_of_words(odd));
    }
    let both = _mm256_broadcastsi128_si256(codes);
    // Each byte as the uppermost of its lane, from where a shift brings it down with its sign.
    let even = _mm256_setr_epi32(
        0x00ff_ffff,
        0x02ff_ffff,
        0x04ff_ffff,
        0x06ff_ffff,
        0x08ff_ffff,
        0x0aff_ffff,
        0x0cff_ffff,
        0x0eff_ffff,
    );
    let odd = _mm256_add_epi32(even, _mm256_set1_epi32(0x0100_0000));
    let codes = |bytes| floats(_mm256_srai_epi32::<24>(_mm256_shuffle_epi8(both, bytes)));
    both_k(codes(even), codes(odd))
}

/// A half-vector of planes of bits in bf16.
///
/// # Safety
/// As [`one_tile`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn of_planes<L: Layout>(
    low: *const u8,
    high: *const u8,
    half: usize,
    scale: __m256,
    min: __m256,
) -> __m256i {
    // Rows 0, 1, 4, 5 and rows 2, 3, 6, 7, each for both k: that is what a pack puts in order.
    // SAFETY: the caller's.
    let (first, second) = unsafe { (codes::<L>(low, high, half, 0), codes::<L>(low, high, half, 1)) };
    let first = _mm256_fmadd_ps(first, _mm256_unpacklo_ps(scale, scale), _mm256_unpacklo_ps(min, min));
    let second = _mm256_fmadd_ps(second, _mm256_unpackhi_ps(scale, scale), _mm256_unpackhi_ps(min, min));
    let down = |values| _mm256_srli_epi32::<16>(rounded(values));
    _mm256_packus_epi32(down(first), down(second))
}

/// Eight floats rounded to bf16, to nearest even, which is the upper half of each lane; the lower one is of no use. What is no
/// number stays none.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn rounded(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    let none = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
    _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000)), none)
}

/// Eight codes of one half-vector, as floats: of its first and third four lanes, or of its second and fourth.
///
/// # Safety
/// As [`one_tile`].
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn codes<L: Layout>(low: *const u8, high: *const u8, half: usize, four: usize) -> __m256 {
    let (low_bits, high_bits) = (L::PLAN.low_bits, L::PLAN.high_bits);
    // SAFETY: both planes hold the half-vector.
    let bottom = unsafe { shifted(low_bits, low, half, four) };
    let bottom = _mm256_and_si256(bottom, _mm256_set1_epi32((1 << low_bits) - 1));
    if high_bits == 0 {
        return floats(bottom);
    }
    // SAFETY: as above.
    let top = unsafe { shifted(high_bits, high, half, four) };
    let top = _mm256_and_si256(top, _mm256_set1_epi32((1 << high_bits) - 1));
    floats(_mm256_or_si256(bottom, _mm256_sllv_epi32(top, _mm256_set1_epi32(low_bits as i32))))
}

/// Eight words of a plane of `bits` that hold a half-vector, shifted so that it comes last.
///
/// # Safety
/// The plane holds the half-vector.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn shifted(bits: usize, plane: *const u8, half: usize, four: usize) -> __m256i {
    let each = 32 / bits;
    // SAFETY: the caller's.
    let words = unsafe {
        let at = plane.add(64 * (half / each) + 16 * four);
        avx2_rows::halves(at, at.add(32))
    };
    _mm256_srlv_epi32(words, _mm256_set1_epi32((half % each * bits) as i32))
}
