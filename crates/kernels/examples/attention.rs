//! Speed of paged attention: decode against a raw read of the same pages, prefill in TFLOP/s (to be set
//! beside `bench/torch_attention.py`).
//!
//! `cargo run --release -p kernels --example attention [decode|prefill] [threads]`, with `BALLAST_ISA` to force
//! a path.

use half::bf16;
use kernels::attention::{
    BLOCK_TOKENS, Cache, KvDtype, KvLayout, Queries, Rows, RowsMut, Scratch, Softmax, Span, attend,
};
use kernels::{Isa, Mat, MatMut, Team};
use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Instant;

/// Pages that a decode measurement goes round in: more than the last cache holds.
const POOL_BYTES: usize = 768 << 20;
const ROUNDS: usize = 9;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let isa = Isa::from_env().unwrap_or_else(|problem| panic!("{problem}"));
    let threads = args.get(1).map_or(2, |n| n.parse().expect("a number of threads"));
    let team = Team::new(threads);
    println!("{isa}, {threads} threads");
    if args.first().is_none_or(|a| a == "decode") {
        decode_table(&team, isa);
    }
    if args.first().is_none_or(|a| a == "prefill") {
        prefill_table(&team, isa);
    }
}

/// Bytes that look like random finite numbers.
fn noise(bytes: usize) -> Vec<u8> {
    let values: Vec<bf16> = (0..4096)
        .scan(1u32, |s, _| {
            *s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some(bf16::from_f32((*s >> 8) as f32 / (1 << 23) as f32 - 1.0))
        })
        .collect();
    bytemuck::cast_slice::<bf16, u8>(&values).iter().copied().cycle().take(bytes).collect()
}

fn shuffled(n: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let mut s = 88_172_645_463_325_252u64;
    for i in (1..n).rev() {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        order.swap(i, (s % (i as u64 + 1)) as usize);
    }
    order
}

/// The time that a tenth of the runs stay under: what the machine does while nobody else uses it.
fn undisturbed(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// Seconds that `run` takes: of the clock for a team, of this thread's CPU time for one thread alone (which
/// a busy machine disturbs less).
fn seconds(team: &Team, run: impl FnOnce()) -> f64 {
    let now = || if team.threads() == 1 { cpu_seconds() } else { wall_seconds() };
    let start = now();
    run();
    now() - start
}

fn wall_seconds() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}

fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn decode_table(team: &Team, isa: Isa) {
    println!("decode: heads/kv_heads x head_dim, context, batch: GB/s of attention and of a raw read");
    let pool = noise(POOL_BYTES);
    for (heads, kv_heads, head_dim) in [(9, 3, 64), (32, 4, 64), (16, 16, 64), (32, 8, 128), (16, 16, 128)] {
        let layout = KvLayout { kv_heads, head_dim, dtype: KvDtype::Bf16 };
        let order = shuffled(POOL_BYTES / layout.block_bytes());
        for (context, batch) in [(1024, 1), (1024, 16), (1024, 64), (8192, 1), (8192, 8)] {
            let (ours, raw) = decode(team, isa, &pool, &order, layout, heads, context, batch);
            let ratio = 100.0 * ours / raw;
            println!(
                "{heads:3}/{kv_heads:<2} x{head_dim:4} {context:5} b{batch:<3} {ours:6.1} {raw:6.1}  {ratio:4.0} %"
            );
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn decode(
    team: &Team,
    isa: Isa,
    pool: &[u8],
    order: &[u32],
    layout: KvLayout,
    heads: usize,
    context: usize,
    batch: usize,
) -> (f64, f64) {
    let cols = heads * layout.head_dim;
    let q: Vec<bf16> = bytemuck::cast_slice(&noise(batch * cols * 2)).to_vec();
    let mut out = vec![bf16::ZERO; batch * cols];
    let mut scratch = Scratch::default();
    let each = context / BLOCK_TOKENS;
    let per_call = each * batch * layout.block_bytes();
    let calls = (64usize << 20).div_ceil(per_call).min(order.len() / (each * batch));
    let mut at = 0;
    let (mut ours, mut raw) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        for _ in 0..calls {
            // Each call reads pages that no call has read for a while.
            at = if at + 2 * each * batch > order.len() { 0 } else { at };
            let blocks = &order[at..at + each * batch];
            at += each * batch;
            let spans: Vec<Span<'_>> = (0..batch)
                .map(|i| Span { blocks: &blocks[i * each..][..each], start: context - 1, rows: i..i + 1 })
                .collect();
            let queries = Queries { rows: Rows::Bf16(Mat::new(&q, batch, cols)), spans: &spans };
            let softmax = Softmax { scale: 0.125, window: None };
            let cache = Cache { bytes: pool, layout };
            let result = RowsMut::Bf16(MatMut::new(&mut out, batch, cols));
            ours.push(seconds(team, || attend(team, isa, queries, cache, softmax, result, &mut scratch)));
        }
        for _ in 0..calls {
            at = if at + 2 * each * batch > order.len() { 0 } else { at };
            let blocks = &order[at..at + each * batch];
            at += each * batch;
            raw.push(seconds(team, || raw_read(team, pool, blocks, layout.block_bytes())));
        }
    }
    let gigabytes = per_call as f64 / 1e9;
    (gigabytes / undisturbed(ours), gigabytes / undisturbed(raw))
}

fn raw_read(team: &Team, pool: &[u8], blocks: &[u32], block_bytes: usize) {
    team.run(|w| {
        let mut sums = [0u64; 8];
        for &block in &blocks[w.share(blocks.len())] {
            let words: &[u64] = bytemuck::cast_slice(&pool[block as usize * block_bytes..][..block_bytes]);
            for words in words.chunks_exact(8) {
                for (sum, word) in sums.iter_mut().zip(words) {
                    *sum = sum.wrapping_add(*word);
                }
            }
        }
        black_box(sums);
    });
}

fn prefill_table(team: &Team, isa: Isa) {
    println!("causal prefill: heads/kv_heads x head_dim, tokens: TFLOP/s (half of the square counted)");
    for (heads, kv_heads, head_dim) in [(8, 8, 64), (9, 3, 64), (8, 8, 128), (8, 2, 128)] {
        for tokens in [512, 1024, 2048, 4096, 8192] {
            let tflops =
                prefill(team, isa, KvLayout { kv_heads, head_dim, dtype: KvDtype::Bf16 }, heads, tokens);
            println!("{heads:3}/{kv_heads:<2} x{head_dim:4} {tokens:5} {tflops:6.3}");
        }
    }
}

fn prefill(team: &Team, isa: Isa, layout: KvLayout, heads: usize, tokens: usize) -> f64 {
    let cols = heads * layout.head_dim;
    let q: Vec<bf16> = bytemuck::cast_slice(&noise(tokens * cols * 2)).to_vec();
    let mut out = vec![bf16::ZERO; tokens * cols];
    let order = shuffled(tokens / BLOCK_TOKENS);
    let pages = noise(order.len() * layout.block_bytes());
    let spans = [Span { blocks: &order, start: 0, rows: 0..tokens }];
    let mut scratch = Scratch::default();
    let mut times = vec![];
    for _ in 0..ROUNDS {
        times.push(seconds(team, || {
            let queries = Queries { rows: Rows::Bf16(Mat::new(&q, tokens, cols)), spans: &spans };
            let result = RowsMut::Bf16(MatMut::new(&mut out, tokens, cols));
            let softmax = Softmax { scale: 0.125, window: None };
            attend(team, isa, queries, Cache { bytes: &pages, layout }, softmax, result, &mut scratch);
        }));
    }
    2.0 * (tokens * tokens * cols) as f64 / undisturbed(times) / 1e12
}
