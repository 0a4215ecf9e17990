//! Many rows of x: codes of a chunk of a panel become tiles in L1, with the scales and mins of their groups behind each,
//! and bands of rows pass.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

use super::super::super::plan::{GROUP, Layout};
use super::super::fused::fetch;
use super::lines::{EIGHTS, LINES, lines, to_rows};
use super::scales::Scales;
use super::{X_BYTES, pack, row_bytes};
use crate::linear::epilogue::Sums;
use crate::linear::pack::TILE_BYTES;
use crate::linear::pairs::{Fetch, Panels, Start, add_pairs, with_rows};
use crate::linear::source::PAIR_BYTES;
use crate::mat::Mat;

/// Bytes of a vector.
const VECTOR: usize = 64;

/// Panels of a narrow format.
pub(super) struct Codes<L>(PhantomData<L>);

/// Bytes of the scales and mins of a run.
const fn scales_bytes(has_min: bool) -> usize {
    if has_min { 4 * VECTOR } else { 2 * VECTOR }
}

/// Bytes of a group: two tiles, scales and mins.
const fn group_bytes(runs: usize, has_min: bool) -> usize {
    PAIR_BYTES + runs * scales_bytes(has_min)
}

impl<L: Layout> Panels for Codes<L> {
    const AS_STORED: bool = false;
    const STREAMED: bool = false;
    // Two registers for each row's sums over a run, two for its totals.
    const BAND_ROWS: usize = 7;
    const ROW_BYTES: usize = row_bytes(L::PLAN.has_min);
    const GROUP_BYTES: usize = group_bytes(L::PLAN.runs(), L::PLAN.has_min);

    fn pack(x: Mat<'_, bf16>, rows: Range<usize>, groups: usize, out: &mut [u8]) {
        pack::<L>(x, rows.start, rows.len(), groups, out);
    }

    #[inline(always)]
    unsafe fn chunk<'s>(stored: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8] {
        // SAFETY: passed on from the caller.
        unsafe { write::<L>(stored, groups, scratch) };
        scratch
    }

    #[inline(always)]
    unsafe fn multiply(
        rows: usize,
        start: Start,
        x: *const u8,
        w: *const u8,
        groups: usize,
        sums: *mut Sums,
        _fetch: Fetch,
    ) {
        // SAFETY: passed on from the caller.
        unsafe {
            with_rows!(rows, [1, 2, 3, 4, 5, 6, 7], R => match (L::PLAN.runs(), L::PLAN.has_min) {
                (1, false) => multiply::<R, 1, false>(start, x, w, groups, sums),
                (1, true) => multiply::<R, 1, true>(start, x, w, groups, sums),
                (_, false) => multiply::<R, 2, false>(start, x, w, groups, sums),
                (_, true) => multiply::<R, 2, true>(start, x, w, groups, sums),
            });
        }
    }

    #[inline]
    unsafe fn put_in_order(sums: &mut [Sums]) {
        // SAFETY: passed on from the caller.
        unsafe { put_in_order::<L>(sums) }
    }
}

/// Writes groups of a panel as they are multiplied.
///
/// # Safety
/// The machine has these features.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")]
unsafe fn write<L: Layout>(panel: &[u8], groups: Range<usize>, out: &mut [u8]) {
    assert!(L::PLAN.panel_bytes(groups.end * GROUP) <= panel.len());
    let bytes = group_bytes(L::PLAN.runs(), L::PLAN.has_min);
    let panel = panel.as_ptr();
    for (group, out) in groups.zip(out.chunks_exact_mut(bytes)) {
        let out = out.as_mut_ptr();
        // SAFETY: the panel holds the group, and there is room for two tiles and the scales of its runs.
        unsafe {
            let codes = panel.add(L::PLAN.locate(group).group);
            fetch(codes, L::PLAN.group_bytes());
            let scales = Scales::read::<L>(panel, group);
            for tile in 0..2 {
                for eight in 0..EIGHTS {
                    let to = out.add(tile * TILE_BYTES + eight * LINES * VECTOR);
                    let lines = lines::<L>(codes, tile, eight);
                    for i in 0..LINES {
                        _mm512_storeu_si512(to.add(i * VECTOR).cast(), lines[i]);
                    }
                }
                for run in 0..L::PLAN.runs() {
                    let to = out.add(PAIR_BYTES + run * scales_bytes(L::PLAN.has_min) + tile * VECTOR);
                    _mm512_storeu_ps(to.cast(), scales.scale[run][tile]);
                    if L::PLAN.has_min {
                        _mm512_storeu_ps(to.add(2 * VECTOR).cast(), scales.min[run][tile]);
                    }
                }
            }
        }
    }
}

