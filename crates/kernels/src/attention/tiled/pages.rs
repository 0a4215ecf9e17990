//! What pages hold, as left operands of tile products.

use super::lean::Few;
use super::local::{Local, VALUE_PAGE};
use super::shape::{PAGES, Shape};
use crate::attention::Page;
use crate::attention::element::Stored;
use crate::attention::int4::{self, Int4, KV_GROUP, UNIT, UNIT_WORDS};
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS};
use half::bf16;
use std::arch::x86_64::*;
use std::ops::Range;

const _: () = assert!(BLOCK_TOKENS == 32, "a dim's values in a page are one vector of bf16");

/// The pages of a group of tokens.
pub(in crate::attention) struct Group<'p, C> {
    /// In order, up to four.
    pub pages: &'p [Page<'p, C>],
    /// Where keys and values of a page begin that will be read a group after each of them.
    pub next: [*const u8; PAGES],
    /// Tokens of the last page that were written.
    pub kept: usize,
    pub shape: &'p Shape,
    pub local: &'p Local,
    pub laid: Laid,
}

/// How long operands stay that are laid out anew.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::attention) enum Laid {
    /// Keys until the next page but one, values until other dims: few queries meet them, and all of them at once.
    Briefly,
    /// As long as the group is read.
    ForAll,
}

/// Whether operands are asked for the first time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::attention) enum Asked {
    First,
    Again,
}

impl<C> Group<'_, C> {
    /// Which place the `i`th page of keys has.
    pub(super) fn place(&self, i: usize) -> usize {
        if self.laid == Laid::Briefly { i % 2 } else { i }
    }
}

/// Pages that the tile kernel can read.
pub(in crate::attention) trait Tiled: Stored<Query = bf16> + Few {
    /// Whether operands are codes that their tokens' scales and minima belong to.
    const CODED: bool;

    /// Whether [`Few`](super::lean::Few) is written for heads of this shape.
    fn suits_few(shape: &Shape) -> bool;

