//! Linears: every format, every sink, odd sizes; and the shapes of SmolLM2-135M and a Llama of 1.1 B.

use super::data::{in_parts, matrix, noise, vector, write};
use super::random::Draw;
use super::{Agreement, Bound, Case, Floor, Found, Kernel, Reach};
use crate::Mat;
use crate::arena::Full;
use crate::device::{Device, Dtype, Matrix, Rows, Sink};
use crate::linear::quant::{Narrow, pack_blocks, pack_floats};
use crate::linear::{
    Activation, Activations, Format, RowOrder, pack_bf12, pack_bf16, pack_f32, packed_bytes, panels,
};

/// Where a case's result goes.
#[derive(Clone, Copy, Debug)]
enum To {
    Store(Dtype),
    Add,
    Act,
    Gated,
}

struct Linear {
    format: Format,
    m: usize,
    n: usize,
    k: usize,
    to: To,
    biased: bool,
    activations: Activations,
}

/// Some rows of a table, times a factor.
struct Embed(Linear);

pub(super) fn conformance() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in [Format::F32, Format::Bf16, Format::Bf12].into_iter().chain(Narrow::ALL.map(Format::Narrow))
    {
        let k = if let Format::Narrow(narrow) = format { 2 * narrow.block().max(64) } else { 45 };
        cases.push(Embed(Linear::exact(format, (5, 70, k), To::Store(Dtype::F32))).case());
    }
    for (m, n, k) in [(1, 32, 32), (2, 70, 45), (16, 96, 576), (33, 100, 64), (129, 64, 160)] {
        for to in [To::Store(Dtype::F32), To::Store(Dtype::Bf16), To::Add, To::Act, To::Gated] {
            cases.push(Linear::exact(Format::Bf16, (m, n, k), to).biased(m % 2 == 0).case());
        }
        cases.push(Linear::exact(Format::F32, (m, n, k), To::Store(Dtype::F32)).biased(true).case());
    }
    for m in [1, 3, 13, 40, 300] {
        cases.push(Linear::exact(Format::Bf12, (m, 70, 203), To::Add).case());
        cases.push(Linear::exact(Format::Bf12, (m, 64, 320), To::Gated).biased(true).case());
    }
    // So many rows that a device may have others compute them.
    for (m, n, k) in [(520, 100, 64), (521, 96, 96), (521, 70, 72), (512, 64, 45)] {
        for to in [To::Store(Dtype::F32), To::Store(Dtype::Bf16), To::Add, To::Act, To::Gated] {
            cases.push(Linear::exact(Format::Bf16, (m, n, k), to).biased(m % 2 == 0).case());
        }
    }
    for narrow in [Narrow::Int8, Narrow::Int4] {
        for to in [To::Store(Dtype::F32), To::Gated] {
            cases.push(Linear::exact(Format::Narrow(narrow), (520, 96, 128), to).biased(true).case());
        }
    }
    for narrow in Narrow::ALL {
        cases.push(
            Linear::exact(Format::Narrow(narrow), (520, 48, 2 * narrow.block().max(64)), To::Add).case(),
        );
        for m in [1, 3, 16, 40] {
            let k = 2 * narrow.block().max(64);
            cases.push(Linear::exact(Format::Narrow(narrow), (m, 70, k), To::Add).case());
            cases.push(Linear::exact(Format::Narrow(narrow), (m, 64, k), To::Gated).case());
        }
    }
    cases.extend(rounded());
    cases.extend(as_in_models());
    cases
}

pub(super) fn random(draw: &mut Draw) -> Case {
    let narrow = draw.one(&Narrow::ALL);
    let format = draw.one(&[Format::F32, Format::Bf16, Format::Bf16, Format::Bf12, Format::Narrow(narrow)]);
    let to = match format {
        Format::F32 => To::Store(Dtype::F32),
        _ => draw.one(&[To::Store(Dtype::F32), To::Store(Dtype::Bf16), To::Add, To::Act, To::Gated]),
    };
    let k = match format {
        Format::Narrow(narrow) if !matches!(narrow, Narrow::Int8 | Narrow::Int4) => {
            let block = narrow.block();
            block * draw.by_size(1, 768 / block)
        }
        _ => draw.by_size(1, 600),
    };
    let (m, n) = (draw.by_size(1, 600), draw.by_size(1, 100));
    let n = if matches!(to, To::Gated) { 2 * n } else { n };
    Linear::exact(format, (m, n, k), to).biased(draw.within(0, 1) == 1).case()
}

/// As wide and as deep as layers of models are, where products go by blocks of both.
fn as_in_models() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in [Format::Bf16, Format::Bf12, Format::Narrow(Narrow::Int4), Format::Narrow(Narrow::Q6K)] {
        for (m, n, k, to) in [(1, 2048, 5632, To::Add), (40, 576, 1536, To::Add), (5, 3072, 2048, To::Gated)]
        {
            cases.push(Case { reach: Reach::Cpu, ..Linear::exact(format, (m, n, k), to).case() });
        }
    }
    cases.push(Case { reach: Reach::Cpu, ..Linear::exact(Format::Bf16, (600, 960, 576), To::Add).case() });
    cases
}

