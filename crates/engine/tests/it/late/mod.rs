//! A device that is not there: calls are checked against the order that queues and marks give them, and done later, on
//! the CPU, in any order that this allows. As a GPU does, but with a seed.

mod order;
mod queues;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kernels::CpuDevice;
use kernels::arena::{Buf, Full, PAGE};
use kernels::attention::{BLOCK_TOKENS, Chosen, Span};
use kernels::device::{AttendShape, Device, KvPages, Matrix, NormWeights, QkTransform, Rows, Sink};
use kernels::pick::{NoPick, PICKED, Pick, Picked};
use kernels::queue::{self, Mark};

use order::Order;
use order::Touches::{self, Reads, Writes};
use queues::Queues;

/// The device, or the host's memory: what is done at once there is checked all the same.
pub(crate) struct Late {
    cpu: Arc<CpuDevice>,
    order: Mutex<Order>,
    queues: Option<Queues>,
    picked: Option<Kept>,
}

/// Tokens that were picked, by place.
struct Kept {
    /// What stands for their memory.
    memory: Buf,
    next: AtomicUsize,
    tokens: Arc<Mutex<Vec<Option<Token>>>>,
}

type Token = Result<u32, NoPick>;

/// Memory that a late device needs beside what it hands out.
pub(crate) const OWN_BYTES: usize = 4 * PLACES + PAGE;
const PLACES: usize = 1024;

impl Kept {
    fn new(cpu: &mut CpuDevice) -> Kept {
        let memory = cpu.take(4 * PLACES).expect("room for places");
        Kept { memory, next: AtomicUsize::new(0), tokens: Arc::new(Mutex::new(vec![None; PLACES])) }
    }

    fn place(&self, place: usize) -> Buf {
        self.memory.slice(4 * place, 4)
    }

    /// As many places beside each other.
    fn take(&self, rows: usize) -> usize {
        let next = self.next.load(Ordering::Relaxed);
        let first = if next + rows > PLACES { 0 } else { next };
        self.next.store(first + rows, Ordering::Relaxed);
        self.tokens.lock().unwrap()[first..first + rows].fill(None);
        first
    }
}

/// The likeliest of a row, which is all that is asked of this device.
fn likeliest(row: &[f32], pick: &Pick) -> Token {
    assert!(pick.draw.is_none() && pick.edits.is_empty(), "{pick:?}");
    model::sampling::argmax(row).map(|best| best.0).map_err(|_| NoPick::NotFinite)
}

/// Spans that outlive their call.
struct Owned(Vec<(Vec<u32>, usize, Range<usize>)>);

impl Owned {
    fn new(spans: &[Span<'_>]) -> Owned {
        Owned(spans.iter().map(|span| (span.blocks.to_vec(), span.start, span.rows.clone())).collect())
    }

    fn spans(&self) -> Vec<Span<'_>> {
        self.0
            .iter()
            .map(|(blocks, start, rows)| Span { blocks, start: *start, rows: rows.clone() })
            .collect()
    }
}

impl Late {
    /// A device whose calls are put off as the seed says.
    pub(crate) fn device(mut cpu: CpuDevice, seed: u64) -> Late {
        let picked = Some(Kept::new(&mut cpu));
        Late { cpu: Arc::new(cpu), order: Mutex::default(), queues: Some(Queues::new(seed)), picked }
    }

    /// A memory whose calls are done at once.
    pub(crate) fn host(cpu: CpuDevice) -> Late {
        Late { cpu: Arc::new(cpu), order: Mutex::default(), queues: None, picked: None }
    }

