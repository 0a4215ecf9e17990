//! `ballast bench`: figures of this machine and this model.

mod model;
mod report;

pub(crate) use model::{latency, throughput};
