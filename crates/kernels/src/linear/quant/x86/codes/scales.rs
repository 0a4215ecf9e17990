//! Scales and mins of a group in the order of a line's lanes.

use std::arch::x86_64::*;

use super::super::super::plan::Layout;
use super::super::avx512::by_row;
use super::lines::to_lanes;

/// Those of both tiles, for each run.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    pub(super) scale: [[__m512; 2]; 2],
    pub(super) min: [[__m512; 2]; 2],
}

impl Scales {
    /// Those of a group.
    ///
    /// # Safety
    /// The machine has these features; `panel` holds the group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn read<L: Layout>(panel: *const u8, group: usize) -> Scales {
        let place = L::PLAN.locate(group);
        let mut all = Scales { scale: [[_mm512_setzero_ps(); 2]; 2], min: [[_mm512_setzero_ps(); 2]; 2] };
        for tile in 0..2 {
            // SAFETY: unit and group lie in the panel.
            let [scale, min] = unsafe { by_row::<L>(panel.add(place.unit), panel.add(place.group), tile) };
            for run in 0..L::PLAN.runs() {
                all.scale[run][tile] = to_lanes::<L>(scale[run]);
                all.min[run][tile] = to_lanes::<L>(min[run]);
            }
        }
        all
    }
}