    fn order<T>(&self, f: impl FnOnce(&mut Order) -> T) -> T {
        f(&mut self.order.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn check(&self, what: &'static str, buffers: &[(Buf, Touches)]) {
        let result = self.order(|order| order.call(queue::current(), what, buffers));
        result.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Checks a call, and does it now or later.
    fn call(
        &self,
        what: &'static str,
        buffers: &[(Buf, Touches)],
        work: impl FnOnce(&CpuDevice) + Send + 'static,
    ) {
        self.check(what, buffers);
        match &self.queues {
            None => work(&self.cpu),
            Some(queues) => {
                let cpu = Arc::clone(&self.cpu);
                queues.later(queue::current(), Box::new(move || work(&cpu)));
            }
        }
    }
}

fn parts(w: &Matrix) -> Vec<(Buf, Touches)> {
    w.parts.iter().map(|(_, buf)| (*buf, Reads)).collect()
}

fn written(sink: Sink) -> Buf {
    let (Sink::Store(rows)
    | Sink::StoreAt(rows, _)
    | Sink::Add(rows)
    | Sink::Act(_, rows)
    | Sink::Gated(_, rows)) = sink;
    whole(rows)
}

fn whole(rows: Rows) -> Buf {
    rows.first(rows.rows).buf
}

/// The blocks of positions from `first(span)` on.
fn pages(kv: KvPages, spans: &[Span<'_>], first: impl Fn(&Span<'_>) -> usize) -> Vec<Buf> {
    let blocks = spans.iter().flat_map(|span| {
        let last = span.end().div_ceil(BLOCK_TOKENS);
        &span.blocks[(first(span) / BLOCK_TOKENS).min(last)..last]
    });
    blocks.map(|&block| kv.block(block)).collect()
}

fn rows_of(rows: Rows, spans: &[Span<'_>]) -> Vec<Buf> {
    spans.iter().map(|span| rows.range(span.rows.clone()).buf).collect()
}

fn all(buffers: impl IntoIterator<Item = Buf>, touches: Touches) -> impl Iterator<Item = (Buf, Touches)> {
    buffers.into_iter().map(move |buf| (buf, touches))
}

impl Device for Late {
    fn take(&mut self, bytes: usize) -> Result<Buf, Full> {
        // Nobody has the memory while nothing is put off.
        self.queues.iter().for_each(|queues| queues.wait(None));
        Arc::get_mut(&mut self.cpu).expect("all calls are done").take(bytes)
    }

    fn fill(&self, buf: &Buf, fill: &mut dyn FnMut(&mut [u8])) {
        if self.queues.is_none() {
            self.check("fill", &[(*buf, Writes)]);
            return self.cpu.fill(buf, fill);
        }
        let mut staged = vec![0; buf.bytes() + PAGE];
        // From a page on, as a drive wants it.
        let (to, skip) = (*buf, staged.as_ptr().align_offset(PAGE));
        fill(&mut staged[skip..][..to.bytes()]);
        self.call("fill", &[(to, Writes)], move |cpu| cpu.upload(&to, &staged[skip..][..to.bytes()]));
    }

    fn discard(&self, buf: &Buf) {
        let buf = *buf;
        self.call("discard", &[(buf, Writes)], move |cpu| cpu.discard(&buf));
    }

    fn view(&self, buf: &Buf, view: &mut dyn FnMut(&[u8])) {
        self.check("view", &[(*buf, Reads)]);
        let Some(queues) = &self.queues else { return self.cpu.view(buf, view) };
        let (from, read) = (*buf, Arc::new(Mutex::new(Vec::<u64>::new())));
        let (cpu, into) = (Arc::clone(&self.cpu), Arc::clone(&read));
        let copy = move || {
            let mut words = vec![0u64; from.bytes().div_ceil(8)];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            cpu.view(&from, &mut |there| bytes[..there.len()].copy_from_slice(there));
            *into.lock().unwrap() = words;
        };
        queues.later(queue::current(), Box::new(copy));
        queues.wait(Some(queue::current()));
        view(&bytemuck::cast_slice(&read.lock().unwrap())[..buf.bytes()]);
    }

    fn is_far(&self) -> bool {
        self.queues.is_some()
    }

    fn is_late(&self) -> bool {
        self.queues.is_some()
    }

    fn reach(&self, mark: Mark) {
        self.queues.iter().for_each(|queues| queues.reach(mark));
    }

    /// As a GPU does, whose kernels have room for so many.
    fn picks(&self, vocab: usize) -> bool {
        self.picked.is_some() && vocab <= 1 << 18
    }

    fn keeps_picked(&self) -> usize {
        PLACES
    }

    fn pick(&self, logits: Rows, rows: &[(u32, Pick)]) -> Picked {
        let kept = self.picked.as_ref().expect("a device");
        let first = kept.take(rows.len());
        let row = |row: u32| logits.range(row as usize..row as usize + 1).buf;
        let mut buffers: Vec<_> = all(rows.iter().map(|(number, _)| row(*number)), Writes).collect();
        buffers.extend(all((first..first + rows.len()).map(|place| kept.place(place)), Writes));
        let (tokens, wanted) = (Arc::clone(&kept.tokens), rows.to_vec());
        self.call("pick", &buffers, move |cpu| {
            for (place, (number, pick)) in (first..).zip(&wanted) {
                let buf = logits.range(*number as usize..*number as usize + 1).buf;
                cpu.view(&buf, &mut |bytes| {
                    tokens.lock().unwrap()[place] = Some(likeliest(bytemuck::cast_slice(bytes), pick));
                });
            }
        });
        Picked { first: first as u32, rows: rows.len(), fetches: vec![] }
    }

    fn picked(&self, picked: Picked) -> Vec<Token> {
        let kept = self.picked.as_ref().expect("a device");
        let places = picked.first as usize..picked.first as usize + picked.rows;
        let there = || kept.tokens.lock().unwrap()[places.clone()].iter().all(Option::is_some);
        self.queues.as_ref().expect("a device").wait_for(there);
        kept.tokens.lock().unwrap()[places].iter().flatten().copied().collect()
    }

    fn wait(&self) {
        if let Some(queues) = &self.queues {
            queues.wait(None);
        }
        self.order(Order::wait);
    }

    fn enter(&self, queue: usize, after: &[Mark]) {
        self.order(|order| order.enter(queue, after)).unwrap_or_else(|error| panic!("{error}"));
        self.queues.iter().for_each(|queues| queues.enter(queue, after));
    }

    fn mark(&self, mark: Mark) {
        self.order(|order| order.mark(mark));
        self.queues.iter().for_each(|queues| queues.mark(mark));
    }

    fn embed(&self, table: &Matrix, ids: &[u32], scale: f32, out: Rows) {
        let mut buffers = parts(table);
        buffers.push((whole(out), Writes));
        let places = ids.iter().filter(|id| **id >= PICKED).map(|id| (id - PICKED) as usize);
        buffers.extend(places.map(|place| (self.picked.as_ref().expect("a device").place(place), Reads)));
        let (table, ids) = (table.clone(), ids.to_vec());
        let tokens = self.picked.as_ref().map(|kept| Arc::clone(&kept.tokens));
        self.call("embed", &buffers, move |cpu| {
            let token = |place: u32| tokens.as_ref()?.lock().unwrap()[place as usize]?.ok();
            let known = |&id: &u32| if id < PICKED { id } else { token(id - PICKED).unwrap_or(0) };
            cpu.embed(&table, &ids.iter().map(known).collect::<Vec<_>>(), scale, out);
        });
    }

    fn add_rows(&self, table: Buf, rows: &[u32], out: Rows) {
        let rows = rows.to_vec();
        let buffers = [(table, Reads), (whole(out), Writes)];
        self.call("add_rows", &buffers, move |cpu| cpu.add_rows(table, &rows, out));
    }

    fn gather(&self, x: Rows, rows: &[u32], out: Rows) {
        let rows = rows.to_vec();
        let buffers = [(whole(x), Reads), (whole(out), Writes)];
        self.call("gather", &buffers, move |cpu| cpu.gather(x, &rows, out));
    }

    fn norm(&self, x: Rows, norm: &NormWeights, out: Rows) {
        let mut buffers = vec![(whole(x), Reads), (whole(out), Writes)];
        buffers.extend(all([norm.weight, norm.bias].into_iter().flatten(), Reads));
        let norm = *norm;
        self.call("norm", &buffers, move |cpu| cpu.norm(x, &norm, out));
    }

    fn add_norm(&self, x: Rows, norm: &NormWeights, out: Rows) {
        let mut buffers = vec![(whole(x), Reads), (whole(out), Writes)];
        buffers.extend(all([norm.weight, norm.bias].into_iter().flatten(), Reads));
        let norm = *norm;
        self.call("add_norm", &buffers, move |cpu| cpu.add_norm(x, &norm, out));
    }

    fn norm_columns(&self, x: Rows, first: usize, parts: usize, norm: &NormWeights) {
        let mut buffers = vec![(whole(x), Writes)];
        buffers.extend(all(norm.weight, Reads));
        let norm = *norm;
        self.call("norm_columns", &buffers, move |cpu| cpu.norm_columns(x, first, parts, &norm));
    }

    fn cap(&self, x: Rows, cap: f32) {
        self.call("cap", &[(whole(x), Writes)], move |cpu| cpu.cap(x, cap));
    }

    fn convert(&self, x: Rows, out: Rows) {
        let buffers = [(whole(x), Reads), (whole(out), Writes)];
        self.call("convert", &buffers, move |cpu| cpu.convert(x, out));
    }

    fn linear(&self, x: Rows, w: &Matrix, bias: Option<Buf>, sink: Sink) {
        let mut buffers = parts(w);
        buffers.extend([(whole(x), Reads), (written(sink), Writes)]);
        buffers.extend(all(bias, Reads));
        let w = w.clone();
        self.call("linear", &buffers, move |cpu| cpu.linear(x, &w, bias, sink));
    }

    fn store_kv(&self, qkv: Rows, transform: &QkTransform, spans: &[Span<'_>], kv: KvPages, q: Rows) {
        let mut buffers: Vec<_> = all(rows_of(qkv, spans), Reads).collect();
        buffers.extend(all(rows_of(q, spans), Writes));
        buffers.extend(all(pages(kv, spans, |span| span.start), Writes));
        buffers.extend(all(transform.norms.iter().flat_map(|norms| [norms.0, norms.1]), Reads));
        buffers.extend(all(transform.rope.iter().flat_map(|rope| [rope.cos, rope.sin]), Reads));
        let (transform, spans) = (*transform, Owned::new(spans));
        self.call("store_kv", &buffers, move |cpu| cpu.store_kv(qkv, &transform, &spans.spans(), kv, q));
    }

    fn choose(&self, q: Rows, kv: KvPages, spans: &[Span<'_>], shape: AttendShape) -> Chosen {
        let mut buffers: Vec<_> = all(rows_of(q, spans), Reads).collect();
        buffers.extend(all(pages(kv, spans, |_| 0), Reads));
        let (spans, told) = (Owned::new(spans), Arc::new(Mutex::new(Chosen::default())));
        let tells = Arc::clone(&told);
        self.call("choose", &buffers, move |cpu| {
            *tells.lock().unwrap() = cpu.choose(q, kv, &spans.spans(), shape);
        });
        self.queues.iter().for_each(|queues| queues.wait(Some(queue::current())));
        std::mem::take(&mut *told.lock().unwrap())
    }

    fn attend(&self, q: Rows, kv: KvPages, spans: &[Span<'_>], shape: AttendShape, out: Rows) {
        let mut buffers: Vec<_> = all(rows_of(q, spans), Reads).collect();
        buffers.extend(all(rows_of(out, spans), Writes));
        buffers.extend(all(pages(kv, spans, |_| 0), Reads));
        let spans = Owned::new(spans);
        self.call("attend", &buffers, move |cpu| cpu.attend(q, kv, &spans.spans(), shape, out));
    }
}
