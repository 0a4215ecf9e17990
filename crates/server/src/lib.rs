//! An OpenAI-compatible HTTP server on one engine. The only crate that knows async; it holds no inference state: a
//! client that goes away drops its claims on the engine, which cancels its sequences.
//!
//! ```text
//! connection ─► keys ─► gate ─► parse, template, tokens (blocking threads) ─► engine
//!      ▲                                                                        │ events, from the lanes
//!      └──────── body or stream ◄──── one channel a request, one bell ◄─────────┘
//! ```

mod account;
mod app;
mod bell;
mod body;
mod clock;
mod config;
mod crowd;
mod gate;
mod generate;
mod guest;
mod hold;
mod info;
mod keys;
mod listen;
mod live;
mod log;
mod metrics;
mod minute;
mod named;
mod openapi;
mod page;
mod patience;
mod refusal;
mod routes;
mod served;
mod spool;
mod sse;
mod tiers;
mod timing;
mod unread;

pub use clock::Clock;
pub use config::{Config, KeySource, ServeError, SpoolLimits};
pub use crowd::BESIDE as CONNECTIONS_BESIDE;
pub use listen::{Ended, Server, Signals, Stopper};
pub use log::{Log, LogFormat, LogLevel};
pub use served::Served;
