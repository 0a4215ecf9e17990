//! Attention of a row, whatever else is attended with it: by kernels that are emulated, and on a GPU if there is one.

use std::sync::Arc;

use crate::emulator::{self, Emulator, Mma, Tried};
use cuda::module::{Heads, Module};
use cuda::{GpuDevice, Outcome};
use half::bf16;
use kernels::attention::{BLOCK_TOKENS, KvDtype, KvLayout, Span};
use kernels::device::{AttendShape, Device, Dtype, KvPages, QkTransform, Rows};
use kernels::{CpuDevice, Isa, Team};

/// Tokens of a sequence, and what attends to them.
#[derive(Clone, Copy)]
struct Sequence {
    tokens: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    dtype: KvDtype,
    window: Option<usize>,
    /// What numbers are multiplied by.
    size: f32,
}

fn number(i: usize) -> f32 {
    (i.wrapping_mul(2_654_435_761) >> 7 & 0xffff) as f32 / 16384.0 - 2.0
}

impl Sequence {
    fn layout(&self) -> KvLayout {
        KvLayout { kv_heads: self.kv_heads, head_dim: self.head_dim, dtype: self.dtype }
    }

    /// The results of all tokens, row after row, and the pages, computed in chunks of `chunk`: the keys and values of a chunk are
    /// written before it attends, those of the next after it. Scores grow along the sequence, so that the largest changes again and again.
    fn attended(&self, device: &mut dyn Device, chunk: usize) -> (Vec<u8>, Vec<u8>) {
        let (q_cols, all) = (self.heads * self.head_dim, (self.heads + 2 * self.kv_heads) * self.head_dim);
        let blocks: Vec<u32> = (0..self.tokens.div_ceil(BLOCK_TOKENS) as u32).rev().collect();
        let buf = device.take(blocks.len() * self.layout().block_bytes()).unwrap();
        // What was never written is no number.
        device.fill(&buf, &mut |bytes| bytes.fill(0xff));
        let kv = KvPages { layout: self.layout(), buf };
        let (mut results, mut pages) = (Vec::new(), Vec::new());
        for start in (0..self.tokens).step_by(chunk) {
            let rows = chunk.min(self.tokens - start);
            let matrix = |device: &mut dyn Device, dtype: Dtype, cols: usize| Rows {
                buf: device.take(rows * cols * dtype.bytes()).unwrap(),
                dtype,
                rows,
                cols,
            };
            let qkv = matrix(device, Dtype::F32, all);
            let (q, out) = (matrix(device, Dtype::Bf16, q_cols), matrix(device, Dtype::Bf16, q_cols));
            let value = |i: usize| self.size * number(i) * (1.0 + (i / all) as f32 / self.tokens as f32);
            let values: Vec<f32> = (0..rows * all).map(|i| value(start * all + i)).collect();
            device.upload(&qkv.buf, bytemuck::cast_slice(&values));
            let spans = [Span { blocks: &blocks, start, rows: 0..rows }];
            device.store_kv(qkv, &QkTransform { heads: self.heads, norms: None, rope: None }, &spans, kv, q);
            let shape =
                AttendShape { heads: self.heads, scale: 0.5, window: self.window, share: None, cap: None };
            device.attend(q, kv, &spans, shape, out);
            device.view(&out.buf, &mut |bytes| results.extend_from_slice(bytes));
        }
        device.view(&kv.buf, &mut |bytes| pages.extend_from_slice(bytes));
        (results, pages)
    }
}

/// Chunks end within the tiles of others and within pages, and none is so short that it is split as decodes are.
fn check(open: &dyn Fn(usize) -> Box<dyn Device>) {
    let [plain, wide] = [(64, None), (128, Some(45))];
    let [half, eight, four] = [KvDtype::F16, KvDtype::Fp8, KvDtype::Int4];
    let bf16s = KvDtype::Bf16;
    // The longest takes warpgroups several steps.
    for (tokens, (head_dim, window), dtype) in [
        (110, plain, bf16s),
        (110, wide, bf16s),
        (300, plain, bf16s),
        (110, wide, half),
        (110, plain, eight),
        (110, wide, four),
    ] {
        let sequence = Sequence { tokens, heads: 3, kv_heads: 1, head_dim, dtype, window, size: 1.0 };
        let (whole, _) = sequence.attended(&mut *open(16 << 20), tokens);
        let numbers = bytemuck::cast_slice::<u8, u16>(&whole).iter().map(|bits| bf16::from_bits(*bits));
        assert!(numbers.map(bf16::to_f32).all(f32::is_finite), "{dtype:?} {head_dim}");
        for chunk in [60, 17] {
            let (cut, _) = sequence.attended(&mut *open(16 << 20), chunk);
            assert!(cut == whole, "{dtype:?} {head_dim}, in chunks of {chunk}");
        }
    }
}

