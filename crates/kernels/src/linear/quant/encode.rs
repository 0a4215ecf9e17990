//! The quantisers of our own formats, groups of 64 along K with bf16 scales.
//!
//! `Int4` is asymmetric: `min + scale * code`, codes 0 to 15, as FlexGen's (section 5 of its paper).
//! That groups along the output channels; along K a dot product scales once for 64 products, and rows can be cut anywhere
//! between tiers. At 4 bits both lose alike (`bench/results/2026-11-22-narrow.md`).
//! `Int8` is symmetric: `scale * code`, codes -127 to 127. It has a scale for each group and not for each row:
//! that costs 0.25 bits a weight (3 %), and the step follows the largest of 64 weights instead of the largest of
//! a row, which is about 1.6 times smaller on Gaussian rows and many times where a row has outliers. Speed is the
//! same, because a weight is expanded to bf16 before it is multiplied. Scales are bf16, not f16: they have the
//! range of the weights, and a group of equal bf16 weights is kept exactly.

use std::ops::RangeInclusive;

use half::bf16;

use super::Narrow;
use super::block::Block;

/// Values of a group.
const GROUP: usize = 64;
/// Lanes that a compiler can keep in vectors.
const LANES: usize = 8;

/// Quantises up to 64 values of a row (at least one), and sets the codes of those that are missing to zero.
/// Values that are not finite are taken as zero or clamped.
pub(super) fn group<T: Copy + Into<f32>>(format: Narrow, values: &[T], block: &mut Block) {
    // Missing values are the first one again, which is neither a new least nor a new largest.
    let mut floats = [finite(values[0].into()); GROUP];
    for (float, value) in floats.iter_mut().zip(values) {
        *float = finite((*value).into());
    }
    match format {
        Narrow::Int8 => int8(&floats, block),
        Narrow::Int4 => int4(&floats, block),
        _ => unreachable!("{format:?} has no quantiser"),
    }
    block.codes[values.len()..GROUP].fill(0);
}

fn int8(values: &[f32; GROUP], block: &mut Block) {
    let largest = reduce(&values.map(f32::abs), |a, b| if a > b { a } else { b });
    encode(values, word(largest / 127.0), 0.0, -127.0..=127.0, block);
}

fn int4(values: &[f32; GROUP], block: &mut Block) {
    let min = word(reduce(values, |a, b| if a < b { a } else { b }));
    let max = reduce(values, |a, b| if a > b { a } else { b });
    encode(values, word(max / 15.0 - min / 15.0), min, 0.0..=15.0, block);
}

/// Values to one, lane by lane first.
fn reduce(values: &[f32; GROUP], choose: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    lanes.copy_from_slice(&values[..LANES]);
    for some in values.as_chunks::<LANES>().0 {
        for (lane, value) in lanes.iter_mut().zip(some) {
            *lane = choose(*lane, *value);
        }
    }
    lanes.into_iter().fold(lanes[0], choose)
}

/// Rounds each group of 64 values of a row to `min + scale * code` with codes of `bits` bits: what an asymmetric format
/// of that width would keep. With 4 it is what `Int4` keeps.
///
/// # Panics
/// Unless `bits` is 1 to 8.
pub fn round_to_grid(bits: u8, row: &mut [f32]) {
    assert!((1..=8).contains(&bits), "codes of 1 to 8 bits, not {bits}");
    let most = f32::from(u8::MAX >> (8 - bits));
    for values in row.chunks_mut(GROUP) {
        let mut group = [finite(values[0]); GROUP];
        values.iter().zip(&mut group).for_each(|(value, slot)| *slot = finite(*value));
        let min = word(reduce(&group, |a, b| if a < b { a } else { b }));
        let max = reduce(&group, |a, b| if a > b { a } else { b });
        let mut block = Block::ZERO;
        encode(&group, word(max / most - min / most), min, 0.0..=most, &mut block);
        let [d, m] = [block.d, block.m].map(|bits| bf16::from_bits(bits).to_f32());
        values.iter_mut().zip(block.codes).for_each(|(value, code)| *value = m + d * f32::from(code));
    }
}

/// Codes of `values` on the grid `min + d * code`. A scale of zero (a constant group) makes all codes zero.
fn encode(values: &[f32; GROUP], d: f32, min: f32, codes: RangeInclusive<f32>, block: &mut Block) {
    // Added to a number below 2^22 this leaves its nearest integer, ties to even, in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let (least, most) = codes.into_inner();
    for (code, value) in block.codes.iter_mut().zip(values) {
        let steps = if d == 0.0 { 0.0 } else { (*value - min) / d };
        *code = (steps.clamp(least, most) + ROUND).to_bits() as u8;
    }
    let bits = |v: f32| bf16::from_f32(v).to_bits();
    (block.d, block.m) = (bits(d), bits(min));
}

/// The bf16 nearest to `value`; subnormals are zero, as in every kernel.
fn word(value: f32) -> f32 {
    let word = bf16::from_f32(value).to_f32();
    if word.is_normal() { word } else { 0.0 }
}

/// Clamps to a little under the largest bf16, so that a scale that was rounded up does not overflow.
fn finite(value: f32) -> f32 {
    let most = bf16::MAX.to_f32() * (1.0 - 1.0 / 128.0);
    if value.is_nan() { 0.0 } else { value.clamp(-most, most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_of_few_bits_keeps_ends_and_constants() {
        let row: Vec<f32> = (0..96).map(|i| if i < 64 { (i % 16) as f32 } else { 3.0 }).collect();
        let rounded = |bits| {
            let mut row = row.clone();
            round_to_grid(bits, &mut row);
            row
        };
        assert_eq!(rounded(4), row, "16 values on a grid of 16, and a constant group");
        let mut seen = rounded(1)[..64].to_vec();
        seen.dedup_by(|a, b| a == b);
        assert!(seen.iter().all(|v| [0.0, 15.0].contains(v)), "one bit leaves two values: {seen:?}");
        let worst = |bits| row.iter().zip(rounded(bits)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst(2) > worst(3) && worst(3) <= 15.0 / 7.0 / 2.0 + 0.1, "{} {}", worst(2), worst(3));
    }
}
