//! Where the drivers take a panel's weights from.
//!
//! In the order of groups every format but f32 is multiplied as bf16 tiles. A [`PanelSource`] knows one stored format and hands
//! over the tiles of a stretch of k: stored tiles as they are, or dequantised into scratch just before use.

use std::ops::Range;

use super::pack::TILE_BYTES;

/// Bytes of the tile pair that a panel has for each group of 32 k.
pub(crate) const PAIR_BYTES: usize = 2 * TILE_BYTES;

/// One stored format. It holds what it needs to know about the weight (k, the instruction set to
/// dequantise with), not the bytes. A worker runs it, with denormals flushed.
pub(crate) trait PanelSource: Sync {
    /// Whether panels are stored as the tiles themselves, so that a driver can read ahead and keep
    /// several panels open.
    const STORED_AS_TILES: bool;

    /// Where what is stored of the groups behind these lies, as many again: what to fetch meanwhile. Nothing, unless the
    /// format can say.
    #[inline(always)]
    fn behind(&self, _panel: &[u8], _groups: &Range<usize>) -> Range<*const u8> {
        std::ptr::null()..std::ptr::null()
    }

    /// The tiles of `groups` (32 k each) of the panel stored in `panel`: [`PAIR_BYTES`] for each group
    /// in turn, laid out as [`pack_bf16`](super::pack_bf16) does, values the same for any way to cut
    /// the groups. `scratch` is at least that long, aligned to 64 bytes; what it held is lost.
    fn tiles<'s>(&self, panel: &'s [u8], groups: Range<usize>, scratch: &'s mut [u8]) -> &'s [u8];
}

/// bf16 panels.
pub(crate) struct Bf16Panels;

impl PanelSource for Bf16Panels {
    const STORED_AS_TILES: bool = true;

    #[inline(always)]
    fn behind(&self, panel: &[u8], groups: &Range<usize>) -> Range<*const u8> {
        let at = |group: usize| panel.as_ptr().wrapping_add(group * PAIR_BYTES);
        at(groups.end)..at(groups.end + groups.len())
    }

    #[inline(always)]
    fn tiles<'s>(&self, panel: &'s [u8], groups: Range<usize>, _scratch: &'s mut [u8]) -> &'s [u8] {
        &panel[groups.start * PAIR_BYTES..groups.end * PAIR_BYTES]
    }
}
