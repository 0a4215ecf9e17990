//! Does what policy decides: memory, lanes, sequences, requests. The only crate that sees both policy and kernels.
//!
//! ```text
//! submit ─► inbox ─► drive (engine's thread) ─► program ─► lanes ─► events to the caller
//!              ▲                                             │
//!              └────────────────── done ◄────────────────────┘
//! ```

mod answer;
mod config;
mod disk;
mod engine;
mod hash;
mod hold;
pub mod job;
pub mod lanes;
pub mod memory;
mod request;
mod room;
mod run;
mod sequence;
mod stats;
mod tables;
mod watched;
mod world;

pub use answer::{Answer, Gathering, Piece, sequences};
pub use config::{
    DeviceChoice, EngineConfig, KvMemory, Offload, PrefixCaching, WeightShare, default_threads,
};
pub use disk::Streamed;
pub use engine::{Claim, Engine, Planned, StartError, Ticket};
pub use hold::{Hold, TooSmall, kv_token_bytes, size};
pub use request::{Began, Event, Failure, Finish, Request, Sink, Token};
pub use stats::Counts;
