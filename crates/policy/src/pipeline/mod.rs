//! From shapes to programs, and from programs to time.
//!
//! The pieces (embed, QKV, attention, out-projection, MLP, head, loads and moves) are the same for all pipelines; a
//! pipeline is the order in which it emits them, one file each.

mod arrange;
mod attention;
mod delegation;
mod graph;
mod pieces;
mod plain;
mod plan;
mod row;
mod timeline;
pub mod waits;
mod zigzag;

pub use arrange::{Arranger, arrange, lock_step};
pub use delegation::{BothWays, Delegation};
pub use pieces::{SLOTS, TURNS, direct_slot, up_slot};
pub use plan::{DiskPath, Excess, Overlap, Plan, Share, Values, Weights};
pub use timeline::{Pauses, Timeline, Timing};
pub use waits::{Ticket, Waits};

use spec::{Lane, Pipeline, Program, Shape};

/// The program of a shape, in an order that is right but not yet good (see [`arrange`]).
pub fn lower(shape: &Shape, plan: &Plan) -> Program {
    let program = match shape.pipeline {
        Pipeline::Plain => plain::lower(shape, plan),
        Pipeline::Zigzag => zigzag::lower(shape, plan),
        Pipeline::Row => row::lower(shape, plan),
    };
    match plan.overlap {
        Overlap::Lanes => program,
        Overlap::SharedCores => program.on_lanes(|lane| if lane == Lane::Host { Lane::Device } else { lane }),
        Overlap::Nothing => program.in_turn(),
    }
}