    /// What codes are multiplied with, for all tokens of a group. Before its operands are used.
    ///
    /// # Safety
    /// The machine has AVX-512; `local` has room for a block of the shape.
    unsafe fn grids(_group: &Group<'_, Self::Cell>) {}

    /// Keys of page `i`: rows of whole tiles.
    ///
    /// # Safety
    /// As for [`grids`](Tiled::grids).
    unsafe fn keys(group: &Group<'_, Self::Cell>, i: usize, asked: Asked) -> *const u8;

    /// Values of all pages in `dims` (up to 64, whole groups of dims but for the last), those of tokens that were never
    /// written zero (0 * NaN is NaN).
    ///
    /// # Safety
    /// As for [`grids`](Tiled::grids).
    unsafe fn values(group: &Group<'_, Self::Cell>, dims: Range<usize>, asked: Asked) -> [*const u8; PAGES];
}

impl Tiled for bf16 {
    const CODED: bool = false;

    fn suits_few(_: &Shape) -> bool {
        true
    }

    #[inline]
    unsafe fn keys(group: &Group<'_, bf16>, i: usize, asked: Asked) -> *const u8 {
        let (page, shape) = (&group.pages[i], group.shape);
        if !shape.is_padded() {
            return page.k.as_ptr().cast();
        }
        let to = group.local.k_pages.wrapping_add(group.place(i) * shape.key_page());
        if asked == Asked::First {
            // SAFETY: by this function's contract.
            unsafe { pad_keys(page.k, to, shape) };
        }
        to
    }

    #[inline]
    unsafe fn values(group: &Group<'_, bf16>, dims: Range<usize>, asked: Asked) -> [*const u8; PAGES] {
        let mut at = [std::ptr::null(); PAGES];
        for (at, page) in at.iter_mut().zip(group.pages) {
            *at = page.v[dims.start * BLOCK_TOKENS..].as_ptr().cast();
        }
        if group.kept < BLOCK_TOKENS {
            let last = group.pages.len() - 1;
            let to = group.local.v_tail.wrapping_add(dims.start * BLOCK_TOKENS * 2);
            let values = &group.pages[last].v[dims.start * BLOCK_TOKENS..dims.end * BLOCK_TOKENS];
            if asked == Asked::First {
                // SAFETY: by this function's contract.
                unsafe { cut_values(values, group.kept, to) };
            }
            at[last] = to;
        }
        at
    }
}

/// A page's keys in rows of whole tiles.
///
/// # Safety
/// `to` has room for them.
unsafe fn pad_keys(keys: &[bf16], to: *mut u8, shape: &Shape) {
    let stride = shape.steps() * 32;
    // SAFETY: by this function's contract.
    let rows = unsafe { std::slice::from_raw_parts_mut(to.cast::<bf16>(), BLOCK_TOKENS * stride) };
    for (to, from) in rows.chunks_exact_mut(stride).zip(keys.chunks_exact(shape.head_dim)) {
        to[..from.len()].copy_from_slice(from);
        to[from.len()..].fill(bf16::ZERO);
    }
}

/// Lines of values up to token `kept`, and zeros.
///
/// # Safety
/// The machine has AVX-512; `to` has room for them.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn cut_values(values: &[bf16], kept: usize, to: *mut u8) {
    let mask = (1u32 << kept) - 1;
    for (dim, line) in values.chunks_exact(BLOCK_TOKENS).enumerate() {
        // SAFETY: by this function's contract; a line is 32 values.
        unsafe {
            let values = _mm512_maskz_loadu_epi16(mask, line.as_ptr().cast());
            _mm512_storeu_si512(to.add(dim * 64).cast(), values);
        }
    }
}

impl Tiled for Int4 {
    const CODED: bool = true;

    fn suits_few(shape: &Shape) -> bool {
        shape.head_dim.is_multiple_of(KV_GROUP)
    }

    #[inline]
    unsafe fn grids(group: &Group<'_, u16>) {
        for (i, page) in group.pages.iter().enumerate() {
            let kept = if i + 1 == group.pages.len() { group.kept } else { BLOCK_TOKENS };
            // SAFETY: by this function's contract.
            unsafe { widen_grids(page, group.shape.head_dim, (i, kept), group.next[i], group.local) };
        }
    }

    #[inline]
    unsafe fn keys(group: &Group<'_, u16>, i: usize, asked: Asked) -> *const u8 {
        let to = group.local.k_pages.wrapping_add(group.place(i) * group.shape.key_page());
        if asked == Asked::First {
            // SAFETY: by this function's contract.
            unsafe { unpack_keys(group.pages[i].k, group.shape, group.next[i], to) };
        }
        to
    }

    #[inline]
    unsafe fn values(group: &Group<'_, u16>, dims: Range<usize>, asked: Asked) -> [*const u8; PAGES] {
        let first = match group.laid {
            // The keys are done with, and the values of other dims too: what is in the nearest cache stays there.
            Laid::Briefly => group.local.k_pages,
            Laid::ForAll => group.local.v_pages.wrapping_add(dims.start / KV_GROUP * PAGES * VALUE_PAGE),
        };
        let to = [0, 1, 2, 3].map(|i| first.wrapping_add(i * VALUE_PAGE));
        if asked == Asked::First {
            let words = dims.start / 4 * BLOCK_TOKENS..dims.end / 4 * BLOCK_TOKENS;
            for (i, page) in group.pages.iter().enumerate() {
                let next = group.next[i].wrapping_add(2 * (page.k.len() + words.start));
                // SAFETY: by this function's contract.
                unsafe { unpack_values(&page.v[words.clone()], next, to[i]) };
            }
        }
        to.map(|to| to.cast_const())
    }
}

/// Asks for the line at `at`, if there is one.
#[inline(always)]
pub(super) fn fetch(at: *const u8) {
    // SAFETY: a prefetch may name any address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
}

/// As [`fetch`], nearer: a group of codes leaves room for the next one beside it, and is read as it is needed.
#[inline(always)]
pub(super) fn fetch_near(at: *const u8) {
    // SAFETY: a prefetch may name any address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

/// Codes are counted from here: a rounded weight then errs by half the grid at most.
const MIDDLE: f32 = 8.0;

/// The codes in the lowest bits of 32 words as bf16 numbers, counted from the middle.
///
/// # Safety
/// A caller without AVX-512 in its own features knows that the machine has it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn numbers(codes: __m512i) -> __m512i {
    // A place is looked up by five bits, and the fifth belongs to the next code.
    const NUMBERS: [u16; 32] = {
        let small = [0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80];
        let large = [0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0];
        let (mut all, mut i) = ([0; 32], 0);
        while i < 32 {
            all[i] = if i % 16 < 8 { small[i % 8] } else { large[i % 8] };
            i += 1;
        }
        all
    };
    // SAFETY: 32 u16.
    unsafe { _mm512_permutexvar_epi16(codes, _mm512_loadu_si512(NUMBERS.as_ptr().cast())) }
}

/// # Safety
/// The machine has AVX-512; `to` has room for 32 rows of `shape.steps()` times 64 bytes.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack_keys(keys: &[u16], shape: &Shape, next: *const u8, to: *mut u8) {
    let (d, stride) = (shape.head_dim, shape.steps() * 64);
    assert!(keys.len() >= int4::code_words(d));
    let by_word = shifts(UNIT_WORDS);
    // Where a head ends with half a unit, the other half of the row meets zeros of the queries.
    let by_half = shifts(UNIT_WORDS / 2);
    for token in 0..BLOCK_TOKENS {
        for line in (0..d / 2).step_by(64) {
            fetch(next.wrapping_add(token * d / 2 + line));
        }
        // SAFETY: by this function's contract; a token has `d / 4` words.
        unsafe {
            let (from, to) = (keys.as_ptr().add(token * d / 4), to.add(token * stride));
            for unit in 0..d / UNIT {
                let words = _mm512_broadcast_i32x4(_mm_loadu_si128(from.add(unit * UNIT_WORDS).cast()));
                let row = numbers(_mm512_srlv_epi16(words, by_word));
                _mm512_storeu_si512(to.add(unit * 64).cast(), row);
            }
            if !d.is_multiple_of(UNIT) {
                let words = _mm512_broadcastq_epi64(_mm_loadl_epi64(from.add(d / UNIT * UNIT_WORDS).cast()));
                let row = numbers(_mm512_srlv_epi16(words, by_half));
                _mm512_storeu_si512(to.add(d / UNIT * 64).cast(), row);
            }
        }
    }
}

/// How far to shift each lane of repeated `words` for their codes 0, then 1, and so on.
#[inline]
#[target_feature(enable = "avx512f")]
fn shifts(words: usize) -> __m512i {
    let mut by = [0u16; 32];
    for (lane, by) in by.iter_mut().enumerate() {
        *by = (lane / words % 4 * 4) as u16;
    }
    // SAFETY: 32 u16.
    unsafe { _mm512_loadu_si512(by.as_ptr().cast()) }
}

/// Lines of words, each to four rows of 64 bytes.
///
/// # Safety
/// The machine has AVX-512; `to` has room for them.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpack_values(values: &[u16], next: *const u8, to: *mut u8) {
    for (i, line) in values.chunks_exact(BLOCK_TOKENS).enumerate() {
        fetch(next.wrapping_add(i * 64));
        // SAFETY: by this function's contract; a line is 32 words.
        unsafe {
            let words = _mm512_loadu_si512(line.as_ptr().cast());
            let to = to.add(i * 4 * 64);
            _mm512_storeu_si512(to.cast(), numbers(words));
            _mm512_storeu_si512(to.add(64).cast(), numbers(_mm512_srli_epi16::<4>(words)));
            _mm512_storeu_si512(to.add(128).cast(), numbers(_mm512_srli_epi16::<8>(words)));
            _mm512_storeu_si512(to.add(192).cast(), numbers(_mm512_srli_epi16::<12>(words)));
        }
    }
}

