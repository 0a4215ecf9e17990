//! The decoder against Hugging Face transformers on tiny checkpoints of every architecture and RoPE variant
//! (`tests/golden/README.md`), in f32 and in bf16, on every instruction set that the machine has.

mod runner;

use std::path::{Path, PathBuf};

use kernels::Isa;
use model::decoder::WeightsAs;
use runner::Runner;
use serde::Deserialize;

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

/// `n` tokens after a prompt, the likeliest each time.
fn greedy(runner: &Runner, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    let mut logits = runner.logits(prompt, 0, prompt.len());
    while ids.len() < prompt.len() + n {
        let row = logits.last().unwrap();
        let best = (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        ids.push(best as u32);
        logits = runner.logits(&ids[ids.len() - 1..], ids.len() - 1, prompt.len());
    }
    ids.split_off(prompt.len())
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
    assert!(all.len() >= 48, "goldens are missing from {}", folder().display());
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
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let runner = Runner::load(&path, weights, isa);
            let want = of(&golden);
            let far = distance(&golden, want, &runner.logits(&golden.prompt, 0, golden.prompt.len()));
            if far.is_nan() || far > tolerance {
                wrong.push(format!("{name} on {isa}: logits differ by {far:.1e} of the largest"));
            }
            if greedy(&runner, &golden.prompt, want.greedy.len()) != want.greedy {
                wrong.push(format!("{name} on {isa}: greedy tokens differ"));
            }
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
fn twelve_bits_give_the_bits_of_sixteen() {
    for (name, path, golden) in goldens() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let [wide, packed] = [WeightsAs::Bf16, WeightsAs::Bf12].map(|weights| {
                let runner = Runner::load(&path, weights, isa);
                runner.logits(&golden.prompt, 0, golden.prompt.len())
            });
            assert_eq!(wide, packed, "{name} on {isa}");
        }
    }
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
