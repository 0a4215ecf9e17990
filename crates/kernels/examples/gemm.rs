//! Speed of linear layers on the shapes of real models, beside what the machine can do in the same run.
//!
//! Best and median times. On one thread they are the thread's processor time, so that neighbours on a
//! busy machine disturb less.
//!
//! `cargo run --release -p kernels --example gemm -- [isa [threads [rows,rows.. [k,n [format]]]]]`

use std::time::Instant;

use half::bf16;
use kernels::calibrate::{ReadRegion, product_rate};
use kernels::linear::{
    Activated, Activation, Format, Input, Output, PANEL_ROWS, Part, RowOrder, Weight, linear, pack_bf12,
    packed_bytes,
};
use kernels::{AlignedBytes, Isa, Mat, MatMut, Team};

/// Weights to walk over, so that a product reads memory and not a cache.
const WALK_BYTES: usize = 800 << 20;
const BUDGET_S: f64 = 0.15;

#[derive(Clone, Copy)]
struct Shape {
    what: &'static str,
    k: usize,
    n: usize,
    order: RowOrder,
}

const SHAPES: [Shape; 11] = [
    Shape { what: "square", k: 2048, n: 2048, order: RowOrder::Plain },
    Shape { what: "square", k: 4096, n: 4096, order: RowOrder::Plain },
    Shape { what: "SmolLM2 qkv", k: 576, n: 960, order: RowOrder::Plain },
    Shape { what: "SmolLM2 out", k: 576, n: 576, order: RowOrder::Plain },
    Shape { what: "SmolLM2 gate, up", k: 576, n: 3072, order: RowOrder::Gated },
    Shape { what: "SmolLM2 down", k: 1536, n: 576, order: RowOrder::Plain },
    Shape { what: "SmolLM2 head", k: 576, n: 49152, order: RowOrder::Plain },
    Shape { what: "1.1B qkv", k: 2048, n: 2560, order: RowOrder::Plain },
    Shape { what: "1.1B gate, up", k: 2048, n: 11264, order: RowOrder::Gated },
    Shape { what: "1.1B down", k: 5632, n: 2048, order: RowOrder::Plain },
    Shape { what: "1.1B head", k: 2048, n: 49152, order: RowOrder::Plain },
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers = |i: usize| -> Option<Vec<usize>> {
        args.get(i).map(|list| list.split(',').map(|n| n.parse().expect("a number")).collect())
    };
    let isa = args.first().map_or(Isa::detect(), |name| name.parse().expect("an instruction set"));
    let team = Team::new(numbers(1).map_or(2, |n| n[0]));
    let rows = numbers(2).unwrap_or(vec![1, 8, 32, 128, 512, 2048]);
    let shapes = match numbers(3) {
        Some(kn) => vec![Shape { what: "asked", k: kn[0], n: kn[1], order: RowOrder::Plain }],
        None => SHAPES.to_vec(),
    };
    let format = match args.get(4).map(String::as_str) {
        None | Some("bf16") => Format::Bf16,
        Some("bf12") => Format::Bf12,
        Some("f32") => Format::F32,
        Some(other) => panic!("{other}: expected bf16, bf12 or f32"),
    };
    let region = ReadRegion::default();
    println!("{isa}, {} threads, {format:?}", team.size());
    for shape in shapes {
        let peak = product_rate(&team, isa).unwrap_or(f64::NAN);
        let read = region.bandwidth(&team);
        println!(
            "{} k={} n={}   (registers {:.3} TFLOP/s, plain read {:.1} GB/s)",
            shape.what,
            shape.k,
            shape.n,
            peak / 1e12,
            read / 1e9
        );
        for &m in &rows {
            let (seconds, median) = measure(&team, isa, format, shape, m);
            let bytes = packed_bytes(format, shape.order, shape.n, shape.k) as f64;
            let flops = 2.0 * (m * shape.n * shape.k) as f64;
            println!(
                "  m={m:5} {:9.3} ms (median {:9.3})  {:6.3} TFLOP/s ({:3.0} % of registers)  {:5.1} GB/s ({:3.0} % of read)",
                seconds * 1e3,
                median * 1e3,
                flops / seconds / 1e12,
                100.0 * flops / seconds / peak,
                bytes / seconds / 1e9,
                100.0 * bytes / seconds / read,
            );
        }
    }
}

