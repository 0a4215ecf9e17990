//! Lines of memory that results will go to, asked for while the products are made.
//!
//! Who reads a layer's results is rarely who wrote them, so that the next layer's writer finds their lines in another core's
//! cache, and stores wait one after the other. Rows of logits often begin a large power of two apart, and miss all caches.

use std::arch::asm;
use std::ops::Range;

use super::{Epilogue, HALF, Target};
use crate::linear::pack::PANEL_ROWS;
use crate::mat::SharedRows;

impl Epilogue<'_> {
    /// Asks for the lines that these rows of `panel` will be written to.
    #[inline]
    pub(crate) fn claim(&self, panel: usize, rows: Range<usize>) {
        match &self.target {
            Target::StoreF32(out) | Target::AddF32(out) | Target::ActF32(_, out) => {
                claim(out, panel * PANEL_ROWS, PANEL_ROWS, rows);
            }
            Target::StoreBf16(out) | Target::ActBf16(_, out) => {
                claim(out, panel * PANEL_ROWS, PANEL_ROWS, rows);
            }
            Target::GatedF32(_, out) => claim(out, panel * HALF, HALF, rows),
            Target::GatedBf16(_, out) => claim(out, panel * HALF, HALF, rows),
        }
    }
}

#[inline]
fn claim<T>(out: &SharedRows<'_, T>, first: usize, count: usize, rows: Range<usize>) {
    for row in rows {
        for column in (first..first + count).step_by(64 / size_of::<T>()) {
            // SAFETY: asks for a line, whatever lies there.
            unsafe {
                asm!("prefetchw [{}]", in(reg) out.at(row, column), options(nostack, preserves_flags, readonly))
            };
        }
    }
}
