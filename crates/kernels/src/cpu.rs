//! The CPU as a device: an arena of host memory and a team of threads.

use std::sync::{Arc, Mutex};

use half::bf16;

use crate::arena::{Arena, Buf, Full, Lasting, assert_disjoint};
use crate::attention::{
    self, Cache, Chosen, HeadNorm, HeadOps, Queries, RopeTable, Rows as AttentionRows, RowsMut, Scratch,
    Softmax, Span,
};
use crate::device::{AttendShape, Device, Dtype, KvPages, Matrix, NormWeights, QkTransform, Rows, Sink};
use crate::elementwise::{self, Norm};
use crate::linear::{self, Activated, Input, Output, Part, Weight};
use crate::{Isa, Mat, MatMut, Order, Team};

/// The CPU, with a memory budget of its own.
pub struct CpuDevice {
    arena: Arena,
    team: Arc<Team>,
    isa: Isa,
    /// Of the additions of bf16 linears.
    order: Order,
    /// Partial results of attention. One call at a time, as the team runs one kernel at a time, whichever device asks.
    scratch: Mutex<Scratch>,
    stale: Stale,
}

/// What becomes of bytes that nobody may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stale {
    Kept,
    Poisoned,
}

/// Every number of these bytes is a NaN, in f32, bf16 and f16, and every count absurd.
const POISON: u8 = 0xff;

impl CpuDevice {
    /// A device of `bytes` of memory that computes with `team`.
    ///
    /// # Errors
    /// The system's own, if it does not give the address space.
    pub fn new(bytes: usize, team: Arc<Team>, isa: Isa) -> std::io::Result<CpuDevice> {
        CpuDevice::with_order(bytes, team, isa, isa.order())
    }

    /// A device of plain loops that adds as `isa` does: what that family's kernels are held against.
    ///
    /// # Errors
    /// As [`new`](CpuDevice::new).
    pub fn reference(bytes: usize, team: Arc<Team>, isa: Isa) -> std::io::Result<CpuDevice> {
        CpuDevice::with_order(bytes, team, Isa::Scalar, isa.order())
    }

    /// A device that adds in the order of groups, by the best family that can: what a GPU is held against, which makes bf16
    /// numbers of narrow weights too.
    ///
    /// # Errors
    /// As [`new`](CpuDevice::new).
    pub fn in_groups(bytes: usize, team: Arc<Team>) -> std::io::Result<CpuDevice> {
        CpuDevice::with_order(bytes, team, Isa::best_in_groups(), Order::Groups)
    }

    fn with_order(bytes: usize, team: Arc<Team>, isa: Isa, order: Order) -> std::io::Result<CpuDevice> {
        let (arena, scratch) = (Arena::new(bytes)?, Mutex::default());
        Ok(CpuDevice { arena, team, isa, order, scratch, stale: Stale::Kept })
    }

    /// The same device, whose memory is full of NaNs wherever what was there is of no use any more: whoever reads such
    /// bytes gives wrong results at once. For tests.
    #[must_use]
    pub fn poisoned(self) -> CpuDevice {
        CpuDevice { stale: Stale::Poisoned, ..self }
    }

    /// A matrix of activations to read.
    ///
    /// Why this and the next three are sound: the trait's contract is that calls which share a written buffer
    /// do not run at the same time, and each call asserts that its own buffers are disjoint.
    fn f32s(&self, rows: Rows) -> &[f32] {
        assert_eq!(rows.dtype, Dtype::F32, "expected f32 activations");
        // SAFETY: see above.
        let all = unsafe { self.arena.get::<f32>(&rows.buf) };
        &all[..rows.rows * rows.cols]
    }

    fn bf16s(&self, rows: Rows) -> &[bf16] {
        assert_eq!(rows.dtype, Dtype::Bf16, "expected bf16 activations");
        // SAFETY: see above.
        let all = unsafe { self.arena.get::<bf16>(&rows.buf) };
        &all[..rows.rows * rows.cols]
    }

