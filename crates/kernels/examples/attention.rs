//! Speed of paged attention: decode over bf16 pages, over f16 pages and over pages of 4 bits, each against a raw read of
//! the same pages and run by turns, prefill in TFLOP/s (to be set beside `bench/torch_attention.py`), writes of keys and values
//! beside plain copies of as many bytes.
//!
//! `cargo run --release -p kernels --example attention [decode|short|prefill|write] [threads]`, with `BALLAST_ISA` to force
//! a path, `MIB` to make the pages fit a cache, and `HEADS=32/8x128` for one shape of decode.

use half::bf16;
use kernels::attention::{
    BLOCK_TOKENS, Cache, HeadOps, KvDtype, KvLayout, Queries, RopeBy, RopeTable, Rows, RowsMut, Scratch,
    Softmax, Span, attend, rope_and_write,
};
use kernels::{AlignedBytes, Isa, Mat, MatMut, Team};
use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Instant;

/// Pages that a decode measurement goes round in, unless `MIB` says otherwise: more than the last cache holds.
static POOL_BYTES: LazyLock<usize> =
    LazyLock::new(|| std::env::var("MIB").map_or(768, |n| n.parse().expect("a number of MiB")) << 20);
const ROUNDS: usize = 9;
/// Contexts and batches of decode: long ones, and many short ones, as a server has them.
const LONG: [(usize, usize); 6] = [(1024, 1), (1024, 16), (2048, 8), (1024, 64), (8192, 1), (8192, 8)];
const SHORT: [(usize, usize); 4] = [(40, 128), (140, 128), (256, 64), (420, 64)];
const FORMATS: [KvDtype; 3] = [KvDtype::Bf16, KvDtype::F16, KvDtype::Int4];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let isa = Isa::from_env().unwrap_or_else(|problem| panic!("{problem}"));
    let threads = args.get(1).map_or(2, |n| n.parse().expect("a number of threads"));
    let team = Team::new(threads);
    println!("{isa}, {threads} threads");
    let asked = |table: &str| args.first().is_none_or(|a| a == table);
    if asked("decode") {
        decode_table(&team, isa, &LONG);
    }
    if asked("short") {
        decode_table(&team, isa, &SHORT);
    }
    if asked("prefill") {
        prefill_table(&team, isa);
    }
    if asked("write") {
        write_table(&team, isa);
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
    let now = || if team.size() == 1 { cpu_seconds() } else { wall_seconds() };
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

fn decode_table(team: &Team, isa: Isa, sizes: &[(usize, usize)]) {
    println!(
        "decode: heads/kv_heads x head_dim, context, batch: GB/s of attention and of a raw read, bf16, f16, 4 bits;"
    );
    println!("tokens/s of f16 and of 4 bits over those of bf16");
    // On huge pages, as an arena is.
    let mut pool = AlignedBytes::zeroed(*POOL_BYTES);
    pool.copy_from_slice(&noise(*POOL_BYTES));
    let asked = std::env::var("HEADS");
    for (heads, kv_heads, head_dim) in [(9, 3, 64), (32, 4, 64), (16, 16, 64), (32, 8, 128), (16, 16, 128)] {
        if asked.as_ref().is_ok_and(|asked| *asked != format!("{heads}/{kv_heads}x{head_dim}")) {
            continue;
        }
        for &(context, batch) in sizes {
            let mut all = FORMATS
                .map(|dtype| Decode::new(KvLayout { kv_heads, head_dim, dtype }, heads, context, batch));
            print!("{heads:3}/{kv_heads:<2} x{head_dim:4} {context:5} b{batch:<3}");
            let needed = all.iter().map(Decode::bytes).max().unwrap_or_default();
            if needed > *POOL_BYTES {
                println!(" a call reads {} MiB: give MIB that or more", needed.div_ceil(1 << 20));
                continue;
            }
            for _ in 0..ROUNDS {
                all.iter_mut().for_each(|decode| decode.round(team, isa, &pool));
            }
            let times = all.each_ref().map(|decode| undisturbed(decode.ours.clone()));
            for (decode, ours) in all.iter().zip(times) {
                let raw = undisturbed(decode.raw.clone());
                let rate = |seconds: f64| decode.bytes() as f64 / 1e9 / seconds;
                print!(" {:6.1} {:6.1} {:4.0} % ", rate(ours), rate(raw), 100.0 * raw / ours);
            }
            println!(" {:5.2} {:5.2}", times[0] / times[1], times[0] / times[2]);
        }
    }
}

/// One shape of decode, and how long its calls took.
struct Decode {
    layout: KvLayout,
    heads: usize,
    context: usize,
    batch: usize,
    /// The pool's blocks, and how many of them were read.
    order: Vec<u32>,
    at: usize,
    ours: Vec<f64>,
    raw: Vec<f64>,
    scratch: Scratch,
}

impl Decode {
    fn new(layout: KvLayout, heads: usize, context: usize, batch: usize) -> Decode {
        let order = shuffled(*POOL_BYTES / layout.block_bytes());
        let (ours, raw) = (vec![], vec![]);
        Decode { layout, heads, context, batch, order, at: 0, ours, raw, scratch: Scratch::default() }
    }

    fn blocks(&self) -> usize {
        self.context.div_ceil(BLOCK_TOKENS) * self.batch
    }

    /// Bytes that a call reads.
    fn bytes(&self) -> usize {
        self.blocks() * self.layout.block_bytes()
    }

    /// Blocks that no call has read for a while.
    fn next(&mut self) -> Vec<u32> {
        let n = self.blocks();
        self.at = if self.at + 2 * n > self.order.len() { 0 } else { self.at };
        self.at += n;
        self.order[self.at - n..self.at].to_vec()
    }

    fn round(&mut self, team: &Team, isa: Isa, pool: &[u8]) {
        let calls = (64usize << 20).div_ceil(self.bytes()).min(self.order.len() / self.blocks());
        let (batch, cols) = (self.batch, self.heads * self.layout.head_dim);
        let q: Vec<bf16> = bytemuck::cast_slice(&noise(batch * cols * 2)).to_vec();
        let mut out = vec![bf16::ZERO; batch * cols];
        let each = self.context.div_ceil(BLOCK_TOKENS);
        for _ in 0..calls {
            let blocks = self.next();
            let span = |i: usize| Span {
                blocks: &blocks[i * each..][..each],
                start: self.context - 1,
                rows: i..i + 1,
            };
            let spans: Vec<Span<'_>> = (0..batch).map(span).collect();
            let queries = Queries { rows: Rows::Bf16(Mat::new(&q, batch, cols)), spans: &spans };
            let softmax = Softmax { scale: 0.125, window: None, share: None, cap: None };
            let cache = Cache { bytes: pool, layout: self.layout };
            let result = RowsMut::Bf16(MatMut::new(&mut out, batch, cols));
            let scratch = &mut self.scratch;
            self.ours.push(seconds(team, || attend(team, isa, queries, cache, softmax, result, scratch)));
        }
        for _ in 0..calls {
            let blocks = self.next();
            self.raw.push(seconds(team, || raw_read(team, pool, &blocks, self.layout.block_bytes())));
        }
    }
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
    println!(
        "causal prefill: heads/kv_heads x head_dim, tokens: TFLOP/s (half of the square counted), bf16, f16, 4 bits"
    );
    for (heads, kv_heads, head_dim) in [(8, 8, 64), (9, 3, 64), (8, 8, 128), (8, 2, 128)] {
        for tokens in [512, 1024, 2048, 4096, 8192] {
            let [bf16, f16, four] = FORMATS
                .map(|dtype| prefill(team, isa, KvLayout { kv_heads, head_dim, dtype }, heads, tokens));
            println!("{heads:3}/{kv_heads:<2} x{head_dim:4} {tokens:5} {bf16:6.3} {f16:6.3} {four:6.3}");
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
            let softmax = Softmax { scale: 0.125, window: None, share: None, cap: None };
            attend(team, isa, queries, Cache { bytes: &pages, layout }, softmax, result, &mut scratch);
        }));
    }
    2.0 * (tokens * tokens * cols) as f64 / undisturbed(times) / 1e12
}

