//! The tile registers of recent Intel processors. One instruction multiplies 16 rows of x by 16 outputs
//! over 32 k, in the canonical order.

mod blocked;
mod plan;
mod skinny;
mod tile;

pub(super) use plan::shared_bytes_at_most;
pub(crate) use tile::multiply_registers;

use half::bf16;

use super::epilogue::Epilogue;
use super::source::PanelSource;
use super::types::Weight;
use crate::mat::Mat;
use crate::team::Team;

/// bf16: `x: [m, k]`, any stored format but f32. The machine has AMX.
pub(crate) fn run(
    team: &Team,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    source: &impl PanelSource,
    epilogue: &Epilogue<'_>,
) {
    if x.rows() <= tile::TILE_ROWS {
        skinny::run(team, x, w, source, epilogue);
    } else {
        blocked::run(team, x, w, source, epilogue);
    }
}
