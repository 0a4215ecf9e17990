//! Which values decodes choose: whole numbers, so that scores are the same in whatever order they are added, and keys that come
//! again, so that many are equal.

use super::data::whole_numbers;
use super::{Agreement, Bound, Case, Floor, Found, Kernel, Reach};
use crate::arena::Full;
use crate::attention::{BLOCK_TOKENS, KvDtype, KvLayout, Span};
use crate::device::{AttendShape, Device, Dtype, KvPages, QkTransform, Rows};

#[derive(Clone)]
struct Choice {
    heads: usize,
    layout: KvLayout,
    /// Of each sequence.
    tokens: Vec<usize>,
    window: Option<usize>,
    share: f32,
}

/// After how many tokens keys come again.
const DISTINCT: usize = 90;

pub(super) fn conformance() -> Vec<Case> {
    let mut cases = Vec::new();
    for (heads, kv_heads, head_dim) in [(8, 2, 64), (9, 3, 80), (20, 1, 16), (2, 1, 256)] {
        for (window, share) in [(None, 0.1), (Some(200), 0.3)] {
            for dtype in [KvDtype::Bf16, KvDtype::F16, KvDtype::F32, KvDtype::Fp8, KvDtype::Int4] {
                let layout = KvLayout { kv_heads, head_dim, dtype };
                cases.push(Choice { heads, layout, tokens: vec![700, 1, 333, 64], window, share }.case());
            }
        }
    }
    cases
}

pub(super) fn timed() -> Vec<Case> {
    let layout = |kv_heads, head_dim| KvLayout { kv_heads, head_dim, dtype: KvDtype::Bf16 };
    [(9, layout(3, 64)), (32, layout(8, 128))]
        .map(|(heads, layout)| {
            Choice { heads, layout, tokens: vec![2048; 8], window: None, share: 0.1 }.case()
        })
        .into()
}

impl Choice {
    fn case(self) -> Case {
        let KvLayout { kv_heads, head_dim, dtype } = self.layout;
        let window = self.window.map_or(String::new(), |w| format!("/window-{w}"));
        let (heads, share) = (self.heads, self.share);
        let name = format!(
            "choose/{dtype:?}/{heads}:{kv_heads}x{head_dim}/{:?}{window}/sparse-{share}",
            self.tokens
        );
        let (rows, key_bytes) = (self.tokens.iter().sum::<usize>(), self.layout.block_bytes() / 2);
        Case {
            name: name.to_lowercase().replace(' ', ""),
            agreement: Agreement::Bits,
            floor: Floor {
                bytes: (rows * key_bytes / BLOCK_TOKENS) as f64,
                flops: 2.0 * (rows * heads * head_dim) as f64,
            },
            bytes: self.blocks() * (self.layout.block_bytes() + 16 * kv_heads)
                + rows * 4 * (2 * heads + 2 * kv_heads) * head_dim
                + (1 << 16),
            reach: Reach::Everywhere,
            kernel: Box::new(self),
        }
    }

    fn blocks(&self) -> usize {
        self.tokens.iter().map(|tokens| tokens.div_ceil(BLOCK_TOKENS)).sum()
    }

    /// Each sequence's blocks, from the last to the first, and its rows.
    fn sequences(&self) -> Vec<(Vec<u32>, std::ops::Range<usize>)> {
        let (mut block, mut row) = (0, 0);
        let sequence = |tokens: &usize| {
            let (first, begin) = (block, row);
            block += tokens.div_ceil(BLOCK_TOKENS) as u32;
            row += tokens;
            ((first..block).rev().collect(), begin..row)
        };
        self.tokens.iter().map(sequence).collect()
    }
}

impl Kernel for Choice {
    fn prepare(&self, device: &mut dyn Device) -> Result<Bound, Full> {
        let KvLayout { kv_heads, head_dim, dtype } = self.layout;
        let (rows, cols) = (self.tokens.iter().sum(), (self.heads + 2 * kv_heads) * head_dim);
        let qkv = whole_numbers(device, (rows, cols), (head_dim, DISTINCT), 37)?;
        let kv =
            KvPages { layout: self.layout, buf: device.take(self.blocks() * self.layout.block_bytes())? };
        let dtype = if dtype == KvDtype::F32 { Dtype::F32 } else { Dtype::Bf16 };
        let cols = self.heads * head_dim;
        let q = Rows { buf: device.take(rows * cols * dtype.bytes())?, dtype, rows, cols };
        let sequences = self.sequences();
        let whole: Vec<Span<'_>> =
            sequences.iter().map(|(blocks, rows)| Span { blocks, start: 0, rows: rows.clone() }).collect();
        device.store_kv(qkv, &QkTransform { heads: self.heads, norms: None, rope: None }, &whole, kv, q);
        // A number for each 8 tokens: bits of theirs are all of it.
        let words = self.blocks() * kv_heads;
        let out = Rows { buf: device.take(16 * words)?, dtype: Dtype::F32, rows: words, cols: 4 };
        let shape = AttendShape {
            heads: self.heads,
            scale: 0.25,
            window: self.window,
            share: Some(self.share),
            cap: None,
        };
        let run = Box::new(move |device: &dyn Device| {
            let spans: Vec<Span<'_>> = sequences.iter().map(|(blocks, rows)| decode(blocks, rows)).collect();
            let chosen = device.choose(q, kv, &spans, shape);
            let pages = spans.iter().enumerate().flat_map(|(i, span)| {
                let pages = 0..span.blocks.len();
                pages.flat_map(move |page| (0..kv_heads).map(move |head| (i, head, page)))
            });
            let numbers = pages.flat_map(|(i, head, page)| chosen.tokens(i, head, page).to_le_bytes());
            let bytes: Vec<u8> = numbers.flat_map(|byte| f32::from(byte).to_le_bytes()).collect();
            device.upload(&out.buf, &bytes);
        });
        Ok(Bound { run, results: vec![Found::Rows(out)] })
    }
}

/// The last token of a sequence.
fn decode<'a>(blocks: &'a [u32], rows: &std::ops::Range<usize>) -> Span<'a> {
    Span { blocks, start: rows.len() - 1, rows: rows.end - 1..rows.end }
}
