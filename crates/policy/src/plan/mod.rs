//! Where everything should live, and in what blocks: FlexGen's policy search (section 4.3), corrected.

mod habits;
mod lp;
mod programme;
mod search;
mod sums;

pub use habits::{Attention, Habits};
pub use lp::{Attends, BlockSize, Kernels, Overlap, Placed, Question, place, programme, room};
pub use programme::{Compare, Programme, Row};
pub use search::{GAIN, around, blocks, search, search_up_to};
