//! Weights of bf16 in rows, which is how a library of products reads them.
//!
//! ```text
//! a panel as it comes   [32 of k][32 of k] ...   each in lines: a pair of k of 32 output rows
//! in rows               [k of output row 0][k of output row 1] ... [k of output row 31]
//! ```
//!
//! A panel takes as much memory either way (a row's end is filled up to 32 of k), and a part's panels, one after the other, are one
//! matrix. So the first product that goes to the library has the part's panels put into rows where they lie, and all later products
//! read them there: those of few rows by Ballast's kernels, whose lanes take the same numbers in the same order from either, so
//! that results do not change by a bit. What is uploaded lies in lines again.

use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};

use kernels::arena::Buf;
use kernels::linear::{Format, PANEL_ROWS, panel_bytes};

use crate::Driver;
use crate::args::{CopyArgs, UnpackArgs};
use crate::device::GpuDevice;
use crate::module::Module;
use crate::product::UNPACK_GROUPS;
use crate::ranges::Ranges;

/// Consecutive panels of bf16 in the device's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels {
    /// The first one's address.
    pub(crate) at: u64,
    pub(crate) count: usize,
    pub(crate) k: usize,
}

impl Panels {
    fn bytes_of_one(&self) -> u64 {
        panel_bytes(Format::Bf16, self.k) as u64
    }

    fn range(&self) -> Range<u64> {
        self.at..self.at + self.count as u64 * self.bytes_of_one()
    }

    /// Bytes of each row, in rows.
    pub(crate) fn row_bytes(&self) -> u32 {
        (self.bytes_of_one() / PANEL_ROWS as u64) as u32
    }
}

impl<D: Driver> GpuDevice<D> {
    fn ranges_in_rows(&self) -> MutexGuard<'_, Ranges> {
        self.in_rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of a row of panels that lie in rows, 0 of those in lines. Where some do the others are put there too.
    pub(crate) fn row_bytes(&self, format: Format, panels: &Panels) -> u32 {
        if format != Format::Bf16 || self.ranges_in_rows().within(&panels.range()).is_empty() {
            return 0;
        }
        self.put_in_rows(panels);
        panels.row_bytes()
    }

    /// Puts those of the panels that are not yet there into rows. There is a library, whose memory is used on the way.
    pub(crate) fn put_in_rows(&self, panels: &Panels) {
        let (one, range) = (panels.bytes_of_one(), panels.range());
        let mut in_rows = self.ranges_in_rows();
        for missing in in_rows.without(&range) {
            let whole = |address: u64| (address - range.start).is_multiple_of(one);
            assert!(whole(missing.start) && whole(missing.end), "a piece of a panel was written over");
            let count = ((missing.end - missing.start) / one) as usize;
            self.turn(&Panels { at: missing.start, count, ..*panels });
        }
        in_rows.add(&range);
    }

    fn turn(&self, panels: &Panels) {
        let room = self.driver.products().expect("who has no library is not asked for rows").room();
        let (one, out) = (panels.bytes_of_one(), self.product_memory(&room)[0]);
        // With what a row is filled up with.
        let k = panels.row_bytes() / 2;
        let most = room.weight_bytes / one as usize;
        assert!(most > 0, "room for a panel of {one} bytes");
        for first in (0..panels.count).step_by(most) {
            let (count, at) = (most.min(panels.count - first), panels.at + first as u64 * one);
            let unpack = UnpackArgs { panels: at, out, panel_bytes: one, k, unused: 0 };
            let grid = [count, (k as usize).div_ceil(32 * UNPACK_GROUPS)];
            self.launch(Module::Linear(Format::Bf16), "unpack_panels", grid, 256, &unpack);
            let quads = count as u64 * one / 16;
            let copy = CopyArgs { from: out, to: at, quads };
            let blocks = quads.div_ceil(256).min(COPY_BLOCKS) as usize;
            self.launch(Module::Rows, "copy_quads", [blocks, 1], 256, &copy);
        }
    }

    /// A buffer is written: what lay in rows there is gone.
    pub(crate) fn forget_rows(&self, buf: &Buf) {
        self.ranges_in_rows().remove(&self.range_of(buf));
    }

    /// A buffer is read, by someone who knows nothing of rows.
    pub(crate) fn assert_no_rows(&self, buf: &Buf) {
        let in_rows = self.ranges_in_rows().within(&self.range_of(buf));
        assert!(in_rows.is_empty(), "weights are read back that lie in rows");
    }

    fn range_of(&self, buf: &Buf) -> Range<u64> {
        let at = self.at(buf);
        at..at + buf.bytes() as u64
    }
}

/// Blocks that copy, at the most: several for each multiprocessor of any device.
const COPY_BLOCKS: u64 = 2048;