    #[allow(clippy::mut_from_ref)]
    fn f32s_mut(&self, rows: Rows) -> &mut [f32] {
        assert_eq!(rows.dtype, Dtype::F32, "expected f32 activations");
        // SAFETY: see above.
        let all = unsafe { self.arena.get_mut::<f32>(&rows.buf) };
        &mut all[..rows.rows * rows.cols]
    }

    #[allow(clippy::mut_from_ref)]
    fn bf16s_mut(&self, rows: Rows) -> &mut [bf16] {
        assert_eq!(rows.dtype, Dtype::Bf16, "expected bf16 activations");
        // SAFETY: see above.
        let all = unsafe { self.arena.get_mut::<bf16>(&rows.buf) };
        &mut all[..rows.rows * rows.cols]
    }

    fn parameters(&self, buf: Option<Buf>) -> Option<&[f32]> {
        // SAFETY: parameters are written while loading only.
        buf.map(|buf| unsafe { self.arena.get::<f32>(&buf) })
    }

    fn norm_of(&self, norm: &NormWeights) -> Norm<'_> {
        let (weight, bias) = (self.parameters(norm.weight), self.parameters(norm.bias));
        Norm { kind: norm.kind, eps: norm.eps, weight, bias }
    }

    fn weight(&self, w: &Matrix) -> Weight<'_> {
        let part = |(first_panel, buf): &(usize, Buf)| Part {
            first_panel: *first_panel,
            // SAFETY: panels are written while loading, or by a copy that the program orders before.
            bytes: unsafe { self.arena.get::<u8>(buf) },
        };
        let parts = w.parts.iter().map(part).collect();
        Weight::new(w.format, w.n, w.k, w.order, parts).with_activations(w.activations)
    }

    fn activated(&self, rows: Rows) -> Activated<'_> {
        match rows.dtype {
            Dtype::F32 => Activated::F32(MatMut::new(self.f32s_mut(rows), rows.rows, rows.cols)),
            Dtype::Bf16 => Activated::Bf16(MatMut::new(self.bf16s_mut(rows), rows.rows, rows.cols)),
        }
    }

    fn input(&self, rows: Rows) -> Input<'_> {
        match rows.dtype {
            Dtype::F32 => Input::F32(Mat::new(self.f32s(rows), rows.rows, rows.cols)),
            Dtype::Bf16 => Input::Bf16(Mat::new(self.bf16s(rows), rows.rows, rows.cols)),
        }
    }

    fn rows_mut(&self, rows: Rows) -> RowsMut<'_> {
        match rows.dtype {
            Dtype::F32 => RowsMut::F32(MatMut::new(self.f32s_mut(rows), rows.rows, rows.cols)),
            Dtype::Bf16 => RowsMut::Bf16(MatMut::new(self.bf16s_mut(rows), rows.rows, rows.cols)),
        }
    }

    fn head_ops(&self, transform: &QkTransform) -> HeadOps<'_> {
        let table = |buf: Buf| self.parameters(Some(buf)).unwrap_or_default();
        HeadOps {
            norm: transform.norms.map(|(q, k, eps)| HeadNorm { q: table(q), k: table(k), eps }),
            rope: transform.rope.map(|rope| RopeTable {
                by: rope.by,
                cos: table(rope.cos),
                sin: table(rope.sin),
                rotary_dim: rope.rotary_dim,
                growth: rope.growth,
            }),
        }
    }

    /// Where `n` columns go.
    fn output(&self, sink: Sink, n: usize) -> (Output<'_>, Buf) {
        match sink {
            Sink::StoreAt(rows, first) => {
                assert!(first + n <= rows.cols, "columns {first}..{} of {}", first + n, rows.cols);
                let data = &mut self.f32s_mut(rows)[first.min(rows.rows * rows.cols)..];
                (Output::StoreF32(MatMut::with_stride(data, rows.rows, n, rows.cols)), rows.buf)
            }
            Sink::Store(rows) => (
                match self.activated(rows) {
                    Activated::F32(out) => Output::StoreF32(out),
                    Activated::Bf16(out) => Output::StoreBf16(out),
                },
                rows.buf,
            ),
            Sink::Add(rows) => {
                let out = MatMut::new(self.f32s_mut(rows), rows.rows, rows.cols);
                (Output::AddF32(out), rows.buf)
            }
            Sink::Act(kind, rows) => (Output::Act { kind, out: self.activated(rows) }, rows.buf),
            Sink::Gated(kind, rows) => (Output::Gated { kind, out: self.activated(rows) }, rows.buf),
        }
    }
}

