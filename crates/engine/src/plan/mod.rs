//! An engine before it is one: settings settled, every byte of every tier planned from headers alone.
//!
//! `activations` refuses what nothing multiplies, `blocks` settles the schedule, `budget` says whose memory is whose, `homes` and `room` what KV, activations and weights take
//! of it, `hold` is the plan of all that, `planned` the engine that it makes, `outline` the same for the simulator.

pub(crate) mod activations;
pub(crate) mod blocks;
pub(crate) mod budget;
pub(crate) mod hold;
pub(crate) mod homes;
pub(crate) mod outline;
pub(crate) mod planned;
pub(crate) mod room;
