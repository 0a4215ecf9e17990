//! Random numbers that are a function of (seed, position) and of nothing else.

/// A counter-based generator: the number at a position does not depend on those drawn before, so a
/// sequence draws the same whatever else is in its batch, and after a preemption as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    key: u64,
}

impl Draws {
    /// The draws of a seed.
    pub fn new(seed: u64) -> Self {
        Draws { key: mix(seed ^ 0x6a09_e667_f3bc_c908) }
    }

    /// Uniform in [0, 1) with 53 bits, for the token at `position` (0 is the first generated).
    pub fn uniform(&self, position: u64) -> f64 {
        let counter = position.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = mix(self.key.wrapping_add(counter));
        (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
