//! The functions between two linear layers, branch-free so that loops of them become vector code.

#[cfg(test)]
use super::types::Activation;
use crate::exp::exp;

/// `act(x)`: the same bits in every instruction set.
#[cfg(test)]
pub(crate) fn activate(kind: Activation, x: f32) -> f32 {
    match kind {
        Activation::Silu => silu(x),
        Activation::Relu => relu(x),
        Activation::Relu2 => relu2(x),
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => gelu_tanh(x),
    }
}

#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    // Written so that NaN stays NaN.
    if x < 0.0 { 0.0 } else { x }
}

#[inline(always)]
pub(crate) fn relu2(x: f32) -> f32 {
    relu(x) * relu(x)
}

/// `x * (1 + tanh(u)) / 2` is `x / (1 + exp(-2u))`, with `u = sqrt(2 / pi) * (x + 0.044715 x^3)`.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
    let u = TWICE_SQRT_2_OVER_PI * (x * x * x).mul_add(0.044_715, x);
    x / (1.0 + exp(-u))
}

/// With the complementary error function of Abramowitz and Stegun, 7.1.26 (absolute error 1.5e-7).
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / z.mul_add(0.327_591_1, 1.0);
    let p = 1.061_405_4f32.mul_add(t, -1.453_152).mul_add(t, 1.421_413_8).mul_add(t, -0.284_496_74);
    let half_erfc = 0.5 * t * p.mul_add(t, 0.254_829_6) * exp(-z * z);
    x * if x < 0.0 { half_erfc } else { 1.0 - half_erfc }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_by_definition() {
        // x / (1 + exp(-x)), x * (1 + erf(x / sqrt 2)) / 2 and the tanh form, in double precision.
        let cases = [
            (Activation::Silu, -1.5, -0.273_638_3),
            (Activation::Silu, 2.0, 1.761_594_2),
            (Activation::Relu, -3.0, 0.0),
            (Activation::Relu, 3.0, 3.0),
            (Activation::Relu2, -3.0, 0.0),
            (Activation::Relu2, 1.5, 2.25),
            (Activation::Gelu, -1.5, -0.100_210_8),
            (Activation::Gelu, 0.7, 0.530_625_4),
            (Activation::GeluTanh, -1.5, -0.100_428_4),
            (Activation::GeluTanh, 0.7, 0.530_570_1),
        ];
        for (kind, x, right) in cases {
            let got = activate(kind, x);
            assert!((got - right).abs() < 1e-6, "{kind:?}({x}) = {got}, not {right}");
        }
    }

    #[test]
    fn far_values_settle() {
        for kind in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            assert_eq!(activate(kind, -200.0).abs(), 0.0, "{kind:?}");
            assert_eq!(activate(kind, 200.0), 200.0, "{kind:?}");
            assert!(activate(kind, f32::NAN).is_nan());
        }
    }
}
