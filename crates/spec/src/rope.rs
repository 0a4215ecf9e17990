//! Rotary position embeddings: their parameters, and the frequencies that follow from them.
//!
//! The numbers are those of Hugging Face transformers 5 (`modeling_rope_utils.py`), in the same
//! precision: angles are `position * inverse_frequency` in f32.

use crate::model::{SpecError, expect};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Rotary position embedding, in the half-split order of Hugging Face (dimension `i` turns with `i + n/2`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the wavelengths (10,000 in the paper).
    pub theta: f64,
    /// How the frequencies are stretched beyond the context of pre-training.
    pub scaling: RopeScaling,
    /// Share of a head's dimensions that turn, in (0, 1]; the first ones do.
    pub rotary_fraction: f64,
}

/// The published ways to stretch rotary frequencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// As in the paper.
    None,
    /// All frequencies divided by one factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// NTK-aware: the base grows once a sequence is longer than `original_positions`.
    Dynamic {
        /// Strength of the growth.
        factor: f64,
        /// Context length of the checkpoint, in tokens.
        original_positions: usize,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// The divisor of the long wavelengths.
        factor: f64,
        /// Wavelengths above `original_positions / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_positions / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of pre-training, in tokens.
        original_positions: usize,
    },
    /// YaRN (arXiv 2309.00071): interpolation by part, and a temperature on attention.
    Yarn(Yarn),
    /// One divisor for each frequency, as GGUF files carry it in `rope_freqs.weight`.
    Factors(
        /// `rotary dimensions / 2` divisors.
        Vec<f32>,
    ),
}

/// Parameters of YaRN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Yarn {
    /// Context length divided by that of pre-training.
    pub factor: f64,
    /// Context length of pre-training, in tokens.
    pub original_positions: usize,
    /// Scale of cos and sin; derived from `factor` and the `mscale`s where absent.
    pub attention_factor: Option<f64>,
    /// Dimensions that turn more often than this in the original context are kept (32).
    pub beta_fast: f64,
    /// Dimensions that turn less often than this are interpolated (1).
    pub beta_slow: f64,
    /// DeepSeek's numerator of the attention factor.
    pub mscale: Option<f64>,
    /// DeepSeek's denominator of the attention factor.
    pub mscale_all_dim: Option<f64>,
    /// Whether the ramp begins and ends at whole dimensions.
    pub truncate: bool,
}

/// What the kernels need to turn queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// Angle for each position, radians: `rotary dimensions / 2` values.
    pub inverse: Vec<f32>,
    /// Factor on both cos and sin (1 but for YaRN).
    pub attention_factor: f32,
}

impl Rope {
    /// Plain rotary embedding with a base.
    pub fn plain(theta: f64) -> Rope {
        Rope { theta, scaling: RopeScaling::None, rotary_fraction: 1.0 }
    }

    /// How many of a head's dimensions turn.
    pub fn rotary_dims(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.rotary_fraction) as usize
    }

    /// Checks that every parameter yields finite frequencies for so many rotary dimensions.
    pub(crate) fn check(&self, dims: usize) -> Result<(), SpecError> {
        positive("theta", self.theta)?;
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("factor", *factor),
            RopeScaling::Dynamic { factor, original_positions } => {
                expect("rope", dims, dims > 2, || "more than 2 dimensions for dynamic scaling".into())?;
                positive("original positions", *original_positions as f64)?;
                expect("rope", factor, *factor >= 1.0 && factor.is_finite(), || "a factor from 1".into())
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
                positive("factor", *factor)?;
                positive("low_freq_factor", *low_freq_factor)?;
                positive("original positions", *original_positions as f64)?;
                let above = high_freq_factor > low_freq_factor && high_freq_factor.is_finite();
                expect("rope", high_freq_factor, above, || "a high_freq_factor above low_freq_factor".into())
            }
            RopeScaling::Yarn(yarn) => yarn.check(self.theta),
            RopeScaling::Factors(by) => {
                expect("rope", by.len(), by.len() == dims / 2, || format!("{} factors", dims / 2))?;
                by.iter().try_for_each(|by| positive("factor", f64::from(*by)))
            }
        }
    }

    /// Whether the frequencies of a sequence depend on its length (only `Dynamic`).
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, RopeScaling::Dynamic { .. })
    }
}

fn positive(what: &str, value: f64) -> Result<(), SpecError> {
    // Beyond this range f32 frequencies vanish or overflow.
    expect("rope", value, (1e-6..=1e12).contains(&value), || format!("a positive {what}, from 1e-6 to 1e12"))
}

