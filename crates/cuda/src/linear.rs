//! Which kernel computes a linear: by how many rows there are, and in how many blocks that would be cut.

use kernels::device::Matrix;
use kernels::linear::Format;

use crate::Driver;
use crate::args::{LinearArgs, ManyArgs};
use crate::device::GpuDevice;
use crate::in_rows::Panels;
use crate::module::Module;

/// Rows of a block of `linear_floats`.
pub(crate) const FLOATS: usize = 8;
/// Panels and rows of a block of `linear_many`.
const MANY: [usize; 2] = [4, 128];
/// Fewer blocks leave multiprocessors of large GPUs idle: an H100 has 132.
const BLOCKS_MIN: usize = 128;
/// Rows of a block of `linear_few_64`. Each of its warps has two groups on its way, 4 KiB of weights and 8 KiB of x: with a block
/// of eight on a multiprocessor 32 KiB of weights, what 3 TB/s take in 1.3 microseconds. What bounds it is x, which comes from
/// the second cache twice as fast as weights do from memory.
const FEW: usize = 64;
/// With more rows the arithmetic takes longer than reading the weights again and again.
const STREAMED_ROWS_MAX: usize = 511;

/// Whether more than 32 rows are computed 64 at a time, a block for each panel, whose warps have weights on their way all the
/// time; else in tiles of four panels by 128 rows, which read less. Up to two such blocks, reading the weights is all that
/// counts; with more, where the tiles are too few to fill a GPU, or where weights are unpacked, as tiles wait for those. Either
/// way sums are added in the same order.
fn streams_weights(format: Format, panels: usize, rows: usize) -> bool {
    let tiles = panels.div_ceil(MANY[0]) * rows.div_ceil(MANY[1]);
    let unpacked = matches!(format, Format::Narrow(_));
    rows <= 2 * FEW || rows <= STREAMED_ROWS_MAX && (unpacked || tiles < BLOCKS_MIN)
}

impl<D: Driver> GpuDevice<D> {
    /// Asks for a part of a linear: consecutive panels, whose first `args` tells.
    pub(crate) fn linear_part(&self, w: &Matrix, panels: usize, args: LinearArgs) {
        let done = self.linear_by_library(w.format, panels, &args);
        if done == panels {
            return;
        }
        let (panels, args) = self.without_panels(done, w, panels, args);
        let (module, rows) = (Module::Linear(w.format), args.rows as usize);
        match (w.format, rows) {
            (Format::F32, _) => {
                self.launch(module, "linear_floats", [panels, rows.div_ceil(FLOATS)], 256, &args);
            }
            (_, ..=8) => self.launch(module, "linear_few_8", [1, panels], 256, &args),
            (_, ..=32) => self.launch(module, "linear_few_32", [1, panels], 256, &args),
            (format, _) if streams_weights(format, panels, rows) => {
                self.launch(module, "linear_few_64", [rows.div_ceil(FEW), panels], 256, &args);
            }
            _ => {
                let grid = [panels.div_ceil(MANY[0]), rows.div_ceil(MANY[1])];
                let args = ManyArgs { linear: args, panels: panels as u32, unused: 0 };
                self.launch(module, "linear_many", grid, 256, &args);
            }
        }
    }

    /// What is left of a part without its first panels. The library may have had the part put into rows meanwhile.
    fn without_panels(
        &self,
        done: usize,
        w: &Matrix,
        panels: usize,
        args: LinearArgs,
    ) -> (usize, LinearArgs) {
        let (at, count) = (args.panels + done as u64 * args.panel_bytes, panels - done);
        let first_panel = args.first_panel + done as u32;
        let row_bytes = self.row_bytes(w.format, &Panels { at, count, k: w.k });
        (count, LinearArgs { panels: at, first_panel, row_bytes, ..args })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::linear::quant::Narrow;

    /// Of 4096 rows and of 28672: what there are tiles enough of is computed in tiles.
    #[test]
    fn few_tiles_are_no_tiles() {
        let wide = [128, 896];
        let streams = |format, rows| wide.map(|panels| streams_weights(format, panels, rows));
        assert_eq!(streams(Format::Bf16, 64), [true, true]);
        assert_eq!(streams(Format::Bf16, 256), [true, false]);
        assert_eq!(streams(Format::Narrow(Narrow::Int4), 256), [true, true]);
        assert_eq!(streams(Format::Narrow(Narrow::Int4), 512), [false, false]);
    }
}
