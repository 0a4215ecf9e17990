//! Row kernels: norms, gathers, conversions, embeddings.

use spec::model::NormKind;

use super::data::{matrix, vector};
use super::{Agreement, Bound, Case, Floor, Found, Kernel, Reach};
use crate::arena::Full;
use crate::device::{Device, Dtype, NormWeights, Rows};

struct NormCase {
    kind: NormKind,
    rows: usize,
    cols: usize,
    to: Dtype,
}

struct Gather {
    rows: usize,
    cols: usize,
}

pub(super) fn conformance() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, cols) in [(1, 16), (3, 37), (65, 576), (2, 2051), (2, 5120)] {
        for kind in [NormKind::Rms, NormKind::Layer] {
            for to in [Dtype::F32, Dtype::Bf16] {
                cases.push(case(
                    format!("norm/{kind:?}/{to:?}/{rows}x{cols}"),
                    rows * cols,
                    NormCase { kind, rows, cols, to },
                ));
            }
        }
        cases.push(case(format!("gather/{rows}x{cols}"), rows * cols, Gather { rows, cols }));
    }
    cases
}

fn case(name: String, numbers: usize, kernel: impl Kernel + 'static) -> Case {
    Case {
        name: name.to_lowercase(),
        agreement: Agreement::Bits,
        floor: Floor { bytes: 8.0 * numbers as f64, flops: 0.0 },
        bytes: 64 * numbers + (1 << 16),
        reach: Reach::Everywhere,
        kernel: Box::new(kernel),
    }
}

impl Kernel for NormCase {
    fn prepare(&self, device: &mut dyn Device) -> Result<Bound, Full> {
        let x = matrix(device, self.rows, self.cols, Dtype::F32, 1)?;
        let bytes = self.rows * self.cols * self.to.bytes();
        let out = Rows { buf: device.take(bytes)?, dtype: self.to, ..x };
        let (weight, bias) = (Some(vector(device, self.cols, 2)?), Some(vector(device, self.cols, 3)?));
        let norm = NormWeights { kind: self.kind, eps: 1e-5, weight, bias };
        Ok(Bound {
            run: Box::new(move |device: &dyn Device| device.norm(x, &norm, out)),
            results: vec![Found::Rows(out)],
        })
    }
}

impl Kernel for Gather {
    fn prepare(&self, device: &mut dyn Device) -> Result<Bound, Full> {
        let x = matrix(device, self.rows, self.cols, Dtype::F32, 1)?;
        let picked: Vec<u32> = (0..self.rows as u32).rev().collect();
        let out = Rows { buf: device.take(x.buf.bytes())?, ..x };
        let run = Box::new(move |device: &dyn Device| {
            device.gather(x, &picked, out);
        });
        Ok(Bound { run, results: vec![Found::Rows(out)] })
    }
}
