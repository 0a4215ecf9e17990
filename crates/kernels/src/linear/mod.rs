//! `y = x * W^T` for weights packed once into panels, with what follows fused into the last step.

pub mod pack;
pub mod quant;
pub mod types;

pub use pack::{PANEL_ROWS, pack_bf16, pack_f32, packed_bytes, panel_bytes, panel_rows, panels, unpack_row};
pub use types::{Activated, Activation, Format, Input, Output, Part, RowOrder, Weight};