/// `sums += x * w` over `groups` groups, lanes in the order of lines.
///
/// # Safety
/// As [`Panels::multiply`], with `R` rows.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn multiply<const R: usize, const RUNS: usize, const MIN: bool>(
    start: Start,
    x: *const u8,
    w: *const u8,
    groups: usize,
    sums: *mut Sums,
) {
    let mut total = [[_mm512_setzero_ps(); 2]; R];
    // SAFETY: loads and stores stay inside what the caller promises.
    unsafe {
        if start == Start::Sums {
            for r in 0..R {
                let sums = sums.add(r).cast::<f32>();
                total[r] = [_mm512_loadu_ps(sums), _mm512_loadu_ps(sums.add(VECTOR / 4))];
            }
        }
        for group in 0..groups {
            let x = x.add(group * R * row_bytes(MIN));
            let w = w.add(group * group_bytes(RUNS, MIN));
            for run in 0..RUNS {
                let mut part = [[_mm512_setzero_ps(); 2]; R];
                for j in run * GROUP / 2 / RUNS..(run + 1) * GROUP / 2 / RUNS {
                    let at = w.add(j * VECTOR);
                    let lines =
                        [_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(TILE_BYTES).cast())];
                    for r in 0..R {
                        let x = x.add(r * X_BYTES).cast::<i32>().add(j);
                        let x = _mm512_set1_epi32(x.read_unaligned());
                        part[r][0] = add_pairs(part[r][0], x, lines[0]);
                        part[r][1] = add_pairs(part[r][1], x, lines[1]);
                    }
                }
                let scales = w.add(PAIR_BYTES + run * scales_bytes(MIN)).cast::<f32>();
                let sums_of_x = x.add(R * X_BYTES).cast::<f32>().wrapping_add(run);
                for tile in 0..2 {
                    let scale = scales.add(tile * VECTOR / 4);
                    for r in 0..R {
                        let total = &mut total[r][tile];
                        *total = _mm512_fmadd_ps(_mm512_loadu_ps(scale), part[r][tile], *total);
                        if MIN {
                            let x = _mm512_set1_ps(sums_of_x.add(2 * r).read_unaligned());
                            *total = _mm512_fmadd_ps(_mm512_loadu_ps(scale.add(VECTOR / 2)), x, *total);
                        }
                    }
                }
            }
        }
        for r in 0..R {
            let sums = sums.add(r).cast::<f32>();
            _mm512_storeu_ps(sums, total[r][0]);
            _mm512_storeu_ps(sums.add(VECTOR / 4), total[r][1]);
        }
    }
}

/// From the order of lanes to that of outputs.
///
/// # Safety
/// The machine has these features.
#[target_feature(enable = "avx512f")]
unsafe fn put_in_order<L: Layout>(sums: &mut [Sums]) {
    for half in sums.as_flattened_mut().as_chunks_mut::<{ VECTOR / 4 }>().0 {
        // SAFETY: 16 numbers.
        unsafe {
            let lanes = _mm512_loadu_ps(half.as_ptr());
            _mm512_storeu_ps(half.as_mut_ptr(), to_rows::<L>(lanes));
        }
    }
}