/// Scales and minima of page `i` of a group.
///
/// # Safety
/// The machine has AVX-512; `local` has room for the grids of a group.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn widen_grids(
    page: &Page<'_, u16>,
    d: usize,
    (i, kept): (usize, usize),
    next: *const u8,
    local: &Local,
) {
    for plane in [0, page.k.len()] {
        for line in (int4::code_words(d)..page.k.len()).step_by(32) {
            fetch(next.wrapping_add(2 * (plane + line)));
        }
    }
    for group in 0..d.div_ceil(KV_GROUP) {
        let (k, v) = (int4::grids(page.k, d, group), int4::grids(page.v, d, group));
        let written = ((1u64 << kept) - 1) as u32;
        for half in [0, 16] {
            let at = group * GROUP_TOKENS + i * BLOCK_TOKENS + half;
            let written = (written >> half) as u16;
            // SAFETY: by this function's contract; grids have 32 tokens.
            unsafe {
                let (scale, min) = (widen(&k.0[half..]), widen(&k.1[half..]));
                let middle = _mm512_fmadd_ps(_mm512_set1_ps(MIDDLE), scale, min);
                _mm512_storeu_ps(local.k_grids.scales.add(at), scale);
                _mm512_storeu_ps(local.k_grids.mins.add(at), middle);
                let (scale, min) = (widen(&v.0[half..]), widen(&v.1[half..]));
                let middle = _mm512_fmadd_ps(_mm512_set1_ps(MIDDLE), scale, min);
                _mm512_storeu_ps(local.v_grids.scales.add(at), _mm512_maskz_mov_ps(written, scale));
                _mm512_storeu_ps(local.v_grids.mins.add(at), _mm512_maskz_mov_ps(written, middle));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen(numbers: &[bf16]) -> __m512 {
    let numbers: &[bf16; 16] = numbers[..16].try_into().expect("16 numbers");
    // SAFETY: 16 bf16.
    let words = unsafe { _mm256_loadu_si256(numbers.as_ptr().cast()) };
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(words)))
}
