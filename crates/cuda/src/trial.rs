//! A kernel that nobody has seen at work here is tried before it is used: beside one that is simpler, on numbers of its own. Where
//! there are two of them, the newer one has to find the same bits, and to be faster.

use half::{bf16, f16};
use kernels::attention::{BLOCK_TOKENS, KvDtype, KvLayout, Span};

use crate::args::AttendArgs;
use crate::attend::{Many, Plan};
use crate::device::{GpuDevice, PARTIAL_BYTES};
use crate::module::{Heads, Module, Prefill};
use crate::{CudaError, Driver, Outcome};

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
/// Positions before the first query of a sequence, and its queries: a whole prompt, and a chunk that begins within a page, far
/// enough from the beginning that every place for keys and values on their way is used twice.
const SEQUENCES: [(usize, usize); 2] = [(0, 200), (613, 100)];
const WINDOWS: [Option<usize>; 2] = [None, Some(45)];
/// Of the largest result, what two results may be apart: both round weights and sums to bf16, in an order of their own.
const APART: f32 = 0.02;
/// What kernels are timed by: several prompts, of the same numbers.
const RACE_TOKENS: usize = 2048;
const RACE_SPANS: usize = 8;
const RACE_RUNS: usize = 7;
/// Attentions of each run: what it costs to ask for one is hidden.
const RACE_QUEUED: usize = 16;
/// Blocks that take several tiles of [`SEQUENCES`] each.
const FEW_BLOCKS: usize = 5;
/// Of the word that says that a thread has waited in vain.
const STALLED_BYTES: usize = 4;

impl<D: Driver> GpuDevice<D> {
    /// Compiles modules, and tries those that are to be tried.
    ///
    /// # Errors
    /// [`CudaError::Compile`].
    pub fn prepare_modules(&self, modules: &[Module]) -> Result<(), CudaError> {
        let is_tried = |module: &Module| {
            self.driver.prefill() == Prefill::Tried && matches!(module, Module::Warpgroups { .. })
        };
        let has_failed = |module: &Module| is_tried(module) && self.driver.verdict(*module) == Some(false);
        let wanted: Vec<Module> = modules.iter().copied().filter(|module| !has_failed(module)).collect();
        let (mut tried, plain): (Vec<Module>, Vec<Module>) = wanted.iter().copied().partition(is_tried);
        // Those by turns are held against the others, of which has to be known whether they are to be had.
        tried.sort_by_key(|module| matches!(module, Module::Warpgroups { turns: true, .. }));
        // Side by side; where one of them is not to be had, those that are tried are done without.
        let has_all = self.driver.prepare(&wanted).is_ok();
        if !has_all {
            self.driver.prepare(&plain)?;
        }
        for module in tried {
            match if has_all { Ok(()) } else { self.driver.prepare(&[module]) } {
                Ok(()) => _ = self.passes(module),
                // A compiler fails for want of memory, too: the next process may have it.
                Err(_) => self.driver.try_out(module, &mut || Outcome::Open),
            }
        }
        Ok(())
    }

    /// Whether a module passes its trial, which it has now unless it had it before.
    pub(crate) fn passes(&self, module: Module) -> bool {
        self.driver.verdict(module).unwrap_or_else(|| {
            self.try_out(module);
            self.driver.verdict(module) == Some(true)
        })
    }

    /// Tries attention by products of warpgroups. That by turns is used where it is faster than its twin, whose results are its own: a
    /// clock is not to choose between results that differ.
    fn try_out(&self, module: Module) {
        let Module::Warpgroups { pages, head_dim, turns } = module else { return };
        let (shape, tried) = ((pages, head_dim), Many::of_warpgroups(module));
        let at_once = Module::Warpgroups { pages, head_dim, turns: false };
        let twin = (turns && self.passes(at_once)).then(|| Many::of_warpgroups(at_once));
        let has_its_twin = turns == twin.is_some();
        let compare = |window| {
            // Once more where a block of threads stood still, as it may where others have the device.
            let first = self.compare(tried, twin, shape, window);
            if first == Outcome::Open { self.compare(tried, twin, shape, window) } else { first }
        };
        let mut outcome = || {
            if !has_its_twin {
                return Outcome::Open;
            }
            if let Some(other) = WINDOWS.into_iter().map(compare).find(|found| *found != Outcome::Passed) {
                return other;
            }
            let is_faster = twin.is_none_or(|twin| self.is_faster(tried, twin, shape));
            if is_faster { Outcome::Passed } else { Outcome::Open }
        };
        self.driver.try_out(module, &mut outcome);
    }

