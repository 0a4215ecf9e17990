//! Vector units: a word for each weight. Its exponent is looked up, and put between sign and fraction, which widening with
//! the sign has parted.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::{Bf12Panels, GROUP_BYTES, LINE, LINES, Panel, TWO_LINES, WEIGHTS};
use crate::Isa;
use crate::linear::epilogue::Sums;
use crate::linear::pack::{GROUP, PANEL_ROWS};
use crate::linear::pairs::{Fetch, Panels, Start, Tiles, add_pairs, with_rows};
use crate::linear::source::PanelSource;
use crate::mat::Mat;

/// The bits of an exponent in a word.
const EXPONENT: i16 = 0x7f80;
/// How far ahead of their use panels are asked for, into the L2: where memory is fast, one row comes at 51 GB/s so, and at 46
/// into the L1 (Zen 4, two threads).
const AHEAD_BYTES: usize = 8192;

/// Unfolds groups, but for their exceptions.
///
/// # Safety
/// The machine has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
pub(super) unsafe fn unfold_512(panel: &Panel<'_>, groups: Range<usize>, tiles: &mut [u16]) {
    let exponents = Exponents::new(panel);
    for (group, tiles) in panel.groups[groups].iter().zip(tiles.as_chunks_mut::<WEIGHTS>().0) {
        for i in 0..WEIGHTS / TWO_LINES {
            unfold_two_lines(group, &exponents, i, tiles);
        }
    }
}

/// What gives the exponents of a panel, where words have them.
struct Exponents {
    /// Distances. A permutation looks at five bits of a number, so it has each twice.
    table: __m512i,
    /// The bases of each tile's rows, twice each: those of a line.
    bases: [__m512i; 2],
}

impl Exponents {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn new(panel: &Panel<'_>) -> Exponents {
        let [table, first, second] = head(panel);
        let table = _mm512_broadcast_i64x4(_mm256_cvtepu8_epi16(table));
        let twice = |bases: __m128i| {
            let words = _mm512_cvtepu8_epi32(bases);
            _mm512_slli_epi16::<7>(_mm512_or_si512(words, _mm512_slli_epi32::<16>(words)))
        };
        Exponents { table: _mm512_slli_epi16::<7>(table), bases: [twice(first), twice(second)] }
    }
}

/// The distances of a panel, and the bases of each tile's rows.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn head(panel: &Panel<'_>) -> [__m128i; 3] {
    let bases = panel.bases.as_chunks().0;
    // SAFETY: 16 bytes each.
    [panel.table, &bases[0], &bases[1]]
        .map(|bytes: &[u8; 16]| unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// Two lines of a group's tiles. What lies some way behind is asked for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn unfold_two_lines(group: &[u8; GROUP_BYTES], of: &Exponents, two: usize, tiles: &mut [u16; WEIGHTS]) {
    let (fractions, codes) = group.split_at(WEIGHTS);
    let (fractions, codes) =
        (&fractions[two * TWO_LINES..][..TWO_LINES], &codes[two * TWO_LINES / 2..][..TWO_LINES / 2]);
    let out = &mut tiles[two * TWO_LINES..][..TWO_LINES];
    fetch::<_MM_HINT_T1>(group, two, AHEAD_BYTES);
    // SAFETY: these are 32 and 64 bytes; 64 words.
    unsafe {
        let codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(codes.as_ptr().cast()));
        for (half, codes) in [codes, _mm512_srli_epi16::<4>(codes)].into_iter().enumerate() {
            let words = _mm512_cvtepi8_epi16(_mm256_loadu_si256(fractions.as_ptr().add(32 * half).cast()));
            let distances = _mm512_permutexvar_epi16(codes, of.table);
            let exponents = _mm512_subs_epu16(of.bases[two / (LINES / 2)], distances);
            let words = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi16(EXPONENT), exponents, words);
            _mm512_storeu_si512(out.as_mut_ptr().add(32 * half).cast(), words);
        }
    }
}

/// Asks for this part of what will be read after so many bytes.
#[inline(always)]
pub(super) fn fetch<const HINT: i32>(group: &[u8; GROUP_BYTES], two: usize, after: usize) {
    let ahead = group.as_ptr().wrapping_add(after + two * (GROUP_BYTES * TWO_LINES / WEIGHTS));
    // SAFETY: a prefetch cannot fault.
    unsafe {
        _mm_prefetch::<HINT>(ahead.cast());
        _mm_prefetch::<HINT>(ahead.wrapping_add(64).cast());
    }
}

/// The tiles of one group.
#[repr(C, align(64))]
pub(super) struct GroupTiles(pub(super) [u16; WEIGHTS]);

