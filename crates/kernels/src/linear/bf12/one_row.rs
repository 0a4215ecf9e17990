//! One row of x with AVX2: weights are multiplied in the registers that they come about in, and no tiles are written but those of
//! groups with exceptions.
//!
//! Signs and fractions, and exponents, are joined byte by byte: the low bytes of 32 weights, and the high ones. Putting
//! them side by side gives words, within each half of a vector: of a line's 16 outputs, one vector has 0 to 3 and 8 to 11, the
//! other the rest. Sums stay so until the panel ends. They are added in the order of groups, like those of tiles.

use std::arch::x86_64::*;

use half::bf16;

use super::x86::{GroupTiles, fetch, head, unfold_256};
use super::{GROUP_BYTES, LINE, LINES, Panel, TWO_LINES, WEIGHTS};
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::pack::{GROUP, PANEL_ROWS};
use crate::linear::rows::widen_rows;
use crate::linear::types::Weight;
use crate::linear::vector::SECOND;
use crate::mat::Mat;
use crate::scratch::with_scratch;
use crate::team::{Stretches, Team};

/// How far ahead of their use panels are asked for.
const AHEAD_BYTES: usize = 4096;

/// `x: [1, k]` by a weight. The machine has AVX2 and FMA.
pub(in crate::linear) fn run(team: &Team, x: Mat<'_, bf16>, w: &Weight<'_>, epilogue: &Epilogue<'_>) {
    let k = w.k().next_multiple_of(GROUP);
    let threads = team.threads();
    let panels = Stretches::new(w.held_panels(), 1, threads);
    team.run_on(threads, |worker| {
        with_scratch(k * size_of::<f32>(), |floats| {
            let floats: &mut [f32] = bytemuck::cast_slice_mut(floats);
            widen_rows(x, k, floats);
            for (panel, stored) in panels.of(worker.index).flatten().map(|i| w.held_panel(i)) {
                let mut sums = [[0.0; PANEL_ROWS]];
                // SAFETY: the machine has the features; nobody else has this panel.
                unsafe {
                    multiply(floats, &Panel::new(stored), &mut sums[0]);
                    epilogue.finish_256(panel, 0, &mut sums);
                }
            }
        });
    });
}

/// The sums of a panel's tiles, two vectors each.
type Total = [[__m256; 2]; 2];
/// Two lines of a tile, as words, two vectors each.
type Lines = [[__m256i; 2]; 2];

/// # Safety
/// The machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply(x: &[f32], panel: &Panel<'_>, sums: &mut Sums) {
    let exponents = Exponents::new(panel);
    let mut panel = *panel;
    let mut tiles = GroupTiles([0; WEIGHTS]);
    let mut total = [[_mm256_setzero_ps(); 2]; 2];
    for (i, (x, group)) in x.as_chunks().0.iter().zip(panel.groups).enumerate() {
        if panel.is_next(i) {
            // SAFETY: the machine has AVX2.
            unsafe { unfold_256(&panel, i..i + 1, &mut tiles.0) };
            panel.patch_next(i, &mut tiles.0);
            // SAFETY: as above, with FMA.
            unsafe { add_group(x, |at| read_lines(&tiles, at), &mut total) };
        } else {
            // SAFETY: as above, with FMA.
            unsafe { add_group(x, |at| exponents.unfold_lines(group, at), &mut total) };
        }
    }
    for (tile, [first, second]) in total.into_iter().enumerate() {
        let [low, high] =
            [_mm256_permute2f128_ps::<0x20>(first, second), _mm256_permute2f128_ps::<0x31>(first, second)];
        // SAFETY: a tile has 16 of the 32 sums.
        unsafe {
            let out = sums.as_mut_ptr().add(tile * PANEL_ROWS / 2);
            _mm256_storeu_ps(out, low);
            _mm256_storeu_ps(out.add(8), high);
        }
    }
}

