//! Where everything should live, and in what blocks: FlexGen's policy search (section 4.3), corrected.

mod lp;
mod search;

pub use lp::{Attends, BlockSize, Kernels, Overlap, Placed, Question, place, room};
pub use search::{binds, one_more_gib, search};
