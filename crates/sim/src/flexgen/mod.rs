//! FlexGen's evaluation in virtual time: the paper's figures beside what programs of its schedule take on its machine.
//!
//! A [`Case`] (model, lengths, policy, devices) is lowered to programs ([`Loop`]), priced by the rates of a [`Machine`]
//! under a [`Mechanism`] and run on `policy`'s timeline. What FlexGen's code does otherwise than its paper is a list of
//! terms, each of which can be switched; none of them knows a model, a policy or a cell of a table.

mod candidates;
mod case;
mod climb;
mod cost;
mod machine;
mod mechanism;
mod memory;
mod nearest;
mod paper;
mod placement;
mod plan;
mod pools;
mod program;
mod run;
mod steps;
mod terms;

pub use case::{Case, Format, HostAttention, Lengths, Overlap, Pinning, Policy};
pub use machine::{MACHINES, Machine, MissingRate, Rate, Rates};
pub use mechanism::{Block, Compute, Copies, Expand, Fetch, Grain, Mechanism, Order, Quantised, Step};
pub use memory::{Excess, excess, peak};
pub use nearest::nearest;
pub use paper::{CELLS, Cell, Metric, Published, QUOTED, Quoted, Table};
pub use plan::{Planned, Wanted, frontier, least, one_more_gib, plan};
pub use program::Loop;
pub use run::{Breakdown, Prediction, predict};
pub use steps::countable;
pub use terms::{NoSuchTerm, Side, TERMS, Term};
