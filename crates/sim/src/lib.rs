//! The virtual world that the real scheduler is simulated in: its clock moves by the timeline, its requests come from
//! workloads, its tokens are numbers, and in tests a shadow engine checks every access to a KV block.
#![forbid(unsafe_code)]

mod block;
mod chart;
pub mod draw;
pub mod flexgen;
mod ledger;
mod metrics;
mod offline;
mod oracle;
mod replay;
mod rng;
mod shadow;
mod text;
mod workload;
mod world;

pub use block::{BlockComparison, BlockExperiment, ScheduleFigures};
pub use chart::{Chart, Curve};
pub use metrics::{End, Metrics, Quantiles, Summary, Tally};
pub use offline::Offline;
pub use oracle::{Submitted, conflict, random_program};
pub use replay::{FirstDifference, Replayed, replay};
pub use rng::Rng;
pub use shadow::Shadow;
pub use text::Text;
pub use workload::{Arrivals, Job, Lengths, Workload};
pub use world::{Accesses, Limit, Truth, VirtualWorld};
