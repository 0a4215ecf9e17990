//! A few queries over codes of 4 bits: they are turned round while they share words, a quarter of what bf16 numbers would take.

use super::adds::Adds;
use super::few::{BY_QUERY, IN_TILE, turned};
use super::lean::Few;
use super::local::SCORES;
use super::pages::{Group, fetch_near, numbers};
use super::products::{PAIRS, ROW};
use super::shape::{MAX_GROUPS, PAGES};
use super::softmax::{Sight, Totals};
use super::softmax_of_one::{OneScaled, weights_of_one};
use super::tiles::{LANES, TILE};
use crate::attention::int4::{Int4, KV_GROUP, UNIT};
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS};
use std::arch::x86_64::*;

/// Vectors of 16 tokens in a page.
const HALVES: usize = BLOCK_TOKENS / LANES;
/// Units of keys that share a scale.
const UNITS: usize = KV_GROUP / UNIT;
/// Lines of memory that a page's keys take in a unit of dims.
const UNIT_LINES: usize = BLOCK_TOKENS * UNIT / 2 / ROW;
/// Codes of a word.
const CODES: usize = 4;
/// Lines of words of a group of dims' values.
const LINES: usize = KV_GROUP / CODES;

impl Few for Int4 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn scores<A: Adds, const L: usize>(
        group: &Group<'_, u16>,
        q: *const u8,
        q_sums: *const f32,
        s: *mut f32,
    ) {
        let grids = &group.local.k_grids;
        let bytes = group.shape.head_dim / 2;
        for i in 0..group.pages.len() {
            let mut scores = [[_mm512_setzero_ps(); L]; HALVES];
            for g in 0..group.shape.groups {
                // SAFETY: by the trait's contract; a token has `head_dim / 2` bytes.
                unsafe {
                    let at = g * KV_GROUP / 2;
                    let k = group.pages[i].k.as_ptr().cast::<u8>().add(at);
                    let next = group.next[i].wrapping_add(g * UNITS * UNIT_LINES * ROW);
                    let products = of_keys::<A, L>(k, bytes, q.add(g * UNITS * TILE), next);
                    for half in 0..HALVES {
                        let at = g * GROUP_TOKENS + i * BLOCK_TOKENS + half * LANES;
                        let (scale, min) =
                            (_mm512_loadu_ps(grids.scales.add(at)), _mm512_loadu_ps(grids.mins.add(at)));
                        let scores = &mut scores[half];
                        for l in 0..L {
                            let sum = _mm512_set1_ps(*q_sums.add(g * LANES + l));
                            scores[l] = _mm512_fmadd_ps(products[half][l], scale, scores[l]);
                            scores[l] = _mm512_fmadd_ps(sum, min, scores[l]);
                        }
                    }
                }
            }
            for half in 0..HALVES {
                for l in 0..L {
                    let at = l * GROUP_TOKENS + i * BLOCK_TOKENS + half * LANES;
                    // SAFETY: by the trait's contract.
                    unsafe { _mm512_storeu_ps(s.add(at), scores[half][l]) };
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn weights(
        group: &Group<'_, u16>,
        s: &[f32],
        c: f32,
        sight: (i32, &Sight),
        lane: (&mut Totals, usize),
        offsets: &mut [f32],
        p: *mut u8,
    ) -> Option<f32> {
        // SAFETY: by the trait's contract.
        unsafe {
            match group.shape.groups {
                1 => scaled::<1>(group, s, c, sight, lane, offsets, p),
                2 => scaled::<2>(group, s, c, sight, lane, offsets, p),
                3 => scaled::<3>(group, s, c, sight, lane, offsets, p),
                _ => scaled::<MAX_GROUPS>(group, s, c, sight, lane, offsets, p),
            }
        }
    }

    /// In a group of dims the codes of a place in their words come together: dim `4 i + c` is number `16 c + i`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn means<A: Adds, const L: usize>(group: &Group<'_, u16>, p: *const u8, means: *mut f32) {
        let d = group.shape.head_dim;
        for g in 0..group.shape.groups {
            let (mut words, mut next) = ([[_mm512_setzero_si512(); PAIRS]; PAGES], group.next);
            // SAFETY: by the trait's contract; a line has 64 bytes.
            unsafe {
                for (i, page) in group.pages.iter().enumerate() {
                    let lines = page.v[g * LINES * BLOCK_TOKENS..].as_ptr().cast::<u8>();
                    words[i] = turned(lines, ROW);
                    next[i] = next[i].wrapping_add(size_of_val(page.k) + g * LINES * ROW);
                }
                let (words, means) = (&words[..group.pages.len()], means.add(g * KV_GROUP));
                let p = p.add(g * SCORES / 2);
                // Sums of more would not stay in registers.
                if L > 4 {
                    add_values::<A, 2, L>(words, &next, 0, p, means, d);
                    add_values::<A, 2, L>(words, &next, 2, p, means, d);
                } else {
                    add_values::<A, 4, L>(words, &next, 0, p, means, d);
                }
            }
        }
    }

    fn in_order(means: &mut [f32]) {
        for means in means.chunks_exact_mut(KV_GROUP) {
            let from: [f32; KV_GROUP] = (&*means).try_into().expect("a group of dims");
            for (dim, to) in means.iter_mut().enumerate() {
                *to = from[dim % 4 * LINES + dim / 4];
            }
        }
    }
}

/// # Safety
/// As for [`Few::weights`]; there are `G` groups of dims.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn scaled<const G: usize>(
    group: &Group<'_, u16>,
    s: &[f32],
    c: f32,
    sight: (i32, &Sight),
    lane: (&mut Totals, usize),
    offsets: &mut [f32],
    p: *mut u8,
) -> Option<f32> {
    let mut give = OneScaled::<G>::new(p, &group.local.v_grids);
    // SAFETY: by this function's contract.
    let shrink = unsafe { weights_of_one(s, c, sight, lane, &mut give) };
    for (g, offset) in offsets.iter_mut().enumerate() {
        *offset = *offset * shrink.unwrap_or(1.0) + give.added(g);
    }
    shrink
}

/// Products of a page's codes of a group of dims with `L` queries. `k`: the first token's, `bytes` from each to the next;
/// `q`: a tile for each unit; `next`: what is asked for meanwhile, as much as is read.
///
/// # Safety
/// As for [`Few::scores`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn of_keys<A: Adds, const L: usize>(
    k: *const u8,
    bytes: usize,
    q: *const u8,
    next: *const u8,
) -> [[__m512; L]; HALVES] {
    let mut sums = [[_mm512_setzero_ps(); L]; HALVES];
    for unit in 0..UNITS {
        // SAFETY: by this function's contract; a unit has 16 bytes.
        unsafe {
            let mut words = [[_mm512_setzero_si512(); 4]; HALVES];
            for half in 0..HALVES {
                let at = half * LANES * bytes + unit * 16;
                words[half] = turned_units(k.add(at), bytes);
            }
            // Words `2 w` and `2 w + 1`; code `c` of word `i` is dim `8 c + i`.
            let line = |pair: usize| {
                if pair.is_multiple_of(PAIRS / UNIT_LINES) {
                    fetch_near(next.wrapping_add((unit * UNIT_LINES + pair * UNIT_LINES / PAIRS) * ROW));
                }
                let mut lines = [_mm512_setzero_si512(); HALVES];
                for half in 0..HALVES {
                    let words = &mut words[half][pair % 4];
                    lines[half] = numbers(*words);
                    *words = _mm512_srli_epi16::<4>(*words);
                }
                lines
            };
            A::step(line, q.add(unit * TILE), IN_TILE, &mut sums);
        }
    }
    sums
}

