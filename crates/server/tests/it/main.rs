//! The server over HTTP, in one program: its tests share the cores. (`security.rs` looks at what its process listens on, and has one.)

mod answers;
mod batches;
mod blocks;
mod cancelled;
mod common;
mod described;
mod heads;
mod lifetime;
mod load;
mod odd_bodies;
mod page;
mod panics;
mod refusals;
mod refused;
mod requests;
mod structured;
mod uploads;
