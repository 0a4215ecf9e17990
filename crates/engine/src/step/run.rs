//! What the lanes do: the nodes of a program on the devices, batch by batch.

use std::cell::RefCell;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use kernels::Team;
use kernels::arena::Buf;
use kernels::device::{Device, KvPages, Rows};
use kernels::queue::{self, Mark};
use model::decoder::{Batch, Decoder, Host, HostWork, STAGED_BYTES, Work as Buffers};
use spec::{Buffer, Done, Lane, Op, Outcome, Sampling, Tier};

use crate::step::bound::{ChunkRun, Inputs, Over, StepRun};
use crate::step::lanes::{LaneId, Task, Wait, Work};
use crate::step::late::{Asked, Coming, Ends};
use crate::step::world::Message;
use crate::tiers::kv::{Kv, LayerPages};
use crate::tiers::link::Link;
use crate::tiers::stowed::{OnHost, Stowed, part_of};
use crate::watch::stats::Stats;
use crate::watch::timeline::Timeline;
use kernels::lock::lock;

/// The model, its memory and its threads.
pub(crate) struct Machine {
    pub(crate) device: Box<dyn Device>,
    pub(crate) team: Arc<Team>,
    pub(crate) decoder: Decoder,
    pub(crate) kv: Kv,
    /// Memory of the host tier, where it is apart from the device's.
    pub(crate) host: Box<dyn Device>,
    /// Weights that live away from the device; none where all are there.
    pub(crate) stowed: Option<Arc<Stowed>>,
    pub(crate) link: Link,
    /// Where the host computes with weights that live there, if it may.
    pub(crate) host_work: Option<HostWork>,
    /// As many as a program has names for: those of a step's batches, or turns that they take.
    pub(crate) buffers: Vec<Buffers>,
    /// Where completions are told.
    pub(crate) inbox: Mutex<Sender<Message>>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) timeline: Arc<Timeline>,
    /// Whether the device keeps the tokens that it picks until they are known here.
    pub(crate) keeps_picked: bool,
    /// When nodes were done, of a device that is late.
    pub(crate) ends: Mutex<Ends>,
}

impl Work for Machine {
    type Context = StepRun;

    fn run(&self, step: &StepRun, node: usize) -> Result<(), String> {
        let (op, lane) = (step.program.nodes()[node].op, step.program.nodes()[node].lane);
        let _timed = (!self.is_late()).then(|| self.stats.overlap.begins(op, lane));
        match op {
            Op::Embed { batch } => self.with(step, node, batch, |batch, buffers| {
                // First: what is written from here ends a pass that repeats.
                self.decoder.rotate(&*self.device, batch, buffers);
                if step.only_decodes_here() {
                    self.device.repeats();
                }
                self.decoder.embed(&*self.device, batch, buffers);
            }),
            Op::Qkv { layer, batch } => self.qkv(step, node, layer.into(), batch),
            Op::Attend { layer, batch, on: Tier::Device } => self.attend(step, node, layer.into(), batch),
            Op::Attend { layer, batch, on: Tier::Host } => {
                self.attend_on_host(step, node, layer.into(), batch);
            }
            Op::CopyKv { layer, batch, from, to } => {
                let node = &step.program.nodes()[node];
                self.copy_kv(step, (node, layer.into(), batch), (from, to));
            }
            Op::Choose { layer, batch, on } => self.choose(step, node, (layer.into(), batch), on),
            Op::CopyChosen { layer, batch, from, to } => {
                let node = &step.program.nodes()[node];
                self.copy_chosen(step, (node, layer.into(), batch), (from, to));
            }
            Op::MoveHidden { what, batch, from, to } => {
                self.move_hidden(step, (node, batch), what, (from, to));
            }
            Op::MoveKv { layer, from, to } => self.move_kv(step, layer.into(), from, to),
            Op::OutProj { layer, batch } => self.with(step, node, batch, |batch, buffers| {
                self.decoder.out_proj(&*self.device, layer.into(), batch, buffers);
            }),
            Op::Mlp { layer, batch } => self.mlp(step, node, layer.into(), batch),
            Op::Head { batch } => self.with(step, node, batch, |batch, buffers| {
                self.decoder.head(&*self.device, buffers.x.first(batch.samples.len()), buffers);
            }),
            Op::Sample { batch } => self.sample(step, usize::from(batch)),
            Op::LoadWeights { part, from, to } => {
                let stowed = self.stowed.as_ref().ok_or("weights are to be loaded, and all are there")?;
                let devices: (&dyn Device, &dyn Device) = (&*self.device, &*self.host);
                return stowed.load(devices, part, (from, to), step.on_host).map_err(|e| e.to_string());
            }
            op => panic!("this engine was given {op:?}, which needs a second rank"),
        }
        Ok(())
    }

