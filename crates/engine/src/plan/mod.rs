//! An engine before it is one: settings settled, every byte of every tier planned from headers alone.
//!
//! `activations` refuses what nothing multiplies, `blocks` settles the schedule, `budget` says whose memory is whose, `drive` what
//! may go there, `homes` and `room` what KV, activations and weights take
//! of it, `hold` is the plan of all that, `nearest` what would fit where it does not, `planned` the engine that it makes, `outline` the same for the simulator,
//! `fetching` what reading prefixes takes,
//! `foresight` the costs it was planned with, `too_small` why it does not fit, and `start_error` why it does not start.

pub(crate) mod activations;
pub(crate) mod blocks;
pub(crate) mod budget;
pub(crate) mod drive;
pub(crate) mod fetching;
pub(crate) mod foresight;
pub(crate) mod groups;
pub(crate) mod hold;
pub(crate) mod homes;
pub(crate) mod nearest;
pub(crate) mod outline;
pub(crate) mod planned;
pub(crate) mod room;
pub(crate) mod start_error;
pub(crate) mod too_small;
pub(crate) mod weights;
