//! [`Device`] over a [`Driver`]: which kernel, over which grid, with which arguments.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kernels::arena::{Buf, Full, Lasting, Ledger, PAGE, assert_disjoint};
use kernels::attention::{Chosen, RopeBy, Span};
use kernels::device::{
    AttendShape, Device, Dtype, KvPages, Matrix, Needs, NormWeights, QkTransform, Rows, Sink,
};
use kernels::linear::{Activation, Activations, Format, RowOrder, panel_bytes};
use kernels::pick::{NoPick, PICKED, Pick, Picked};
use kernels::queue::{self, Mark};

use crate::adopted::{Adopted, addresses};
use crate::args::{CapArgs, ConvertArgs, EmbedArgs, LinearArgs, StoreKvArgs};
use crate::attend::together;
use crate::copies::Way;
use crate::in_rows::Panels;
use crate::module::{Module, kind_of};
use crate::needs;
use crate::product::Room;
use crate::ranges::Ranges;
use crate::repeat::{self, Repeating};
use crate::rows::To;
use crate::sample::{self, Places};
use crate::slots::{covered, slots};
use crate::sparse::TILE_ROWS;
use crate::tables::{Tables, padded};
use crate::{CudaError, Driver, Launch, QUEUES};

/// Device memory for tables on their way, of the queue that computes and of each other.
pub(crate) const TABLE_BYTES: [usize; 2] = [8 << 20, 256 << 10];
/// Device memory of each queue for scattered pieces on their way.
pub(crate) const STAGE_BYTES: usize = 4 << 20;
/// Device memory for partial results of attention.
pub(crate) const PARTIAL_BYTES: usize = 32 << 20;
/// Of that, what is not a library's.
const OWN_BYTES: usize = PARTIAL_BYTES
    + QUEUES * STAGE_BYTES
    + TABLE_BYTES[0]
    + (QUEUES - 1) * TABLE_BYTES[1]
    + repeat::TABLE_BYTES
    + Places::BYTES;

/// Device memory that a device takes for itself, beside what it hands out: for a library of products too, if it has one.
pub(crate) fn own_bytes(library: Option<&Room>) -> usize {
    OWN_BYTES + library.map_or(0, Room::bytes)
}
/// Blocks of a grid, x and y, that every device takes.
pub(crate) const GRID_MAX: [usize; 2] = [(1 << 31) - 1, (1 << 16) - 1];

/// A GPU, or what stands in for one.
pub struct GpuDevice<D> {
    pub(crate) driver: Repeating<D>,
    ledger: Ledger,
    base: u64,
    /// Of the queue that computes, the only one that attends.
    pub(crate) partials: u64,
    stages: u64,
    /// Tokens that were picked.
    pub(crate) picked: u64,
    pub(crate) places: Mutex<Places>,
    /// Of the library of products, if there is one.
    products: u64,
    /// Where weights lie in rows.
    pub(crate) in_rows: Mutex<Ranges>,
    adopted: Mutex<Adopted>,
    /// By queue. Held for a whole call: tables must not come round before the kernel that reads them has been asked for.
    tables: Vec<Mutex<Tables>>,
}

impl<D: Driver> GpuDevice<D> {
    /// A device with `bytes` of memory to hand out.
    ///
    /// # Errors
    /// [`CudaError::Memory`] if there is not as much.
    pub fn new(mut driver: D, bytes: usize) -> Result<GpuDevice<D>, CudaError> {
        let bytes = bytes.next_multiple_of(256);
        let room = driver.products().map(|library| library.room());
        let base = driver.allocate(bytes + own_bytes(room.as_ref()))?;
        let partials = base + bytes as u64;
        let stages = partials + PARTIAL_BYTES as u64;
        let mut next = stages + (QUEUES * STAGE_BYTES) as u64;
        let tables = (0..QUEUES).map(|queue| {
            let (at, bytes) = (next, TABLE_BYTES[queue.min(1)]);
            next += bytes as u64;
            Mutex::new(Tables::new(at, bytes))
        });
        let tables = tables.collect();
        let driver = Repeating::new(driver, next);
        let products = base + (bytes + OWN_BYTES) as u64;
        Ok(GpuDevice {
            driver,
            ledger: Ledger::new(bytes),
            base,
            partials,
            stages,
            picked: products - Places::BYTES as u64,
            places: Mutex::default(),
            products,
            in_rows: Mutex::default(),
            adopted: Mutex::default(),
            tables,
        })
    }

