//! Every instruction set against plain f64 attention, and against itself in other arrangements.

mod capped;
mod halves;
mod range;
mod stored;

use half::bf16;
use kernels::attention::{
    BLOCK_TOKENS, Cache, Demand, HeadNorm, HeadOps, KvDtype, KvLayout, Queries, RopeBy, RopeTable, Rows,
    RowsMut, SPLIT_TOKENS, Scratch, Softmax, Span, attend, rope_and_write,
};
use kernels::{Isa, Mat, MatMut, Team};

/// The shape of one test.
#[derive(Clone, Debug)]
struct Case {
    kv_heads: usize,
    /// Query heads for each head of keys and values.
    group: usize,
    head_dim: usize,
    dtype: KvDtype,
    window: Option<usize>,
    share: Option<f32>,
    cap: Option<f32>,
    /// Tokens of each sequence.
    lengths: Vec<usize>,
}

impl Case {
    fn new(kv_heads: usize, group: usize, head_dim: usize, lengths: &[usize]) -> Case {
        let (dtype, lengths) = (KvDtype::Bf16, lengths.to_vec());
        Case { kv_heads, group, head_dim, dtype, window: None, share: None, cap: None, lengths }
    }
    fn window(self, window: usize) -> Case {
        Case { window: Some(window), ..self }
    }
    fn f32(self) -> Case {
        Case { dtype: KvDtype::F32, ..self }
    }
    fn f16(self) -> Case {
        Case { dtype: KvDtype::F16, ..self }
    }
    fn fp8(self) -> Case {
        Case { dtype: KvDtype::Fp8, ..self }
    }
    fn int4(self) -> Case {
        Case { dtype: KvDtype::Int4, ..self }
    }
    fn share(self, share: f32) -> Case {
        Case { share: Some(share), ..self }
    }
    fn cap(self, cap: f32) -> Case {
        Case { cap: Some(cap), ..self }
    }
    fn layout(&self) -> KvLayout {
        KvLayout { kv_heads: self.kv_heads, head_dim: self.head_dim, dtype: self.dtype }
    }
    fn q_cols(&self) -> usize {
        self.kv_heads * self.group * self.head_dim
    }
    fn qkv_cols(&self) -> usize {
        self.q_cols() + 2 * self.kv_heads * self.head_dim
    }
    fn softmax(&self) -> Softmax {
        let Case { head_dim, window, share, cap, .. } = *self;
        Softmax { scale: 1.0 / (head_dim as f32).sqrt(), window, share, cap }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// A bf16 value in -2..2, as f32.
    fn value(&mut self) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u64 << 24) as f32;
        bf16::from_f32(4.0 * unit - 2.0).to_f32()
    }
    fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            order.swap(i, self.next() as usize % (i + 1));
        }
        order
    }
}

/// Rows of one sequence in one call: sequence, first position, rows.
type Piece = (usize, usize, usize);

/// Sequences with their projections and their (shuffled, poisoned) pages.
struct World {
    case: Case,
    /// `[sequence][position][qkv_cols]`
    qkv: Vec<Vec<f32>>,
    blocks: Vec<Vec<u32>>,
    cache: Vec<u8>,
    scratch: Scratch,
    /// `[sequence][position][q_cols]`
    results: Vec<Vec<f32>>,
}

impl World {
    fn new(case: &Case, page_seed: u64) -> World {
        let mut random = Random(7);
        let qkv: Vec<Vec<f32>> =
            case.lengths.iter().map(|n| (0..n * case.qkv_cols()).map(|_| random.value()).collect()).collect();
        let needs = || case.lengths.iter().map(|n| n.div_ceil(BLOCK_TOKENS));
        let n_blocks = needs().sum::<usize>() + 2;
        let mut order = Random(page_seed).shuffled(n_blocks).into_iter();
        let blocks = needs().map(|n| order.by_ref().take(n).collect()).collect();
        // All bits set is a NaN in all types: what is not written must not be seen.
        let cache = vec![0xff; n_blocks * case.layout().block_bytes()];
        let results = case.lengths.iter().map(|n| vec![f32::NAN; n * case.q_cols()]).collect();
        World { case: case.clone(), qkv, blocks, cache, scratch: Scratch::default(), results }
    }

