//! One pass over a row of logits: written with independent lanes so that the compiler makes vectors
//! of them, and without fused operations so that every machine gives the same bits.

use super::SampleError;

const LANES: usize = 16;
/// A row is searched in blocks of this many logits.
pub(super) const BLOCK: usize = 1024;

/// Index and value of the largest logit; of equals, the lowest index.
///
/// `logits`: `[vocab]` f32. NaN and +infinity are errors, and so is a row that is all -infinity.
pub fn argmax(logits: &[f32]) -> Result<(u32, f32), SampleError> {
    let mut best = (0, f32::NEG_INFINITY);
    for (b, block) in logits.chunks(BLOCK).enumerate() {
        let (max, sound) = max(block);
        if !sound {
            return Err(SampleError::NotFinite);
        }
        if max > best.1 {
            best = (b, max);
        }
    }
    if best.1 == f32::NEG_INFINITY {
        return Err(SampleError::NothingAllowed);
    }
    let start = best.0 * BLOCK;
    let within = logits[start..].iter().position(|&x| x == best.1).expect("the maximum is there");
    Ok(((start + within) as u32, best.1))
}

/// Largest value of a block, and whether it is free of NaN and +infinity.
fn max(block: &[f32]) -> (f32, bool) {
    let mut m = [f32::NEG_INFINITY; LANES];
    let mut unsound = [0u32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            m[i] = if chunk[i] > m[i] { chunk[i] } else { m[i] };
            unsound[i] |= u32::from(chunk[i].is_nan() | (chunk[i] == f32::INFINITY));
        }
    }
    for (i, &x) in rest.iter().enumerate() {
        m[i] = if x > m[i] { x } else { m[i] };
        unsound[i] |= u32::from(x.is_nan() | (x == f32::INFINITY));
    }
    let m = m.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (m, unsound.iter().all(|&u| u == 0))
}

/// How many logits are above `threshold`.
pub(super) fn count_above(logits: &[f32], threshold: f32) -> usize {
    let count = |block: &[f32]| block.iter().map(|&x| u32::from(x > threshold)).sum::<u32>() as usize;
    logits.chunks(BLOCK).map(count).sum()
}

/// Sum over a block of `exp((x - max) * scale)`.
pub(super) fn mass(block: &[f32], max: f32, scale: f32) -> f64 {
    let mut sums = [0f32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            sums[i] += exp((chunk[i] - max) * scale);
        }
    }
    for (i, &x) in rest.iter().enumerate() {
        sums[i] += exp((x - max) * scale);
    }
    sums.iter().map(|&s| f64::from(s)).sum()
}

/// `e^x` for `x <= 0` within 2 units in the last place; 0 below -87 (and for -infinity).
///
/// Splits x into n ln 2 + r, |r| <= ln 2 / 2, and evaluates a polynomial in r.
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        p = p * r + c;
    }
    let e = p * r * r + r + 1.0;
    // The low bits of `shifted` are n, so this is 2^n.
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    if x > -87.0 { e * power } else { 0.0 }
}
