//! What becomes of keys and values when they are written, by the formats' definitions.

use half::{bf16, f16};
use kernels::attention::{KV_GROUP, KvDtype};

/// A head as it is read again. No number is beyond the format's range.
pub(super) fn round(dtype: KvDtype, head: &mut [f32]) {
    match dtype {
        KvDtype::F32 | KvDtype::Bf16 => {}
        KvDtype::F16 => head.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
        KvDtype::Fp8 => head.iter_mut().for_each(|x| *x = to_e4m3(*x)),
        KvDtype::Int4 => head.chunks_mut(KV_GROUP).for_each(to_grid),
    }
}

/// To three bits behind the first, and no finer than a 512th; halves go to the even one.
fn to_e4m3(x: f32) -> f32 {
    let exponent = if x == 0.0 { -6 } else { (x.abs().log2().floor() as i32).max(-6) };
    let step = 2f32.powi(exponent - 3);
    (x / step).round_ties_even() * step
}

/// To sixteen steps from the least to the largest, scale and least of 16 bits.
fn to_grid(group: &mut [f32]) {
    let round = |x: f32| bf16::from_f32(x).to_f32();
    let least = round(group.iter().copied().fold(f32::INFINITY, f32::min));
    let largest = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let step = round(((largest - least) / 15.0).max(0.0));
    for x in group {
        let code =
            if step > 0.0 { ((*x - least) * (1.0 / step) + 0.5).floor().clamp(0.0, 15.0) } else { 0.0 };
        *x = least + step * code;
    }
}