/// Adds the products of a group, of whose pairs of lines `lines` gives one: even and odd ones in sums of their own.
///
/// # Safety
/// The machine has AVX2 and FMA.
#[inline(always)]
unsafe fn add_group(x: &[f32; GROUP], lines: impl Fn(usize) -> Lines, total: &mut Total) {
    // SAFETY: the caller's.
    unsafe {
        for tile in 0..2 {
            let [mut even, mut odd] = [[_mm256_setzero_ps(); 2]; 2];
            for two in 0..LINES / 2 {
                for (half, words) in lines(tile * LINES / 2 + two).into_iter().enumerate() {
                    let pair = 2 * (2 * two + half);
                    let [first, second] = [_mm256_set1_ps(x[pair]), _mm256_set1_ps(x[pair + 1])];
                    for v in 0..2 {
                        let w = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words[v]));
                        even[v] = _mm256_fmadd_ps(first, w, even[v]);
                        let w = _mm256_castsi256_ps(_mm256_and_si256(words[v], _mm256_set1_epi32(SECOND)));
                        odd[v] = _mm256_fmadd_ps(second, w, odd[v]);
                    }
                }
            }
            for v in 0..2 {
                total[tile][v] = _mm256_add_ps(total[tile][v], _mm256_add_ps(even[v], odd[v]));
            }
        }
    }
}

/// A pair of lines of tiles as they are.
#[inline]
#[target_feature(enable = "avx2")]
fn read_lines(tiles: &GroupTiles, at: usize) -> Lines {
    let lines = tiles.0[at * TWO_LINES..][..TWO_LINES].as_chunks::<LINE>().0;
    std::array::from_fn(|half| {
        // SAFETY: a line has four times eight words.
        let quarter = |i: usize| unsafe { lines[half].as_ptr().add(8 * i).cast() };
        // SAFETY: as above.
        [0, 1].map(|i| unsafe { _mm256_loadu2_m128i(quarter(2 + i), quarter(i)) })
    })
}

/// What gives the exponents of a panel.
struct Exponents {
    /// Distances, twice: each half of a vector is looked up in its own.
    table: __m256i,
    /// The bases of each tile's rows, twice each: those of a line.
    bases: [__m256i; 2],
}

impl Exponents {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(panel: &Panel<'_>) -> Exponents {
        let [table, first, second] = head(panel);
        let twice =
            |bases| _mm256_set_m128i(_mm_unpackhi_epi8(bases, bases), _mm_unpacklo_epi8(bases, bases));
        Exponents { table: _mm256_broadcastsi128_si256(table), bases: [twice(first), twice(second)] }
    }

    /// A pair of lines of a group without exceptions. What lies some way behind is asked for.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn unfold_lines(&self, group: &[u8; GROUP_BYTES], at: usize) -> Lines {
        let (fractions, codes) = group.split_at(WEIGHTS);
        let (fractions, codes) = (&fractions[at * TWO_LINES..][..TWO_LINES], &codes[at * LINE..][..LINE]);
        fetch::<_MM_HINT_T0>(group, at, AHEAD_BYTES);
        // SAFETY: 32 bytes.
        let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
        let halves = [codes, _mm256_srli_epi16::<4>(codes)];
        std::array::from_fn(|half| {
            let codes = _mm256_and_si256(halves[half], _mm256_set1_epi8(15));
            let distances = _mm256_shuffle_epi8(self.table, codes);
            let exponents = _mm256_subs_epu8(self.bases[at / (LINES / 2)], distances);
            // SAFETY: 32 of 64 bytes.
            let fractions = unsafe { _mm256_loadu_si256(fractions.as_ptr().add(LINE * half).cast()) };
            let low = chosen(fractions, _mm256_slli_epi16::<7>(exponents), 0x80u8 as i8);
            let high = chosen(fractions, _mm256_srli_epi16::<1>(exponents), 0x7f);
            [_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)]
        })
    }
}

/// Of each byte the bits of `mask` from `b`, the others from `a`.
#[inline]
#[target_feature(enable = "avx2")]
fn chosen(a: __m256i, b: __m256i, mask: i8) -> __m256i {
    let differ = _mm256_and_si256(_mm256_xor_si256(a, b), _mm256_set1_epi8(mask));
    _mm256_xor_si256(a, differ)
}
