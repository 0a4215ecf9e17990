//! Does what policy decides: executor, lanes, tiers, requests.
pub mod lanes;
pub mod memory;
