//! The engine on small models, in one program: its tests share the cores.

mod activations;
mod common;
mod homes;
mod identity;
mod job;
mod kept;
mod kv_narrow;
mod kv_sparse;
mod lanes;
mod late;
mod learning;
#[cfg(target_os = "linux")]
mod lost;
mod room;
mod schedules;
mod streaming;
mod tiers;
mod twelve_bits;
mod waits;
mod windows;
