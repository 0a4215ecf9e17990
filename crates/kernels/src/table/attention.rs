//! Keys and values into pages, and attention over them: prefill, chunks, decode, windows, groups.

use super::data::{fill_with_codes, matrix, noise, vector};
use super::random::Draw;
use super::{Agreement, Bound, Case, Floor, Found, Kernel, Reach};
use crate::arena::Full;
use crate::attention::{BLOCK_TOKENS, KvDtype, KvLayout, RopeBy, Span};
use crate::device::{AttendShape, Device, Dtype, KvPages, QkTransform, RopeTables, Rows};
use spec::rope::Growth;

/// bf16 operands and sums in other orders: what two right kernels may differ by.
const TOLERANCE: f32 = 0.02;

/// Heads whose scores are capped too, Gemma 2's, and a cap that some come close to.
const CAPPED: (usize, f32) = (256, 0.5);

#[derive(Clone)]
struct Attention {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// (positions before the span, rows of the span) of each sequence.
    spans: Vec<(usize, usize)>,
    window: Option<usize>,
    share: Option<f32>,
    cap: Option<f32>,
    dtype: KvDtype,
    part: PartOf,
}

/// Which half of attention is the case's result.
#[derive(Clone, Copy, Debug)]
enum PartOf {
    /// With rotary tables of positions, by which queries grow.
    Store,
    /// With rotary tables of the batch's rows.
    StoreByRow,
    Attend,
}

pub(super) fn conformance() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes =
        [(4, 4, 64), (8, 2, 64), (9, 3, 64), (8, 1, 128), (2, 2, 80), (6, 2, 96), (4, 2, 16), (2, 1, 256)];
    for (heads, kv_heads, head_dim) in shapes {
        for (spans, window) in [
            (vec![(0, 1), (31, 1), (700, 1)], None),
            (vec![(0, 130), (40, 33)], None),
            (vec![(0, 70), (600, 3)], Some(50)),
        ] {
            for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int4] {
                let base = Attention {
                    heads,
                    kv_heads,
                    head_dim,
                    spans: spans.clone(),
                    window,
                    share: None,
                    cap: None,
                    dtype,
                    part: PartOf::Attend,
                };
                cases.push(Attention { part: PartOf::Store, ..base.clone() }.case());
                cases.push(Attention { part: PartOf::StoreByRow, ..base.clone() }.case());
                cases.push(Attention { share: Some(0.1), ..base.clone() }.case());
                if head_dim == CAPPED.0 && window.is_some() {
                    let capped = Attention { cap: Some(CAPPED.1), ..base.clone() };
                    cases.push(Attention { share: Some(0.1), ..capped.clone() }.case());
                    cases.push(capped.case());
                }
                cases.push(base.case());
            }
        }
    }
    let long = |(heads, kv_heads, head_dim), spans, dtype| {
        let (window, share, cap, part) = (None, None, None, PartOf::Attend);
        Attention { heads, kv_heads, head_dim, spans, window, share, cap, dtype, part }.case()
    };
    // So long that it falls into more splits than a warp has lanes.
    cases.push(long((2, 1, 16), vec![(9000, 1), (5, 1)], KvDtype::Bf16));
    // Rows that see so many pages that a kernel comes round in its shared memory several times.
    cases.push(long((8, 1, 64), vec![(1000, 24)], KvDtype::Bf16));
    cases.push(long((4, 1, 128), vec![(1500, 20), (900, 40)], KvDtype::F16));
    cases
}

pub(super) fn random(draw: &mut Draw) -> Case {
    let (kv_heads, group) = (draw.within(1, 3), draw.one(&[1, 2, 3, 4, 5, 7, 8, 12, 16, 20]));
    // A size more is a module more, that a GPU's compiler takes seconds for.
    let head_dim = draw.one(&[16, 64, 64, 80, 96, 128, 128, 256]);
    let sequences = draw.within(1, 4);
    let span = |draw: &mut Draw| {
        let (start, rows) = (draw.by_size(1, 900) - 1, draw.by_size(1, 70));
        (start, draw.one(&[1, 1, rows]))
    };
    Attention {
        heads: kv_heads * group,
        kv_heads,
        head_dim,
        spans: (0..sequences).map(|_| span(draw)).collect(),
        window: (draw.within(0, 3) == 0).then(|| draw.by_size(1, 500)),
        share: None,
        cap: None,
        dtype: draw.one(&[
            KvDtype::Bf16,
            KvDtype::Bf16,
            KvDtype::F16,
            KvDtype::F32,
            KvDtype::Fp8,
            KvDtype::Int4,
        ]),
        part: draw.one(&[PartOf::Store, PartOf::StoreByRow, PartOf::Attend, PartOf::Attend]),
    }
    .case()
}