    /// Memory for unpacked panels, for results on their way and for the library of products.
    pub(crate) fn product_memory(&self, room: &Room) -> [u64; 3] {
        let results = self.products + room.weight_bytes as u64;
        [self.products, results, results + room.result_bytes as u64]
    }

    /// What runs its kernels. It has been asked for all that this thread's queue has asked the device for.
    pub fn driver(&self) -> &D {
        self.driver.now()
    }

    /// Takes back everything that was handed out: earlier buffers are refused from now on.
    pub fn reset(&mut self) {
        self.driver.wait();
        self.ledger = Ledger::new(self.ledger.capacity());
        self.in_rows.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Where this thread's queue has scattered pieces on their way.
    pub(crate) fn stage(&self) -> u64 {
        self.stages + (queue::current() * STAGE_BYTES) as u64
    }

    pub(crate) fn at(&self, buf: &Buf) -> u64 {
        self.base + self.ledger.offset(buf) as u64
    }

    pub(crate) fn adopted(&self) -> MutexGuard<'_, Adopted> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn maybe(&self, buf: Option<Buf>) -> u64 {
        buf.map_or(0, |buf| self.at(&buf))
    }

    /// The address of a matrix, once it is known to fit its buffer.
    pub(crate) fn rows(&self, rows: Rows) -> u64 {
        let bytes = rows.rows * rows.cols * rows.dtype.bytes();
        assert!(bytes <= rows.buf.bytes(), "{} x {} in {} bytes", rows.rows, rows.cols, rows.buf.bytes());
        self.at(&rows.buf)
    }

    pub(crate) fn floats(&self, rows: Rows) -> u64 {
        assert_eq!(rows.dtype, Dtype::F32, "expected f32 activations");
        self.rows(rows)
    }

    /// The ring of this thread's queue, with room for a call's tables.
    pub(crate) fn tables(&self, lengths: &[usize]) -> MutexGuard<'_, Tables> {
        let mut tables = self.tables[queue::current()].lock().unwrap_or_else(PoisonError::into_inner);
        tables.reserve(&self.driver, lengths.iter().map(|words| padded(4 * words)).sum());
        tables
    }

    pub(crate) fn launch<A: bytemuck::NoUninit>(
        &self,
        module: Module,
        kernel: &'static str,
        grid: [usize; 2],
        threads: u32,
        args: &A,
    ) {
        if grid.contains(&0) {
            return;
        }
        let [x, y] = grid;
        assert!(x <= GRID_MAX[0] && y <= GRID_MAX[1], "{kernel}: a grid of {x} x {y} blocks");
        self.driver.launch(&Launch { module, kernel, grid, threads, args: bytemuck::bytes_of(args) });
    }

    /// What a linear's arguments say of where its results go: address, row length, first column, sink, function, bf16.
    fn sink(&self, sink: Sink, rows: usize, n: usize) -> (Rows, [u32; 4]) {
        let (out, first, kind, act, cols) = match sink {
            Sink::Store(out) => (out, 0, 0, 0, n),
            Sink::StoreAt(out, first) => {
                assert!(first + n <= out.cols, "columns {first}..{} of {}", first + n, out.cols);
                (out, first, 0, 0, out.cols)
            }
            Sink::Add(out) => (out, 0, 1, 0, n),
            Sink::Act(act, out) => (out, 0, 2, activation(act), n),
            Sink::Gated(act, out) => (out, 0, 3, activation(act), n / 2),
        };
        assert_eq!((out.rows, out.cols), (rows, cols), "rows and columns of the output");
        let bf16 = out.dtype == Dtype::Bf16;
        assert!(!bf16 || !matches!(sink, Sink::Add(_) | Sink::StoreAt(..)), "expected f32 activations");
        (out, [first as u32, kind, act, bf16.into()])
    }

    /// The panels of each part: first, how many, where.
    fn parts(&self, w: &Matrix) -> Vec<(usize, usize, u64)> {
        let bytes = panel_bytes(w.format, w.k);
        w.parts.iter().map(|(first, buf)| (*first, buf.bytes() / bytes, self.at(buf))).collect()
    }
}

