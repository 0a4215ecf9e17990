//! The decoder against Hugging Face transformers on tiny checkpoints of every architecture and RoPE variant
//! (`tests/golden/README.md`), in f32 and in bf16.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernels::attention::{BLOCK_TOKENS, KvDtype, KvLayout, Span};
use kernels::device::{Device, Dtype, KvPages};
use kernels::{CpuDevice, Isa, Team};
use model::Checkpoint;
use model::decoder::{Batch, Blueprint, Decoder, Loader, WeightsAs, Work, WorkSize};
use serde::Deserialize;

/// Longest sequence of the goldens, rounded up.
const MAX_LEN: usize = 352;

#[derive(Deserialize)]
struct Golden {
    prompt: Vec<u32>,
    columns: Vec<usize>,
    f32: Results,
    bf16: Results,
}

#[derive(Deserialize)]
struct Results {
    largest: f32,
    logits: Vec<Vec<f32>>,
    last: Vec<f32>,
    greedy: Vec<u32>,
}

/// One sequence on a CPU device.
struct Runner {
    device: CpuDevice,
    decoder: Decoder,
    kv: Vec<KvPages>,
    work: Work,
    blocks: Vec<u32>,
}

impl Runner {
    fn load(path: &Path, weights: WeightsAs, isa: Isa) -> Runner {
        let checkpoint = Checkpoint::open(path).unwrap();
        let spec = checkpoint.spec().clone();
        let team = Arc::new(Team::new(2));
        let mut device = CpuDevice::new(64 << 20, Arc::clone(&team), isa).unwrap();
        let blueprint = Blueprint::new(&spec, weights, |t| checkpoint.info(t).unwrap().stored);
        let loader = Loader { checkpoint: &checkpoint, team: &team, positions: MAX_LEN, progress: &|_| {} };
        let decoder = Decoder::new(spec.clone(), loader.load(&blueprint, &mut device).unwrap());
        let wide = weights == WeightsAs::F32;
        let dtype = if wide { Dtype::F32 } else { Dtype::Bf16 };
        let size = WorkSize { tokens: MAX_LEN, samples: MAX_LEN, dtype };
        let work = Work::take(&mut device, &spec, size).unwrap();
        let layout = KvLayout {
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            dtype: if wide { KvDtype::F32 } else { KvDtype::Bf16 },
        };
        let n_blocks = MAX_LEN / BLOCK_TOKENS;
        let pages = |_| KvPages { layout, buf: device.take(n_blocks * layout.block_bytes()).unwrap() };
        let kv = (0..spec.layers).map(pages).collect();
        // Not in order: a page's place must not matter.
        let blocks = (0..n_blocks as u32).rev().collect();
        Runner { device, decoder, kv, work, blocks }
    }

    /// Logits after each of `ids`, which stand at `start` and after. `prompt`: how long the prompt is.
    fn logits(&self, ids: &[u32], start: usize, prompt: usize) -> Vec<Vec<f32>> {
        let positions: Vec<u32> = (start..start + ids.len()).map(|p| p as u32).collect();
        let lengths: Vec<u32> = positions.iter().map(|p| (p + 1).max(prompt as u32)).collect();
        let spans = [Span { blocks: &self.blocks, start, rows: 0..ids.len() }];
        let samples: Vec<u32> = (0..ids.len() as u32).collect();
        let batch = Batch { ids, positions: &positions, lengths: &lengths, spans: &spans, samples: &samples };
        let (decoder, device, work) = (&self.decoder, &self.device, &self.work);
        decoder.embed(device, &batch, work);
        for (layer, kv) in self.kv.iter().enumerate() {
            decoder.qkv(device, layer, &batch, *kv, work);
            decoder.attend(device, layer, &batch, *kv, work);
            decoder.out_proj(device, layer, ids.len(), work);
            decoder.mlp(device, layer, ids.len(), work);
        }
        let rows = decoder.head(device, &samples, work);
        let mut logits = Vec::new();
        device.view(&rows.buf, &mut |bytes| {
            let values: Vec<f32> =
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            logits = values.chunks_exact(rows.cols).map(<[f32]>::to_vec).collect();
        });
        logits
    }

    fn greedy(&self, prompt: &[u32], n: usize) -> Vec<u32> {
        let mut ids = prompt.to_vec();
        let mut logits = self.logits(prompt, 0, prompt.len());
        while ids.len() < prompt.len() + n {
            let row = logits.last().unwrap();
            let best = (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
            ids.push(best as u32);
            logits = self.logits(&ids[ids.len() - 1..], ids.len() - 1, prompt.len());
        }
        ids.split_off(prompt.len())
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn goldens() -> Vec<(String, PathBuf, Golden)> {
    let mut all: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| {
            let golden = serde_json::from_slice(&std::fs::read(path.join("golden.json")).unwrap()).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let gguf = path.join("model.gguf");
            (name, if gguf.exists() { gguf } else { path }, golden)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(all.len() >= 20, "goldens are missing from {}", folder().display());
    all
}

/// The largest difference from the golden logits, over the largest of them.
fn distance(golden: &Golden, want: &Results, got: &[Vec<f32>]) -> f32 {
    let chosen =
        got.iter().zip(&want.logits).flat_map(|(got, want)| golden.columns.iter().map(|c| got[*c]).zip(want));
    let last = got.last().unwrap().iter().copied().zip(&want.last);
    chosen.chain(last).fold(0f32, |worst, (got, want)| worst.max((got - want).abs())) / want.largest
}

fn check(weights: WeightsAs, tolerance: f32, of: impl Fn(&Golden) -> &Results) {
    let mut wrong = Vec::new();
    for (name, path, golden) in goldens() {
        let runner = Runner::load(&path, weights, Isa::detect());
        let want = of(&golden);
        let far = distance(&golden, want, &runner.logits(&golden.prompt, 0, golden.prompt.len()));
        if far.is_nan() || far > tolerance {
            wrong.push(format!("{name}: logits differ by {far:.1e} of the largest"));
        }
        if runner.greedy(&golden.prompt, want.greedy.len()) != want.greedy {
            wrong.push(format!("{name}: greedy tokens differ"));
        }
    }
    assert!(wrong.is_empty(), "{weights:?} beyond {tolerance}:\n{}", wrong.join("\n"));
}

#[test]
fn f32_logits_and_tokens_are_those_of_transformers() {
    check(WeightsAs::F32, 1e-4, |golden| &golden.f32);
}

#[test]
fn bf16_logits_and_tokens_are_those_of_transformers() {
    check(WeightsAs::Bf16, 0.02, |golden| &golden.bf16);
}

#[test]
fn packed_weights_give_what_the_file_says() {
    check(WeightsAs::Stored, 0.02, |golden| &golden.bf16);
}

#[test]
fn chunks_give_the_bits_of_the_whole() {
    for (name, path, golden) in goldens() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let runner = Runner::load(&path, WeightsAs::Bf16, isa);
            let n = golden.prompt.len();
            let whole = runner.logits(&golden.prompt, 0, n);
            let mut start = 0;
            for len in [1, 7, n / 2, n] {
                let end = (start + len).min(n);
                let part = runner.logits(&golden.prompt[start..end], start, n);
                assert_eq!(part, whole[start..end], "{name} on {isa}: rows {start}..{end}");
                start = end;
                if start == n {
                    break;
                }
            }
        }
    }
}
