//! Keys and values in 4 bits: asymmetric groups, as FlexGen's (section 5 of its paper).
//!
//! ```text
//! plane K:  codes [32 tokens][head_dim / 4] u16     scales [groups][32 tokens] bf16     minima, likewise
//! plane V:  codes [head_dim / 4][32 tokens] u16     scales [groups][32 tokens] bf16     minima, likewise
//! ```
//!
//! A value is `minimum + scale * code`. A group is up to 64 dims of one token's head: FlexGen groups the cache
//! along the hidden dimension too, and only so is a token's group complete when the token is written. Nothing
//! that stands is ever rounded again, a page needs no second format for its open end, and a head of a page
//! holds all that belongs to it. Groups along tokens would follow a key's outlier dims better, and would
//! need both.
//!
//! Four codes share a word. Of K those of a unit of 32 dims, 8 words, code `j` of word `i` being dim `8 j + i` (of
//! the last 16 dims where a head ends with them: 4 words, dim `4 j + i`): a unit repeated over a vector and shifted by lane
//! is a row of a tile. Of V code `j` of word `i` is dim `4 i + j`: a token writes whole words, and a line of words
//! shifted by `4 j` is a dim's row of tokens.
//!
//! Scales are bf16, which has the range of what is stored, and a group of equal bf16 values is kept exactly. A
//! group with a number that is not finite has NaN as its minimum: all of it reads as NaN.

use super::Page;
use super::layout::BLOCK_TOKENS;
pub(super) use super::layout::KV_GROUP;
use crate::round::to_bf16;
use half::bf16;

/// Marks pages of 4 bits.
pub(super) enum Int4 {}

/// Dims of a unit of keys.
pub(super) const UNIT: usize = 32;
/// Words of a unit.
pub(super) const UNIT_WORDS: usize = UNIT / 4;

/// A group's scale and least value, as they are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grid {
    pub scale: bf16,
    pub min: bf16,
}

/// Rounds the values of a group to a grid of 16 steps; `codes[i]` is that of `values[i]`.
#[inline(always)]
pub(super) fn encode(values: &[f32], codes: &mut [u8]) -> Grid {
    const LANES: usize = 16;
    let (mut least, mut most, mut sound) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES], [0.0; LANES]);
    for some in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            least[lane] = if some[lane] < least[lane] { some[lane] } else { least[lane] };
            most[lane] = if some[lane] > most[lane] { some[lane] } else { most[lane] };
            sound[lane] += some[lane] * 0.0;
        }
    }
    let min = to_bf16(least.into_iter().fold(f32::INFINITY, f32::min));
    let max = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let scale = to_bf16(((max - min.to_f32()) / 15.0).max(0.0));
    let (low, step) = (min.to_f32(), scale.to_f32());
    let per_step = if step > 0.0 { 1.0 / step } else { 0.0 };
    for (code, x) in codes.iter_mut().zip(values) {
        *code = ((x - low) * per_step + 0.5).clamp(0.0, 15.0) as u8;
    }
    if sound.iter().sum::<f32>() == 0.0 {
        Grid { scale, min }
    } else {
        Grid { scale: bf16::ZERO, min: bf16::NAN }
    }
}

impl Grid {
    #[inline(always)]
    fn value(self, code: u8) -> f32 {
        self.min.to_f32() + self.scale.to_f32() * f32::from(code)
    }
}

/// Where a key's dim stands: the word of its token, and the code of that word.
#[inline(always)]
pub(super) fn place_of_key(dim: usize, head_dim: usize) -> (usize, usize) {
    let first = dim / UNIT * UNIT;
    let words = UNIT_WORDS.min((head_dim - first) / 4);
    (first / 4 + (dim - first) % words, (dim - first) / words)
}

/// Words of the codes of a plane; scales and minima follow them.
#[inline(always)]
pub(super) fn code_words(head_dim: usize) -> usize {
    BLOCK_TOKENS * head_dim / 4
}

/// The scales and minima of group `group` of a plane: of 32 tokens each.
#[inline(always)]
pub(super) fn grids(
    plane: &[u16],
    head_dim: usize,
    group: usize,
) -> (&[bf16; BLOCK_TOKENS], &[bf16; BLOCK_TOKENS]) {
    let groups = head_dim.div_ceil(KV_GROUP);
    let at = |row: usize| {
        let row: &[u16; BLOCK_TOKENS] =
            plane[code_words(head_dim) + row * BLOCK_TOKENS..][..BLOCK_TOKENS].try_into().expect("32 tokens");
        bytemuck::cast_ref(row)
    };
    (at(group), at(groups + group))
}

/// Writes down a token's grid of group `group`.
#[inline(always)]
pub(super) fn set_grid(plane: &mut [u16], head_dim: usize, group: usize, token: usize, grid: Grid) {
    let groups = head_dim.div_ceil(KV_GROUP);
    let at = |row: usize| code_words(head_dim) + row * BLOCK_TOKENS + token;
    plane[at(group)] = grid.scale.to_bits();
    plane[at(groups + group)] = grid.min.to_bits();
}

