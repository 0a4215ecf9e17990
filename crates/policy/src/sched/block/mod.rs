//! Block schedules over the paged hold: which waiting sequence may begin, and where it lives.
//!
//! FlexGen's *zig-zag* begins a block of sequences, whose KV is reserved to its full length, and computes them in lock step
//! (section 4.2). Its *diagonal* schedule (appendix A.2), which was proved I/O-optimal and never built for want of paged
//! attention, staggers them: at any time they stand at different depths, so the hold need only be as large as their average
//! and takes up to twice as many, all of which share each load of weights.
//!
//! ```text
//! zig-zag    s |::::                    |::::          peak (s + n) for each, average (s + n/2)
//!              |::::::::::::            |::::::::
//!           s+n|::::::::::::::::::::::::|::::::::::::
//! diagonal     |\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\    average (s + n/2) for each, at all times
//! ```
//!
//! Both are rules of admission: `sched::fcfs` does the rest, so prompts of all lengths go without padding, a sequence that
//! ends is replaced in the next step, and the last few are a smaller block. A sequence lives where it began, on the first
//! tier with room.

mod config;
mod growth;
mod pace;

pub use config::{BlockConfig, Delegate, Schedule};
pub use growth::{Growth, Growths};
pub use pace::Pace;
