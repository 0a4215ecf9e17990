//! Narrow panels for the drivers of bf16 tiles.

use std::ops::Range;

use half::bf16;

use super::{Narrow, expand};
use crate::Isa;
use crate::linear::epilogue::Epilogue;
use crate::linear::source::{PAIR_BYTES, PanelSource};
use crate::linear::types::Weight;
use crate::mat::Mat;
use crate::team::Team;

/// Panels of a narrow format, expanded into a driver's scratch.
pub(crate) struct NarrowPanels {
    format: Narrow,
    isa: Isa,
}

impl NarrowPanels {
    /// Panels of `format`, expanded by `isa`.
    pub(crate) fn new(format: Narrow, isa: Isa) -> NarrowPanels {
        NarrowPanels { format, isa }
    }
}

/// Multiplies by a path of this format's own, if there is one for this many rows; says whether it did.
#[allow(unused_variables)]
pub(crate) fn multiply(
    team: &Team,
    isa: Isa,
    format: Narrow,
    x: Mat<'_, bf16>,
    w: &Weight<'_>,
    epilogue: &Epilogue<'_>,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    return super::x86::multiply(team, isa, format, x, w, epilogue);
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl PanelSource for NarrowPanels {
    const STORED_AS_TILES: bool = false;

    fn tiles<'s>(&self, panel: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8] {
        let tiles = &mut scratch[..groups.len() * PAIR_BYTES];
        expand(self.isa, self.format, panel, groups, bytemuck::cast_slice_mut(tiles));
        tiles
    }
}
