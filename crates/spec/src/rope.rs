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
    /// How queries grow with their position, where they do.
    pub growth: Option<Growth>,
}

/// Queries that are multiplied by `1 + beta * ln(1 + floor(position / period))`: what Llama 4 did and Ministral 3 does to attention
/// over long contexts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Strength.
    pub beta: f32,
    /// Positions of one factor; the first so many have 1.
    pub period: usize,
}

/// A longer period than any context.
const MOST_PERIOD: usize = 1 << 24;

impl Growth {
    /// What a query at this position is multiplied by.
    pub fn factor(&self, position: usize) -> f32 {
        1.0 + self.beta * ((1 + position / self.period) as f32).ln()
    }
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
    /// LongRoPE (arXiv 2402.13753): divisors of the frequencies, others where a sequence may be longer than the original context.
    Long(LongRope),
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

/// Parameters of LongRoPE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LongRope {
    /// Divisors up to the original context: `rotary dimensions / 2` of them.
    pub short: Vec<f32>,
    /// As many beyond it.
    pub long: Vec<f32>,
    /// Context length of pre-training, in tokens.
    pub original_positions: usize,
    /// Factor on both cos and sin, of short sequences too.
    pub attention_factor: f64,
}

/// What the kernels need to turn queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// Angle for each position, radians: `rotary dimensions / 2` values.
    pub inverse: Vec<f32>,
    /// Factor on both cos and sin (1 but for YaRN and LongRoPE).
    pub attention_factor: f32,
}

impl Rope {
    /// Plain rotary embedding with a base.
    pub fn plain(theta: f64) -> Rope {
        Rope { theta, scaling: RopeScaling::None, rotary_fraction: 1.0, growth: None }
    }

    /// How many of a head's dimensions turn.
    pub fn rotary_dims(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.rotary_fraction) as usize
    }

    /// Checks that every parameter yields finite frequencies for so many rotary dimensions.
    pub(crate) fn check(&self, dims: usize) -> Result<(), SpecError> {
        positive("theta", self.theta)?;
        if let Some(growth) = self.growth {
            positive("growth of queries", f64::from(growth.beta))?;
            let period = growth.period;
            expect("rope", period, (1..=MOST_PERIOD).contains(&period), || {
                format!("queries that grow every 1 to {MOST_PERIOD} positions")
            })?;
            let by_position = !self.depends_on_length();
            expect("rope", "dynamic or longrope", by_position, || {
                "another scaling where queries grow".into()
            })?;
        }
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
            RopeScaling::Long(long) => {
                positive("original positions", long.original_positions as f64)?;
                positive("attention factor", long.attention_factor)?;
                [&long.short, &long.long].into_iter().try_for_each(|by| check_factors(by, dims))
            }
            RopeScaling::Factors(by) => check_factors(by, dims),
        }
    }

    /// Whether the frequencies of a sequence depend on its length.
    pub fn depends_on_length(&self) -> bool {
        self.turned_as(1).is_some()
    }

    /// The length that all rows of a sequence are turned for at least: of a prompt, and of how long it may become.
    ///
    /// With dynamic scaling that is the prompt's, and what is generated is turned as if the sequence ended there (as in
    /// transformers, whose cache keeps what was turned before). LongRoPE's two sorts of frequencies have nothing in common:
    /// transformers computes all anew where a sequence outgrows the original context, vLLM and llama.cpp take one sort for the
    /// whole context. Here a sequence has those of the longest that it may become, from its first token on.
    pub fn turned_from(&self, prompt: usize, longest: usize) -> usize {
        match self.scaling {
            RopeScaling::Long(_) => longest.max(prompt),
            _ => prompt,
        }
    }

    /// Where the frequencies of a sequence depend on its length: one of the lengths that are turned as this one is, the same for
    /// all of these.
    pub fn turned_as(&self, length: usize) -> Option<usize> {
        match &self.scaling {
            RopeScaling::Dynamic { original_positions, .. } => Some(length.max(*original_positions)),
            RopeScaling::Long(long) => {
                Some(length.clamp(long.original_positions, long.original_positions + 1))
            }
            _ => None,
        }
    }
}

fn check_factors(by: &[f32], dims: usize) -> Result<(), SpecError> {
    expect("rope", by.len(), by.len() == dims / 2, || format!("{} factors", dims / 2))?;
    by.iter().try_for_each(|by| positive("factor", f64::from(*by)))
}

fn positive(what: &str, value: f64) -> Result<(), SpecError> {
    // Beyond this range f32 frequencies vanish or overflow.
    expect("rope", value, (1e-6..=1e12).contains(&value), || format!("a positive {what}, from 1e-6 to 1e12"))
}

/// The inverse frequencies of a head and the factor on cos and sin.
///
/// `positions` is the number of tokens of the sequence, and matters to `Dynamic` and `Long` only: up to the checkpoint's
/// original context the first gives the plain ones, the second those of its short divisors.
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
        RopeScaling::Long(long) => long.frequencies(rope.theta, dims, positions),
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

    /// The scale of cos and sin.
    pub fn attention_factor(&self) -> f64 {
        let scaled = |by: f64| if self.factor <= 1.0 { 1.0 } else { 0.1 * by * self.factor.ln() + 1.0 };
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), _, _) => given,
            (None, Some(over), Some(under)) if over != 0.0 && under != 0.0 => scaled(over) / scaled(under),
            _ => scaled(1.0),
        }
    }
}

impl LongRope {
    /// What a stretch of the context by so much makes of `attention_factor`, where a checkpoint does not say.
    pub fn attention_factor_of(stretch: f64, original_positions: usize) -> f64 {
        if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / (original_positions as f64).ln()).sqrt() }
    }

    fn frequencies(&self, theta: f64, dims: usize, positions: usize) -> Vec<f32> {
        let by = if positions > self.original_positions { &self.long } else { &self.short };
        powers(theta, dims).zip(by).map(|(power, by)| 1.0 / (by * power)).collect()
    }
}

fn attention_factor(scaling: &RopeScaling) -> f32 {
    match scaling {
        RopeScaling::Yarn(yarn) => yarn.attention_factor() as f32,
        RopeScaling::Long(long) => long.attention_factor as f32,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests;
