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
        let args = NormArgs {
            x: self.floats(x),
            weight: self.maybe(norm.weight),
            bias: self.maybe(norm.bias),
            out: self.rows(out),
            cols: x.cols as u32,
            eps: norm.eps,
            layer: (norm.kind == NormKind::Layer).into(),
            to: to as u32,
        };
        self.launch(Module::Rows, "norm_rows", [x.rows, 1], 512, &args);
    }
}
