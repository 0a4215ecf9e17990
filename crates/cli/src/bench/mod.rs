//! `ballast bench`: figures of this machine and this model.

mod disk;
mod kernels;
mod model;
mod report;

pub(crate) use disk::disk;
pub(crate) use kernels::{Ceilings, kernels};
pub(crate) use model::{latency, throughput};
pub(crate) use report::median;
