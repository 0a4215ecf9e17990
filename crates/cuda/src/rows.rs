//! Kernels over whole rows, `rows.cu`: gathers and norms.

use kernels::arena::assert_disjoint;
use kernels::device::{Dtype, NormWeights, Rows};
use kernels::elementwise::NormKind;

use crate::Driver;
use crate::args::{NormArgs, PickArgs};
use crate::device::GpuDevice;
use crate::module::Module;

/// What `norm_rows` does with a row: its `TO_`s.
#[derive(Clone, Copy)]
pub(crate) enum To {
    Floats,
    Bf16,
    Sum,
}

impl To {
    /// As `out` stores numbers.
    pub(crate) fn storing(out: Rows) -> To {
        if out.dtype == Dtype::Bf16 { To::Bf16 } else { To::Floats }
    }
}

impl<D: Driver> GpuDevice<D> {
    /// `out[i] = from[rows[i]]`, or added to what is there.
    pub(crate) fn pick_rows(&self, from: u64, rows: &[u32], out: Rows, add: bool) {
        assert_eq!(out.rows, rows.len(), "rows of the output");
        let out_at = self.floats(out);
        let mut tables = self.tables(&[rows.len()]);
        let rows_at = tables.put(&self.driver, rows);
        let args = PickArgs { from, rows: rows_at, out: out_at, cols: out.cols as u32, add: add.into() };
        self.launch(Module::Rows, "pick_rows", [rows.len(), 1], 256, &args);
    }

    /// A norm of rows, and what becomes of it.
    pub(crate) fn put_norm(&self, x: Rows, norm: &NormWeights, to: To, out: Rows) {
        assert_disjoint(&[&out.buf], &[&x.buf]);
        assert_eq!((x.rows, x.cols), (out.rows, out.cols), "norm: rows in and out differ");
        self.norm_rows((self.floats(x), self.rows(out)), ([x.rows, 1], x.cols, x.cols), norm, to);
    }

    /// A norm of some columns of rows, as many as it has scales, in parts, each by itself, in place.
    pub(crate) fn put_norm_columns(&self, x: Rows, first: usize, parts: usize, norm: &NormWeights) {
        let width = norm.weight.map_or(0, |weight| weight.bytes() / size_of::<f32>());
        assert!(
            width > 0 && first + width <= x.cols,
            "norm: columns {first}.. of {}, {width} scales",
            x.cols
        );
        assert!(parts > 0 && width.is_multiple_of(parts), "norm: {width} scales of {parts} parts");
        assert!(norm.bias.is_none(), "norm: columns have no shift");
        let at = self.floats(x) + (first * size_of::<f32>()) as u64;
        self.norm_rows((at, at), ([x.rows, parts], width / parts, x.cols), norm, To::Floats);
    }

    /// Rows of parts of so many columns, which begin so far apart.
    fn norm_rows(
        &self,
        (x, out): (u64, u64),
        (grid, cols, stride): ([usize; 2], usize, usize),
        norm: &NormWeights,
        to: To,
    ) {
        let args = NormArgs {
            x,
            weight: self.maybe(norm.weight),
            bias: self.maybe(norm.bias),
            out,
            cols: cols as u32,
            stride: stride as u32,
            eps: norm.eps,
            layer: (norm.kind == NormKind::Layer).into(),
            to: to as u32,
            unused: 0,
        };
        self.launch(Module::Rows, "norm_rows", grid, 512, &args);
    }
}
