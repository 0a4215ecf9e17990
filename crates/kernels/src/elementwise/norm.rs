//! RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016) of rows.

use super::{Element, LANES, per_isa};
use crate::{Isa, Team};
pub use spec::model::NormKind;

/// A norm's parameters.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    /// RMS or layer norm.
    pub kind: NormKind,
    /// Added to the mean of squares under the root.
    pub eps: f32,
    /// `[cols]`; absent means ones.
    pub weight: Option<&'a [f32]>,
    /// `[cols]`; absent means zeros.
    pub bias: Option<&'a [f32]>,
}

/// What becomes of a normed row.
#[derive(Clone, Copy)]
enum Put {
    Stored,
    Added,
}

/// Norms each row. `x: [rows, cols] f32`, `out: [rows, cols]`, rows shared out over the team.
pub fn norm<T: Element>(team: &Team, isa: Isa, x: &[f32], cols: usize, norm: Norm<'_>, out: &mut [T]) {
    put(team, isa, x, cols, (norm, Put::Stored), out);
}

/// The same, added to what is there.
pub fn add_norm(team: &Team, isa: Isa, x: &[f32], cols: usize, norm: Norm<'_>, out: &mut [f32]) {
    put(team, isa, x, cols, (norm, Put::Added), out);
}

/// Norms columns `first..` of each row in place, as many as there are scales, in so many parts, each by itself; no shift.
/// `x: [rows, cols] f32`.
pub fn norm_columns(
    team: &Team,
    isa: Isa,
    x: &mut [f32],
    cols: usize,
    (first, parts): (usize, usize),
    norm: Norm<'_>,
) {
    let scales = norm.weight.unwrap_or_default();
    let width = scales.len();
    assert!(width > 0 && first + width <= cols, "norm: columns {first}.. of {cols}, {width} scales");
    assert!(parts > 0 && width.is_multiple_of(parts), "norm: {width} scales of {parts} parts");
    assert!(norm.bias.is_none(), "norm: columns have no shift");
    let each = width / parts;
    super::rows::for_rows(team, x, cols, |_, row| {
        let heads = row[first..first + width].chunks_exact_mut(each).zip(scales.chunks_exact(each));
        heads.for_each(|(head, own)| columns(isa, head, &Norm { weight: Some(own), ..norm }));
    });
}

