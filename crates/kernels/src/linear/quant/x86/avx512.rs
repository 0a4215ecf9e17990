//! AVX-512: 16 lanes of codes become floats, two vectors of floats round into one line of a tile.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::plan::{CodeOrder, GROUP, Layout, PANEL, Sub, TILE};
use super::{bytes, floats};

/// Values of a tile.
pub(super) const VALUES: usize = TILE * GROUP;
/// Lines of a tile in eight k: 16 rows of a pair of k each.
pub(super) const LINES: usize = 4;
/// Eights of k in a group.
pub(super) const EIGHTS: usize = 4;

/// Scale and min of a tile for both 16 k of a group, each row's twice beside each other: rows 0-7, then 8-15.
#[derive(Clone, Copy)]
pub(super) struct Affine {
    scale: [[__m512; 2]; 2],
    min: [[__m512; 2]; 2],
}

/// Expands `groups` of a panel.
///
/// # Safety
/// The machine has these features; `panel` holds the groups and `out` has room for their tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
pub(super) unsafe fn expand<L: Layout>(panel: &[u8], groups: Range<usize>, out: &mut [bf16]) {
    assert!(L::PLAN.panel_bytes(groups.end * GROUP) <= panel.len());
    assert!(groups.len() * 2 * VALUES <= out.len());
    let (panel, out) = (panel.as_ptr(), out.as_mut_ptr());
    for (i, group) in groups.enumerate() {
        // SAFETY: this function's own contract, and the two lengths above.
        unsafe { expand_group::<L>(panel, group, out.add(2 * i * VALUES)) };
    }
}

/// Expands one group to its two tiles.
///
/// # Safety
/// As [`expand`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
pub(super) unsafe fn expand_group<L: Layout>(panel: *const u8, group: usize, out: *mut bf16) {
    for tile in 0..2 {
        // SAFETY: a tile is four times four lines of 16 rows of two k; the rest is the caller's.
        unsafe {
            let affine = Affine::read::<L>(panel, group, tile);
            for eight in 0..EIGHTS {
                let out = out.add(tile * VALUES + eight * LINES * 2 * TILE).cast::<__m512i>();
                for (i, line) in lines::<L>(panel, group, (tile, eight), &affine).into_iter().enumerate() {
                    _mm512_storeu_si512(out.add(i), line);
                }
            }
        }
    }
}

/// Those of rows 0-7 and of rows 8-15 in 16 k.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    scale: [__m512; 2],
    min: [__m512; 2],
}

impl Rows {
    /// Values of codes, or of what stands for them.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn of(&self, codes: [__m512; 2]) -> [__m512; 2] {
        let value = |i: usize| _mm512_fmadd_ps(codes[i], self.scale[i], self.min[i]);
        [value(0), value(1)]
    }
}

impl Affine {
    /// Those of a tile in a group.
    ///
    /// # Safety
    /// The machine has these features; `panel` holds the group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
    pub(super) unsafe fn read<L: Layout>(panel: *const u8, group: usize, tile: usize) -> Affine {
        let place = L::PLAN.locate(group);
        // SAFETY: unit and group lie in the panel.
        let [scale, mut min] = unsafe { by_row::<L>(panel.add(place.unit), panel.add(place.group), tile) };
        if const { bytes::zero_in_min::<L>() } {
            let zero = _mm512_set1_ps(-const { bytes::zero::<L>() });
            min = [_mm512_mul_ps(scale[0], zero), _mm512_mul_ps(scale[1], zero)];
        }
        Affine { scale: [twice(scale[0]), twice(scale[1])], min: [twice(min[0]), twice(min[1])] }
    }
}

/// The lines of a tile in eight k of a group.
///
/// # Safety
/// The machine has these features; `panel` holds the group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
pub(super) unsafe fn lines<L: Layout>(
    panel: *const u8,
    group: usize,
    (tile, eight): (usize, usize),
    affine: &Affine,
) -> [__m512i; LINES] {
    let (low, high) = L::PLAN.planes(tile);
    let affine = Rows { scale: affine.scale[eight / 2], min: affine.min[eight / 2] };
    // SAFETY: the planes lie in the panel.
    unsafe {
        let panel = panel.add(L::PLAN.locate(group).group);
        match (L::PLAN.order(), L::PLAN.low_bits) {
            (CodeOrder::ByRow, _) => bytes::of_nibbles::<L>(panel.add(low), eight, affine),
            (CodeOrder::ByLine, 8) if L::PLAN.floats => of_floats(panel.add(low), eight, affine),
            (CodeOrder::ByLine, 8) => bytes::of_bytes::<L>(panel.add(low), eight, affine),
            (CodeOrder::ByLine, _) => of_planes::<L>(panel.add(low), panel.add(high), eight, affine),
        }
    }
}