    /// One call with these pieces as its batch, in this order.
    fn call(&mut self, team: &Team, isa: Isa, pieces: &[Piece]) {
        let (q_cols, cols) = (self.case.q_cols(), self.case.qkv_cols());
        let blocks = self.blocks.clone();
        let mut qkv = vec![];
        let mut spans = vec![];
        for &(seq, start, rows) in pieces {
            let first = qkv.len() / cols;
            qkv.extend_from_slice(&self.qkv[seq][start * cols..(start + rows) * cols]);
            spans.push(Span { blocks: &blocks[seq], start, rows: first..first + rows });
        }
        let n = qkv.len() / cols;
        let qkv = Mat::new(&qkv, n, cols);
        let out = match self.case.dtype {
            KvDtype::F32 => f32_call(self, team, isa, qkv, &spans),
            _ => bf16_call(self, team, isa, qkv, &spans),
        };
        let mut rows = out.chunks_exact(q_cols);
        for &(seq, start, n) in pieces {
            for position in start..start + n {
                let row = rows.next().expect("a row for each position");
                self.results[seq][position * q_cols..][..q_cols].copy_from_slice(row);
            }
        }
    }
}

/// Writes and attends in one type.
macro_rules! typed_call {
    ($name:ident, $type:ty, $tag:ident) => {
        fn $name(
            world: &mut World,
            team: &Team,
            isa: Isa,
            qkv: Mat<'_, f32>,
            spans: &[Span<'_>],
        ) -> Vec<f32> {
            let (n, cols) = (qkv.rows(), world.case.q_cols());
            let mut q = vec![<$type>::default(); n * cols];
            let mut out = vec![f32::NAN; n * cols];
            let layout = world.case.layout();
            let q_out = RowsMut::$tag(MatMut::new(&mut q, n, cols));
            rope_and_write(team, isa, qkv, spans, HeadOps::default(), layout, q_out, &mut world.cache);
            let queries = Queries { rows: Rows::$tag(Mat::new(&q, n, cols)), spans };
            let cache = Cache { bytes: &world.cache, layout };
            let result = RowsMut::F32(MatMut::new(&mut out, n, cols));
            attend(team, isa, queries, cache, world.case.softmax(), result, &mut world.scratch);
            out
        }
    };
}

typed_call!(f32_call, f32, F32);
typed_call!(bf16_call, bf16, Bf16);

impl World {
    /// All sequences, each whole, in one call.
    fn whole(case: &Case, isa: Isa, threads: usize) -> Vec<Vec<f32>> {
        let mut world = World::new(case, 3);
        let pieces: Vec<Piece> = case.lengths.iter().enumerate().map(|(s, &n)| (s, 0, n)).collect();
        world.call(&Team::new(threads), isa, &pieces);
        world.results
    }
}

/// What is read of a sequence's projection: keys and values as they are stored.
fn stored(world: &World, seq: usize) -> Vec<f32> {
    let case = &world.case;
    let mut all = world.qkv[seq].clone();
    for row in all.chunks_exact_mut(case.qkv_cols()) {
        row[case.q_cols()..].chunks_exact_mut(case.head_dim).for_each(|head| stored::round(case.dtype, head));
    }
    all
}

/// How many of the keys that a query sees count: a share of them, but no fewer than a page holds.
fn kept(share: f32, seen: usize) -> usize {
    ((f64::from(share) * seen as f64).ceil() as usize).max(BLOCK_TOKENS).min(seen)
}

/// Attention of every position in f64, from the projections.
fn brute_force(world: &World, seq: usize) -> Vec<f32> {
    let case = &world.case;
    let (d, cols, n) = (case.head_dim, case.qkv_cols(), case.lengths[seq]);
    let stored = stored(world, seq);
    let at = |position: usize, column: usize, i: usize| f64::from(stored[position * cols + column * d + i]);
    let heads = case.kv_heads * case.group;
    let mut out = vec![];
    for position in 0..n {
        for head in 0..heads {
            let kv = head / case.group;
            let seen = |t: usize| t <= position && case.window.is_none_or(|w| t + w > position);
            let scores: Vec<(usize, f64)> = (0..n)
                .filter(|&t| seen(t))
                .map(|t| {
                    let dot: f64 = (0..d).map(|i| at(position, head, i) * at(t, heads + kv, i)).sum();
                    (t, dot * f64::from(case.softmax().scale))
                })
                .collect();
            let mut scores = scores;
            if let Some(share) = case.share {
                scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                scores.truncate(kept(share, scores.len()));
            }
            if let Some(cap) = case.cap.map(f64::from) {
                scores.iter_mut().for_each(|(_, score)| *score = cap * (*score / cap).tanh());
            }
            let largest = scores.iter().fold(f64::MIN, |m, s| m.max(s.1));
            let weights: Vec<(usize, f64)> = scores.iter().map(|(t, s)| (*t, (s - largest).exp())).collect();
            let sum: f64 = weights.iter().map(|w| w.1).sum();
            out.extend((0..d).map(|i| {
                let mean: f64 = weights.iter().map(|(t, p)| p * at(*t, heads + case.kv_heads + kv, i)).sum();
                (mean / sum) as f32
            }));
        }
    }
    out
}

fn families() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available())
}

