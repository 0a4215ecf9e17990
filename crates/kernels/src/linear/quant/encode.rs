//! The quantisers of our own formats, groups of 64 along K with bf16 scales.
//!
//! `Int4` is asymmetric: `min + scale * code`, codes 0 to 15, as FlexGen's (section 5 of its paper).
//! `Int8` is symmetric: `scale * code`, codes -127 to 127. It has a scale for each group and not for each row:
//! that costs 0.25 bits a weight (3 %), and the step follows the largest of 64 weights instead of the largest of
//! a row, which is about 1.6 times smaller on Gaussian rows and many times where a row has outliers. Speed is the
//! same, because a weight is expanded to bf16 before it is multiplied. Scales are bf16, not f16: they have the
//! range of the weights, and a group of equal bf16 weights is kept exactly.

use half::bf16;

use super::Narrow;
use super::block::Block;

/// Quantises up to 64 values of a row. Values that are not finite are taken as zero or clamped.
pub(super) fn group<T: Copy + Into<f32>>(format: Narrow, values: &[T]) -> Block {
    let mut floats = [0.0; 64];
    for (float, value) in floats.iter_mut().zip(values) {
        *float = (*value).into();
    }
    let values = &floats[..values.len()];
    match format {
        Narrow::Int8 => int8(values),
        Narrow::Int4 => int4(values),
        _ => unreachable!("{format:?} has no quantiser"),
    }
}

fn int8(values: &[f32]) -> Block {
    let largest = values.iter().fold(0.0f32, |max, v| max.max(finite(*v).abs()));
    let d = word(largest / 127.0);
    encode(values, d, 0.0, |steps| steps.clamp(-127.0, 127.0) as i8 as u8)
}

fn int4(values: &[f32]) -> Block {
    let (min, max) = values
        .iter()
        .map(|v| finite(*v))
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), v| (min.min(v), max.max(v)));
    let min = word(min);
    encode(values, word(max / 15.0 - min / 15.0), min, |steps| steps.clamp(0.0, 15.0) as u8)
}

/// Codes of `values` on the grid `min + d * code`. A scale of zero (a constant group) makes all codes zero.
fn encode(values: &[f32], d: f32, min: f32, code: impl Fn(f32) -> u8) -> Block {
    let mut codes = [0; 256];
    if d != 0.0 {
        for (slot, value) in codes.iter_mut().zip(values) {
            *slot = code(((finite(*value) - min) / d).round_ties_even());
        }
    }
    let bits = |v: f32| bf16::from_f32(v).to_bits();
    Block { d: bits(d), m: bits(min), codes, sub: [[0; 2]; 8] }
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
