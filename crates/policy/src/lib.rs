//! Decides what runs next, where and in which order. Pure: no clock, thread, file or global; time is an argument.
//!
//! ```text
//! Request -> sched -> Step -> Shape -> pipeline::lower -> pipeline::arrange -> Program -> World
//!              ^                                                                            |
//!              +---------------------------------- Done ------------------------------------+
//! ```
#![forbid(unsafe_code)]

pub mod cost;
pub mod drive;
pub mod kv;
pub mod log;
pub mod pipeline;
pub mod plan;
pub mod sched;
