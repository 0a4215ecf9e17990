//! Memory that attention keeps between calls.

use super::layout::{KvDtype, KvLayout};
use super::plan::{self, Plan};
use crate::isa::Isa;

/// Memory for parts of results and for each worker's tiles: it grows to what a shape needs and stays, so a
/// steady state allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) plan: Plan,
    pub(super) memory: Memory,
}

/// The largest calls that a scratch is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Threads of the team.
    pub threads: usize,
    /// Query heads.
    pub heads: usize,
    /// Rows of a batch.
    pub rows: usize,
    /// Positions of a sequence.
    pub context: usize,
    /// Whether calls choose among keys.
    pub sparse: bool,
}

/// Bytes of a block's state, and of a worker's own memory, where a kernel multiplies bf16.
#[cfg(target_arch = "x86_64")]
fn tiled_bytes(layout: KvLayout, group: usize) -> (usize, usize) {
    let shape = super::tiled::Shape::new(layout, group);
    (shape.state_len() * size_of::<f32>(), shape.local_bytes())
}

impl Scratch {
    /// Bytes that a scratch comes to hold at most, for calls up to `demand`.
    pub fn bytes_at_most(isa: Isa, layout: KvLayout, demand: Demand) -> usize {
        let group = demand.heads / layout.kv_heads;
        let kernel = match (isa, layout.dtype) {
            (Isa::Scalar, _) => return 0,
            #[cfg(target_arch = "x86_64")]
            _ if demand.sparse => {
                let (state, local) = match isa {
                    Isa::Avx2 => super::vector::state_and_local::<8>(layout, group),
                    _ => super::vector::state_and_local::<16>(layout, group),
                };
                (state, local + super::vector::scores_bytes(group, demand.context))
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, KvDtype::Bf16 | KvDtype::Fp8 | KvDtype::Int4) => tiled_bytes(layout, group),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16, _) if super::tiled::pairs_suit(layout) => tiled_bytes(layout, group),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, _) => super::vector::state_and_local::<8>(layout, group),
            #[cfg(target_arch = "x86_64")]
            _ => super::vector::state_and_local::<16>(layout, group),
            #[cfg(not(target_arch = "x86_64"))]
            _ => return 0,
        };
        plan::bytes_at_most(demand.threads, kernel, layout.kv_heads, demand.rows, demand.context)
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        size_of_val(self.memory.lines.as_slice()) + self.plan.bytes()
    }
}

/// A cache line: what workers hold begins on one.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; 64]);

/// `threads` pieces of local memory, then the parts of cut blocks.
#[derive(Debug, Default)]
pub(super) struct Memory {
    lines: Vec<Line>,
    threads: usize,
    local: usize,
}

impl Memory {
    /// Makes room for `threads` times `local` bytes and `parts` f32 numbers.
    pub(super) fn reserve(&mut self, threads: usize, local: usize, parts: usize) {
        (self.threads, self.local) = (threads, local.next_multiple_of(64));
        let bytes = self.local * threads + parts * size_of::<f32>();
        if self.lines.len() * 64 < bytes {
            // Nothing of it is kept between calls, and a list that grows may take twice its need.
            self.lines = Vec::new();
            self.lines = vec![Line([0; 64]); bytes.div_ceil(64)];
        }
    }

    pub(super) fn shared(&mut self) -> SharedMemory<'_> {
        let bytes = self.lines.len() * 64;
        let data = self.lines.as_mut_ptr().cast();
        SharedMemory { data, bytes, threads: self.threads, local: self.local, of: std::marker::PhantomData }
    }
}

/// The memory as the workers of a team hold it at once.
pub(super) struct SharedMemory<'a> {
    data: *mut u8,
    bytes: usize,
    threads: usize,
    local: usize,
    of: std::marker::PhantomData<&'a mut [Line]>,
}

// SAFETY: the callers of `local` and `parts` promise that no two workers hold the same bytes.
unsafe impl Sync for SharedMemory<'_> {}

#[allow(clippy::mut_from_ref)]
impl SharedMemory<'_> {
    /// The memory of one worker, at the start of a cache line.
    ///
    /// # Safety
    /// No one else may hold that worker's memory.
    pub(super) unsafe fn local(&self, worker: usize) -> &mut [u8] {
        assert!(worker < self.threads);
        // SAFETY: inside the lines by `reserve`; exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(worker * self.local), self.local) }
    }

    /// `len` numbers of the parts, from number `first`.
    ///
    /// # Safety
    /// No one else may hold any of them.
    pub(super) unsafe fn parts(&self, first: usize, len: usize) -> &mut [f32] {
        let start = self.threads * self.local + first * size_of::<f32>();
        assert!(start + len * size_of::<f32>() <= self.bytes);
        // SAFETY: inside the lines, which are aligned for f32; exclusive by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start).cast(), len) }
    }
}
