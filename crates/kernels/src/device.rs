//! What a decoder asks of a device. The CPU is one (`cpu.rs`), a GPU another.
//!
//! Memory is handed around as plain [`Buf`]s; a device touches only buffers of its own arena and refuses
//! others. Calls of one queue (see [`queue`](crate::queue)) run in the order in which they are made; two calls that run at
//! the same time (from two lanes) must not share a buffer that one of them writes: the waits of a program see to it.

use std::time::Instant;

use crate::arena::{Buf, Full, Lasting};
use crate::attention::{Chosen, KvLayout, RopeBy, Span};
use crate::elementwise::NormKind;
use crate::linear::{Activation, Activations, Format, RowOrder};
use crate::pick::{NoPick, Pick, Picked};
use crate::queue::Mark;
use spec::rope::Growth;

/// What the numbers of activations are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 4 bytes.
    F32,
    /// 2 bytes: the upper half of an f32.
    Bf16,
}

impl Dtype {
    /// Size of one number.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }
}

/// A dense row-major matrix of activations: `[rows, cols]`.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Where it is; may be longer than the rows need.
    pub buf: Buf,
    /// How its numbers are stored.
    pub dtype: Dtype,
    /// Tokens.
    pub rows: usize,
    /// Features.
    pub cols: usize,
}

impl Rows {
    /// The first `rows` rows of the same memory.
    ///
    /// # Panics
    /// If the buffer is too short for them.
    pub fn first(self, rows: usize) -> Rows {
        self.range(0..rows)
    }

    /// Some consecutive rows of the same memory.
    ///
    /// # Panics
    /// If the buffer is too short for them.
    pub fn range(self, rows: std::ops::Range<usize>) -> Rows {
        let row_bytes = self.cols * self.dtype.bytes();
        let buf = self.buf.slice(rows.start * row_bytes, rows.len() * row_bytes);
        Rows { buf, rows: rows.len(), ..self }
    }
}

/// A packed weight in device memory: `[n, k]`, its panels in one or more buffers.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// How the numbers are packed.
    pub format: Format,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Which output rows share a panel.
    pub order: RowOrder,
    /// How its input is multiplied. A device that knows one way only refuses the other.
    pub activations: Activations,
    /// First panel and bytes of each run of consecutive panels.
    pub parts: Vec<(usize, Buf)>,
}

/// A norm whose parameters lie in device memory (`[cols] f32` each).
#[derive(Clone, Copy, Debug)]
pub struct NormWeights {
    /// RMS or layer norm.
    pub kind: NormKind,
    /// Added under the root.
    pub eps: f32,
    /// Absent means ones.
    pub weight: Option<Buf>,
    /// Absent means zeros.
    pub bias: Option<Buf>,
}

/// Where a linear's result goes, and what is done to it on the way.
#[derive(Clone, Copy, Debug)]
pub enum Sink {
    /// Stored: `[rows, n]`, f32 or bf16.
    Store(Rows),
    /// Stored in columns `first..first + n` of wider rows: `[rows, cols] f32`.
    StoreAt(Rows, usize),
    /// Added to `[rows, n] f32`: the residual stream.
    Add(Rows),
    /// `act(y)`: `[rows, n]`.
    Act(Activation, Rows),
    /// `act(gate) * up`: `[rows, n / 2]`; the matrix has [`RowOrder::Gated`].
    Gated(Activation, Rows),
}

/// One layer's pages of keys and values.
#[derive(Clone, Copy, Debug)]
pub struct KvPages {
    /// Heads, head size, number format.
    pub layout: KvLayout,
    /// All blocks of the layer.
    pub buf: Buf,
}

impl KvPages {
    /// One block of the layer.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn block(&self, block: u32) -> Buf {
        self.blocks(block, 1)
    }

    /// Some neighbouring blocks of the layer.
    ///
    /// # Panics
    /// If there are no such blocks.
    pub fn blocks(&self, first: u32, count: usize) -> Buf {
        let bytes = self.layout.block_bytes();
        self.buf.slice(first as usize * bytes, count * bytes)
    }
}

/// Rotary tables in device memory: `[positions or rows, rotary_dim / 2] f32` each.
#[derive(Clone, Copy, Debug)]
pub struct RopeTables {
    /// What they have rows of.
    pub by: RopeBy,
    /// Cosines.
    pub cos: Buf,
    /// Sines.
    pub sin: Buf,
    /// Dimensions of a head that are turned.
    pub rotary_dim: usize,
    /// How queries grow, where tables have rows of positions.
    pub growth: Option<Growth>,
}

/// What happens to queries and keys before they are used and stored.
#[derive(Clone, Copy, Debug)]
pub struct QkTransform {
    /// Query heads.
    pub heads: usize,
    /// Per-head norms of queries and keys (Qwen3), `[head_dim]` each.
    pub norms: Option<(Buf, Buf, f32)>,
    /// Absent for learned positions.
    pub rope: Option<RopeTables>,
}