/// Scale and min of a tile's 16 rows for each 16 k of a group.
///
/// # Safety
/// `unit` and `group` point at a unit and a group of a panel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::linear::quant) unsafe fn by_row<L: Layout>(
    unit: *const u8,
    group: *const u8,
    tile: usize,
) -> [[__m512; 2]; 2] {
    let plan = &L::PLAN;
    // SAFETY: the words of 16 rows follow at 32 bytes a tile, the mins 64 bytes after the scales.
    let d = unsafe { words::<L>(unit.add(32 * tile)) };
    let second = unit.wrapping_add(2 * PANEL + 32 * tile);
    if plan.floats {
        // SAFETY: as above.
        let lower = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(second.cast())) };
        return [[_mm512_or_ps(d, _mm512_castsi512_ps(lower)); 2], [_mm512_setzero_ps(); 2]];
    }
    // SAFETY: as above.
    let m = if plan.has_min { unsafe { words::<L>(second) } } else { _mm512_setzero_ps() };
    let bytes = |which: usize| {
        // SAFETY: two lots of a byte for each of 32 rows, read only where the plan has them.
        unsafe { _mm_loadu_si128(group.add(PANEL * which + TILE * tile).cast()) }
    };
    let unsigned = |b: __m128i| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b));
    let negative = |m: __m512| _mm512_sub_ps(_mm512_set1_ps(-0.0), m);
    let (scale, min) = match plan.sub {
        Sub::None => ([d; 2], [m; 2]),
        Sub::ScaleMin => {
            let min = negative(_mm512_mul_ps(m, unsigned(bytes(1))));
            ([_mm512_mul_ps(d, unsigned(bytes(0))); 2], [min; 2])
        }
        Sub::Nibbles => {
            let nibble = _mm_set1_epi8(15);
            let scale = |b: __m128i| _mm512_mul_ps(d, unsigned(_mm_and_si128(b, nibble)));
            let high = |b: __m128i| unsigned(_mm_and_si128(_mm_srli_epi16::<4>(b), nibble));
            let min = |b: __m128i| negative(_mm512_mul_ps(m, high(b)));
            ([scale(bytes(0)), scale(bytes(1))], [min(bytes(0)), min(bytes(1))])
        }
        Sub::Signed => {
            let signed = |b: __m128i| _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)));
            ([signed(bytes(0)), signed(bytes(1))], [m; 2])
        }
    };
    let min = match plan.offset {
        0 => min,
        offset => {
            let offset = _mm512_set1_ps(-f32::from(offset));
            [_mm512_mul_ps(scale[0], offset), _mm512_mul_ps(scale[1], offset)]
        }
    };
    [scale, min]
}

/// # Safety
/// 32 bytes can be read at `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn words<L: Layout>(at: *const u8) -> __m512 {
    // SAFETY: the caller's.
    let words = unsafe { _mm256_loadu_si256(at.cast()) };
    if L::PLAN.bf16_scales {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words)))
    } else {
        _mm512_cvtph_ps(words)
    }
}

/// Floats rounded to bf16, the first before the second.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn in_bf16(values: [__m512; 2]) -> __m512i {
    // SAFETY: both are 512 bits of plain numbers.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(values[1], values[0])) }
}

/// Each lane twice: rows 0 to 7, and 8 to 15.
#[inline]
#[target_feature(enable = "avx512f")]
fn twice(v: __m512) -> [__m512; 2] {
    let first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    let second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    [_mm512_permutexvar_ps(first, v), _mm512_permutexvar_ps(second, v)]
}

/// Floats of 8 bits by line.
///
/// # Safety
/// The machine has these features; `low` points at a tile's plane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2")]
unsafe fn of_floats(low: *const u8, eight: usize, affine: Rows) -> [__m512i; LINES] {
    let mut lines = [_mm512_setzero_si512(); LINES];
    for (i, line) in lines.iter_mut().enumerate() {
        // SAFETY: two half-vectors of 16 bytes for each line.
        let codes = [0, 1]
            .map(|half| unsafe { _mm_loadu_si128(low.add(16 * (2 * (LINES * eight + i) + half)).cast()) });
        *line = in_bf16(affine.of([floats::of_bytes(codes[0]), floats::of_bytes(codes[1])]));
    }
    lines
}

/// Codes of planes of bits.
///
/// # Safety
/// The machine has these features; both point at a tile's planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn of_planes<L: Layout>(
    low: *const u8,
    high: *const u8,
    eight: usize,
    affine: Rows,
) -> [__m512i; LINES] {
    let mut lines = [_mm512_setzero_si512(); LINES];
    for (i, line) in lines.iter_mut().enumerate() {
        let at = 2 * (LINES * eight + i);
        // SAFETY: 32 half-vectors lie in the planes.
        let codes = unsafe { [codes::<L>(low, high, at), codes::<L>(low, high, at + 1)] };
        *line = in_bf16(affine.of(codes));
    }
    lines
}

/// The codes of one half-vector, as floats: of fewer than 8 bits.
///
/// # Safety
/// Both planes hold the half-vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn codes<L: Layout>(low: *const u8, high: *const u8, half: usize) -> __m512 {
    let (low_bits, high_bits) = (L::PLAN.low_bits, L::PLAN.high_bits);
    // SAFETY: both planes hold the half-vector.
    let bottom = unsafe { shifted(low_bits, low, half) };
    let bottom = _mm512_and_si512(bottom, _mm512_set1_epi32((1 << low_bits) - 1));
    if high_bits == 0 {
        return _mm512_cvtepi32_ps(bottom);
    }
    // SAFETY: as above.
    let top = unsafe { shifted(high_bits, high, half) };
    let top = _mm512_and_si512(top, _mm512_set1_epi32((1 << high_bits) - 1));
    _mm512_cvtepi32_ps(_mm512_or_si512(bottom, _mm512_sllv_epi32(top, _mm512_set1_epi32(low_bits as i32))))
}

/// The words of a plane of `bits` that hold a half-vector, shifted so that it comes last.
///
/// # Safety
/// The plane holds the half-vector.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn shifted(bits: usize, plane: *const u8, half: usize) -> __m512i {
    let each = 32 / bits;
    // SAFETY: the caller's.
    let words = unsafe { _mm512_loadu_si512(plane.add(64 * (half / each)).cast()) };
    _mm512_srlv_epi32(words, _mm512_set1_epi32((half % each * bits) as i32))
}
