//! A file of requests, worked through so that nothing is lost and nothing is done twice: for the command line and for
//! a server alike.
//!
//! ```text
//! Input ─► lines not answered yet ─► Flight (the engine) ─► Order ─► Output (files that only grow, or a stream)
//!            ▲                                                          │
//!            └──────── Kept: what a killed job left behind ◄────────────┘
//! ```
//!
//! An answer's id is made from the digest of the input, the number of its line and the digest of that line, and all
//! answers carry the recorded start of the job: so a job that was killed and resumed writes the bytes of one that was
//! not. An id that is found in an output says which line of which input it answers.

mod apart;
mod error;
mod files;
mod fingerprint;
mod flight;
mod hear;
mod input;
mod kept;
mod ledger;
mod merge;
mod name;
mod order;
mod record;
mod rewrite;
mod run;

pub use apart::clash;
pub use error::JobError;
pub use files::{Existing, Files, Outlook, Paths, Retry, Writer};
pub use fingerprint::fingerprint;
pub use hear::Hears;
pub use input::{Checked, Input, Line};
pub use merge::{Merged, merge};
pub use order::OutputOrder;
pub use record::{Record, Shard};
pub use run::{Ask, Ended, Job, Limits, Output, Tally, Watch};