/// Narrow weights by x in whole numbers: odd numbers of rows, and k that is no whole group.
fn rounded() -> Vec<Case> {
    let mut cases = Vec::new();
    for narrow in Narrow::ALL.into_iter().filter(|narrow| narrow.is_whole()) {
        let ends_anywhere = matches!(narrow, Narrow::Int8 | Narrow::Int4);
        let k = if ends_anywhere { 203 } else { 2 * narrow.block().max(64) };
        for (m, n, to) in [(1, 70, To::Add), (7, 64, To::Gated), (50, 33, To::Store(Dtype::Bf16))] {
            let format = Format::Narrow(narrow);
            for activations in [Activations::Int8, Activations::Int16] {
                cases
                    .push(Linear { activations, ..Linear::exact(format, (m, n, k), to).biased(true) }.case());
            }
        }
    }
    cases
}

pub(super) fn timed() -> Vec<Case> {
    let shapes = [("qkv", 960, 576), ("up", 3072, 576), ("down", 576, 1536), ("head", 49152, 576)];
    let large = [("qkv", 2560, 2048), ("up", 11264, 2048), ("down", 2048, 5632)];
    let formats = [Format::Bf16, Format::Bf12, Format::Narrow(Narrow::Int8), Format::Narrow(Narrow::Int4)];
    let mut cases = Vec::new();
    for format in formats {
        let skinny: &[usize] = if format == Format::Bf16 { &[1, 2, 4, 8, 16] } else { &[1, 8] };
        for m in skinny.iter().copied().chain([32, 128, 512, 2048]) {
            for (name, n, k) in shapes.into_iter().chain(large) {
                let to = if name == "up" { To::Gated } else { To::Store(Dtype::F32) };
                if name != "head" || m <= 128 {
                    cases.push(Linear::exact(format, (m, n, k), to).case());
                }
            }
        }
    }
    for format in [Format::Narrow(Narrow::Int8), Format::Narrow(Narrow::Int4)] {
        for activations in [Activations::Int8, Activations::Int16] {
            for (m, (_, n, k)) in [1, 8, 128].into_iter().flat_map(|m| shapes.map(|shape| (m, shape))) {
                let to = To::Store(Dtype::F32);
                cases.push(Linear { activations, ..Linear::exact(format, (m, n, k), to) }.case());
            }
        }
    }
    cases.push(Linear::exact(Format::Bf16, (2048, 4096, 4096), To::Store(Dtype::Bf16)).case());
    cases
}

pub(super) fn large() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in [Format::Bf16, Format::Narrow(Narrow::Int8), Format::Narrow(Narrow::Int4)] {
        for m in [1, 8, 32, 128, 2048] {
            let to = To::Store(Dtype::F32);
            cases.push(Linear::exact(format, (m, 4096, 14336), to).case());
            cases.push(Linear::exact(format, (m, 28672, 4096), To::Gated).case());
        }
    }
    cases
}

impl Linear {
    /// `m` rows of `k`, times `n` of weights, without a bias.
    fn exact(format: Format, (m, n, k): (usize, usize, usize), to: To) -> Linear {
        Linear { format, m, n, k, to, biased: false, activations: Activations::Exact }
    }

    fn biased(self, biased: bool) -> Linear {
        Linear { biased, ..self }
    }

    fn case(self) -> Case {
        let Linear { format, m, n, k, to, activations, .. } = self;
        let (by, reach) = match activations {
            // No other device unfolds them.
            Activations::Exact if format == Format::Bf12 => ("", Reach::Cpu),
            Activations::Exact => ("", Reach::Everywhere),
            Activations::Int8 => ("/x8", Reach::Cpu),
            Activations::Int16 => ("/x16", Reach::Cpu),
        };
        let weights = packed_bytes(format, self.order(), n, k);
        Case {
            name: format!("linear/{format:?}{by}/{to:?}/{m}x{n}x{k}").to_lowercase(),
            agreement: Agreement::Bits,
            floor: Floor { bytes: (weights + 2 * m * (n + k)) as f64, flops: 2.0 * (m * n * k) as f64 },
            bytes: weights + 8 * m * (n + k) + 8 * n + (1 << 16),
            reach,
            kernel: Box::new(self),
        }
    }

    fn order(&self) -> RowOrder {
        if matches!(self.to, To::Gated) { RowOrder::Gated } else { RowOrder::Plain }
    }

