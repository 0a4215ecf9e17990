//! Sums of products of bytes with AVX2: a vector's qwords are eight k of a row each, so that a step of eight k is one
//! instruction for four rows.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::Narrow;
use super::super::plan::{GROUP, Layout, PANEL, TILE, with_layout};
use super::super::x86::{Affine, affine, fetch};
use super::codes::{self, EIGHT_ROWS, STEP, TILE_CODES};
use super::rounded::{Bits, Group, UPPER, round};
use crate::linear::epilogue::{Epilogue, Sums};
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::scratch::with_scratch;
use crate::team::Team;

/// Groups whose codes and scales are made at once: a quarter of a small L1.
const CHUNK: usize = 4;
/// Rows of x at once, which share the loads of codes: half as many where a number is two bytes.
const ROWS: usize = 4;
/// Bytes of rounded x that a block of rows may take: half of a small L2.
const BLOCK_BYTES: usize = 256 << 10;
/// Rows of a block at least, each of which makes the codes anew.
const BLOCK_ROWS: usize = 16;

/// `x: [m, k]` by a weight of `format`. The machine has AVX2, FMA and F16C.
pub(super) fn run(
    team: &Team,
    (format, bits): (Narrow, Bits),
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) {
    with_layout!(format, [Int8, Int4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K], L => {
        let job = Job { x, bits, w, epilogue, groups: w.k().div_ceil(GROUP) };
        team.run(|worker| {
            with_scratch(job.scratch_bytes(), |scratch| {
                // SAFETY: the caller's; workers have panels of their own.
                unsafe { job.work::<L>(worker.share(w.held_panels()), scratch) };
            });
        });
    });
}

struct Job<'a> {
    x: Mat<'a, bf16>,
    bits: Bits,
    w: &'a Weight<'a>,
    epilogue: &'a Epilogue<'a>,
    groups: usize,
}

/// What is made of a panel's chunk: codes, and scales and mins, of both tiles.
#[repr(C, align(64))]
struct Chunk {
    codes: [[[u8; TILE_CODES]; 2]; CHUNK],
    affine: [[Affine; 2]; CHUNK],
}

impl Job<'_> {
    /// Rows of a block.
    fn block(&self) -> usize {
        self.x.rows().min((BLOCK_BYTES / self.row_bytes()).max(BLOCK_ROWS))
    }

    fn row_bytes(&self) -> usize {
        self.groups * size_of::<Group>() + size_of::<Sums>()
    }

    fn scratch_bytes(&self) -> usize {
        size_of::<Chunk>() + self.block() * self.row_bytes()
    }

    /// # Safety
    /// The machine has these features; nobody else has these panels; scratch is as long as was asked for.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn work<L: Layout>(&self, panels: Range<usize>, scratch: &mut [u8]) {
        let block = self.block();
        assert!(scratch.len() >= self.scratch_bytes() && scratch.as_ptr().addr().is_multiple_of(64));
        let (chunk, rest) = scratch.split_at_mut(size_of::<Chunk>());
        let (x, sums) = rest.split_at_mut(self.groups * block * size_of::<Group>());
        // SAFETY: as long and as aligned as these want; any bytes are a value of theirs.
        let (chunk, x) = unsafe {
            (
                &mut *chunk.as_mut_ptr().cast::<Chunk>(),
                std::slice::from_raw_parts_mut(x.as_mut_ptr().cast::<Group>(), self.groups * block),
            )
        };
        let sums: &mut [Sums] = bytemuck::cast_slice_mut(&mut sums[..block * size_of::<Sums>()]);
        for first in (0..self.x.rows()).step_by(block) {
            let rows = first..(first + block).min(self.x.rows());
            let x = &mut x[..self.groups * rows.len()];
            round(self.x.slice_rows(rows.clone()), self.bits, codes::order::<L>(), L::PLAN.parts(), x);
            for held in panels.clone() {
                // SAFETY: x holds these rows; the rest is passed on.
                unsafe { self.panel::<L>(held, rows.start, x, &mut sums[..rows.len()], chunk) };
            }
        }
    }

    /// # Safety
    /// As [`work`](Job::work).
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn panel<L: Layout>(
        &self,
        held: usize,
        first_row: usize,
        x: &[Group],
        sums: &mut [Sums],
        chunk: &mut Chunk,
    ) {
        let (panel, stored) = self.w.held_panel(held);
        assert!(L::PLAN.panel_bytes(self.groups * GROUP) <= stored.len());
        sums.fill([0.0; PANEL]);
        let rows = sums.len();
        for (x, first) in x.chunks(CHUNK * rows).zip((0..self.groups).step_by(CHUNK)) {
            let groups = x.len() / rows;
            for i in 0..groups {
                // SAFETY: the panel holds the group.
                unsafe { read::<L>(stored.as_ptr(), first + i, &mut chunk.codes[i], &mut chunk.affine[i]) };
            }
            let some = if self.bits == Bits::Eight { ROWS } else { ROWS / 2 };
            for (sums, row) in sums.chunks_mut(some).zip((0..).step_by(some)) {
                // SAFETY: x holds `groups` times as many rows as there are sums, the chunk as many groups.
                unsafe {
                    let x = x.as_ptr().add(row);
                    match (self.bits, sums.len()) {
                        (Bits::Eight, 1) => add::<L, 1, false>(chunk, groups, x, rows, sums),
                        (Bits::Eight, 2) => add::<L, 2, false>(chunk, groups, x, rows, sums),
                        (Bits::Eight, 3) => add::<L, 3, false>(chunk, groups, x, rows, sums),
                        (Bits::Eight, _) => add::<L, ROWS, false>(chunk, groups, x, rows, sums),
                        (Bits::Fifteen, 1) => add::<L, 1, true>(chunk, groups, x, rows, sums),
                        (Bits::Fifteen, _) => add::<L, { ROWS / 2 }, true>(chunk, groups, x, rows, sums),
                    }
                }
            }
        }
        // SAFETY: the caller's.
        unsafe { self.epilogue.finish(panel, first_row, sums) };
    }
}