/// The inverse frequencies of a head and the factor on cos and sin.
///
/// `positions` is the number of tokens of the sequence, and matters to `Dynamic` only: up to the
/// checkpoint's own context the result is the plain one.
pub fn rope_frequencies(rope: &Rope, head_dim: usize, positions: usize) -> RopeFrequencies {
    let dims = rope.rotary_dims(head_dim);
    let plain = || inverse_frequencies(rope.theta, dims);
    let inverse = match &rope.scaling {
        RopeScaling::None => plain(),
        RopeScaling::Linear { factor } => divided(plain(), *factor as f32),
        RopeScaling::Dynamic { factor, original_positions } => {
            inverse_frequencies(dynamic_base(rope.theta, *factor, *original_positions, positions, dims), dims)
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions } => {
            let band = Band {
                factor: *factor as f32,
                low: *low_freq_factor as f32,
                high: *high_freq_factor as f32,
                context: *original_positions as f32,
            };
            plain().into_iter().map(|f| band.scale(f)).collect()
        }
        RopeScaling::Yarn(yarn) => yarn.frequencies(rope.theta, dims),
        RopeScaling::Factors(by) => plain().iter().zip(by).map(|(f, by)| f / by).collect(),
    };
    RopeFrequencies { inverse, attention_factor: attention_factor(&rope.scaling) }
}

/// `base^(2i/dims)` for each pair, rounded to f32 where transformers rounds.
fn powers(base: f64, dims: usize) -> impl Iterator<Item = f32> {
    let base = f64::from(base as f32);
    (0..dims).step_by(2).map(move |i| base.powf(f64::from(i as f32 / dims as f32)) as f32)
}

fn inverse_frequencies(base: f64, dims: usize) -> Vec<f32> {
    powers(base, dims).map(|p| 1.0 / p).collect()
}

fn divided(mut frequencies: Vec<f32>, factor: f32) -> Vec<f32> {
    frequencies.iter_mut().for_each(|f| *f /= factor);
    frequencies
}

fn dynamic_base(theta: f64, factor: f64, original: usize, positions: usize, dims: usize) -> f64 {
    let stretch = factor * positions.max(original) as f64 / original as f64 - (factor - 1.0);
    theta * stretch.powf(dims as f64 / (dims as f64 - 2.0))
}

/// Llama 3's three ranges of wavelengths.
struct Band {
    factor: f32,
    low: f32,
    high: f32,
    context: f32,
}

impl Band {
    fn scale(&self, frequency: f32) -> f32 {
        let wavelength = std::f32::consts::TAU / frequency;
        if wavelength > self.context / self.low {
            return frequency / self.factor;
        }
        if wavelength < self.context / self.high {
            return frequency;
        }
        let keep = (self.context / wavelength - self.low) / (self.high - self.low);
        (1.0 - keep) * frequency / self.factor + keep * frequency
    }
}

impl Yarn {
    fn check(&self, theta: f64) -> Result<(), SpecError> {
        positive("theta above 1", theta - 1.0)?;
        positive("factor", self.factor)?;
        positive("original positions", self.original_positions as f64)?;
        positive("beta_fast", self.beta_fast)?;
        positive("beta_slow", self.beta_slow)?;
        let optional = [self.attention_factor, self.mscale, self.mscale_all_dim];
        optional.into_iter().flatten().try_for_each(|x| positive("attention factor or mscale", x))
    }

    fn frequencies(&self, theta: f64, dims: usize) -> Vec<f32> {
        let (low, high) = self.ramp(theta, dims);
        let blend = |(i, power): (usize, f32)| {
            let keep = 1.0 - ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            1.0 / (self.factor as f32 * power) * (1.0 - keep) + 1.0 / power * keep
        };
        powers(theta, dims).enumerate().map(blend).collect()
    }

    /// The pairs between which interpolation fades in.
    fn ramp(&self, theta: f64, dims: usize) -> (f64, f64) {
        let pair_that_turns = |times: f64| {
            dims as f64 * (self.original_positions as f64 / (times * 2.0 * PI)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dims as f64 - 1.0));
        if low == high { (low, high + 0.001) } else { (low, high) }
    }

    fn attention_factor(&self) -> f64 {
        let scaled = |by: f64| if self.factor <= 1.0 { 1.0 } else { 0.1 * by * self.factor.ln() + 1.0 };
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), _, _) => given,
            (None, Some(over), Some(under)) if over != 0.0 && under != 0.0 => scaled(over) / scaled(under),
            _ => scaled(1.0),
        }
    }
}