/// A unit of each of 16 tokens: lane `t` of vector `w` is the `w`th 32 bits of token `t`.
///
/// # Safety
/// As for [`of_keys`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn turned_units(k: *const u8, bytes: usize) -> [__m512i; 4] {
    let mut r = [_mm512_setzero_si512(); 4];
    for (i, r) in r.iter_mut().enumerate() {
        // Tokens `i`, `4 + i`, `8 + i` and `12 + i`.
        // SAFETY: by this function's contract.
        unsafe {
            let unit = |j: usize| _mm_loadu_si128(k.add((4 * j + i) * bytes).cast());
            let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(unit(0)), unit(1));
            let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(unit(2)), unit(3));
            *r = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
        }
    }
    let (a, b) = (_mm512_unpacklo_epi32(r[0], r[1]), _mm512_unpackhi_epi32(r[0], r[1]));
    let (c, d) = (_mm512_unpacklo_epi32(r[2], r[3]), _mm512_unpackhi_epi32(r[2], r[3]));
    [
        _mm512_unpacklo_epi64(a, c),
        _mm512_unpackhi_epi64(a, c),
        _mm512_unpacklo_epi64(b, d),
        _mm512_unpackhi_epi64(b, d),
    ]
}

/// Adds the values of a group of dims, weighted by `p: [L][128]`, to those of `means: [L][head_dim]` whose codes are in `P`
/// places of a word from `first` on. `words`: of each page, turned round; `next`: what is asked for meanwhile, as many lines of
/// each page, a part of them for each part of the places.
///
/// # Safety
/// As for [`Few::means`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn add_values<A: Adds, const P: usize, const L: usize>(
    words: &[[__m512i; PAIRS]],
    next: &[*const u8; PAGES],
    first: usize,
    p: *const u8,
    means: *mut f32,
    d: usize,
) {
    // SAFETY: by this function's contract.
    unsafe {
        let at = |c: usize, l: usize| means.add(l * d + (first + c) * LANES);
        let mut sums = [[_mm512_setzero_ps(); L]; P];
        for c in 0..P {
            for l in 0..L {
                sums[c][l] = _mm512_loadu_ps(at(c, l));
            }
        }
        for (i, words) in words.iter().enumerate() {
            let line = |pair: usize| {
                if pair % (CODES / P) == first / P {
                    fetch_near(next[i].wrapping_add(pair * ROW));
                }
                let mut codes = _mm512_srl_epi16(words[pair], _mm_cvtsi32_si128(4 * first as i32));
                let mut lines = [_mm512_setzero_si512(); P];
                for c in 0..P {
                    lines[c] = numbers(codes);
                    codes = _mm512_srli_epi16::<4>(codes);
                }
                lines
            };
            A::step(line, p.add(i * ROW), BY_QUERY, &mut sums);
        }
        for c in 0..P {
            for l in 0..L {
                _mm512_storeu_ps(at(c, l), sums[c][l]);
            }
        }
    }
}
