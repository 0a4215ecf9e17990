//! FlexGen's evaluation in virtual time: the paper's figures beside what programs of its schedule take on its machine.
//!
//! A [`Case`] (model, lengths, policy, devices) is lowered to programs ([`Loop`]), priced by the rates of a [`Machine`]
//! under a [`Mechanism`] and run on `policy`'s timeline. What FlexGen's code does otherwise than its paper is a list of
//! terms, each of which can be switched; none of them knows a model, a policy or a cell of a table.

mod case;
mod cost;
mod machine;
mod mechanism;
mod paper;
mod placement;
mod plan;
mod program;
mod run;

pub use case::{Case, Format, HostAttention, Lengths, Overlap, Pinning, Policy};
pub use machine::{MACHINES, Machine, MissingRate, Rate, Rates};
pub use mechanism::{Block, Compute, Copies, Expand, Grain, Mechanism, Order, Quantised, Step};
pub use paper::{CELLS, Cell, Metric, Published, Table};
pub use plan::{Planned, Wanted, plan};
pub use program::Loop;
pub use run::{Breakdown, Prediction, predict};