fn measure(team: &Team, isa: Isa, format: Format, shape: Shape, m: usize) -> (f64, f64) {
    let bytes = packed_bytes(format, shape.order, shape.n, shape.k);
    let copies = WALK_BYTES.div_ceil(bytes);
    let mut packed = AlignedBytes::zeroed(copies * bytes);
    match format {
        Format::Bf12 => fill_panels(shape.k, &mut packed),
        _ => fill(format, &mut packed),
    }
    let x: Vec<f32> = (0..m * shape.k).map(|i| (i % 251) as f32 * 0.01 - 1.25).collect();
    let mut narrow = AlignedBytes::zeroed(2 * x.len());
    let narrow: &mut [bf16] = bytemuck::cast_slice_mut(&mut narrow);
    narrow.iter_mut().zip(&x).for_each(|(to, x)| *to = bf16::from_f32(*x));
    let cols = if shape.order == RowOrder::Gated { shape.n / 2 } else { shape.n };
    let mut out = AlignedBytes::zeroed(2 * m * cols);
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < 5 || began.elapsed().as_secs_f64() < BUDGET_S {
        let copy = times.len() % copies;
        let part = Part { first_panel: 0, bytes: &packed[copy * bytes..][..bytes] };
        let w = Weight::new(format, shape.n, shape.k, shape.order, vec![part]);
        let input = match format {
            Format::F32 => Input::F32(Mat::new(&x, m, shape.k)),
            _ => Input::Bf16(Mat::new(narrow, m, shape.k)),
        };
        let out = MatMut::new(bytemuck::cast_slice_mut(&mut out), m, cols);
        let start = now(team);
        match shape.order {
            RowOrder::Plain => linear(team, isa, input, &w, None, Output::StoreBf16(out)),
            RowOrder::Gated => {
                let out = Activated::Bf16(out);
                linear(team, isa, input, &w, None, Output::Gated { kind: Activation::Silu, out });
            }
        }
        times.push(now(team) - start);
    }
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

/// Seconds: this thread's own where it works alone.
fn now(team: &Team) -> f64 {
    let clock = if team.size() == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime writes one timespec.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Plausible weights of either width.
fn fill(format: Format, packed: &mut [u8]) {
    for (i, value) in packed.chunks_exact_mut(4).enumerate() {
        let (a, b) = ((i % 113) as f32 * 0.01 - 0.5, (i % 127) as f32 * 0.01 - 0.6);
        match format {
            Format::F32 => value.copy_from_slice(&a.to_le_bytes()),
            _ => {
                value[..2].copy_from_slice(&bf16::from_f32(a).to_le_bytes());
                value[2..].copy_from_slice(&bf16::from_f32(b).to_le_bytes());
            }
        }
    }
}

/// One panel of plausible weights, again and again.
fn fill_panels(k: usize, packed: &mut [u8]) {
    let weights: Vec<bf16> =
        (0..PANEL_ROWS * k).map(|i| bf16::from_f32((i % 113) as f32 * 0.01 - 0.5)).collect();
    let mut panel = vec![0; packed_bytes(Format::Bf12, RowOrder::Plain, PANEL_ROWS, k)];
    pack_bf12(Mat::new(&weights, PANEL_ROWS, k), RowOrder::Plain, 0..1, &mut panel).expect("few exponents");
    packed.chunks_exact_mut(panel.len()).for_each(|to| to.copy_from_slice(&panel));
}