fn write_table(team: &Team, isa: Isa) {
    println!(
        "writes: heads/kv_heads x head_dim, rows x tokens: us of bf16, of a plain copy of q, k and v, of f16, of 4 bits"
    );
    for (heads, kv_heads, head_dim) in [(9, 3, 64), (32, 8, 128)] {
        for (rows, tokens) in [(1, 1), (128, 1), (1, 512)] {
            let mut all =
                FORMATS.map(|dtype| Write::new(KvLayout { kv_heads, head_dim, dtype }, heads, rows, tokens));
            for _ in 0..ROUNDS {
                all.iter_mut().for_each(|write| write.round(team, isa));
            }
            let [(bf16, copy), (f16, _), (four, _)] = all.map(|w| (undisturbed(w.ours), undisturbed(w.copy)));
            let [bf16, copy, f16, four] = [bf16, copy, f16, four].map(|seconds| 1e6 * seconds);
            println!(
                "{heads:3}/{kv_heads:<2} x{head_dim:4} {rows:4} x{tokens:4} {bf16:8.1} {copy:8.1} {f16:8.1} {four:8.1}"
            );
        }
    }
}

/// A batch of sequences that get some tokens each, and how long that took.
struct Write {
    layout: KvLayout,
    heads: usize,
    rows: usize,
    tokens: usize,
    /// The layers' pages, which calls go round in.
    pool: AlignedBytes,
    order: Vec<u32>,
    ours: Vec<f64>,
    copy: Vec<f64>,
}

