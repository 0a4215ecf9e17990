//! Does what policy decides: executor, lanes, tiers, requests.
pub mod memory;
