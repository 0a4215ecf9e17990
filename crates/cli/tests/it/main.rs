//! The binary as people run it, in one program: its tests share the cores.

mod batch;
mod batch_resume;
mod bench;
mod bench_serve;
#[cfg(target_os = "linux")]
mod chat;
mod common;
mod config;
mod cuda;
mod documents;
mod flexgen;
#[cfg(target_os = "linux")]
mod full_disk;
#[path = "../../../cuda/tests/it/host/mod.rs"]
mod host;
mod hostile_files;
#[cfg(target_os = "linux")]
mod lost_drive;
mod profile;
mod replay;
mod run;
mod serve;
#[cfg(target_os = "linux")]
mod signals;
mod simulate_block;
mod spool;
#[path = "../../../cuda/tests/it/stand_in/mod.rs"]
mod stand_in;
mod stores;
mod tiers;