fn attention_factor(scaling: &RopeScaling) -> f32 {
    match scaling {
        RopeScaling::Yarn(yarn) => yarn.attention_factor() as f32,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values printed by transformers 5.16 for a head of 16 dimensions.
    fn check(rope: Rope, positions: usize, attention_factor: f64, inverse: &[f64]) {
        let got = rope_frequencies(&rope, 16, positions);
        assert_eq!(got.inverse.len(), inverse.len());
        for (got, want) in got.inverse.iter().zip(inverse) {
            assert!((f64::from(*got) - want).abs() <= want * 2e-7, "{got} is not {want}");
        }
        assert!(
            (f64::from(got.attention_factor) - attention_factor).abs() < 1e-6,
            "{}",
            got.attention_factor
        );
    }

    fn scaled(theta: f64, scaling: RopeScaling) -> Rope {
        Rope { theta, scaling, rotary_fraction: 1.0 }
    }

    fn yarn(factor: f64, original_positions: usize) -> Yarn {
        Yarn {
            factor,
            original_positions,
            attention_factor: None,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: None,
            mscale_all_dim: None,
            truncate: true,
        }
    }

    #[test]
    fn plain_frequencies() {
        let want = [
            1.0,
            0.193922758,
            0.0376060307,
            0.00729266508,
            0.00141421345,
            0.000274248188,
            5.31829573e-05,
            1.03133852e-05,
        ];
        check(Rope::plain(500_000.0), 0, 1.0, &want);
    }

    #[test]
    fn a_fraction_of_the_head() {
        let rope = Rope { theta: 10_000.0, scaling: RopeScaling::None, rotary_fraction: 0.5 };
        check(rope, 0, 1.0, &[1.0, 0.100000001, 0.00999999978, 0.00100000005]);
    }

    #[test]
    fn linear() {
        let want = [
            0.25,
            0.079056941,
            0.0250000004,
            0.00790569466,
            0.00249999994,
            0.000790569466,
            0.000250000012,
            7.90569466e-05,
        ];
        check(scaled(10_000.0, RopeScaling::Linear { factor: 4.0 }), 0, 1.0, &want);
    }

    #[test]
    fn dynamic_within_and_beyond_its_context() {
        let rope = scaled(10_000.0, RopeScaling::Dynamic { factor: 2.0, original_positions: 4096 });
        let plain = [
            1.0,
            0.316227764,
            0.100000001,
            0.0316227786,
            0.00999999978,
            0.00316227786,
            0.00100000005,
            0.000316227786,
        ];
        check(rope.clone(), 1000, 1.0, &plain);
        let stretched = [
            1.0,
            0.260517091,
            0.0678691566,
            0.0176810753,
            0.00460622227,
            0.00119999971,
            0.000312620425,
            8.14429659e-05,
        ];
        check(rope, 10_000, 1.0, &stretched);
    }

    #[test]
    fn llama3() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_positions: 8192,
        };
        let want = [
            1.0,
            0.193922758,
            0.0376060307,
            0.00729266508,
            0.000524846022,
            3.42810235e-05,
            6.64786967e-06,
            1.28917316e-06,
        ];
        check(scaled(500_000.0, scaling), 0, 1.0, &want);
    }

    #[test]
    fn yarn_with_its_defaults() {
        let want = [
            1.0,
            0.316227764,
            0.0812500045,
            0.0197642371,
            0.00437500002,
            0.000790569466,
            0.000250000012,
            7.90569466e-05,
        ];
        check(scaled(10_000.0, RopeScaling::Yarn(yarn(4.0, 1024))), 0, 1.138_629_4, &want);
    }

    #[test]
    fn yarn_with_every_parameter() {
        let yarn = Yarn {
            beta_fast: 16.0,
            beta_slow: 2.0,
            mscale: Some(1.0),
            mscale_all_dim: Some(0.707),
            truncate: false,
            ..yarn(40.0, 4096)
        };
        let want = [
            1.0,
            0.177827939,
            0.0316227786,
            0.00173821906,
            2.49999994e-05,
            4.44569832e-06,
            7.90569402e-07,
            1.40585328e-07,
        ];
        check(scaled(1e6, RopeScaling::Yarn(yarn)), 0, 1.085_726_4, &want);
    }

    #[test]
    fn yarn_with_a_given_attention_factor() {
        let yarn = Yarn { attention_factor: Some(1.25), ..yarn(4.0, 32_768) };
        let want = [
            1.0,
            0.177827939,
            0.0316227786,
            0.00421755994,
            0.000500000024,
            4.44569851e-05,
            7.90569356e-06,
            1.40585337e-06,
        ];
        check(scaled(1e6, RopeScaling::Yarn(yarn)), 0, 1.25, &want);
    }

    #[test]
    fn factors_divide_pair_by_pair() {
        let by = vec![1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0];
        let plain = rope_frequencies(&Rope::plain(10_000.0), 16, 0).inverse;
        let got = rope_frequencies(&scaled(10_000.0, RopeScaling::Factors(by.clone())), 16, 0).inverse;
        assert!(got.iter().zip(plain.iter().zip(&by)).all(|(g, (p, by))| *g == p / by));
    }
}