    /// Each lane has a queue of its own.
    fn comes(&self, lane: LaneId, waits: &[Wait]) {
        let after: Vec<Mark> =
            waits.iter().map(|wait| Mark { queue: wait.lane, number: wait.ticket }).collect();
        queue::enter(lane);
        self.device.enter(lane, &after);
        self.host.enter(lane, &after);
    }

    fn leaves(&self, lane: LaneId, ticket: u64) {
        let mark = Mark { queue: lane, number: ticket };
        self.device.mark(mark);
        self.host.mark(mark);
    }

    fn ran(&self, step: &StepRun, task: &Task, began: Instant, took: Duration) {
        if self.is_late() {
            return lock(&step.asked).push(Asked { task: task.clone(), began, ended: began + took });
        }
        let op = step.program.nodes()[task.node].op;
        self.stats.lane_spent(task.lane, &op, took);
        self.timeline.note(op, Lane::ALL[task.lane % Lane::COUNT], began, took);
    }

    fn is_late(&self) -> bool {
        self.device.is_late()
    }

    fn finished(&self, step: &StepRun) {
        self.arrive(step);
        let outcomes =
            step.batches.iter().flat_map(|batch| batch.chunks.iter().filter_map(outcome)).collect();
        let done = Done { step: step.id, outcomes, lost: step.losses() };
        self.tell(Message::Done(done, step.started.elapsed()));
        self.note_times(step);
    }

    fn failed(&self, why: &str) {
        self.tell(Message::Failed(why.to_string()));
    }
}

impl Machine {
    fn tell(&self, message: Message) {
        // The world hangs up only when the engine ends; then nobody wants to know.
        let _ = lock(&self.inbox).send(message);
    }

    pub(crate) fn with(&self, step: &StepRun, node: usize, batch: u16, f: impl FnOnce(&Batch<'_>, &Buffers)) {
        let Inputs { ids, positions, lengths, samples } = step.batches[usize::from(batch)].inputs();
        let slots = self.stowed.as_ref().map(|stowed| stowed.slots(&step.program, node)).unwrap_or_default();
        self.with_host(self.computed_with(step, node), |host| {
            let batch = Batch { ids, positions, lengths, spans: &[], samples, slots, host };
            f(&batch, self.buffers_of(step, node));
        });
    }

    /// What the host computes with, and where, if it does for this node.
    fn computed_with(&self, step: &StepRun, node: usize) -> Option<(Buf, &HostWork)> {
        let part = part_of(step.program.nodes()[node].op).filter(|_| step.on_host == OnHost::ComputedWith)?;
        Some((self.stowed.as_ref()?.home_of(part)?, self.host_work.as_ref()?))
    }

    /// Calls `f` with the host that computes with these panels, if there are any.
    pub(crate) fn with_host(&self, panels: Option<(Buf, &HostWork)>, f: impl FnOnce(Option<Host<'_>>)) {
        let pace = RefCell::new(self.link.begin());
        let copy = |from: (&dyn Device, &[Buf]), to: (&dyn Device, &[Buf])| {
            pace.borrow_mut().copy_all(from, to);
        };
        f(panels.map(|(panels, work)| Host { device: &*self.host, panels, work, copy: &copy }));
        pace.into_inner().end();
    }

    /// The activation buffers that a node works in.
    pub(crate) fn buffers_of(&self, step: &StepRun, node: usize) -> &Buffers {
        let name = step.program.activations(&step.program.nodes()[node]);
        &self.buffers[usize::from(name.expect("a node of a batch touches its activations"))]
    }

    /// Those of the host that go with them.
    pub(crate) fn host_buffers_of(&self, step: &StepRun, node: usize) -> &Buffers {
        let node = &step.program.nodes()[node];
        let name = step.program.touches(node).iter().find_map(|touch| match touch.buffer {
            Buffer::Qkv { batch, tier: Tier::Host } | Buffer::Attended { batch, tier: Tier::Host } => {
                Some(batch)
            }
            _ => None,
        });
        let host = self.kv.host.as_ref().expect("something attends on the host");
        &host.buffers[usize::from(name.expect("a node of the host touches its activations"))]
    }

    /// Projects a batch; what attends on the device has its KV stored in its pages, or in a slot.
    fn qkv(&self, step: &StepRun, node: usize, layer: usize, batch: u16) {
        self.with(step, node, batch, |all, buffers| self.decoder.project(&*self.device, layer, all, buffers));
        self.over_each(step, node, (layer, batch), |part, pages, buffers| {
            self.decoder.store_kv(&*self.device, layer, part, pages, buffers);
        });
    }

    /// Keeps other ops off the device's pages of a layer, where they are done at once. A device that is late orders its queues
    /// itself; who waits for it must not keep others from asking.
    pub(crate) fn alone_on_device<'a>(&self, pages: &'a LayerPages) -> Option<MutexGuard<'a, ()>> {
        (!self.is_late()).then(|| lock(&pages.device_touched))
    }