fn columns(isa: Isa, x: &mut [f32], norm: &Norm<'_>) {
    per_isa!(isa, in_place::<>(x: &mut [f32], norm: &Norm<'_>))
}

#[inline(always)]
fn in_place(x: &mut [f32], norm: &Norm<'_>) {
    let (mean, scale) = mean_and_scale(x, norm);
    let weights = norm.weight.unwrap_or_default();
    x.iter_mut().zip(weights).for_each(|(v, w)| *v = (*v - mean) * scale * w);
}

fn put<T: Element>(team: &Team, isa: Isa, x: &[f32], cols: usize, how: (Norm<'_>, Put), out: &mut [T]) {
    assert_eq!(x.len(), out.len(), "norm: rows in and out differ");
    assert!(cols > 0 && x.len().is_multiple_of(cols), "norm: {} values are no rows of {cols}", x.len());
    super::rows::for_rows(team, out, cols, |row, out| {
        norm_one::<T>(isa, &x[row * cols..][..cols], &how.0, how.1, out);
    });
}

fn norm_one<T: Element>(isa: Isa, x: &[f32], norm: &Norm<'_>, put: Put, out: &mut [T]) {
    match std::mem::size_of::<T>() {
        4 => f32_row(isa, x, norm, put, bytemuck::cast_slice_mut(out)),
        _ => bf16_row(isa, x, norm, put, bytemuck::cast_slice_mut(out)),
    }
}

fn f32_row(isa: Isa, x: &[f32], norm: &Norm<'_>, put: Put, out: &mut [f32]) {
    per_isa!(isa, row::<f32>(x: &[f32], norm: &Norm<'_>, put: Put, out: &mut [f32]))
}

fn bf16_row(isa: Isa, x: &[f32], norm: &Norm<'_>, put: Put, out: &mut [half::bf16]) {
    per_isa!(isa, row::<half::bf16>(x: &[f32], norm: &Norm<'_>, put: Put, out: &mut [half::bf16]))
}

/// What is taken off a row, and what it is multiplied by then.
#[inline(always)]
fn mean_and_scale(x: &[f32], norm: &Norm<'_>) -> (f32, f32) {
    let n = x.len() as f32;
    let mean = match norm.kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => sum_of(x, |v| v) / n,
    };
    (mean, 1.0 / (sum_of(x, |v| (v - mean) * (v - mean)) / n + norm.eps).sqrt())
}

#[inline(always)]
fn row<T: Element>(x: &[f32], norm: &Norm<'_>, put: Put, out: &mut [T]) {
    let (mean, scale) = mean_and_scale(x, norm);
    match (norm.weight, norm.bias) {
        (Some(w), Some(b)) => write(x, put, out, |v, i| (v - mean) * scale * w[i] + b[i]),
        (Some(w), None) => write(x, put, out, |v, i| (v - mean) * scale * w[i]),
        (None, Some(b)) => write(x, put, out, |v, i| (v - mean) * scale + b[i]),
        (None, None) => write(x, put, out, |v, _| (v - mean) * scale),
    }
}

#[inline(always)]
fn write<T: Element>(x: &[f32], put: Put, out: &mut [T], f: impl Fn(f32, usize) -> f32) {
    let each = out.iter_mut().zip(x).enumerate();
    match put {
        Put::Stored => each.for_each(|(i, (out, &v))| *out = T::from_f32(f(v, i))),
        Put::Added => each.for_each(|(i, (out, &v))| *out = T::from_f32(out.to_f32() + f(v, i))),
    }
}

/// The sum of `f(x)` in 16 lanes (element i goes to lane i mod 16), added pairwise at the end.
#[inline(always)]
fn sum_of(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane += f(v);
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(tail) {
        *lane += f(v);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    fn sample(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 13.0).collect()
    }

    fn textbook(x: &[f32], kind: NormKind, w: &[f32], b: &[f32]) -> Vec<f32> {
        let n = x.len() as f64;
        let mean = if kind == NormKind::Rms { 0.0 } else { x.iter().map(|&v| f64::from(v)).sum::<f64>() / n };
        let var = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        let scale = 1.0 / (var + 1e-5).sqrt();
        x.iter()
            .zip(w)
            .zip(b)
            .map(|((&v, &w), &b)| ((f64::from(v) - mean) * scale * f64::from(w) + f64::from(b)) as f32)
            .collect()
    }

    #[test]
    fn both_norms_match_the_textbook_on_every_isa() {
        let team = Team::new(2);
        for cols in [1, 16, 37, 576] {
            let (x, w, b) = (sample(cols * 3), sample(cols), vec![0.25; cols]);
            for kind in [NormKind::Rms, NormKind::Layer] {
                let p = Norm { kind, eps: 1e-5, weight: Some(&w), bias: Some(&b) };
                let mut first: Option<Vec<f32>> = None;
                for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
                    let mut out = vec![0f32; x.len()];
                    norm(&team, isa, &x, cols, p, &mut out);
                    for (row, got) in out.chunks(cols).enumerate() {
                        let want = textbook(&x[row * cols..][..cols], kind, &w, &b);
                        assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 2e-5 * w.abs().max(1.0)));
                    }
                    assert_eq!(first.get_or_insert_with(|| out.clone()), &out, "{isa} gives other bits");
                }
            }
        }
    }

    #[test]
    fn bf16_output_is_the_rounded_f32_output() {
        let team = Team::new(1);
        let x = sample(100);
        let p = Norm { kind: NormKind::Rms, eps: 1e-6, weight: None, bias: None };
        let (mut wide, mut narrow) = (vec![0f32; 100], vec![bf16::ZERO; 100]);
        norm(&team, Isa::detect(), &x, 50, p, &mut wide);
        norm(&team, Isa::detect(), &x, 50, p, &mut narrow);
        assert!(wide.iter().zip(&narrow).all(|(&w, &n)| bf16::from_f32(w) == n));
    }
}
