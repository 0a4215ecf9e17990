//! A kernel that only the emulation has run is tried before it is used: beside one that is simpler, on numbers of its own.

use half::{bf16, f16};
use kernels::attention::{BLOCK_TOKENS, KvDtype, KvLayout, Span};

use crate::args::AttendArgs;
use crate::attend::{Many, Plan};
use crate::device::GpuDevice;
use crate::module::{Module, Prefill};
use crate::{CudaError, Driver};

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
/// Positions before the first query of a sequence, and its queries: a whole prompt, and a chunk that begins within a page, far
/// enough from the beginning that every place for keys and values on their way is used twice.
const SEQUENCES: [(usize, usize); 2] = [(0, 300), (613, 160)];
const WINDOWS: [Option<usize>; 2] = [None, Some(45)];
/// Of the largest result, what two results may be apart: both round weights and sums to bf16, in an order of their own.
const APART: f32 = 0.02;

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
        self.driver.prepare(&wanted)?;
        for module in wanted.into_iter().filter(is_tried) {
            self.passes(module);
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

    /// Tries attention by products of warpgroups.
    fn try_out(&self, module: Module) {
        if let Module::Warpgroups { pages, head_dim, .. } = module {
            let kernels = [Many::of_warps(pages, head_dim), Many::of_warpgroups(module)];
            let mut agree =
                || WINDOWS.into_iter().all(|window| self.agree(kernels, (pages, head_dim), window));
            self.driver.try_out(module, &mut agree);
        }
    }

    /// Whether both find the same. The memory of partial results, which no attention of many rows uses, has room for all.
    fn agree(&self, kernels: [Many; 2], (dtype, head_dim): (KvDtype, usize), window: Option<usize>) -> bool {
        let layout = KvLayout { kv_heads: KV_HEADS, head_dim, dtype };
        let tables = SEQUENCES.map(|(start, rows)| (start + rows).div_ceil(BLOCK_TOKENS));
        let blocks: Vec<u32> = (0..tables.iter().sum::<usize>() as u32).rev().collect();
        let rows: usize = SEQUENCES.iter().map(|(_, rows)| rows).sum();
        let queries = numbers(KvDtype::Bf16, rows * HEADS * head_dim);
        let pages = numbers(dtype, blocks.len() * layout.block_bytes() / 2);
        let (q, out) = (self.partials, self.partials + 2 * queries.len() as u64);
        let kv = out + 2 * queries.len() as u64;
        self.put_numbers(q, &queries);
        self.put_numbers(kv, &pages);
        let (mut row, mut table) = (0, 0);
        let spans = [0, 1].map(|i| {
            let (start, count) = SEQUENCES[i];
            (row, table) = (row + count, table + tables[i]);
            Span { blocks: &blocks[table - tables[i]..table], start, rows: row - count..row }
        });
        let plan = Plan::new(&spans, [HEADS / KV_HEADS, head_dim], window, 0);
        let args = AttendArgs {
            q,
            pages: kv,
            out,
            spans: 0,
            tables: 0,
            work: 0,
            partials: 0,
            scale: 0.125 * std::f32::consts::LOG2_E,
            heads: HEADS as u32,
            kv_heads: KV_HEADS as u32,
            window: window.unwrap_or(0) as u32,
            out_bf16: 1,
            pieces: 0,
        };
        let [plain, tried] = kernels.map(|many| {
            // What is not written is no number.
            self.put_numbers(out, &vec![u16::MAX; queries.len()]);
            self.attend_by(many, &plan, layout, [KV_HEADS; 2], args);
            self.numbers_at(out, queries.len())
        });
        let largest = plain.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        plain.iter().zip(&tried).all(|(x, y)| (x - y).abs() <= APART * largest)
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

/// Between -2 and 2, as pages of this kind have them.
fn numbers(dtype: KvDtype, count: usize) -> Vec<u16> {
    let number = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7 & 0xffff) as f32 / 16384.0 - 2.0;
    let bits = |x: f32| match dtype {
        KvDtype::F16 => f16::from_f32(x).to_bits(),
        _ => bf16::from_f32(x).to_bits(),
    };
    (0..count).map(|i| bits(number(i))).collect()
}