    fn attend(&self, step: &StepRun, node: usize, layer: usize, batch: u16) {
        self.over_each(step, node, (layer, batch), |part, pages, buffers| {
            self.decoder.attend(&*self.device, layer, part, pages, buffers);
        });
    }

    /// What of a batch attends on the device, over its pages and over a slot.
    fn over_each(
        &self,
        step: &StepRun,
        node: usize,
        (layer, batch): (usize, u16),
        f: impl Fn(&Batch<'_>, KvPages, &Buffers),
    ) {
        let pages = &self.kv.layers[layer];
        let _alone = self.alone_on_device(pages);
        let slot = || self.kv.slot(&step.program, &step.program.nodes()[node], Tier::Device);
        for over in [Over::Pages, Over::Slot] {
            let spans = step.batches[usize::from(batch)].spans(Tier::Device, over, pages.place.group);
            if spans.is_empty() {
                continue;
            }
            let pages = if over == Over::Pages { Some(pages.device) } else { slot() };
            let pages = pages.expect("KV that is attended away from its home has a slot");
            self.with(step, node, batch, |all, buffers| f(&Batch { spans: &spans, ..*all }, pages, buffers));
        }
    }

    /// After the last layer the rows that sample are the first. Where prompts are scored others are looked at before.
    fn mlp(&self, step: &StepRun, node: usize, layer: usize, batch: u16) {
        let chunks = &step.batches[usize::from(batch)].chunks;
        let last = layer + 1 == self.kv.layers.len();
        let scored = |chunk: &&ChunkRun| !lock(&chunk.sequence).unscored(chunk.positions()).is_empty();
        let scored: Vec<&ChunkRun> = chunks.iter().filter(|_| last).filter(scored).collect();
        self.with(step, node, batch, |batch, buffers| {
            let device = &*self.device;
            match last {
                false => self.decoder.mlp(device, layer, batch, buffers),
                true if scored.is_empty() => self.decoder.last_mlp(device, batch, buffers),
                true => {
                    self.decoder.mlp(device, layer, batch, buffers);
                    scored.iter().for_each(|chunk| self.score_prompt(chunk, buffers));
                    self.decoder.keep_sampling(device, batch, buffers);
                }
            }
        });
    }

    /// Rows of a prompt whose next token is in the prompt too, as many at a time as logits have room.
    fn score_prompt(&self, chunk: &ChunkRun, buffers: &Buffers) {
        // Locked row by row: whoever cancels it is not kept waiting for the products.
        let unscored = lock(&chunk.sequence).unscored(chunk.positions());
        let row = |position: usize| (chunk.rows.start + position - chunk.start) as u32;
        let rows: Vec<u32> = unscored.clone().map(row).collect();
        for (i, piece) in rows.chunks(buffers.logits.rows).enumerate() {
            if !lock(&chunk.sequence).is_going() {
                return;
            }
            let picked = self.decoder.pick(&*self.device, piece, buffers);
            let logits = self.decoder.head(&*self.device, picked, buffers);
            let first = unscored.start + i * buffers.logits.rows;
            self.each_row(logits.buf, piece.len(), |row, logits| {
                lock(&chunk.sequence).score(first + row, logits);
            });
        }
    }

    fn each_row(&self, logits: Buf, rows: usize, mut f: impl FnMut(usize, &[f32])) {
        let vocab = self.decoder.spec().vocab;
        let row_bytes = vocab * size_of::<f32>();
        let step = rows_at_once(&*self.device, rows, row_bytes);
        for first in (0..rows).step_by(step) {
            let wanted = logits.slice(first * row_bytes, step.min(rows - first) * row_bytes);
            self.device.view(&wanted, &mut |bytes| {
                let values: &[f32] = bytemuck::cast_slice(bytes);
                (first..).zip(values.chunks_exact(vocab)).for_each(|(row, logits)| f(row, logits));
            });
        }
    }

    /// Draws a token for every chunk that wants one: on the device, where it can, so that its logits need not travel.
    fn sample(&self, step: &StepRun, batch: usize) {
        // Batches share their logits.
        let logits = self.buffers[0].logits;
        let drawing: Vec<&ChunkRun> = step.batches[batch].sampling().collect();
        if self.device.picks(logits.cols) {
            let coming = self.pick_all(logits, &drawing);
            *lock(&step.batches[batch].coming) = coming;
        } else {
            self.draw_all(logits, &drawing);
        }
        drawing.iter().for_each(|chunk| lock(&chunk.sequence).tell_drawn());
    }

    /// The device draws for the chunks for which it can, and the host for the others. What the device draws stays there where
    /// that is enough for the next step, and is on its way.
    fn pick_all(&self, logits: Rows, drawing: &[&ChunkRun]) -> Option<Coming> {
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for (row, chunk) in drawing.iter().enumerate() {
            let sequence = lock(&chunk.sequence);
            match sequence.pick() {
                Some(pick) if self.keeps_picked && sequence.may_wait() => later.push((row as u32, pick)),
                Some(pick) => now.push((row as u32, pick)),
                None if sequence.is_going() => {
                    drop(sequence);
                    self.draw_all(logits.range(row..row + 1), &drawing[row..=row]);
                }
                None => {}
            }
        }
        let coming =
            (!later.is_empty()).then(|| Coming::of(&later, self.device.pick(logits, &later), drawing));
        if !now.is_empty() {
            let tokens = self.device.picked(self.device.pick(logits, &now));
            let rows = now.iter().map(|(row, _)| &drawing[*row as usize]);
            rows.zip(tokens).for_each(|(chunk, token)| lock(&chunk.sequence).picked(token));
        }
        coming
    }

    /// Draws a token for each chunk from its row of logits.
    fn draw_all(&self, logits: Rows, drawing: &[&ChunkRun]) {
        let vocab = logits.cols;
        let step = rows_at_once(&*self.device, drawing.len(), vocab * size_of::<f32>());
        for (first, drawing) in (0..).step_by(step).zip(drawing.chunks(step)) {
            let rows = logits.range(first..first + drawing.len());
            self.device.view(&rows.buf, &mut |bytes| {
                let values: &[f32] = bytemuck::cast_slice(bytes);
                self.team.run(|w| {
                    for row in w.share(drawing.len()) {
                        lock(&drawing[row].sequence).draw(&values[row * vocab..][..vocab]);
                    }
                });
            });
        }
    }
}

/// Rows that are looked at at a time: of a device that is far, a copy of them lies on the host.
pub(crate) fn rows_at_once(device: &dyn Device, rows: usize, row_bytes: usize) -> usize {
    if device.is_far() { (STAGED_BYTES / row_bytes).max(1) } else { rows.max(1) }
}

/// Nothing for a sequence that had ended before.
fn outcome(chunk: &ChunkRun) -> Option<Outcome> {
    let mut sequence = lock(&chunk.sequence);
    let end = chunk.positions().end;
    let produced = sequence.produced(chunk.sample == Sampling::Sample, end)?;
    let full = sequence.filled_by(chunk.start..end);
    Some(Outcome { seq: chunk.seq, produced, full })
}