/// Weights are bf16 between two products of bf16, and words between two of codes.
fn tolerance(isa: Isa, dtype: KvDtype) -> f32 {
    match (isa, dtype) {
        (Isa::Amx | Isa::Avx512Bf16, KvDtype::Bf16 | KvDtype::Fp8 | KvDtype::Int4) => 0.012,
        (Isa::Avx2 | Isa::Avx512, KvDtype::Int4) => 5e-4,
        _ => 2e-5,
    }
}

fn check(case: Case) {
    for isa in families() {
        let results = World::whole(&case, isa, 2);
        let world = World::new(&case, 3);
        for (seq, ours) in results.iter().enumerate() {
            let expected = brute_force(&world, seq);
            for (i, (a, b)) in ours.iter().zip(&expected).enumerate() {
                let (position, head) = (i / case.q_cols(), i % case.q_cols() / case.head_dim);
                assert!(
                    (a - b).abs() <= tolerance(isa, case.dtype),
                    "{isa} {case:?}: sequence {seq}, position {position}, head {head}: {a} is not {b}"
                );
            }
        }
    }
}

#[test]
fn head_sizes() {
    for head_dim in [16, 32, 48, 64, 80, 96, 112, 128, 192, 256] {
        check(Case::new(2, 2, head_dim, &[135]));
        check(Case::new(1, 2, head_dim, &[45]).f32());
        check(Case::new(2, 2, head_dim, &[135]).f16());
        check(Case::new(2, 2, head_dim, &[135]).fp8());
        check(Case::new(2, 2, head_dim, &[135]).int4());
    }
}

#[test]
fn group_sizes() {
    for group in [1, 3, 4, 8, 17] {
        check(Case::new(2, group, 32, &[37, 130, 1]));
        check(Case::new(1, group, 16, &[70]).f32());
        check(Case::new(2, group, 64, &[37, 130, 1]).f16());
        check(Case::new(2, group, 64, &[37, 130, 1]).fp8());
        check(Case::new(2, group, 64, &[37, 130, 1]).int4());
    }
}

#[test]
fn windows() {
    for window in [1, 2, 31, 128, 200, 1000] {
        check(Case::new(1, 2, 16, &[530, 5]).window(window));
        check(Case::new(1, 1, 16, &[150]).window(window).f32());
        check(Case::new(1, 2, 80, &[530, 5]).window(window).f16());
        check(Case::new(1, 2, 80, &[530, 5]).window(window).fp8());
        check(Case::new(1, 2, 80, &[530, 5]).window(window).int4());
    }
}

#[test]
fn several_splits() {
    check(Case::new(1, 1, 16, &[SPLIT_TOKENS + 77]));
}

