//! `ballast bench`: figures of this machine and this model.

mod ablation;
mod bed;
mod child;
mod disk;
mod foretold;
mod kernels;
mod kernels_cuda;
mod model;
mod plan;
mod prefix;
mod report;
mod serve;

pub(crate) use ablation::ablation;
pub(crate) use disk::disk;
pub(crate) use kernels::{Ceilings, kernels};
pub(crate) use model::{latency, throughput};
pub(crate) use plan::plan;
pub(crate) use prefix::prefix;
pub(crate) use report::median;
pub(crate) use serve::serve;