/// The shape of an attention.
#[derive(Clone, Copy, Debug)]
pub struct AttendShape {
    /// Query heads.
    pub heads: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// How many positions a query sees, itself included.
    pub window: Option<usize>,
    /// Which share of them counts, those with the highest scores; all if absent.
    pub share: Option<f32>,
    /// Scores, once multiplied, become `cap * tanh(score / cap)`.
    pub cap: Option<f32>,
}

/// What a device will be asked to compute with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Formats of matrices.
    pub formats: Vec<Format>,
    /// Pages of keys and values.
    pub kv: KvLayout,
    /// Whether attention's scores are capped.
    pub capped: bool,
    /// Positions of the longest sequence, where attention is to a share of the keys.
    pub sparse: Option<usize>,
    /// Rows of the largest batch.
    pub rows: usize,
    /// Of how many of them a token is picked, at the most.
    pub samples: usize,
}

/// Arithmetic and memory of one device.
pub trait Device: Send + Sync {
    /// Takes memory from the device's budget.
    ///
    /// # Errors
    /// [`Full`] when it is used up.
    fn take(&mut self, bytes: usize) -> Result<Buf, Full>;

    /// Makes ready what would otherwise be made at first use: kernels are compiled.
    ///
    /// # Errors
    /// What cannot be made, and why, as a sentence.
    fn prepare(&self, _needs: &Needs) -> Result<(), String> {
        Ok(())
    }

    /// Lets `fill` write the bytes of a buffer (in place where the host can, else through a staging copy).
    fn fill(&self, buf: &Buf, fill: &mut dyn FnMut(&mut [u8]));

    /// Writes the bytes of a buffer, as many as there are.
    fn upload(&self, buf: &Buf, bytes: &[u8]) {
        self.fill(buf, &mut |into| into.copy_from_slice(bytes));
    }

    /// Whether the host's threads cannot reach its memory, so that bytes pass through buffers of its own: then it is asked to
    /// [`collect`](Device::collect) and to [`spread`](Device::spread), with as much at a time as there is.
    fn is_far(&self) -> bool {
        false
    }

    /// Shows the bytes of several buffers, as if they lay one after the other, piece after piece: the first byte's number, and
    /// the bytes. Once all calls made before in this thread's queue are done.
    fn collect(&self, bufs: &[Buf], view: &mut dyn FnMut(usize, &[u8])) {
        let mut first = 0;
        for buf in bufs {
            self.view(buf, &mut |bytes| view(first, bytes));
            first += buf.bytes();
        }
    }

    /// Lets `fill` write the bytes of several buffers, as if they lay one after the other, piece after piece: the first byte's
    /// number, and room.
    fn spread(&self, bufs: &[Buf], fill: &mut dyn FnMut(usize, &mut [u8])) {
        let mut first = 0;
        for buf in bufs {
            self.fill(buf, &mut |into| fill(first, into));
            first += buf.bytes();
        }
    }

    /// The memory of a buffer, for a device that copies from it by itself; none of a device whose memory the host's threads cannot
    /// reach.
    fn lasting(&self, _buf: &Buf) -> Option<Lasting> {
        None
    }

    /// Takes note of host memory that is to be copied from and to as it lies there, without a thread's work: a number for
    /// [`upload_from`](Device::upload_from), or none where that is not done.
    ///
    /// # Errors
    /// Why the system refuses, as a sentence.
    fn adopt(&self, _memory: Lasting) -> Result<Option<usize>, String> {
        Ok(None)
    }

    /// Writes the bytes of a buffer, those of adopted memory from byte `first` on. They are read later than this returns: nobody
    /// may write them meanwhile.
    fn upload_from(&self, _buf: &Buf, _adopted: usize, _first: usize) {
        panic!("this device has adopted no memory")
    }

    /// Copies buffers to as many pieces of host memory, each of the same size, and returns once they are there. False if not all
    /// of it was [adopted](Device::adopt): then nothing is done. Nobody else uses the memory meanwhile.
    fn collect_into(&self, _bufs: &[Buf], _memory: &[Lasting]) -> bool {
        false
    }

    /// As [`collect_into`](Device::collect_into), the other way: once it returns the memory may be written again.
    fn spread_from(&self, _bufs: &[Buf], _memory: &[Lasting]) -> bool {
        false
    }

    /// The bytes of a buffer have gone elsewhere or are to be overwritten: nobody reads them before they are written again.
    /// Devices that check for such reads make them senseless.
    fn discard(&self, _buf: &Buf) {}

    /// Shows the bytes of a buffer to `view`, once all calls made before in this thread's queue are done.
    fn view(&self, buf: &Buf, view: &mut dyn FnMut(&[u8]));

    /// Takes a buffer's memory from the system now, where that is otherwise done at first use. Its bytes are lost.
    fn touch(&self, _buf: &Buf) {}