/// Writes a token's key: `key: [head_dim]`.
#[inline(always)]
pub(super) fn write_key(plane: &mut [u16], token: usize, key: &[f32]) {
    let d = key.len();
    let mut codes = [0u8; 256];
    encode_head(plane, token, key, &mut codes);
    let words = &mut plane[token * d / 4..][..d / 4];
    for (first, unit) in (0..d).step_by(UNIT).zip(words.chunks_mut(UNIT_WORDS)) {
        let n = unit.len();
        for (i, word) in unit.iter_mut().enumerate() {
            *word = word_of([0, 1, 2, 3].map(|j| codes[first + j * n + i]));
        }
    }
}

/// Writes a token's value: `value: [head_dim]`.
#[inline(always)]
pub(super) fn write_value(plane: &mut [u16], token: usize, value: &[f32]) {
    let mut codes = [0u8; 256];
    encode_head(plane, token, value, &mut codes);
    for (i, codes) in codes[..value.len()].as_chunks::<4>().0.iter().enumerate() {
        plane[i * BLOCK_TOKENS + token] = word_of(*codes);
    }
}

#[inline(always)]
fn word_of(codes: [u8; 4]) -> u16 {
    codes.iter().enumerate().fold(0, |word, (j, code)| word | u16::from(*code) << (4 * j))
}

#[inline(always)]
fn encode_head(plane: &mut [u16], token: usize, head: &[f32], codes: &mut [u8; 256]) {
    for (group, values) in head.chunks(KV_GROUP).enumerate() {
        let grid = encode(values, &mut codes[group * KV_GROUP..][..values.len()]);
        set_grid(plane, head.len(), group, token, grid);
    }
}

/// One number of a key.
pub(super) fn key(page: &Page<'_, u16>, head_dim: usize, token: usize, dim: usize) -> f32 {
    let (word, code) = place_of_key(dim, head_dim);
    read(page.k, head_dim, token, dim, page.k[token * head_dim / 4 + word] >> (4 * code))
}

/// One number of a value.
pub(super) fn value(page: &Page<'_, u16>, head_dim: usize, token: usize, dim: usize) -> f32 {
    read(page.v, head_dim, token, dim, page.v[dim / 4 * BLOCK_TOKENS + token] >> (dim % 4 * 4))
}

fn read(plane: &[u16], head_dim: usize, token: usize, dim: usize, code: u16) -> f32 {
    let (scales, mins) = grids(plane, head_dim, dim / KV_GROUP);
    Grid { scale: scales[token], min: mins[token] }.value((code & 15) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{KvDtype, KvLayout};

    /// A group's values as they will be read.
    fn rounded(values: &[f32]) -> Vec<f32> {
        let mut codes = vec![0; values.len()];
        let grid = encode(values, &mut codes);
        codes.iter().map(|code| grid.value(*code)).collect()
    }

    fn noise(n: usize) -> Vec<f32> {
        (0..n as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1u32 << 23) as f32 - 1.0)
            .collect()
    }

    #[test]
    fn values_are_within_half_a_step() {
        let values = noise(64);
        for (a, b) in values.iter().zip(rounded(&values)) {
            assert!((a - b).abs() <= 0.51 * 2.0 / 15.0, "{a} became {b}");
        }
    }

    #[test]
    fn equal_values_are_kept_exactly() {
        for x in [0.0, -3.25, 1e-30, 2.5e30, 0.1] {
            let x = bf16::from_f32(x).to_f32();
            assert_eq!(rounded(&[x; 64]), [x; 64]);
        }
    }

    #[test]
    fn what_is_not_finite_is_not_hidden() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = noise(64);
            values[40] = bad;
            assert!(rounded(&values).iter().all(|x| x.is_nan()), "{bad}");
        }
    }

    #[test]
    fn a_page_gives_back_what_was_written_and_nothing_moves() {
        for head_dim in [16, 32, 48, 64, 80, 96, 112, 128, 192, 256] {
            let layout = KvLayout { kv_heads: 1, head_dim, dtype: KvDtype::Int4 };
            let (mut k, mut v) =
                (vec![0xffff; layout.plane_bytes() / 2], vec![0xffff; layout.plane_bytes() / 2]);
            let tokens: Vec<Vec<f32>> =
                (0..BLOCK_TOKENS).map(|t| noise(head_dim * (t + 2))[head_dim * (t + 1)..].to_vec()).collect();
            for (token, x) in tokens.iter().enumerate().rev() {
                write_key(&mut k, token, x);
                write_value(&mut v, token, x);
            }
            let page = Page { k: &k, v: &v };
            for (token, x) in tokens.iter().enumerate() {
                let want: Vec<f32> = x.chunks(KV_GROUP).flat_map(rounded).collect();
                let keys: Vec<f32> = (0..head_dim).map(|i| key(&page, head_dim, token, i)).collect();
                let values: Vec<f32> = (0..head_dim).map(|i| value(&page, head_dim, token, i)).collect();
                assert_eq!((&keys, &values), (&want, &want), "{head_dim}: token {token}");
            }
        }
    }
}