impl CpuDevice {
    fn queries(&self, q: Rows) -> AttentionRows<'_> {
        match q.dtype {
            Dtype::F32 => AttentionRows::F32(Mat::new(self.f32s(q), q.rows, q.cols)),
            Dtype::Bf16 => AttentionRows::Bf16(Mat::new(self.bf16s(q), q.rows, q.cols)),
        }
    }

    fn cache(&self, kv: KvPages) -> Cache<'_> {
        // SAFETY: the trait's contract: nobody writes the layer's pages during a call that reads them.
        Cache { bytes: unsafe { self.arena.get::<u8>(&kv.buf) }, layout: kv.layout }
    }
}

impl Device for CpuDevice {
    fn take(&mut self, bytes: usize) -> Result<Buf, Full> {
        self.arena.take(bytes)
    }

    fn lasting(&self, buf: &Buf) -> Option<Lasting> {
        Some(self.arena.lasting(buf))
    }

    fn discard(&self, buf: &Buf) {
        if self.stale == Stale::Poisoned {
            self.fill(buf, &mut |bytes| bytes.fill(POISON));
        }
    }

    fn fill(&self, buf: &Buf, fill: &mut dyn FnMut(&mut [u8])) {
        // SAFETY: the trait's contract.
        fill(unsafe { self.arena.get_mut(buf) });
    }

    fn view(&self, buf: &Buf, view: &mut dyn FnMut(&[u8])) {
        // SAFETY: the trait's contract.
        view(unsafe { self.arena.get(buf) });
    }

    /// Writes zero to every page, all threads at once.
    fn touch(&self, buf: &Buf) {
        const PAGE: usize = 4096;
        // SAFETY: the trait's contract: nobody else uses the buffer during this call.
        let bytes = unsafe { self.arena.get_mut::<u8>(buf) };
        let pieces: Vec<Mutex<&mut [u8]>> = bytes.chunks_mut(64 * PAGE).map(Mutex::new).collect();
        self.team.run(|w| {
            for piece in &pieces[w.share(pieces.len())] {
                let mut piece = piece.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                piece.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
            }
        });
    }

    fn embed(&self, table: &Matrix, ids: &[u32], scale: f32, out: Rows) {
        assert_eq!((out.rows, out.cols), (ids.len(), table.k), "embed: shape of the output");
        let table = self.weight(table);
        elementwise::for_rows(&self.team, self.f32s_mut(out), out.cols, |i, row| {
            linear::unpack_row(&table, ids[i] as usize, row);
            row.iter_mut().for_each(|x| *x *= scale);
        });
    }

    fn add_rows(&self, table: Buf, rows: &[u32], out: Rows) {
        assert_disjoint(&[&out.buf], &[&table]);
        let table = self.parameters(Some(table)).unwrap_or_default();
        elementwise::add_rows(&self.team, table, out.cols, rows, self.f32s_mut(out));
    }

    fn gather(&self, x: Rows, rows: &[u32], out: Rows) {
        assert_disjoint(&[&out.buf], &[&x.buf]);
        elementwise::copy_rows(&self.team, self.f32s(x), x.cols, rows, self.f32s_mut(out));
    }