/// `sums = x * w` of up to 12 rows by a whole panel. A group is unfolded while the products of the one before wait for each other.
///
/// # Safety
/// As [`Panels::stream`], of `R` rows.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2")]
unsafe fn stream<const R: usize>(x: *const u8, stored: &[u8], groups: usize, sums: *mut Sums) {
    let mut panel = Panel::new(stored);
    let exponents = Exponents::new(&panel);
    let mut tiles = GroupTiles([0; WEIGHTS]);
    let mut total = [[_mm512_setzero_ps(); 2]; R];
    for group in 0..groups {
        for two in 0..WEIGHTS / TWO_LINES {
            unfold_two_lines(&panel.groups[group], &exponents, two, &mut tiles.0);
        }
        panel.patch_next(group, &mut tiles.0);
        // SAFETY: x has this group; a tile 16 lines of 32 words, and there are two.
        unsafe {
            let x = x.add(group * R * Tiles::ROW_BYTES).cast::<i32>();
            for j in 0..GROUP / 2 {
                let at = tiles.0.as_ptr().add(32 * j);
                let lines = [_mm512_load_si512(at.cast()), _mm512_load_si512(at.add(WEIGHTS / 2).cast())];
                for r in 0..R {
                    let x = _mm512_set1_epi32(x.add(r * (Tiles::ROW_BYTES / 4) + j).read_unaligned());
                    for half in 0..2 {
                        total[r][half] = add_pairs(total[r][half], x, lines[half]);
                    }
                }
            }
        }
    }
    for r in 0..R {
        // SAFETY: there are sums for each row.
        unsafe {
            let sums = sums.add(r).cast::<f32>();
            _mm512_storeu_ps(sums, total[r][0]);
            _mm512_storeu_ps(sums.add(16), total[r][1]);
        }
    }
}

/// The same by half the width.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn unfold_256(panel: &Panel<'_>, groups: Range<usize>, tiles: &mut [u16]) {
    let bases: [[u8; LINE]; 2] =
        [0, PANEL_ROWS / 2].map(|first| std::array::from_fn(|i| panel.bases[first + i / 2]));
    for (group, tiles) in panel.groups[groups].iter().zip(tiles.as_chunks_mut::<WEIGHTS>().0) {
        let (fractions, codes) = group.split_at(WEIGHTS);
        let lines = tiles.as_chunks_mut::<TWO_LINES>().0.iter_mut().zip(fractions.as_chunks::<TWO_LINES>().0);
        for (two, ((out, fractions), codes)) in lines.zip(codes.as_chunks::<LINE>().0).enumerate() {
            fetch::<_MM_HINT_T1>(group, two, AHEAD_BYTES);
            // SAFETY: 16 and 32 bytes of what is so long.
            unsafe {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(panel.table.as_ptr().cast()));
                let bases = _mm256_loadu_si256(bases[two / (LINES / 2)].as_ptr().cast());
                let codes = _mm256_loadu_si256(codes.as_ptr().cast());
                for (half, codes) in [codes, _mm256_srli_epi16::<4>(codes)].into_iter().enumerate() {
                    let distances = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
                    let exponents = _mm256_subs_epu8(bases, distances);
                    let quarters =
                        [_mm256_castsi256_si128(exponents), _mm256_extracti128_si256::<1>(exponents)];
                    for (quarter, exponents) in quarters.into_iter().enumerate() {
                        let at = LINE * half + LINE / 2 * quarter;
                        let words = _mm256_cvtepi8_epi16(_mm_loadu_si128(fractions.as_ptr().add(at).cast()));
                        let exponents = _mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(exponents));
                        let others = _mm256_andnot_si256(_mm256_set1_epi16(EXPONENT), words);
                        let words = _mm256_or_si256(exponents, others);
                        _mm256_storeu_si256(out.as_mut_ptr().add(at).cast(), words);
                    }
                }
            }
        }
    }
}

/// What unfolds them for the driver of pairs.
const BF12: Bf12Panels = Bf12Panels(Isa::Avx512Bf16);

/// Panels of bf16 in 12 bits for the driver of pairs, unfolded a chunk at a time.
pub(crate) struct Unfolded;

impl Panels for Unfolded {
    const AS_STORED: bool = false;
    const STREAMED: bool = true;
    const BAND_ROWS: usize = Tiles::BAND_ROWS;
    const ROW_BYTES: usize = Tiles::ROW_BYTES;
    const GROUP_BYTES: usize = Tiles::GROUP_BYTES;

    #[inline(always)]
    fn behind(stored: &[u8], groups: &Range<usize>) -> Range<*const u8> {
        BF12.behind(stored, groups)
    }

    fn pack(x: Mat<'_, bf16>, rows: Range<usize>, groups: usize, out: &mut [u8]) {
        Tiles::pack(x, rows, groups, out);
    }

    #[inline(always)]
    unsafe fn chunk<'s>(stored: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8] {
        BF12.tiles(stored, groups, scratch)
    }

    #[inline(always)]
    unsafe fn multiply(
        rows: usize,
        start: Start,
        x: *const u8,
        w: *const u8,
        groups: usize,
        sums: *mut Sums,
        fetch: Fetch,
    ) {
        // SAFETY: passed on from the caller.
        unsafe { Tiles::multiply(rows, start, x, w, groups, sums, fetch) }
    }

    #[inline(always)]
    unsafe fn stream(rows: usize, x: *const u8, stored: &[u8], groups: usize, sums: *mut Sums) {
        // SAFETY: passed on from the caller.
        unsafe {
            with_rows!(rows, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], R => stream::<R>(x, stored, groups, sums));
        }
    }
}