    /// Whether a kernel finds what products of warps find, and if it has a twin, every bit of what that finds; open if a thread of its
    /// blocks waited in vain, whose numbers say nothing.
    fn compare(
        &self,
        tried: Many,
        twin: Option<Many>,
        shape: (KvDtype, usize),
        window: Option<usize>,
    ) -> Outcome {
        let trial = self.trial(shape, &SEQUENCES);
        let plan = trial.plan(window);
        let found = |many| {
            // What is not written is no number.
            self.put_numbers(trial.out, &vec![u16::MAX; trial.numbers]);
            self.attend_by(many, &plan, trial.layout, [KV_HEADS; 2], trial.args(window));
            self.numbers_at(trial.out, trial.numbers)
        };
        let (right, same) = (found(Many::of_warps(Heads::plain(shape.0, shape.1))), twin.map(found));
        let largest = right.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        // By blocks that have a tile each, and, where they stay, by few, which come from one tile to the next.
        let few = tried.by_blocks(FEW_BLOCKS);
        let agrees = [Some(tried), few].into_iter().flatten().map(found).all(|found| {
            right.iter().zip(&found).all(|(x, y)| (x - y).abs() <= APART * largest)
                && same.as_ref().is_none_or(|same| *same == found)
        });
        match (self.has_stalled(&trial), agrees) {
            (true, _) => Outcome::Open,
            (false, true) => Outcome::Passed,
            (false, false) => Outcome::Failed,
        }
    }

    /// Whether a kernel takes less time than another for prompts whose blocks keep the whole device busy. Each is timed by turns with
    /// the other, and its best time counts.
    fn is_faster(&self, tried: Many, rival: Many, shape: (KvDtype, usize)) -> bool {
        let trial = self.trial(shape, &[(0, RACE_TOKENS)]);
        let plan = Plan::new(&vec![trial.span(0); RACE_SPANS], [HEADS / KV_HEADS, shape.1], None, 0);
        let time = |many| {
            let mut run = || {
                for _ in 0..RACE_QUEUED {
                    self.attend_by(many, &plan, trial.layout, [KV_HEADS; 2], trial.args(None));
                }
            };
            self.driver.time(&mut run)
        };
        let mut best = [f64::INFINITY; 2];
        for run in 0..RACE_RUNS {
            // Who comes first finds the device slower, as it has just begun to work; nobody's first run counts.
            let order = if run % 2 == 0 { [(0, tried), (1, rival)] } else { [(1, rival), (0, tried)] };
            for (who, many) in order {
                let Some(seconds) = time(many) else { return false };
                best[who] = if run == 0 { best[who] } else { best[who].min(seconds) };
            }
        }
        // Once one has waited in vain nobody waits any more.
        best[0] < best[1] && !self.has_stalled(&trial)
    }

    fn has_stalled(&self, trial: &Trial) -> bool {
        let mut word = [0; STALLED_BYTES];
        self.driver.download(trial.stalled, STALLED_BYTES, &mut |_, piece| word.copy_from_slice(piece));
        word != [0; STALLED_BYTES]
    }

