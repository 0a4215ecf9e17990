//! An OpenAI-compatible HTTP server on one engine. The only crate that knows async; it holds no inference state: a
//! client that goes away drops its claims on the engine, which cancels its sequences.
//!
//! ```text
//! connection ─► keys ─► gate ─► parse, template, tokens (blocking threads) ─► engine
//!      ▲                                                                        │ events, from the lanes
//!      └──────────── body or stream ◄──── one channel a request ◄───────────────┘
//! ```

mod app;
mod body;
mod config;
mod gate;
mod generate;
mod hold;
mod info;
mod keys;
mod listen;
mod live;
mod metrics;
mod minute;
mod openapi;
mod page;
mod patience;
mod refusal;
mod routes;
mod served;
mod spool;
mod sse;
mod timing;

pub use config::{Config, KeySource, ServeError};
pub use listen::{Ended, Server, Signals, Stopper};
pub use served::Served;