#[test]
fn a_rows_attention_does_not_depend_on_its_chunk() {
    if emulator::compiler().is_some() {
        for mma in [Mma::Defined, Mma::OfWarpgroups, Mma::ByTurns] {
            check(&|bytes| Box::new(GpuDevice::new(Emulator::new(mma), bytes).unwrap()));
        }
    }
}

/// A kernel that finds what the plain one finds is used from its trial on, another is not: before the trial nobody asked for either. That
/// by turns has to be faster too, and gives the same bits, so that nobody's answers depend on a clock.
#[test]
fn a_kernel_is_used_if_it_passes_its_trial() {
    if emulator::compiler().is_none() {
        return;
    }
    let sound = Tried { turns_are_faster: true, ..Tried::default() };
    let [passed, failed, open] = [Outcome::Passed, Outcome::Failed, Outcome::Open];
    check_trial(KvDtype::F16, sound, false, [passed; 2]);
    check_trial(KvDtype::Bf16, sound, true, [passed; 2]);
    for (tried, outcomes) in [
        (Tried { turns_are_faster: false, ..sound }, [open, passed]),
        (Tried { is_broken_from_tile_to_tile: true, ..sound }, [failed, passed]),
        // What is not to be had now, or stood still more often than is forgiven, may be better the next time.
        (Tried { lacks: Some(true), ..sound }, [open, passed]),
        (Tried { lacks: Some(false), ..sound }, [open; 2]),
        (Tried { stalls: 1, ..sound }, [passed; 2]),
        (Tried { stalls: 2, ..sound }, [open, passed]),
        (Tried { are_broken: true, ..sound }, [open, failed]),
    ] {
        check_trial(KvDtype::Bf16, tried, true, outcomes);
    }
}

/// This comes of the trials of the kernel by turns and the other by warpgroups, whether somebody prepares them or they are just needed,
/// and the first that passes is used.
fn check_trial(dtype: KvDtype, tried: Tried, is_prepared: bool, outcomes: [Outcome; 2]) {
    let sequence =
        Sequence { tokens: 110, heads: 3, kv_heads: 1, head_dim: 64, dtype, window: None, size: 1.0 };
    let plain = Module::Attention(Heads::plain(dtype, 64));
    let both = [true, false].map(|turns| Module::Warpgroups { pages: dtype, head_dim: 64, turns });
    let found = |driver: Emulator| sequence.attended(&mut GpuDevice::new(driver, 16 << 20).unwrap(), 110).0;
    let [warps, warpgroups, turns] =
        [Mma::Defined, Mma::OfWarpgroups, Mma::ByTurns].map(|mma| found(Emulator::new(mma)));
    assert!(warps != warpgroups && turns == warpgroups, "{dtype:?}: who could tell them apart");
    let mut device = GpuDevice::new(Emulator::trying(tried), 16 << 20).unwrap();
    if is_prepared {
        device.prepare_modules(&[Module::Rows, plain, both[0], both[1]]).unwrap();
    }
    let (results, _) = sequence.attended(&mut device, 110);
    let trials = device.driver().trials.as_ref().expect("some are tried");
    assert_eq!(both.map(|module| trials.outcome(module)), outcomes.map(Some), "{tried:?}");
    let passes = |(module, outcome)| (outcome == Outcome::Passed).then_some(module);
    let used = both.into_iter().zip(outcomes).find_map(passes);
    assert_eq!(trials.attended_by(), Some(used.unwrap_or(plain)));
    assert!(results == if used.is_some() { warpgroups } else { warps });
}

