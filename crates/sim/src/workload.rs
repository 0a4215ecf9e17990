//! What people ask for: lengths and arrivals, drawn with a seed.

use crate::rng::Rng;
use spec::{Nanos, Tokens};

/// How a length is drawn; at least one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// Always this.
    Fixed(Tokens),
    /// Any of these, both ends included.
    Uniform(Tokens, Tokens),
    /// Log-normal with this mean, and this deviation of the logarithm, up to `max`.
    LogNormal {
        /// Mean of the lengths.
        mean: f64,
        /// Deviation of their logarithm.
        sigma: f64,
        /// Longer ones are cut to this.
        max: Tokens,
    },
}

impl Lengths {
    fn draw(self, rng: &mut Rng) -> Tokens {
        let drawn = match self {
            Lengths::Fixed(n) => n,
            Lengths::Uniform(low, high) => Tokens(rng.within(u64::from(low.0), u64::from(high.0)) as u32),
            Lengths::LogNormal { mean, sigma, max } => {
                let mu = mean.ln() - sigma * sigma / 2.0;
                Tokens((mu + sigma * rng.normal()).exp().round() as u32).min(max)
            }
        };
        drawn.max(Tokens(1))
    }
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// All at the beginning.
    AtOnce,
    /// Independently of each other, this many a second on average.
    Poisson {
        /// Requests a second.
        per_s: f64,
    },
}

/// One request to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it comes.
    pub arrival: Nanos,
    /// Tokens of its prompt.
    pub prompt: Tokens,
    /// Tokens that it generates before it ends by itself.
    pub output: Tokens,
}

/// A distribution of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Of prompts.
    pub prompt: Lengths,
    /// Of outputs.
    pub output: Lengths,
    /// In time.
    pub arrivals: Arrivals,
}

impl Workload {
    /// `count` requests in order of arrival.
    pub fn draw(&self, count: usize, seed: u64) -> Vec<Job> {
        let mut rng = Rng::new(seed);
        let mut at = 0.0;
        let mut job = || {
            if let Arrivals::Poisson { per_s } = self.arrivals {
                at += rng.exponential(1.0 / per_s);
            }
            let arrival = Nanos::from_secs(at);
            Job { arrival, prompt: self.prompt.draw(&mut rng), output: self.output.draw(&mut rng) }
        };
        (0..count).map(|_| job()).collect()
    }
}