/// Codes and scales of a group of a panel.
///
/// # Safety
/// The machine has these features; the panel holds the group.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn read<L: Layout>(
    panel: *const u8,
    group: usize,
    codes: &mut [[u8; TILE_CODES]; 2],
    scales: &mut [Affine; 2],
) {
    let place = L::PLAN.locate(group);
    // SAFETY: planes and scales lie in the group and its unit; a fetch cannot fault.
    unsafe {
        fetch(panel.add(place.group), L::PLAN.group_bytes());
        for tile in 0..2 {
            let (low, high) = L::PLAN.planes(tile);
            let (low, high) = (panel.add(place.group + low), panel.add(place.group + high));
            codes::write::<L>(low, high, codes[tile].as_mut_ptr());
            scales[tile] = affine::<L>(panel.add(place.unit), panel.add(place.group), tile);
        }
    }
}

/// Adds a chunk's products with `R` rows of x, of one byte or two, to their sums. `x` points at the first of them in the first group; a group
/// has `rows`.
///
/// # Safety
/// The machine has these features; chunk and x have so many groups, x has the rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn add<L: Layout, const R: usize, const TWO: bool>(
    chunk: &Chunk,
    groups: usize,
    x: *const Group,
    rows: usize,
    sums: &mut [Sums],
) {
    assert!(sums.len() == R && groups <= CHUNK);
    for first in (0..PANEL).step_by(8) {
        let (tile, eight) = (first / TILE, first % TILE / 8);
        // SAFETY: eight of 32 sums, eight of a tile's 16 rows; the rest is the caller's.
        unsafe {
            let mut total: [__m256; R] =
                std::array::from_fn(|r| _mm256_loadu_ps(sums[r].as_ptr().add(first)));
            for i in 0..groups {
                let x: [&Group; R] = std::array::from_fn(|r| &*x.add(i * rows + r));
                let codes = chunk.codes[i][tile].as_ptr().add(EIGHT_ROWS * eight);
                for part in 0..L::PLAN.parts() {
                    let at = |all: &[[f32; TILE]; 2]| _mm256_loadu_ps(all[part].as_ptr().add(8 * eight));
                    let affine = &chunk.affine[i][tile];
                    let (scale, min) = (at(&affine.scale), at(&affine.min));
                    let mut products = multiply::<L, R>(codes, part, x.map(|x| &x.upper));
                    if TWO {
                        let lower = multiply::<L, R>(codes, part, x.map(|x| &x.lower));
                        for r in 0..R {
                            let upper = _mm256_slli_epi32::<{ UPPER.ilog2() as i32 }>(products[r]);
                            products[r] = _mm256_add_epi32(upper, lower[r]);
                        }
                    }
                    for r in 0..R {
                        let product =
                            _mm256_mul_ps(_mm256_cvtepi32_ps(products[r]), _mm256_set1_ps(x[r].size));
                        total[r] = _mm256_fmadd_ps(scale, product, total[r]);
                        if L::PLAN.shifted() {
                            total[r] = _mm256_fmadd_ps(min, _mm256_set1_ps(x[r].sums[part]), total[r]);
                        }
                    }
                }
            }
            for r in 0..R {
                _mm256_storeu_ps(sums[r].as_mut_ptr().add(first), total[r]);
            }
        }
    }
}

/// The whole sums of a part of k, for eight rows of weights and `R` of x.
///
/// # Safety
/// The machine has AVX2; `codes` points at eight rows in the first step of a tile.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn multiply<L: Layout, const R: usize>(
    codes: *const u8,
    part: usize,
    x: [&[i8; GROUP]; R],
) -> [__m256i; R] {
    let steps = 4 / L::PLAN.parts();
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_si256(); 2]; R];
    for step in part * steps..(part + 1) * steps {
        // SAFETY: four steps of codes, and of eight numbers.
        let (codes, numbers) = unsafe {
            let at = codes.add(STEP * step);
            (
                [_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())],
                x.map(|x| _mm256_set1_epi64x(x.as_ptr().add(8 * step).cast::<i64>().read_unaligned())),
            )
        };
        for r in 0..R {
            for v in 0..2 {
                let sum = &mut sums[r][v];
                if L::PLAN.low_bits == 8 {
                    // The instruction takes numbers without a sign on one side: the sign goes to the other.
                    let signed = _mm256_sign_epi8(numbers[r], codes[v]);
                    let words = _mm256_maddubs_epi16(_mm256_abs_epi8(codes[v]), signed);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(words, ones));
                } else {
                    // 16 bits hold the sums of a part: 4 * 2 * 31 * 127 of 5 bits, 2 * 2 * 63 * 127 of 6.
                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(codes[v], numbers[r]));
                }
            }
        }
    }
    sums.map(|[first, second]| {
        if L::PLAN.low_bits == 8 {
            _mm256_hadd_epi32(first, second)
        } else {
            _mm256_hadd_epi32(_mm256_madd_epi16(first, ones), _mm256_madd_epi16(second, ones))
        }
    })
}