impl Write {
    /// Where a decode's token is in its page.
    const START: usize = 135;

    fn new(layout: KvLayout, heads: usize, rows: usize, tokens: usize) -> Write {
        let mut pool = AlignedBytes::zeroed(192 << 20);
        pool.fill(1);
        let order = shuffled(pool.len() / layout.block_bytes());
        Write { layout, heads, rows, tokens, pool, order, ours: vec![], copy: vec![] }
    }

    fn round(&mut self, team: &Team, isa: Isa) {
        let (d, rows) = (self.layout.head_dim, self.rows * self.tokens);
        let (q_cols, cols) = (self.heads * d, (self.heads + 2 * self.layout.kv_heads) * d);
        let qkv: Vec<f32> = noise(rows * cols * 2).chunks_exact(2).map(|b| f32::from(b[0]) - 128.0).collect();
        let mut q = vec![bf16::ZERO; rows * q_cols];
        let table = vec![0.7; 1024 * d / 2];
        let rope = RopeTable { by: RopeBy::Position, cos: &table, sin: &table, rotary_dim: d, growth: None };
        let others = vec![1u8; 4 << 20];
        let start = if self.tokens == 1 { Self::START } else { 0 };
        let each = (start + self.tokens).div_ceil(BLOCK_TOKENS);
        for blocks in self.order.chunks_exact(self.rows * each).take(64) {
            let span = |i: usize| Span {
                blocks: &blocks[i * each..][..each],
                start,
                rows: i * self.tokens..(i + 1) * self.tokens,
            };
            let spans: Vec<Span<'_>> = (0..self.rows).map(span).collect();
            let (ops, into) =
                (HeadOps { norm: None, rope: Some(rope) }, RowsMut::Bf16(MatMut::new(&mut q, rows, q_cols)));
            let (values, pool) = (Mat::new(&qkv, rows, cols), &mut self.pool);
            // As the products between two calls do: rows come from the last cache, pages from memory.
            black_box(others.iter().map(|&byte| u64::from(byte)).sum::<u64>());
            self.ours.push(seconds(team, || {
                rope_and_write(team, isa, values, &spans, ops, self.layout, into, pool)
            }));
        }
        // As many bytes as are read, or written in halves.
        let (from, to) = (bytemuck::cast_slice::<f32, u8>(&qkv), &mut self.pool);
        for to in to.chunks_exact_mut(from.len() / 2).take(64) {
            self.copy.push(seconds(team, || to.copy_from_slice(black_box(&from[..to.len()]))));
        }
    }
}
