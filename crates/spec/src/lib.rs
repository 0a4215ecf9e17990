//! Plain data that every side agrees on.
#![forbid(unsafe_code)]

pub mod model;
pub mod rope;

pub use model::ModelSpec;
pub use rope::{Rope, RopeScaling, rope_frequencies};
