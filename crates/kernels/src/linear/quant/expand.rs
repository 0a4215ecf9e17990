//! From a panel's narrow bytes to bf16 tiles, by the best means that the instruction set has.

use std::ops::Range;

use half::bf16;

use super::plan::{GROUP, PANEL, Plan};
use super::{Narrow, scalar};
use crate::Isa;

/// Expands groups (of 32 k) of a panel to the tiles that the same range of a bf16 panel holds.
///
/// `panel`: a whole panel of `format`; `groups`: which of its groups; `out`: for each group two tiles of 16
/// lines of 16 outputs by 2 k, `1024 * groups.len()` values.
///
/// # Panics
/// If `out` has another length or the panel ends before the groups do.
pub fn expand(isa: Isa, format: Narrow, panel: &[u8], groups: Range<usize>, out: &mut [bf16]) {
    let plan = Plan::of(format);
    assert_eq!(out.len(), groups.len() * PANEL * GROUP, "two tiles for each of groups {groups:?}");
    assert!(
        plan.panel_bytes(groups.end * GROUP) <= panel.len(),
        "groups {groups:?} of {} bytes",
        panel.len()
    );
    match isa {
        Isa::Scalar => scalar::expand(&plan, panel, groups, out),
        #[cfg(target_arch = "x86_64")]
        _ => super::x86::expand(isa, format, panel, groups, out),
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("{isa} was not available"),
    }
}