#[test]
fn scratch_stays_within_what_was_announced() {
    for (case, isa) in arrangements().iter().flat_map(|c| families().map(move |i| (c, i))) {
        for threads in [1, 2, 3] {
            let mut world = World::new(case, 17);
            let team = Team::new(threads);
            let pieces: Vec<Piece> = case.lengths.iter().enumerate().map(|(s, &n)| (s, 0, n)).collect();
            world.call(&team, isa, &pieces);
            for (seq, &n) in case.lengths.iter().enumerate() {
                world.call(&team, isa, &[(seq, n - 1, 1)]);
            }
            let rows = case.lengths.iter().sum();
            let context = *case.lengths.iter().max().expect("sequences");
            let demand = Demand {
                threads,
                heads: case.kv_heads * case.group,
                rows,
                context,
                sparse: case.share.is_some(),
            };
            let most = Scratch::bytes_at_most(isa, case.layout(), demand);
            let held = world.scratch.bytes();
            assert!(held <= most, "{isa}, {threads} threads, {case:?}: {held} bytes held, {most} announced");
        }
    }
}

/// Norm, turn and store of one row, against the formulas in f64.
#[test]
fn heads_are_normed_and_turned() {
    let (d, rotary, start) = (32, 16, 5);
    let layout = KvLayout { kv_heads: 1, head_dim: d, dtype: KvDtype::F32 };
    let mut random = Random(21);
    let qkv: Vec<f32> = (0..3 * d).map(|_| random.value()).collect();
    let weights: Vec<f32> = (0..2 * d).map(|_| random.value()).collect();
    let angles: Vec<f32> = (0..(start + 1) * rotary / 2).map(|_| random.value()).collect();
    let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
    let norm = HeadNorm { q: &weights[..d], k: &weights[d..], eps: 1e-5 };
    let ops = HeadOps {
        norm: Some(norm),
        rope: Some(RopeTable {
            by: RopeBy::Position,
            cos: &cos,
            sin: &sin,
            rotary_dim: rotary,
            growth: None,
        }),
    };
    let expected = |x: &[f32], w: &[f32]| {
        let mean = x.iter().map(|x| f64::from(x * x)).sum::<f64>() / d as f64;
        let y: Vec<f64> =
            x.iter().zip(w).map(|(x, w)| f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*w)).collect();
        let mut turned = y.clone();
        for i in 0..rotary / 2 {
            let (sin, cos) = f64::from(angles[start * rotary / 2 + i]).sin_cos();
            turned[i] = y[i] * cos - y[i + rotary / 2] * sin;
            turned[i + rotary / 2] = y[i + rotary / 2] * cos + y[i] * sin;
        }
        turned
    };
    for isa in families() {
        let mut q = vec![0.0; d];
        let mut cache = vec![0xff; 2 * layout.block_bytes()];
        let spans = [Span { blocks: &[1], start, rows: 0..1 }];
        let q_out = RowsMut::F32(MatMut::new(&mut q, 1, d));
        let team = Team::new(2);
        rope_and_write(&team, isa, Mat::new(&qkv, 1, 3 * d), &spans, ops, layout, q_out, &mut cache);
        let pages: &[f32] = bytemuck::cast_slice(&cache);
        let head = &pages[layout.k_start(1, 0) / 4..];
        let (k, v) = (&head[start * d..][..d], &head[layout.plane_bytes() / 4..]);
        let near = |a: &[f32], b: Vec<f64>| a.iter().zip(b).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5);
        assert!(near(&q, expected(&qkv[..d], &weights[..d])), "{isa}: q");
        assert!(near(k, expected(&qkv[d..2 * d], &weights[d..])), "{isa}: k");
        assert!((0..d).all(|i| v[i * BLOCK_TOKENS + start] == qkv[2 * d + i]), "{isa}: v");
        assert!(v[start + 1].is_nan(), "{isa}: a token that was not written stays as it was");
    }
}

/// The same bits, whatever the arrangement of one set of sequences.
fn check_same(case: &Case, isa: Isa, expected: &[Vec<f32>], world: World, how: &str) {
    for (seq, (a, b)) in world.results.iter().zip(expected).enumerate() {
        let differ = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits());
        if let Some(i) = differ {
            let position = i / case.q_cols();
            panic!("{isa} {case:?} {how}: sequence {seq} position {position}: {} is not {}", a[i], b[i]);
        }
    }
}

