//! Speed of linear layers with narrow weights: stored bytes per second, against reading as many bytes.
//!
//! `cargo run --release -p kernels --example quant [ISA] [FORMAT..]`; `THREADS`, `MIB` (of weights), `INT` (x rounded to
//! 8 or 16 bits) and `ROWS` (of x, only so many) are read from the environment. Every call multiplies the next of many
//! copies, so that weights come from memory. Times are those of a whole call; the least and the tenth percentile are
//! shown, for machines with other work to do.

use std::time::Instant;

use half::bf16;
use kernels::linear::quant::Narrow;
use kernels::linear::{Activations, Format, Input, Output, Part, RowOrder, Weight, linear, packed_bytes};
use kernels::{AlignedBytes, Isa, Mat, MatMut, Team};

const SHAPES: [(&str, usize, usize); 6] = [
    ("135M qkv", 960, 576),
    ("135M down", 576, 1536),
    ("135M head", 49152, 576),
    ("1.1B qkv", 2560, 2048),
    ("1.1B up", 11264, 2048),
    ("1.1B down", 2048, 5632),
];
const ROWS: [usize; 9] = [1, 2, 3, 4, 8, 16, 32, 128, 512];

fn main() {
    let mut args = std::env::args().skip(1);
    let isa = args.next().map_or_else(Isa::detect, |name| name.parse().expect("an instruction set"));
    let wanted: Vec<String> = args.collect();
    let team = Team::new(setting("THREADS", 2));
    let mut bytes = AlignedBytes::zeroed(setting("MIB", 640) << 20);
    // Codes and scales of 0.0-something in every format, whatever their place.
    for (i, words) in bytes.chunks_exact_mut(8).enumerate() {
        words.copy_from_slice(&[
            (i * 37) as u8,
            0x1c,
            (i * 91) as u8,
            0x1d,
            (i * 53) as u8,
            0x1e,
            (i * 11) as u8,
            0x1f,
        ]);
    }
    println!("{isa}, {} threads; GB/s stored: best, tenth percentile (reading: the same)", team.size());
    for format in Narrow::ALL {
        let name = format!("{format:?}");
        if wanted.is_empty() || wanted.contains(&name) {
            for (shape, n, k) in SHAPES {
                run(&team, isa, format, &format!("{name} {shape}"), n, k, &bytes);
            }
        }
    }
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn run(team: &Team, isa: Isa, format: Narrow, name: &str, n: usize, k: usize, bytes: &[u8]) {
    let size = packed_bytes(Format::Narrow(format), RowOrder::Plain, n, k);
    if !k.is_multiple_of(format.block()) && format.block() == 256 || size > bytes.len() {
        return;
    }
    let activations = match setting("INT", 0) {
        8 => Activations::Int8,
        16 => Activations::Int16,
        _ => Activations::Exact,
    };
    let weights: Vec<Weight<'_>> = bytes
        .chunks_exact(size)
        .map(|bytes| {
            let part = Part { first_panel: 0, bytes };
            Weight::new(Format::Narrow(format), n, k, RowOrder::Plain, vec![part])
                .with_activations(activations)
        })
        .collect();
    print!("{name:18}");
    let only = setting("ROWS", 0);
    for rows in ROWS.into_iter().filter(|rows| only == 0 || only == *rows) {
        let x = vec![bf16::from_f32(0.5); rows * k];
        let mut y = vec![0.0; rows * n];
        let speed = time(&weights, size, |w| {
            let out = Output::StoreF32(MatMut::new(&mut y, rows, n));
            linear(team, isa, Input::Bf16(Mat::new(&x, rows, k)), w, None, out);
        });
        print!("  {rows:3}: {speed}");
    }
    println!("  ({})", time(&weights, size, |w| read(team, w.parts()[0].bytes)));
}

/// Best and tenth percentile of `size` over the time of a call, in GB/s.
fn time(weights: &[Weight<'_>], size: usize, mut call: impl FnMut(&Weight<'_>)) -> String {
    let calls = (400_000_000 / size).clamp(20, 400);
    let mut seconds: Vec<f64> = weights
        .iter()
        .cycle()
        .take(calls)
        .map(|w| {
            let start = Instant::now();
            call(w);
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let speed = |i: usize| size as f64 / seconds[i] / 1e9;
    format!("{:5.2} {:5.2}", speed(0), speed(seconds.len() / 10))
}

/// Reads all bytes, each worker one stretch.
fn read(team: &Team, bytes: &[u8]) {
    team.run(|worker| {
        let lines = bytes.as_chunks::<64>().0;
        let sum = lines[worker.share(lines.len())].iter().fold([0u64; 8], |mut sums, line| {
            for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum ^= u64::from_le_bytes(*word);
            }
            sums
        });
        std::hint::black_box(sum);
    });
}