    fn norm(&self, x: Rows, norm: &NormWeights, out: Rows) {
        assert_disjoint(&[&out.buf], &[&x.buf]);
        let norm = self.norm_of(norm);
        let (team, isa, values) = (&*self.team, self.isa, self.f32s(x));
        match out.dtype {
            Dtype::F32 => elementwise::norm(team, isa, values, x.cols, norm, self.f32s_mut(out)),
            Dtype::Bf16 => elementwise::norm(team, isa, values, x.cols, norm, self.bf16s_mut(out)),
        }
    }

    fn add_norm(&self, x: Rows, norm: &NormWeights, out: Rows) {
        assert_disjoint(&[&out.buf], &[&x.buf]);
        let (norm, out) = (self.norm_of(norm), self.f32s_mut(out));
        elementwise::add_norm(&self.team, self.isa, self.f32s(x), x.cols, norm, out);
    }

    fn norm_columns(&self, x: Rows, first: usize, parts: usize, norm: &NormWeights) {
        let (norm, values) = (self.norm_of(norm), self.f32s_mut(x));
        elementwise::norm_columns(&self.team, self.isa, values, x.cols, (first, parts), norm);
    }

    fn cap(&self, x: Rows, cap: f32) {
        elementwise::cap(&self.team, self.isa, self.f32s_mut(x), x.cols, cap);
    }

    fn convert(&self, x: Rows, out: Rows) {
        assert_disjoint(&[&out.buf], &[&x.buf]);
        match (x.dtype, out.dtype) {
            (Dtype::F32, Dtype::Bf16) => {
                elementwise::round_to_bf16(self.isa, self.f32s(x), self.bf16s_mut(out));
            }
            (Dtype::Bf16, Dtype::F32) => {
                elementwise::widen_to_f32(self.isa, self.bf16s(x), self.f32s_mut(out));
            }
            (Dtype::F32, Dtype::F32) => self.f32s_mut(out).copy_from_slice(self.f32s(x)),
            (Dtype::Bf16, Dtype::Bf16) => self.bf16s_mut(out).copy_from_slice(self.bf16s(x)),
        }
    }

    fn linear(&self, x: Rows, w: &Matrix, bias: Option<Buf>, sink: Sink) {
        let (output, written) = self.output(sink, w.n);
        assert_disjoint(&[&written], &[&x.buf]);
        let (x, w, bias) = (self.input(x), &self.weight(w), self.parameters(bias));
        linear::linear_in(&self.team, (self.isa, self.order), x, w, bias, output);
    }

    fn store_kv(&self, qkv: Rows, transform: &QkTransform, spans: &[Span<'_>], kv: KvPages, q: Rows) {
        assert_disjoint(&[&q.buf, &kv.buf], &[&qkv.buf]);
        let values = Mat::new(self.f32s(qkv), qkv.rows, qkv.cols);
        let ops = self.head_ops(transform);
        // SAFETY: the trait's contract: nobody else touches the layer's pages during this call.
        let cache = unsafe { self.arena.get_mut::<u8>(&kv.buf) };
        attention::rope_and_write(
            &self.team,
            self.isa,
            values,
            spans,
            ops,
            kv.layout,
            self.rows_mut(q),
            cache,
        );
    }

    fn attend(&self, q: Rows, kv: KvPages, spans: &[Span<'_>], shape: AttendShape, out: Rows) {
        assert_disjoint(&[&out.buf], &[&q.buf, &kv.buf]);
        let mut scratch = self.scratch.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (queries, cache) = (Queries { rows: self.queries(q), spans }, self.cache(kv));
        let out = self.rows_mut(out);
        attention::attend(&self.team, self.isa, queries, cache, softmax(shape), out, &mut scratch);
    }

    fn choose(&self, q: Rows, kv: KvPages, spans: &[Span<'_>], shape: AttendShape) -> Chosen {
        let mut scratch = self.scratch.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (queries, cache) = (Queries { rows: self.queries(q), spans }, self.cache(kv));
        attention::choose(&self.team, self.isa, queries, cache, softmax(shape), &mut scratch)
    }
}

fn softmax(AttendShape { scale, window, share, cap, .. }: AttendShape) -> Softmax {
    Softmax { scale, window, share, cap }
}
