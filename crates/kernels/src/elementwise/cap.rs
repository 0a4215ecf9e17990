//! Numbers that come no further from zero than a cap: `cap * tanh(x / cap)` (Gemma 2's scores and logits).

use super::per_isa;
use crate::exp::exp;
use crate::{Isa, Team};

/// `tanh(x) = x * (1 + NEAR[0] x^2 + ...)`, its Taylor series, which below [`FAR`] is as good as the sum of all of it.
const NEAR: [f32; 5] = [-1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0, 62.0 / 2835.0, -1382.0 / 155_925.0];
/// From here on `1 - 2 / (exp(2x) + 1)` loses nothing to speak of.
const FAR: f32 = 0.4;

/// The hyperbolic tangent, the same bits in every instruction set; NaN for NaN. Branch-free, so that loops of it become vector code.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let square = x * x;
    let series = NEAR[4]
        .mul_add(square, NEAR[3])
        .mul_add(square, NEAR[2])
        .mul_add(square, NEAR[1])
        .mul_add(square, NEAR[0]);
    let near = (x * square).mul_add(series, x);
    let far = 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
    if x.abs() < FAR { near } else { far }
}

/// `x = cap * tanh(x / cap)` for every number of rows, `x: [rows, cols]`.
pub fn cap(team: &Team, isa: Isa, x: &mut [f32], cols: usize, cap: f32) {
    assert!(cap > 0.0, "a cap of {cap}");
    super::rows::for_rows(team, x, cols, |_, row| capped(isa, row, cap));
}

fn capped(isa: Isa, x: &mut [f32], cap: f32) {
    per_isa!(isa, in_place::<>(x: &mut [f32], cap: f32))
}

#[inline(always)]
fn in_place(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = cap * tanh(*x / cap));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_double_on_every_side() {
        for i in -200_000..200_000 {
            let x = i as f32 * 1e-4;
            let right = f64::from(x).tanh();
            assert!((f64::from(tanh(x)) - right).abs() <= 4e-7 * right.abs(), "tanh({x}) = {}", tanh(x));
        }
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY, 0.0, 60.0].map(tanh), [1.0, -1.0, 0.0, 1.0]);
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let x: Vec<f32> = (0..1003).map(|i| (i - 500) as f32 * 0.37).collect();
        let of = |isa| {
            let mut x = x.clone();
            cap(&Team::new(2), isa, &mut x, 17, 30.0);
            x
        };
        let right = of(Isa::Scalar);
        assert!((right[502] - 30.0 * (0.74f32 / 30.0).tanh()).abs() < 1e-6);
        assert!(Isa::ALL.into_iter().filter(|isa| isa.available()).all(|isa| of(isa) == right));
    }
}
