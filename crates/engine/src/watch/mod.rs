//! What can be seen of an engine while it runs: counters, times of lanes, what went on at once.

pub(crate) mod corrupted;
pub(crate) mod foreseen;
pub(crate) mod overlap;
pub(crate) mod stats;
pub(crate) mod timeline;
pub(crate) mod watched;
