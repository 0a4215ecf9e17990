//! Narrow panels for the drivers of bf16 tiles.

use std::ops::Range;

use super::{Narrow, expand};
use crate::Isa;
use crate::linear::source::{PAIR_BYTES, PanelSource};

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

impl PanelSource for NarrowPanels {
    const STORED_AS_TILES: bool = false;

    fn tiles<'s>(&self, panel: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8] {
        let tiles = &mut scratch[..groups.len() * PAIR_BYTES];
        expand(self.isa, self.format, panel, groups, bytemuck::cast_slice_mut(tiles));
        tiles
    }
}