    fn weight(&self, device: &mut dyn Device) -> Result<Matrix, Full> {
        let (n, k, order) = (self.n, self.k, self.order());
        let buf = device.take(packed_bytes(self.format, order, n, k))?;
        let scale = 1.0 / (k as f32).sqrt();
        let value = |i| noise(7, i) * scale;
        let all = panels(order, n);
        device.fill(&buf, &mut |out| match self.format {
            Format::Bf16 | Format::Bf12 => {
                let mut values = vec![half::bf16::ZERO; n * k];
                write(bytemuck::cast_slice_mut(&mut values), |i| {
                    half::bf16::from_f32(value(i)).to_bits().to_ne_bytes()
                });
                let values = Mat::new(&values, n, k);
                in_parts(out, all, |panels, out| match self.format {
                    Format::Bf16 => pack_bf16(values, order, panels, out),
                    _ => pack_bf12(values, order, panels, out).expect("noise is of few exponents"),
                });
            }
            Format::F32 | Format::Narrow(Narrow::Int8 | Narrow::Int4) => {
                let mut values = vec![0f32; n * k];
                write(bytemuck::cast_slice_mut(&mut values), |i| value(i).to_ne_bytes());
                let values = Mat::new(&values, n, k);
                in_parts(out, all, |panels, out| match self.format {
                    Format::Narrow(narrow) => pack_floats(narrow, values, order, panels, out),
                    _ => pack_f32(values, order, panels, out),
                });
            }
            Format::Narrow(narrow) => {
                let block = crate::linear::quant::block_bytes(narrow).unwrap_or(0);
                let row = k / narrow.block() * block;
                let bytes = match narrow.is_whole() {
                    true => blocks(n * row, row),
                    false => blocks_of_floats(n * row, block),
                };
                pack_blocks(narrow, Mat::new(&bytes, n, row), k, order, 0..all, out);
            }
        });
        Ok(Matrix { format: self.format, n, k, order, activations: self.activations, parts: vec![(0, buf)] })
    }
}

impl Embed {
    fn case(self) -> Case {
        let Linear { format, m, n, k, .. } = self.0;
        let name = format!("embed/{format:?}/{m}x{n}x{k}").to_lowercase();
        let floor = Floor { bytes: 4.0 * (m * k) as f64, flops: 0.0 };
        let kernel: Box<dyn Kernel> = Box::new(self);
        let linear = Linear::exact(format, (m, n, k), To::Store(Dtype::F32)).case();
        Case { name, floor, kernel, ..linear }
    }
}

impl Kernel for Embed {
    fn prepare(&self, device: &mut dyn Device) -> Result<Bound, Full> {
        let table = self.0.weight(device)?;
        let out = matrix(device, self.0.m, self.0.k, Dtype::F32, 5)?;
        let ids: Vec<u32> = (0..self.0.m).map(|i| ((i * 17 + 3) % self.0.n) as u32).collect();
        Ok(Bound {
            run: Box::new(move |device: &dyn Device| device.embed(&table, &ids, 5.3, out)),
            results: vec![Found::Rows(out)],
        })
    }
}

/// Bytes of blocks whose half-precision scales are small and finite: the high byte of every pair stays below
/// that of 0.03, wherever a format has its scales.
fn blocks(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((noise(seed as u64, i) + 1.0) * 128.0) as u8 & 0x27).collect()
}

/// Blocks of floats of 8 bits, less than two of either sign and subnormal ones too, each with another scale in single precision.
fn blocks_of_floats(len: usize, block: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| ((noise(11, i) + 1.0) * 128.0) as u8 & 0xbf).collect();
    for (i, block) in bytes.chunks_exact_mut(block).enumerate() {
        block[..4].copy_from_slice(&(0.01 + 0.003 * (i % 7) as f32).to_le_bytes());
    }
    bytes
}

impl Kernel for Linear {
    fn prepare(&self, device: &mut dyn Device) -> Result<Bound, Full> {
        let dtype = if self.format == Format::F32 { Dtype::F32 } else { Dtype::Bf16 };
        let x = matrix(device, self.m, self.k, dtype, 1)?;
        let weight = self.weight(device)?;
        let bias = if self.biased { Some(vector(device, self.n, 3)?) } else { None };
        let cols = if matches!(self.to, To::Gated) { self.n / 2 } else { self.n };
        let out_dtype = match self.to {
            To::Store(dtype) => dtype,
            To::Add => Dtype::F32,
            To::Act | To::Gated => dtype,
        };
        let start = matrix(device, self.m, cols, out_dtype, 5)?;
        let out = Rows { buf: device.take(start.buf.bytes())?, ..start };
        let sink = match self.to {
            To::Store(_) => Sink::Store(out),
            To::Add => Sink::Add(out),
            To::Act => Sink::Act(Activation::Relu, out),
            To::Gated => Sink::Gated(Activation::Silu, out),
        };
        if matches!(self.to, To::Add) {
            device.convert(start, out);
        }
        let run = Box::new(move |device: &dyn Device| device.linear(x, &weight, bias, sink));
        Ok(Bound { run, results: vec![Found::Rows(out)] })
    }
}