pub(super) fn timed() -> Vec<Case> {
    let decode = [(1, 1024), (1, 8192), (8, 1024), (8, 2048), (64, 1024), (8, 8192)];
    let prefill = [512, 2048, 4096];
    let mut cases = Vec::new();
    for (heads, kv_heads, head_dim) in [(9, 3, 64), (32, 4, 64), (32, 8, 128), (32, 32, 128)] {
        let base = Attention {
            heads,
            kv_heads,
            head_dim,
            spans: vec![],
            window: None,
            share: None,
            cap: None,
            dtype: KvDtype::Bf16,
            part: PartOf::Attend,
        };
        let all = [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8, KvDtype::Int4];
        for ((batch, context), dtype) in decode.into_iter().flat_map(|c| all.map(|dtype| (c, dtype))) {
            cases.push(Attention { spans: vec![(context - 1, 1); batch], dtype, ..base.clone() }.case());
        }
        for (rows, dtype) in prefill.into_iter().flat_map(|rows| all.map(|dtype| (rows, dtype))) {
            cases.push(Attention { spans: vec![(0, rows)], dtype, ..base.clone() }.case());
        }
        for (spans, dtype) in
            [vec![(1023, 1); 64], vec![(0, 512)]].into_iter().flat_map(|s| all.map(|d| (s.clone(), d)))
        {
            cases.push(Attention { spans, dtype, part: PartOf::Store, ..base.clone() }.case());
        }
    }
    cases
}

pub(super) fn large() -> Vec<Case> {
    let base = Attention {
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        spans: vec![],
        window: None,
        share: None,
        cap: None,
        dtype: KvDtype::Bf16,
        part: PartOf::Attend,
    };
    let spans = [vec![(4095, 1); 64], vec![(32767, 1)], vec![(0, 8192)]];
    let formats = [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8, KvDtype::Int4];
    let all = spans.into_iter().flat_map(|spans| formats.map(|dtype| (spans.clone(), dtype)));
    all.map(|(spans, dtype)| Attention { spans, dtype, ..base.clone() }.case()).collect()
}

impl Attention {
    fn rows(&self) -> usize {
        self.spans.iter().map(|(_, rows)| rows).sum()
    }

    fn layout(&self) -> KvLayout {
        KvLayout { kv_heads: self.kv_heads, head_dim: self.head_dim, dtype: self.dtype }
    }

    fn activations(&self) -> Dtype {
        if self.dtype == KvDtype::F32 { Dtype::F32 } else { Dtype::Bf16 }
    }

    fn blocks(&self) -> usize {
        self.spans.iter().map(|(start, rows)| (start + rows).div_ceil(BLOCK_TOKENS)).sum()
    }

    fn case(self) -> Case {
        let spans: Vec<String> = match &self.spans[..] {
            [(0, rows)] => vec![format!("prefill-{rows}")],
            all if all.iter().all(|s| *s == all[0]) => vec![format!("decode-{}x{}", all.len(), all[0].0 + 1)],
            all => all.iter().map(|(start, rows)| format!("{start}+{rows}")).collect(),
        };
        let window = self.window.map_or(String::new(), |w| format!("/window-{w}"));
        let share = self.share.map_or(String::new(), |s| format!("/sparse-{s}"));
        let cap = self.cap.map_or(String::new(), |c| format!("/cap-{c}"));
        let name = match self.part {
            PartOf::Store => "store_kv",
            PartOf::StoreByRow => "store_kv_by_row",
            PartOf::Attend => "attend",
        };
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let pairs: usize = self.spans.iter().map(|(s, n)| n * s + n * (n + 1) / 2).sum();
        let context: usize = self.spans.iter().map(|(s, n)| s + n).sum();
        Case {
            name: format!(
                "{name}/{:?}/{}:{}x{}/{}{window}{share}{cap}",
                self.dtype,
                self.heads,
                self.kv_heads,
                self.head_dim,
                spans.join(",")
            )
            .to_lowercase(),
            agreement: match self.part {
                PartOf::Store | PartOf::StoreByRow => Agreement::Bits,
                PartOf::Attend => Agreement::Within(TOLERANCE),
            },
            floor: match self.part {
                PartOf::Store | PartOf::StoreByRow => {
                    Floor { bytes: (self.rows() * 4 * (q + 2 * kv)) as f64, flops: 0.0 }
                }
                PartOf::Attend => Floor {
                    bytes: (context * self.layout().block_bytes() / BLOCK_TOKENS) as f64,
                    flops: 4.0 * (pairs * q) as f64,
                },
            },
            bytes: self.blocks() * self.layout().block_bytes()
                + self.rows() * 4 * (3 * q + 4 * kv)
                + self.turns() * self.head_dim * 8
                + (1 << 16),
            reach: Reach::Everywhere,
            kernel: Box::new(self),
        }
    }