    /// Numbers of sequences to attend to, in the memory of partial results, which no attention of many rows uses.
    fn trial(&self, (dtype, head_dim): (KvDtype, usize), sequences: &'static [(usize, usize)]) -> Trial {
        let layout = KvLayout { kv_heads: KV_HEADS, head_dim, dtype };
        let tables = sequences.iter().map(|(start, rows)| (start + rows).div_ceil(BLOCK_TOKENS));
        let blocks: Vec<u32> = (0..tables.sum::<usize>() as u32).rev().collect();
        let numbers = sequences.iter().map(|(_, rows)| rows).sum::<usize>() * HEADS * head_dim;
        let pages = blocks.len() * layout.block_bytes() / 2;
        let (q, out) = (self.partials, self.partials + 2 * numbers as u64);
        let kv = out + 2 * numbers as u64;
        let stalled = self.partials + (PARTIAL_BYTES - STALLED_BYTES) as u64;
        assert!(4 * numbers + 2 * pages + STALLED_BYTES <= PARTIAL_BYTES, "a trial has room");
        self.put_numbers(q, &numbers_of(KvDtype::Bf16, numbers));
        self.put_numbers(kv, &numbers_of(dtype, pages));
        self.put_numbers(stalled, &[0; STALLED_BYTES / 2]);
        Trial { layout, sequences, blocks, numbers, q, out, kv, stalled }
    }

    fn put_numbers(&self, at: u64, numbers: &[u16]) {
        let bytes: &[u8] = bytemuck::cast_slice(numbers);
        let fill = &mut |first: usize, into: &mut [u8]| into.copy_from_slice(&bytes[first..][..into.len()]);
        self.driver.upload(at, bytes.len(), fill);
    }

    fn numbers_at(&self, at: u64, count: usize) -> Vec<f32> {
        let mut numbers = vec![bf16::ZERO; count];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut numbers);
        let place = &mut |first: usize, piece: &[u8]| bytes[first..][..piece.len()].copy_from_slice(piece);
        self.driver.download(at, 2 * count, place);
        numbers.into_iter().map(bf16::to_f32).collect()
    }
}

/// Sequences in a device's memory, and what is to be made of them.
struct Trial {
    layout: KvLayout,
    sequences: &'static [(usize, usize)],
    blocks: Vec<u32>,
    /// Of the queries, and of the result.
    numbers: usize,
    q: u64,
    out: u64,
    kv: u64,
    /// A word that is not 0 once a thread has waited in vain.
    stalled: u64,
}

impl Trial {
    fn span(&self, i: usize) -> Span<'_> {
        let (mut row, mut table) = (0, 0);
        for (start, rows) in &self.sequences[..i] {
            (row, table) = (row + rows, table + (start + rows).div_ceil(BLOCK_TOKENS));
        }
        let (start, rows) = self.sequences[i];
        Span { blocks: &self.blocks[table..], start, rows: row..row + rows }
    }

    fn plan(&self, window: Option<usize>) -> Plan {
        let spans: Vec<Span<'_>> = (0..self.sequences.len()).map(|i| self.span(i)).collect();
        Plan::new(&spans, [HEADS / KV_HEADS, self.layout.head_dim], window, 0)
    }

    fn args(&self, window: Option<usize>) -> AttendArgs {
        AttendArgs {
            q: self.q,
            pages: self.kv,
            out: self.out,
            spans: 0,
            tables: 0,
            work: 0,
            partials: 0,
            stalled: self.stalled,
            scale: 0.125 * std::f32::consts::LOG2_E,
            heads: HEADS as u32,
            kv_heads: KV_HEADS as u32,
            window: window.unwrap_or(0) as u32,
            out_bf16: 1,
            pieces: 0,
            cap: 0.0,
            unused: 0,
        }
    }
}

/// Between -2 and 2, as pages of this kind have them.
fn numbers_of(dtype: KvDtype, count: usize) -> Vec<u16> {
    let number = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7 & 0xffff) as f32 / 16384.0 - 2.0;
    let bits = |x: f32| match dtype {
        KvDtype::F16 => f16::from_f32(x).to_bits(),
        _ => bf16::from_f32(x).to_bits(),
    };
    (0..count).map(|i| bits(number(i))).collect()
}
