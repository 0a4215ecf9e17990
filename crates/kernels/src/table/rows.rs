//! Row kernels: norms, gathers, conversions, embeddings.

use spec::model::NormKind;

use super::data::{matrix, vector};
use super::random::Draw;
use super::{Agreement, Bound, Case, Floor, Found, Kernel, Reach};
use crate::arena::Full;
use crate::device::{Device, Dtype, NormWeights, Rows};

struct NormCase {
    kind: NormKind,
    rows: usize,
    cols: usize,
    to: To,
}

/// Where a normed row goes.
#[derive(Clone, Copy, Debug)]
enum To {
    F32,
    Bf16,
    /// Added to f32.
    Sum,
}

const TOS: [To; 3] = [To::F32, To::Bf16, To::Sum];

/// A norm of some columns of rows, in so many parts, in place.
struct Columns {
    rows: usize,
    cols: usize,
    first: usize,
    width: usize,
    parts: usize,
}

/// Numbers of rows that come no further from zero than a cap, in place.
struct Cap {
    rows: usize,
    cols: usize,
}

struct Gather {
    rows: usize,
    cols: usize,
}

pub(super) fn conformance() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, cols) in [(1, 16), (3, 37), (65, 576), (2, 2051), (2, 5120)] {
        for kind in [NormKind::Rms, NormKind::Layer] {
            for to in TOS {
                cases.push(NormCase { kind, rows, cols, to }.case());
            }
        }
        cases.push(Gather { rows, cols }.case());
        cases.push(Cap { rows, cols }.case());
    }
    for (rows, cols, first, width) in [(1, 96, 0, 64), (3, 96, 64, 16), (65, 1152, 576, 288), (2, 37, 5, 31)]
    {
        cases.push(Columns { rows, cols, first, width, parts: 1 }.case());
    }
    for (rows, cols, first, width, parts) in [(3, 96, 16, 64, 4), (2, 1664, 128, 1536, 12), (1, 37, 5, 30, 2)]
    {
        cases.push(Columns { rows, cols, first, width, parts }.case());
    }
    cases
}

pub(super) fn random(draw: &mut Draw) -> Case {
    let (rows, cols) = (draw.by_size(1, 200), draw.by_size(1, 6000));
    match draw.within(0, 4) {
        4 => Cap { rows, cols }.case(),
        0 => Gather { rows, cols }.case(),
        1 => {
            let first = draw.within(0, cols - 1);
            let parts = draw.within(1, 8.min(cols - first));
            let width = parts * draw.within(1, (cols - first) / parts);
            Columns { rows, cols, first, width, parts }.case()
        }
        kind => {
            let kind = if kind == 2 { NormKind::Rms } else { NormKind::Layer };
            NormCase { kind, rows, cols, to: draw.one(&TOS) }.case()
        }
    }
}

pub(super) fn timed() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, cols) in [(128, 576), (128, 2048), (2048, 576), (2048, 2048)] {
        cases.push(NormCase { kind: NormKind::Rms, rows, cols, to: To::Bf16 }.case());
        cases.push(Gather { rows, cols }.case());
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

impl NormCase {
    fn case(self) -> Case {
        let NormCase { kind, rows, cols, to } = self;
        case(format!("norm/{kind:?}/{to:?}/{rows}x{cols}"), rows * cols, self)
    }
}

impl Columns {
    fn case(self) -> Case {
        let Columns { rows, cols, first, width, parts } = self;
        case(format!("norm_columns/{rows}x{cols}/{first}+{width}/{parts}"), rows * cols, self)
    }
}

impl Cap {
    fn case(self) -> Case {
        let Cap { rows, cols } = self;
        case(format!("cap/{rows}x{cols}"), rows * cols, self)
    }
}

impl Gather {
    fn case(self) -> Case {
        let Gather { rows, cols } = self;
        case(format!("gather/{rows}x{cols}"), rows * cols, self)
    }
}

impl Kernel for NormCase {
    fn prepare(&self, device: &mut dyn Device) -> Result<Bound, Full> {
        let x = matrix(device, self.rows, self.cols, Dtype::F32, 1)?;
        let dtype = if matches!(self.to, To::Bf16) { Dtype::Bf16 } else { Dtype::F32 };
        let out = matrix(device, self.rows, self.cols, dtype, 4)?;
        let (weight, bias) = (Some(vector(device, self.cols, 2)?), Some(vector(device, self.cols, 3)?));
        let norm = NormWeights { kind: self.kind, eps: 1e-5, weight, bias };
        let added = matches!(self.to, To::Sum);
        let run = move |device: &dyn Device| match added {
            true => device.add_norm(x, &norm, out),
            false => device.norm(x, &norm, out),
        };
        Ok(Bound { run: Box::new(run), results: vec![Found::Rows(out)] })
    }
}

impl Kernel for Columns {
    fn prepare(&self, device: &mut dyn Device) -> Result<Bound, Full> {
        let from = matrix(device, self.rows, self.cols, Dtype::F32, 1)?;
        let x = Rows { buf: device.take(from.buf.bytes())?, ..from };
        let weight = Some(vector(device, self.width, 2)?);
        // A row's are RMS norms, those of parts layer norms.
        let kind = if self.parts == 1 { NormKind::Rms } else { NormKind::Layer };
        let norm = NormWeights { kind, eps: 1e-5, weight, bias: None };
        let Columns { first, parts, .. } = *self;
        let run = move |device: &dyn Device| {
            device.convert(from, x);
            device.norm_columns(x, first, parts, &norm);
        };
        Ok(Bound { run: Box::new(run), results: vec![Found::Rows(x)] })
    }
}

impl Kernel for Cap {
    fn prepare(&self, device: &mut dyn Device) -> Result<Bound, Full> {
        let from = matrix(device, self.rows, self.cols, Dtype::F32, 1)?;
        let x = Rows { buf: device.take(from.buf.bytes())?, ..from };
        let run = move |device: &dyn Device| {
            device.convert(from, x);
            device.cap(x, 0.5);
        };
        Ok(Bound { run: Box::new(run), results: vec![Found::Rows(x)] })
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