fn arrangements() -> Vec<Case> {
    vec![
        Case::new(1, 3, 64, &[530, 33]),
        Case::new(2, 1, 80, &[150, 33]),
        Case::new(1, 8, 16, &[300]).window(150),
        Case::new(1, 8, 96, &[330, 33]),
        Case::new(1, 4, 64, &[300]).int4(),
        Case::new(1, 4, 32, &[140, 70]).f32(),
        Case::new(2, 3, 64, &[530, 33]).int4(),
        Case::new(1, 3, 64, &[530, 33]).share(0.1),
        Case::new(2, 1, 80, &[300, 33]).window(200).share(0.2).int4(),
        Case::new(1, 20, 80, &[300]).window(150).int4(),
        Case::new(1, 3, 64, &[530, 33]).f16(),
        Case::new(1, 20, 80, &[140]).window(50).f16(),
        Case::new(1, 2, 64, &[150, 33]).share(0.1).f16(),
        Case::new(1, 3, 64, &[150, 33]).fp8(),
        Case::new(1, 2, 128, &[530]),
        Case::new(1, 4, 128, &[140, 33]).int4(),
        Case::new(1, 2, 128, &[70, 33]).f16(),
        Case::new(1, 2, 128, &[70, 33]).fp8(),
        Case::new(1, 2, 256, &[70]),
        Case::new(1, 2, 32, &[600]).window(540),
        Case::new(1, 20, 80, &[140]).window(50).fp8(),
        Case::new(1, 2, 64, &[150, 33]).share(0.1).fp8(),
        Case::new(1, 2, 256, &[170, 33]).window(140).cap(1.5),
    ]
}

#[test]
fn chunks_make_no_difference() {
    for (case, isa) in arrangements().iter().flat_map(|c| families().map(move |i| (c, i))) {
        let expected = World::whole(case, isa, 1);
        for chunk in [7, 64, 129] {
            let mut world = World::new(case, 5);
            let team = Team::new(2);
            for (seq, &n) in case.lengths.iter().enumerate() {
                for start in (0..n).step_by(chunk) {
                    world.call(&team, isa, &[(seq, start, chunk.min(n - start))]);
                }
            }
            check_same(case, isa, &expected, world, &format!("chunks of {chunk}"));
        }
    }
}

#[test]
fn decode_equals_prefill() {
    for (case, isa) in arrangements().iter().flat_map(|c| families().map(move |i| (c, i))) {
        let expected = World::whole(case, isa, 1);
        let mut world = World::new(case, 9);
        // Three at once only now and then, as that takes longer on fewer cores.
        let (alone, three) = (Team::new(1), Team::new(3));
        let longest = *case.lengths.iter().max().expect("sequences");
        for position in 0..longest {
            let running = (0..case.lengths.len()).filter(|&s| position < case.lengths[s]);
            let pieces: Vec<Piece> = running.map(|s| (s, position, 1)).collect();
            world.call(if position % 8 == 7 { &three } else { &alone }, isa, &pieces);
        }
        check_same(case, isa, &expected, world, "one position at a time");
    }
}

#[test]
fn threads_and_neighbours_make_no_difference() {
    for (case, isa) in arrangements().iter().flat_map(|c| families().map(move |i| (c, i))) {
        let expected = World::whole(case, isa, 1);
        for threads in [2, 3] {
            let mut world = World::new(case, 11);
            let team = Team::new(threads);
            for (seq, &n) in case.lengths.iter().enumerate() {
                world.call(&team, isa, &[(seq, 0, n)]);
            }
            check_same(case, isa, &expected, world, &format!("alone, {threads} threads"));
        }
    }
}

#[test]
fn a_chunk_and_a_decode_share_a_call() {
    let case = Case::new(2, 2, 64, &[200, 90, 260]);
    for isa in families() {
        let expected = World::whole(&case, isa, 2);
        let mut world = World::new(&case, 13);
        let team = Team::new(2);
        world.call(&team, isa, &[(1, 0, 89), (0, 0, 199)]);
        world.call(&team, isa, &[(2, 0, 200), (0, 199, 1), (1, 89, 1)]);
        world.call(&team, isa, &[(2, 200, 60)]);
        check_same(&case, isa, &expected, world, "mixed calls");
    }
}
