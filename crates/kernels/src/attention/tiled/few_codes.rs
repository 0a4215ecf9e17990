//! A few queries over codes of 4 bits: they are turned round while they share words, a quarter of what bf16 numbers would take.

use super::few::{BY_QUERY, IN_TILE, multiply, turned};
use super::lean::Few;
use super::local::SCORES;
use super::pages::{Group, numbers};
use super::products::{PAIRS, ROW};
use super::shape::MAX_GROUPS;
use super::softmax::{Sight, Totals};
use super::softmax_of_one::{OneScaled, weights_of_one};
use super::tiles::{LANES, TILE};
use crate::attention::Page;
use crate::attention::int4::{Int4, KV_GROUP, UNIT};
use crate::attention::layout::{BLOCK_TOKENS, GROUP_TOKENS};
use std::arch::x86_64::*;

/// Units of keys that share a scale.
const UNITS: usize = KV_GROUP / UNIT;
/// Lines of words of a group of dims' values.
const LINES: usize = KV_GROUP / 4;

impl Few for Int4 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    unsafe fn scores<const L: usize>(group: &Group<'_, u16>, q: *const u8, q_sums: *const f32, s: *mut f32) {
        let grids = &group.local.k_grids;
        for first in (0..group.pages.len() * BLOCK_TOKENS).step_by(LANES) {
            let (page, inside) = (first / BLOCK_TOKENS, first % BLOCK_TOKENS);
            let bytes = group.shape.head_dim / 2;
            let mut scores = [_mm512_setzero_ps(); L];
            for g in 0..group.shape.groups {
                // SAFETY: by the trait's contract; a token has `head_dim / 2` bytes.
                unsafe {
                    let at = inside * bytes + g * KV_GROUP / 2;
                    let k = group.pages[page].k.as_ptr().cast::<u8>().add(at);
                    let products =
                        of_keys::<L>(k, bytes, q.add(g * UNITS * TILE), group.next[page].wrapping_add(at));
                    let at = g * GROUP_TOKENS + first;
                    let (scale, min) =
                        (_mm512_loadu_ps(grids.scales.add(at)), _mm512_loadu_ps(grids.mins.add(at)));
                    for l in 0..L {
                        let sum = _mm512_set1_ps(*q_sums.add(g * LANES + l));
                        scores[l] = _mm512_fmadd_ps(products[l], scale, scores[l]);
                        scores[l] = _mm512_fmadd_ps(sum, min, scores[l]);
                    }
                }
            }
            for l in 0..L {
                // SAFETY: by the trait's contract.
                unsafe { _mm512_storeu_ps(s.add(l * GROUP_TOKENS + first), scores[l]) };
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
    unsafe fn means<const L: usize>(group: &Group<'_, u16>, p: *const u8, means: *mut f32) {
        let d = group.shape.head_dim;
        for g in 0..group.shape.groups {
            // SAFETY: by the trait's contract; a line has 64 bytes.
            unsafe {
                let (p, means) = (p.add(g * SCORES / 2), means.add(g * KV_GROUP));
                let mut sums = [[_mm512_setzero_ps(); L]; 4];
                for c in 0..4 {
                    for l in 0..L {
                        sums[c][l] = _mm512_loadu_ps(means.add(l * d + c * LANES));
                    }
                }
                for (i, page) in group.pages.iter().enumerate() {
                    let next = group.next[i].wrapping_add(size_of_val(page.k) + g * LINES * ROW);
                    add_values(page, g, next, p.add(i * ROW), &mut sums);
                }
                for c in 0..4 {
                    for l in 0..L {
                        _mm512_storeu_ps(means.add(l * d + c * LANES), sums[c][l]);
                    }
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

/// Products of 16 tokens' codes of a group of dims with `L` queries. `k`: the first token's, `bytes` from each to the next;
/// `q`: a tile for each unit.
///
/// # Safety
/// As for [`Few::scores`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn of_keys<const L: usize>(k: *const u8, bytes: usize, q: *const u8, next: *const u8) -> [__m512; L] {
    let mut sums = [[_mm512_setzero_ps(); L]; 1];
    for unit in 0..UNITS {
        // SAFETY: by this function's contract; a unit has 16 bytes.
        unsafe {
            let words = turned_units(k.add(unit * 16), bytes, next.wrapping_add(unit * 16));
            let mut pairs = [_mm512_setzero_si512(); PAIRS];
            for w in 0..4 {
                // Words `2 w` and `2 w + 1`; code `c` of word `i` is dim `8 c + i`.
                pairs[w] = numbers(words[w]);
                pairs[4 + w] = numbers(_mm512_srli_epi16::<4>(words[w]));
                pairs[8 + w] = numbers(_mm512_srli_epi16::<8>(words[w]));
                pairs[12 + w] = numbers(_mm512_srli_epi16::<12>(words[w]));
            }
            multiply(&[pairs], q.add(unit * TILE), IN_TILE, &mut sums);
        }
    }
    sums[0]
}

/// A unit of each of 16 tokens: lane `t` of vector `w` is the `w`th 32 bits of token `t`.
///
/// # Safety
/// As for [`of_keys`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn turned_units(k: *const u8, bytes: usize, next: *const u8) -> [__m512i; 4] {
    let mut r = [_mm512_setzero_si512(); 4];
    for (i, r) in r.iter_mut().enumerate() {
        // Tokens `i`, `4 + i`, `8 + i` and `12 + i`.
        // SAFETY: by this function's contract; a prefetch may name any address.
        unsafe {
            for j in 0..4 {
                _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add((4 * j + i) * bytes).cast());
            }
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

/// Adds a page's values of a group of dims, weighted by `p: [L][128]`, to `sums`: of the codes in each place of a word.
///
/// # Safety
/// As for [`Few::means`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn add_values<const L: usize>(
    page: &Page<'_, u16>,
    g: usize,
    next: *const u8,
    p: *const u8,
    sums: &mut [[__m512; L]; 4],
) {
    // SAFETY: by this function's contract.
    unsafe {
        let lines = page.v[g * LINES * BLOCK_TOKENS..].as_ptr().cast::<u8>();
        let words = turned(lines, ROW, next);
        let [first, second, third, fourth] = sums;
        let mut pairs = words;
        for (place, sums) in [first, second, third, fourth].into_iter().enumerate() {
            for (pairs, words) in pairs.iter_mut().zip(words) {
                *pairs = numbers(_mm512_srl_epi16(words, _mm_cvtsi32_si128(4 * place as i32)));
            }
            let mut some = [*sums];
            multiply(&[pairs], p, BY_QUERY, &mut some);
            *sums = some[0];
        }
    }
}