    fn rope_by(&self) -> RopeBy {
        if let PartOf::StoreByRow = self.part { RopeBy::Row } else { RopeBy::Position }
    }

    fn growth(&self) -> Option<Growth> {
        matches!(self.part, PartOf::Store).then_some(Growth { beta: 0.5, period: 16 })
    }

    /// Rows of the rotary tables.
    fn turns(&self) -> usize {
        let longest = self.spans.iter().map(|(start, rows)| start + rows).max().unwrap_or(0);
        self.rope_by().index(longest, self.rows())
    }

    /// Pages full of noise, tokens that are never written included.
    fn pages(&self, device: &mut dyn Device) -> Result<KvPages, Full> {
        let layout = self.layout();
        if let KvDtype::F16 | KvDtype::Fp8 = self.dtype {
            let buf = device.take(self.blocks() * layout.block_bytes())?;
            fill_with_codes(device, &KvPages { layout, buf }, 11);
            return Ok(KvPages { layout, buf });
        }
        // In pages of 4 bits codes are any words, and grids are of bf16.
        let dtype = self.activations();
        let cols = layout.block_bytes() / dtype.bytes();
        let rows = matrix(device, self.blocks(), cols, dtype, 11)?;
        Ok(KvPages { layout, buf: rows.buf })
    }

    /// Each sequence's blocks: all of them, in an order that is not theirs.
    fn tables(&self) -> Vec<Vec<u32>> {
        let mut order: Vec<u32> = (0..self.blocks() as u32).collect();
        order.sort_by(|a, b| noise(13, *a as usize).total_cmp(&noise(13, *b as usize)));
        let mut next = order.into_iter();
        let table = |(start, rows): &(usize, usize)| {
            next.by_ref().take((start + rows).div_ceil(BLOCK_TOKENS)).collect()
        };
        self.spans.iter().map(table).collect()
    }
}

/// Spans over their tables.
fn spans<'a>(lengths: &[(usize, usize)], tables: &'a [Vec<u32>]) -> Vec<Span<'a>> {
    let mut row = 0;
    let span = |((start, rows), blocks): (&(usize, usize), &'a Vec<u32>)| {
        row += rows;
        Span { blocks, start: *start, rows: row - rows..row }
    };
    lengths.iter().zip(tables).map(span).collect()
}

impl Kernel for Attention {
    fn prepare(&self, device: &mut dyn Device) -> Result<Bound, Full> {
        let (n, d) = (self.rows(), self.head_dim);
        let dtype = self.activations();
        let qkv = matrix(device, n, (self.heads + 2 * self.kv_heads) * d, Dtype::F32, 17)?;
        let kv = self.pages(device)?;
        let rotary_dim = d / 2 / 2 * 2;
        let turns = |device: &mut dyn Device, seed| -> Result<_, Full> {
            Ok(matrix(device, self.turns(), rotary_dim / 2, Dtype::F32, seed)?.buf)
        };
        let (by, cos, sin) = (self.rope_by(), turns(device, 19)?, turns(device, 23)?);
        let rope = RopeTables { by, cos, sin, rotary_dim, growth: self.growth() };
        let norms = Some((vector(device, d, 29)?, vector(device, d, 31)?, 1e-6));
        let transform = QkTransform { heads: self.heads, norms, rope: Some(rope) };
        let q = Rows {
            buf: device.take(n * self.heads * d * dtype.bytes())?,
            dtype,
            rows: n,
            cols: self.heads * d,
        };
        let out = Rows { buf: device.take(q.buf.bytes())?, ..q };
        let shape = AttendShape {
            heads: self.heads,
            scale: 1.0 / (d as f32).sqrt(),
            window: self.window,
            share: self.share,
            cap: self.cap,
        };
        let (tables, lengths, part) = (self.tables(), self.spans.clone(), self.part);
        device.store_kv(qkv, &transform, &spans(&lengths, &tables), kv, q);
        let run = Box::new(move |device: &dyn Device| {
            let spans = spans(&lengths, &tables);
            match part {
                PartOf::Store | PartOf::StoreByRow => device.store_kv(qkv, &transform, &spans, kv, q),
                PartOf::Attend => device.attend(q, kv, &spans, shape, out),
            }
        });
        let cache_cols = kv.buf.bytes() / dtype.bytes();
        let cache = match self.dtype {
            KvDtype::F16 | KvDtype::Fp8 | KvDtype::Int4 => Found::Pages(kv),
            KvDtype::Bf16 | KvDtype::F32 => {
                Found::Rows(Rows { buf: kv.buf, dtype, rows: 1, cols: cache_cols })
            }
        };
        let results = match self.part {
            PartOf::Store | PartOf::StoreByRow => vec![Found::Rows(q), cache],
            PartOf::Attend => vec![Found::Rows(out)],
        };
        Ok(Bound { run, results })
    }
}