/// What queries make of values that are all the same, of a first token that counts nearly everything and of many that count very little.
fn attended_to_one(device: &mut dyn Device) -> Vec<f32> {
    const TOKENS: usize = 2000;
    const QUERIES: usize = 32;
    const DIM: usize = 64;
    let layout = KvLayout { kv_heads: 1, head_dim: DIM, dtype: KvDtype::Int4 };
    let blocks: Vec<u32> = (0..TOKENS.div_ceil(BLOCK_TOKENS) as u32).collect();
    let kv = KvPages { layout, buf: device.take(blocks.len() * layout.block_bytes()).unwrap() };
    let matrix = |device: &mut dyn Device, dtype: Dtype, cols: usize| Rows {
        buf: device.take(TOKENS * cols * dtype.bytes()).unwrap(),
        dtype,
        rows: TOKENS,
        cols,
    };
    let qkv = matrix(device, Dtype::F32, 3 * DIM);
    let (q, out) = (matrix(device, Dtype::Bf16, DIM), matrix(device, Dtype::Bf16, DIM));
    // The others' scores are lower by 11.7: their weights times the values' scale, 1/375, are less than half of the smallest half.
    let key = |token: usize| if token == 0 { 1.4609375 } else { 0.0 };
    let row =
        |token: usize| [[1.0; DIM], [key(token); DIM], std::array::from_fn(value_of)].concat().into_iter();
    device.upload(&qkv.buf, bytemuck::cast_slice(&(0..TOKENS).flat_map(row).collect::<Vec<f32>>()));
    let transform = QkTransform { heads: 1, norms: None, rope: None };
    device.store_kv(qkv, &transform, &[Span { blocks: &blocks, start: 0, rows: 0..TOKENS }], kv, q);
    let start = TOKENS - QUERIES;
    let shape = AttendShape { heads: 1, scale: 0.125, window: None, share: None, cap: None };
    device.attend(q, kv, &[Span { blocks: &blocks, start, rows: start..TOKENS }], shape, out);
    let mut results = Vec::new();
    device.view(&out.buf, &mut |bytes| results = bytemuck::cast_slice::<u8, u16>(bytes).to_vec());
    results[start * DIM..].iter().map(|bits| bf16::from_bits(*bits).to_f32()).collect()
}

/// One of 16 values, which 4 bits keep nearly as they are.
fn value_of(dim: usize) -> f32 {
    0.04 * (dim % 16) as f32 / 15.0 - 0.02
}

/// What is too little for a half counts nothing, instead of 128 times beside what it is multiplied by.
#[test]
fn many_weights_that_are_no_halves_do_not_add_up() {
    if emulator::compiler().is_none() {
        return;
    }
    // All together the weights of the many are 1.7 %.
    for (mma, most) in [(Mma::Defined, 2e-4), (Mma::ByHalves, 0.02 * 0.04)] {
        let results = attended_to_one(&mut GpuDevice::new(Emulator::new(mma), 16 << 20).unwrap());
        let error = |(i, x): (usize, &f32)| (x - value_of(i % 64)).abs();
        let worst = results.iter().enumerate().map(error).fold(0.0, f32::max);
        assert!(worst < most, "{mma:?}: {worst}");
    }
}

/// Tokens of sequences that decode together.
const LENGTHS: [usize; 9] = [700, 33, 257, 512, 1, 300, 64, 129, 450];

/// The results of the last token of each, beside the others or alone. What no query sees was never written, and is no number.
fn decoded(device: &mut dyn Device, layout: KvLayout, window: Option<usize>, together: bool) -> Vec<u8> {
    let (heads, head_dim) = (2 * layout.kv_heads, layout.head_dim);
    let (q_cols, all) = (heads * head_dim, (heads + 2 * layout.kv_heads) * head_dim);
    let mut next = 0;
    let tables = LENGTHS.map(|tokens| {
        let first = next;
        next += tokens.div_ceil(BLOCK_TOKENS) as u32;
        (first..next).rev().collect::<Vec<u32>>()
    });
    let kv = KvPages { layout, buf: device.take(next as usize * layout.block_bytes()).unwrap() };
    device.fill(&kv.buf, &mut |bytes| bytes.fill(0xff));
    let matrix = |device: &mut dyn Device, dtype: Dtype, rows: usize, cols: usize| Rows {
        buf: device.take(rows * cols * dtype.bytes()).unwrap(),
        dtype,
        rows,
        cols,
    };
    let transform = QkTransform { heads, norms: None, rope: None };
    for (blocks, tokens) in tables.iter().zip(LENGTHS) {
        let start = window.map_or(0, |window| tokens.saturating_sub(window) / BLOCK_TOKENS * BLOCK_TOKENS);
        let rows = tokens - start;
        let (qkv, q) = (matrix(device, Dtype::F32, rows, all), matrix(device, Dtype::Bf16, rows, q_cols));
        let values: Vec<f32> = (0..rows * all).map(|i| number(i + 17 * tokens)).collect();
        device.upload(&qkv.buf, bytemuck::cast_slice(&values));
        device.store_kv(qkv, &transform, &[Span { blocks, start, rows: 0..rows }], kv, q);
    }
    let rows = LENGTHS.len();
    let (q, out) = (matrix(device, Dtype::Bf16, rows, q_cols), matrix(device, Dtype::Bf16, rows, q_cols));
    let queries: Vec<bf16> = (0..rows * q_cols).map(|i| bf16::from_f32(number(i))).collect();
    device.upload(&q.buf, bytemuck::cast_slice(&queries));
    let span = |(row, blocks)| Span { blocks, start: LENGTHS[row] - 1, rows: row..row + 1 };
    let spans: Vec<Span<'_>> = tables.iter().map(Vec::as_slice).enumerate().map(span).collect();
    let shape = AttendShape { heads, scale: 0.125, window, share: None, cap: None };
    for spans in spans.chunks(if together { rows } else { 1 }) {
        device.attend(q, kv, spans, shape, out);
    }
    let mut results = Vec::new();
    device.view(&out.buf, &mut |bytes| results.extend_from_slice(bytes));
    results
}

