//! Units: integers that know what they count.

use serde::{Deserialize, Serialize};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub, SubAssign};

/// Tokens in a KV block.
pub const BLOCK_TOKENS: Tokens = Tokens(32);

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// None of it.
            pub const ZERO: Self = Self(0);

            /// `self - other`, but never below zero.
            pub fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }
        impl Mul<$inner> for $name {
            type Output = Self;
            fn mul(self, times: $inner) -> Self {
                Self(self.0 * times)
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                all.fold(Self::ZERO, Add::add)
            }
        }
    };
}

unit! {
    /// A count of tokens, or a position in a sequence (the count of tokens before it).
    Tokens(u32)
}
unit! {
    /// Bytes.
    Bytes(u64)
}
unit! {
    /// Time since an origin that the world chooses, or a duration; nanoseconds.
    Nanos(u64)
}

impl Tokens {
    /// Blocks that hold this many tokens, the last one perhaps in part.
    pub fn blocks(self) -> usize {
        self.0.div_ceil(BLOCK_TOKENS.0) as usize
    }

    /// Blocks that this many tokens fill to the end.
    pub fn full_blocks(self) -> usize {
        (self.0 / BLOCK_TOKENS.0) as usize
    }

    /// Tokens of `n` full blocks.
    pub fn of_blocks(n: usize) -> Self {
        Self(n as u32 * BLOCK_TOKENS.0)
    }
}

impl Nanos {
    /// From seconds, rounded to the nearest nanosecond; negative and NaN give zero.
    pub fn from_secs(seconds: f64) -> Self {
        Self((seconds * 1e9).round() as u64)
    }

    /// In seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 * 1e-9
    }
}