impl<D: Driver> Device for GpuDevice<D> {
    fn take(&mut self, bytes: usize) -> Result<Buf, Full> {
        self.ledger.take(bytes)
    }

    fn remarks(&self) -> Vec<String> {
        self.driver.remarks()
    }

    fn prepare(&self, needs: &Needs) -> Result<(), String> {
        needs::check(needs)?;
        self.prepare_modules(&Module::needed(needs, self.driver.prefill())).map_err(|e| e.to_string())
    }

    fn fill(&self, buf: &Buf, fill: &mut dyn FnMut(&mut [u8])) {
        let mut staged = vec![0; buf.bytes() + PAGE];
        // From a page on: a drive reads into it without a copy.
        let skip = staged.as_ptr().align_offset(PAGE);
        let staged = &mut staged[skip..][..buf.bytes()];
        fill(staged);
        self.upload(buf, staged);
    }

    fn upload(&self, buf: &Buf, bytes: &[u8]) {
        assert_eq!(buf.bytes(), bytes.len(), "bytes of a buffer");
        self.forget_rows(buf);
        let fill = &mut |first: usize, into: &mut [u8]| into.copy_from_slice(&bytes[first..][..into.len()]);
        self.driver.upload(self.at(buf), bytes.len(), fill);
    }

    fn view(&self, buf: &Buf, view: &mut dyn FnMut(&[u8])) {
        self.assert_no_rows(buf);
        // Words, so that the bytes are aligned for any number.
        let mut words = vec![0u64; buf.bytes().div_ceil(8)];
        let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..buf.bytes()];
        let place = &mut |first: usize, piece: &[u8]| bytes[first..][..piece.len()].copy_from_slice(piece);
        self.driver.download(self.at(buf), buf.bytes(), place);
        view(bytes);
    }

    fn is_far(&self) -> bool {
        true
    }

    fn collect(&self, bufs: &[Buf], view: &mut dyn FnMut(usize, &[u8])) {
        bufs.iter().for_each(|buf| self.assert_no_rows(buf));
        self.collect_pieces(bufs, view);
    }

    fn spread(&self, bufs: &[Buf], fill: &mut dyn FnMut(usize, &mut [u8])) {
        bufs.iter().for_each(|buf| self.forget_rows(buf));
        self.spread_pieces(bufs, fill);
    }

    /// Small pieces share their page with others.
    fn adopt(&self, memory: Lasting) -> Result<Option<usize>, String> {
        let alone = memory.bytes() >= PAGE && memory.address().addr().is_multiple_of(PAGE);
        let addresses = addresses(&memory);
        let adopt = || self.driver.adopt(memory).map(|there| self.adopted().add(&addresses, there));
        alone.then(adopt).transpose().map_err(|error| error.to_string())
    }

    fn upload_from(&self, buf: &Buf, adopted: usize, first: usize) {
        self.forget_rows(buf);
        let from = self.adopted().at(adopted, first, buf.bytes());
        self.driver.copy(from, self.at(buf), buf.bytes());
    }

    fn collect_into(&self, bufs: &[Buf], memory: &[Lasting]) -> bool {
        bufs.iter().for_each(|buf| self.assert_no_rows(buf));
        self.carry_between(bufs, memory, Way::Out)
    }

    fn spread_from(&self, bufs: &[Buf], memory: &[Lasting]) -> bool {
        bufs.iter().for_each(|buf| self.forget_rows(buf));
        self.carry_between(bufs, memory, Way::In)
    }

    fn enter(&self, queue: usize, after: &[Mark]) {
        self.driver.enter(queue, after);
    }

    fn mark(&self, mark: Mark) {
        self.driver.mark(mark);
    }

    fn repeats(&self) {
        self.driver.begin();
    }

    fn is_late(&self) -> bool {
        true
    }

    fn reach(&self, mark: Mark) {
        self.driver.reach(mark);
    }

    fn when(&self, mark: Mark) -> Option<Instant> {
        self.driver.when(mark)
    }

    fn wait(&self) {
        self.driver.wait();
    }

    fn picks(&self, vocab: usize) -> bool {
        sample::can_pick(vocab)
    }

    fn pick(&self, logits: Rows, rows: &[(u32, Pick)]) -> Picked {
        self.pick_tokens(logits, rows)
    }

    fn picked(&self, picked: Picked) -> Vec<Result<u32, NoPick>> {
        self.fetch_tokens(picked)
    }

    fn keeps_picked(&self) -> usize {
        Places::COUNT
    }

    fn embed(&self, table: &Matrix, ids: &[u32], scale: f32, out: Rows) {
        assert_eq!((out.rows, out.cols), (ids.len(), table.k), "embed: shape of the output");
        let known = |id: u32| if id < PICKED { table.n } else { PICKED as usize + Places::COUNT };
        assert!(ids.iter().all(|&id| (id as usize) < known(id)), "embed: a row beyond the table");
        let out_at = self.floats(out);
        let mut tables = self.tables(&[ids.len()]);
        let ids_at = tables.put(&self.driver, ids);
        for (first, panels, at) in self.parts(table) {
            let args = EmbedArgs {
                panels: at,
                ids: ids_at,
                picked: self.picked,
                out: out_at,
                panel_bytes: panel_bytes(table.format, table.k) as u64,
                k: table.k as u32,
                n: table.n as u32,
                first_panel: first as u32,
                held_panels: panels as u32,
                gated: (table.order == RowOrder::Gated).into(),
                row_bytes: self.row_bytes(table.format, &Panels { at, count: panels, k: table.k }),
                scale,
                unused: 0,
            };
            self.launch(Module::Linear(table.format), "embed_rows", [ids.len(), 1], 128, &args);
        }
    }

    fn add_rows(&self, table: Buf, rows: &[u32], out: Rows) {
        assert_disjoint(&[&out.buf], &[&table]);
        let held = table.bytes() / (4 * out.cols);
        assert!(rows.iter().all(|row| (*row as usize) < held), "add_rows: a row beyond the table");
        self.pick_rows(self.at(&table), rows, out, true);
    }

    fn gather(&self, x: Rows, rows: &[u32], out: Rows) {
        assert_disjoint(&[&out.buf], &[&x.buf]);
        assert_eq!(x.cols, out.cols, "gather: columns");
        assert!(rows.iter().all(|row| (*row as usize) < x.rows), "gather: a row beyond the matrix");
        self.pick_rows(self.floats(x), rows, out, false);
    }

    fn norm(&self, x: Rows, norm: &NormWeights, out: Rows) {
        self.put_norm(x, norm, To::storing(out), out);
    }

    fn add_norm(&self, x: Rows, norm: &NormWeights, out: Rows) {
        assert_eq!(out.dtype, Dtype::F32, "a sum in f32");
        self.put_norm(x, norm, To::Sum, out);
    }

    fn norm_columns(&self, x: Rows, first: usize, parts: usize, norm: &NormWeights) {
        self.put_norm_columns(x, first, parts, norm);
    }

    fn cap(&self, x: Rows, cap: f32) {
        let count = x.rows * x.cols;
        let args = CapArgs { x: self.floats(x), count: count as u64, cap, unused: 0 };
        self.launch(Module::Rows, "cap_rows", [count.div_ceil(1024).min(4096), 1], 256, &args);
    }

    fn convert(&self, x: Rows, out: Rows) {
        assert_disjoint(&[&out.buf], &[&x.buf]);
        assert_eq!(x.rows * x.cols, out.rows * out.cols, "convert: numbers in and out differ");
        let count = x.rows * x.cols;
        let bf16 = |rows: Rows| u32::from(rows.dtype == Dtype::Bf16);
        let (from, to) = (self.rows(x), self.rows(out));
        let args = ConvertArgs { from, out: to, count: count as u64, from_bf16: bf16(x), to_bf16: bf16(out) };
        self.launch(Module::Rows, "convert_rows", [count.div_ceil(1024).min(4096), 1], 256, &args);
    }

    fn linear(&self, x: Rows, w: &Matrix, bias: Option<Buf>, sink: Sink) {
        let wanted = if w.format == Format::F32 { Dtype::F32 } else { Dtype::Bf16 };
        assert_eq!((x.dtype, x.cols), (wanted, w.k), "linear: type and columns of the input");
        assert_eq!(w.activations, Activations::Exact, "linear: activations are multiplied as they are");
        let gated = matches!(sink, Sink::Gated(..));
        assert_eq!(gated, w.order == RowOrder::Gated, "gated output and gated row order go together");
        let (out, [out_first, kind, act, out_bf16]) = self.sink(sink, x.rows, w.n);
        assert_disjoint(&[&out.buf], &[&x.buf]);
        for (first, panels, at) in self.parts(w) {
            let args = LinearArgs {
                x: self.rows(x),
                panels: at,
                bias: self.maybe(bias),
                out: self.rows(out),
                panel_bytes: panel_bytes(w.format, w.k) as u64,
                rows: x.rows as u32,
                n: w.n as u32,
                k: w.k as u32,
                first_panel: first as u32,
                out_cols: out.cols as u32,
                out_first,
                sink: kind,
                act,
                out_bf16,
                row_bytes: self.row_bytes(w.format, &Panels { at, count: panels, k: w.k }),
            };
            self.linear_part(w, panels, args);
        }
    }

    fn store_kv(&self, qkv: Rows, transform: &QkTransform, spans: &[Span<'_>], kv: KvPages, q: Rows) {
        assert_disjoint(&[&q.buf, &kv.buf], &[&qkv.buf]);
        let (heads, kv_heads, head_dim) = (transform.heads, kv.layout.kv_heads, kv.layout.head_dim);
        let all = heads + 2 * kv_heads;
        assert_eq!(
            (qkv.cols, q.cols),
            (all * head_dim, heads * head_dim),
            "columns of projection and queries"
        );
        assert_eq!(qkv.rows, q.rows, "rows of projection and queries");
        // Of a call for some of the batch's sequences, their rows alone.
        let rows = covered(spans);
        let (qkv, q) = (qkv.range(rows.clone()), q.range(rows.clone()));
        let by = transform.rope.map_or(RopeBy::Position, |rope| rope.by);
        let growth = transform.rope.and_then(|rope| rope.growth);
        assert!(growth.is_none() || by == RopeBy::Position, "queries grow by position, not by row");
        let (turns, slots) = slots(spans, rows, by);
        let mut tables = self.tables(&[turns.len(), slots.len()]);
        let args = StoreKvArgs {
            qkv: self.floats(qkv),
            q_norm: self.maybe(transform.norms.map(|norms| norms.0)),
            k_norm: self.maybe(transform.norms.map(|norms| norms.1)),
            cos: self.maybe(transform.rope.map(|rope| rope.cos)),
            sin: self.maybe(transform.rope.map(|rope| rope.sin)),
            turns: tables.put(&self.driver, &turns),
            slots: tables.put(&self.driver, &slots),
            q: self.rows(q),
            pages: self.at(&kv.buf),
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            rotary_dim: transform.rope.map_or(0, |rope| rope.rotary_dim) as u32,
            eps: transform.norms.map_or(0.0, |norms| norms.2),
            q_bf16: (q.dtype == Dtype::Bf16).into(),
            kv: kind_of(kv.layout.dtype),
            beta: growth.map_or(0.0, |growth| growth.beta),
            period: growth.map_or(1, |growth| growth.period) as u32,
            unused: 0,
        };
        self.launch(Module::Rows, "store_kv", [qkv.rows, all.div_ceil(4)], 128, &args);
    }

    fn attend(&self, q: Rows, kv: KvPages, spans: &[Span<'_>], shape: AttendShape, out: Rows) {
        assert_disjoint(&[&out.buf], &[&q.buf, &kv.buf]);
        let args = self.attend_args(q, kv, shape, out);
        let pieces = (shape.heads / kv.layout.kv_heads).div_ceil(TILE_ROWS);
        for spans in together(spans, pieces, TABLE_BYTES[0] / 8) {
            if shape.share.is_some() {
                self.attend_sparse(args, kv.layout, spans, shape);
            } else {
                self.attend_all_keys(args, kv.layout, spans, shape);
            }
        }
    }

    fn choose(&self, q: Rows, kv: KvPages, spans: &[Span<'_>], shape: AttendShape) -> Chosen {
        self.choose_sparse(q, kv, spans, shape)
    }
}

fn activation(kind: Activation) -> u32 {
    match kind {
        Activation::Silu => 0,
        Activation::Relu => 1,
        Activation::Gelu => 2,
        Activation::GeluTanh => 3,
        Activation::Relu2 => 4,
    }
}
