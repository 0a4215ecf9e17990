//! Does what policy decides: memory, lanes, sequences, requests. Below the command line the only crate that
//! sees both policy and kernels.
//!
//! ```text
//! submit ─► inbox ─► drive (engine's thread) ─► program ─► lanes ─► events to the caller
//!              ▲                                             │
//!              └────────────────── done ◄────────────────────┘
//! ```

mod config;
mod cores;
mod engine;
mod front;
pub mod job;
pub mod memory;
mod plan;
pub mod profile;
mod step;
mod tiers;
mod watch;
mod words;

pub use config::{
    DeviceChoice, EngineConfig, HostLinears, KvFormat, KvMemory, KvRoom, Offload, PrefixCaching, WeightShare,
};
pub use cores::{default_threads, default_threads_beside};
pub use engine::{Claim, Engine, Ticket};
pub use front::answer::{Answer, Gathering, Piece, seed_of, sequences};
pub use front::request::{Began, Event, Failure, Finish, Request, Sink, Token};
pub use plan::activations::NoSuchActivations;
pub use plan::blocks::{Blocks, Expected};
pub use plan::budget::Budget;
pub use plan::drive::drive_room;
pub use plan::foresight::{Foresight, Keep};
pub use plan::hold::{Hold, NoSuchKv, kv_token_bytes, size};
pub use plan::nearest::{Nearest, Smaller};
pub use plan::outline::Outline;
pub use plan::planned::{Opening, Planned, StartError, blueprint};
pub use plan::too_small::TooSmall;
pub use policy::cost::OpSort;
pub use policy::sched::PREEMPTIONS;
pub use step::lanes;
pub use step::sequence::queue_bytes;
pub use tiers::stowed::Streamed;
pub use watch::stats::{Counts, Moved, STEP_TOKENS};
pub use watch::timeline::{LaneWatch, Ran, Ranges};
pub use words::counted;