/// Blocks that have much to do, one split after another, find what those find that have little.
fn check_decodes(open: &dyn Fn(usize) -> Box<dyn Device>) {
    for (dtype, kv_heads, head_dim, window) in [
        (KvDtype::Bf16, 2, 64, None),
        (KvDtype::Bf16, 1, 128, Some(300)),
        (KvDtype::Fp8, 3, 64, None),
        (KvDtype::Int4, 2, 64, Some(70)),
    ] {
        let layout = KvLayout { kv_heads, head_dim, dtype };
        let decoded = |together| decoded(&mut *open(16 << 20), layout, window, together);
        let alone = decoded(false);
        let numbers = bytemuck::cast_slice::<u8, u16>(&alone).iter().map(|bits| bf16::from_bits(*bits));
        assert!(numbers.map(bf16::to_f32).all(f32::is_finite), "{layout:?}");
        assert!(decoded(true) == alone, "{layout:?}");
    }
}

#[test]
fn a_decode_does_not_depend_on_others() {
    if emulator::compiler().is_some() {
        for mma in [Mma::Defined, Mma::ByHalves] {
            check_decodes(&|bytes| Box::new(GpuDevice::new(Emulator::new(mma), bytes).unwrap()));
        }
    }
}

/// Numbers around the largest half and around the smallest ones: they are written as the CPU writes them, and nothing that is
/// attended becomes infinite.
fn check_range(open: &dyn Fn(usize) -> Box<dyn Device>) {
    for size in [1e5, 1e38, 1e-5, 3e-8] {
        let (dtype, window) = (KvDtype::F16, None);
        let sequence = Sequence { tokens: 70, heads: 2, kv_heads: 1, head_dim: 64, dtype, window, size };
        let (results, pages) = sequence.attended(&mut *open(16 << 20), 70);
        let mut cpu = CpuDevice::new(16 << 20, Arc::new(Team::new(1)), Isa::Scalar).unwrap();
        assert!(pages == sequence.attended(&mut cpu, 70).1, "pages of numbers around {size}");
        let numbers = bytemuck::cast_slice::<u8, u16>(&results).iter().map(|bits| bf16::from_bits(*bits));
        // 65504, rounded to bf16.
        assert!(numbers.map(bf16::to_f32).all(|x| x.abs() <= 65536.0), "numbers around {size}");
    }
}

#[test]
fn halves_are_written_as_the_cpu_does_and_stay_finite() {
    if emulator::compiler().is_some() {
        for mma in [Mma::Defined, Mma::ByHalves, Mma::OfWarpgroups, Mma::ByTurns] {
            check_range(&|bytes| Box::new(GpuDevice::new(Emulator::new(mma), bytes).unwrap()));
        }
    }
}

#[test]
fn the_same_holds_on_a_gpu() {
    match cuda::open(1 << 20) {
        Ok(_) => [check, check_decodes, check_range]
            .iter()
            .for_each(|check| check(&|bytes| Box::new(cuda::open(bytes).unwrap()))),
        Err(missing) => eprintln!("skipped: {missing}"),
    }
}
