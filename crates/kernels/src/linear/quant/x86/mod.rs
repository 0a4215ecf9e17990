//! Expanding by vectors: AVX-512 with its bf16 conversion where there is one, else AVX2.

mod avx2;
mod avx512;
mod fused;
mod lines;
mod rows;

use std::ops::Range;

use half::bf16;

use super::Narrow;
use super::plan::{CodeOrder, PANEL, Plan, Sub, with_layout};
use crate::Isa;
use crate::linear::epilogue::Epilogue;
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::team::Team;

/// Multiplies by a path of its own where there is a better one than expanding tiles for the driver of bf16, and
/// says whether it did.
pub(super) fn multiply(
    team: &Team,
    isa: Isa,
    format: Narrow,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) -> bool {
    let fused =
        isa == Isa::Amx && is_x86_feature_detected!("avx512bf16") && x.rows() <= fused::ROWS_MAX && w.k() > 0;
    if fused {
        match Plan::of(format).order() {
            CodeOrder::ByRow => {
                with_layout!(format, [Int4, Q4_0, Q4_1, Q4K], L => fused::run::<L>(team, x, w, epilogue));
            }
            CodeOrder::ByLine => {
                with_layout!(format, [Int8, Q8_0, Q5_0, Q5_1, Q2K, Q3K, Q5K, Q6K],
                    L => lines::run::<L>(team, x, w, epilogue));
            }
        }
    }
    fused
}

/// Expands `groups` of a panel; see [`expand`](super::expand()), which has checked the lengths.
pub(super) fn expand(isa: Isa, format: Narrow, panel: &[u8], groups: Range<usize>, out: &mut [bf16]) {
    if isa >= Isa::Avx512 && is_x86_feature_detected!("avx512bf16") {
        with_layout!(format, [Int8, Int4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K],
            // SAFETY: the caller's `isa` and the test above say that the machine has these instructions.
            L => unsafe { avx512::expand::<L>(panel, groups, out) });
    } else {
        // SAFETY: every `isa` above scalar has AVX2 and FMA.
        unsafe { avx2::expand(&Plan::of(format), panel, groups, out) }
    }
}

/// What the AVX2 kernel needs to know of a group: scale and min of each 16 k of each of its 32 rows.
struct Affine {
    scale: [[f32; PANEL]; 2],
    min: [[f32; PANEL]; 2],
}

impl Affine {
    /// The numbers of [`Plan::affine`], written so that a compiler makes vectors of it.
    #[inline(always)]
    fn of(plan: &Plan, unit: &[u8], group: &[u8]) -> Affine {
        let word = |i: usize| u16::from_le_bytes([unit[2 * i], unit[2 * i + 1]]);
        let float =
            |bits: u16| if plan.bf16_scales { f32::from_bits(u32::from(bits) << 16) } else { widen(bits) };
        let d: [f32; PANEL] = std::array::from_fn(|row| float(word(row)));
        let m: [f32; PANEL] =
            if plan.has_min { std::array::from_fn(|row| float(word(PANEL + row))) } else { [0.0; PANEL] };
        let mut affine = Affine { scale: [d; 2], min: [m; 2] };
        affine.multiply(plan.sub, group);
        if plan.offset != 0 {
            let offset = f32::from(plan.offset);
            affine.min = affine.scale.map(|scales| scales.map(|scale| -(scale * offset)));
        }
        affine
    }

    #[inline(always)]
    fn multiply(&mut self, sub: Sub, group: &[u8]) {
        for half in 0..2 {
            for row in 0..PANEL {
                let byte = |which: usize| group[which * PANEL + row];
                let (scale, min) = match sub {
                    Sub::None => return,
                    Sub::ScaleMin => (f32::from(byte(0)), -f32::from(byte(1))),
                    Sub::Nibbles => (f32::from(byte(half) & 15), -f32::from(byte(half) >> 4)),
                    Sub::Signed => (f32::from(byte(half).cast_signed()), 1.0),
                };
                self.scale[half][row] *= scale;
                self.min[half][row] *= min;
            }
        }
    }
}

/// f16 to f32 without a branch and without subnormal floats on the way.
#[inline(always)]
fn widen(half: u16) -> f32 {
    let (sign, rest) = (u32::from(half & 0x8000) << 16, u32::from(half & 0x7fff) << 13);
    let exponent = rest >> 23;
    let normal = rest + (112 << 23);
    // A subnormal half is a mantissa above 2^-14, less 2^-14.
    let subnormal = (f32::from_bits(rest + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let special = rest + (224 << 23);
    let bits = if exponent == 0 {
        subnormal
    } else if exponent == 31 {
        special
    } else {
        normal
    };
    f32::from_bits(bits | sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widen(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#06x}");
        }
    }
}