    /// Waits until all calls made before, in any queue, are done, where they are done later than asked for.
    fn wait(&self) {}

    /// What this thread asks for from now on goes to `queue`, and begins once everything that `after` names is done.
    /// A device that is done with a call when it returns has nothing to do here.
    fn enter(&self, _queue: usize, _after: &[Mark]) {}

    /// Names what was asked for in a queue so far. Called by the thread that entered it last.
    fn mark(&self, _mark: Mark) {}

    /// What it did otherwise than is fastest so far and why, in words, each once: a library's product by its own kernels, say.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// What this thread asks for from now on is much like what it asked for before, kernel by kernel, as a step's decodes are like
    /// those of the step before: until something else is asked for a device may put it off, and do it at once.
    fn repeats(&self) {}

    /// Whether calls are done later than they return, so that the caller's clock says nothing of them.
    fn is_late(&self) -> bool {
        false
    }

    /// Waits until what `mark` names is done. Any thread may call it, once the mark was made.
    fn reach(&self, _mark: Mark) {}

    /// When what `mark` names was done, where the device can tell; it is. Marks up to this one are forgotten: to be asked for in
    /// the order in which they were made.
    fn when(&self, _mark: Mark) -> Option<Instant> {
        None
    }

    /// `out[i] = scale * table[ids[i]]`, `out: [ids, k] f32`. An id from [`PICKED`](crate::pick::PICKED) on is whatever token the device
    /// has picked and keeps there.
    fn embed(&self, table: &Matrix, ids: &[u32], scale: f32, out: Rows);

    /// `out[i] += table[rows[i]]`, `table: [_, cols] f32`, `out: [rows, cols] f32`.
    fn add_rows(&self, table: Buf, rows: &[u32], out: Rows);

    /// `out[i] = x[rows[i]]`, both f32.
    fn gather(&self, x: Rows, rows: &[u32], out: Rows);

    /// Norms each row of `x: [rows, cols] f32` into `out` (f32 or bf16).
    fn norm(&self, x: Rows, norm: &NormWeights, out: Rows);

    /// Norms each row of `x: [rows, cols] f32` and adds it to `out`, which has f32 too.
    fn add_norm(&self, x: Rows, norm: &NormWeights, out: Rows);

    /// Norms columns `first..` of each row of `x: [rows, cols] f32` in place, as many as the norm has scales, in so many parts as
    /// wide as each other, each by itself.
    fn norm_columns(&self, x: Rows, first: usize, parts: usize, norm: &NormWeights);

    /// `x = cap * tanh(x / cap)` for each number of `x: [rows, cols] f32`.
    fn cap(&self, x: Rows, cap: f32);

    /// Rounds or widens each number of `x` into `out`.
    fn convert(&self, x: Rows, out: Rows);

    /// `y = x * W^T + bias` into the sink. `x: [rows, k]`, bf16 (f32 with f32 weights), `bias: [n] f32`.
    fn linear(&self, x: Rows, w: &Matrix, bias: Option<Buf>, sink: Sink);

    /// Norms and turns queries and keys, stores queries in `q` and keys and values in their pages.
    /// `qkv: [rows, (heads + 2 * kv_heads) * head_dim] f32`.
    fn store_kv(&self, qkv: Rows, transform: &QkTransform, spans: &[Span<'_>], kv: KvPages, q: Rows);

    /// Attention of the spans' queries over their pages. `q`, `out`: `[rows, heads * head_dim]`.
    fn attend(&self, q: Rows, kv: KvPages, spans: &[Span<'_>], shape: AttendShape, out: Rows);

    /// The first half of an attention to a share of the keys, of decodes, a row each: which values it would read. These may
    /// come after the call, keys are there. Returns once they are known.
    fn choose(&self, q: Rows, kv: KvPages, spans: &[Span<'_>], shape: AttendShape) -> Chosen;

    /// Whether it can [`pick`](Device::pick) tokens from rows of so many logits.
    fn picks(&self, _vocab: usize) -> bool {
        false
    }

    /// Begins to take a token from some rows of `logits: [_, vocab] f32`, which are of no use afterwards. Asked only of devices
    /// that say that they can; the others' logits are looked at.
    fn pick(&self, _logits: Rows, _rows: &[(u32, Pick)]) -> Picked {
        panic!("this device picks no tokens")
    }

    /// The tokens, in the order of the rows, once they are there. Any thread may call it. They are kept no longer: what embeds
    /// them by their places was asked for before.
    fn picked(&self, _picked: Picked) -> Vec<Result<u32, NoPick>> {
        panic!("this device picks no tokens")
    }

    /// How many tokens it keeps that were picked and not yet asked for. Those of one call lie side by side: as long as no more
    /// than half as many are kept, there is room for the next call's, if they are given back in their order.
    fn keeps_picked(&self) -> usize {
        0
    }
}
