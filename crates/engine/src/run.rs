//! What the lanes do: the nodes of a program on the CPU device, batch by batch.

use std::ops::Range;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use kernels::arena::Buf;
use kernels::attention::Span as KvSpan;
use kernels::device::{Device, KvPages};
use kernels::{CpuDevice, Team};
use model::decoder::{Batch, Decoder, Work as Buffers};
use spec::{Chunk, Done, Move, Op, Outcome, Program, Sampling, SeqId, Step, StepId, Tier};

use crate::disk::Disk;
use crate::lanes::{LaneId, Work};
use crate::sequence::Shared;
use crate::stats::Stats;
use crate::world::Message;

/// The model, its memory and its threads.
pub(crate) struct Machine {
    pub(crate) device: Box<dyn Device>,
    pub(crate) team: Arc<Team>,
    pub(crate) decoder: Decoder,
    pub(crate) kv: Vec<LayerPages>,
    /// Memory of the host tier, where it is apart from the device's.
    pub(crate) host: CpuDevice,
    /// Weights that are streamed; none where all are resident.
    pub(crate) disk: Option<Arc<Disk>>,
    /// One for each batch that can be under way.
    pub(crate) buffers: Vec<Buffers>,
    /// Where completions are told.
    pub(crate) inbox: Mutex<Sender<Message>>,
    pub(crate) stats: Arc<Stats>,
}

/// One layer's pages on each tier. The lock keeps ops off each other's pages: a program lets a move and an
/// attention of one layer run side by side, since their blocks differ, and a device must not.
pub(crate) struct LayerPages {
    pub(crate) device: KvPages,
    pub(crate) host: KvPages,
    pub(crate) touched: Mutex<()>,
}

/// A step under way.
pub(crate) struct StepRun {
    id: StepId,
    moves: Vec<Move>,
    program: Program,
    batches: Vec<BatchRun>,
    started: Instant,
}

/// A batch of it.
struct BatchRun {
    chunks: Vec<ChunkRun>,
    /// Known once the steps before have drawn their tokens: made by the batch's first node.
    inputs: OnceLock<Inputs>,
}

/// A chunk with its sequence and its blocks.
struct ChunkRun {
    seq: SeqId,
    sequence: Shared,
    start: usize,
    rows: Range<usize>,
    blocks: Vec<u32>,
    sample: Sampling,
}

/// A batch's rows.
struct Inputs {
    ids: Vec<u32>,
    positions: Vec<u32>,
    lengths: Vec<u32>,
    samples: Vec<u32>,
}

impl StepRun {
    /// Binds a step to its sequences and tables (one table a chunk, in order of the chunks).
    pub(crate) fn new(
        step: &Step,
        program: Program,
        tables: Vec<Vec<u32>>,
        sequence: impl Fn(SeqId) -> Shared,
    ) -> StepRun {
        let mut tables = tables.into_iter();
        let batches = step.batches.iter().map(|chunks| {
            let mut next_row = 0;
            let chunk = |chunk: &Chunk| {
                let rows = next_row..next_row + chunk.span.len.0 as usize;
                next_row = rows.end;
                ChunkRun {
                    seq: chunk.seq,
                    sequence: sequence(chunk.seq),
                    start: chunk.span.start.0 as usize,
                    rows,
                    blocks: tables.next().unwrap_or_default(),
                    sample: chunk.sample,
                }
            };
            let chunks = chunks.iter().map(chunk).collect();
            BatchRun { chunks, inputs: OnceLock::new() }
        });
        StepRun {
            id: step.id,
            moves: step.moves.clone(),
            program,
            batches: batches.collect(),
            started: Instant::now(),
        }
    }
}

impl ChunkRun {
    fn span(&self) -> KvSpan<'_> {
        KvSpan { blocks: &self.blocks, start: self.start, rows: self.rows.clone() }
    }
}

impl BatchRun {
    fn inputs(&self) -> &Inputs {
        self.inputs.get_or_init(|| {
            let mut inputs = Inputs { ids: vec![], positions: vec![], lengths: vec![], samples: vec![] };
            self.chunks.iter().for_each(|chunk| inputs.add(chunk));
            inputs
        })
    }

    fn spans(&self) -> Vec<KvSpan<'_>> {
        self.chunks.iter().map(ChunkRun::span).collect()
    }

    /// Chunks that draw a token, in the order of their logits.
    fn sampling(&self) -> impl Iterator<Item = &ChunkRun> {
        self.chunks.iter().filter(|c| c.sample == Sampling::Sample)
    }
}

impl Inputs {
    fn add(&mut self, chunk: &ChunkRun) {
        let sequence = lock(&chunk.sequence);
        let positions = chunk.start..chunk.start + chunk.rows.len();
        self.ids.extend_from_slice(&sequence.tokens()[positions.clone()]);
        self.positions.extend(positions.clone().map(|p| p as u32));
        let prompt = sequence.prompt_len();
        self.lengths.extend(positions.map(|p| (p + 1).max(prompt) as u32));
        if chunk.sample == Sampling::Sample {
            self.samples.push(chunk.rows.end as u32 - 1);
        }
    }
}

impl Work for Machine {
    type Context = StepRun;

    fn run(&self, step: &StepRun, node: usize) -> Result<(), String> {
        let op = step.program.nodes()[node].op;
        match op {
            Op::Embed { batch } => self.with(step, node, batch, |batch, buffers| {
                self.decoder.embed(&*self.device, batch, buffers);
            }),
            Op::Qkv { layer, batch } => self.with(step, node, batch, |batch, buffers| {
                let pages = &self.kv[usize::from(layer)];
                let _alone = lock(&pages.touched);
                self.decoder.qkv(&*self.device, layer.into(), batch, pages.device, buffers);
            }),
            Op::Attend { layer, batch, on: Tier::Device } => {
                self.with(step, node, batch, |batch, buffers| {
                    let pages = &self.kv[usize::from(layer)];
                    let _alone = lock(&pages.touched);
                    self.decoder.attend(&*self.device, layer.into(), batch, pages.device, buffers);
                })
            }
            Op::MoveKv { layer, from, to } => self.move_kv(step, layer.into(), from, to),
            Op::OutProj { layer, batch } => self.with(step, node, batch, |batch, buffers| {
                self.decoder.out_proj(&*self.device, layer.into(), batch, buffers);
            }),
            Op::Mlp { layer, batch } => {
                self.with(step, node, batch, |batch, buffers| {
                    self.decoder.mlp(&*self.device, layer.into(), batch, buffers);
                });
                if usize::from(layer) + 1 == self.kv.len() {
                    self.score_prompts(step, usize::from(batch));
                }
            }
            Op::Head { batch } => self.with(step, node, batch, |batch, buffers| {
                self.decoder.head(&*self.device, batch.samples, buffers);
            }),
            Op::Sample { batch } => self.sample(step, usize::from(batch)),
            Op::LoadWeights { part, from: Tier::Disk, to: Tier::Device } => {
                let disk = self.disk.as_ref().ok_or("weights are to be read, and there is no store")?;
                return disk.load(&*self.device, part, self.slot(step, node)).map_err(|e| e.to_string());
            }
            op => panic!("this engine was given {op:?}, which needs a second tier or rank"),
        }
        Ok(())
    }

    fn spent(&self, lane: LaneId, took: Duration) {
        self.stats.lane_spent(lane, took);
    }

    fn finished(&self, step: &StepRun) {
        let outcomes =
            step.batches.iter().flat_map(|batch| batch.chunks.iter().filter_map(outcome)).collect();
        let done = Done { step: step.id, outcomes };
        self.tell(Message::Done(done, step.started.elapsed()));
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

    /// The slot that a node loads weights into, or computes with.
    fn slot(&self, step: &StepRun, node: usize) -> Option<Buf> {
        let (disk, program) = (self.disk.as_ref()?, &step.program);
        program.weight_slots(&program.nodes()[node]).find_map(|(slot, _, _)| disk.slot(slot))
    }

    fn with(&self, step: &StepRun, node: usize, batch: u16, f: impl FnOnce(&Batch<'_>, &Buffers)) {
        let run = &step.batches[usize::from(batch)];
        let Inputs { ids, positions, lengths, samples } = run.inputs();
        let spans = run.spans();
        let slot = self.slot(step, node);
        f(
            &Batch { ids, positions, lengths, spans: &spans, samples, slot },
            &self.buffers[usize::from(batch)],
        );
    }

    /// One layer of the blocks that this step moves between two tiers.
    fn move_kv(&self, step: &StepRun, layer: usize, from: Tier, to: Tier) {
        let pages = &self.kv[layer];
        let _alone = lock(&pages.touched);
        let side = |tier| match tier {
            Tier::Device => (&*self.device, pages.device),
            Tier::Host => (&self.host as &dyn Device, pages.host),
            Tier::Disk => panic!("this engine keeps no KV on disk"),
        };
        let ((source, here), (target, there)) = (side(from), side(to));
        for (a, b) in step.moves.iter().filter(|m| (m.from, m.to) == (from, to)).flat_map(|m| &m.blocks) {
            source.view(&here.block(a.0), &mut |bytes| {
                target.fill(&there.block(b.0), &mut |out| out.copy_from_slice(bytes));
            });
        }
    }

    /// Log-probabilities of prompts, where they are wanted.
    fn score_prompts(&self, step: &StepRun, batch: usize) {
        for chunk in &step.batches[batch].chunks {
            self.score_prompt(chunk, &self.buffers[batch]);
        }
    }

    /// Rows of a prompt whose next token is in the prompt too, as many at a time as logits have room.
    fn score_prompt(&self, chunk: &ChunkRun, buffers: &Buffers) {
        let mut sequence = lock(&chunk.sequence);
        let known = sequence.prompt_len().saturating_sub(1).saturating_sub(chunk.start).min(chunk.rows.len());
        if !sequence.wants_prompt_logprobs() || known == 0 {
            return;
        }
        let rows: Vec<u32> = (chunk.rows.start..chunk.rows.start + known).map(|row| row as u32).collect();
        for (i, piece) in rows.chunks(buffers.logits.rows).enumerate() {
            let logits = self.decoder.head(&*self.device, piece, buffers);
            let first = chunk.start + i * buffers.logits.rows;
            self.each_row(logits.buf, piece.len(), |row, logits| sequence.score(first + row, logits));
        }
    }

    fn each_row(&self, logits: Buf, rows: usize, mut f: impl FnMut(usize, &[f32])) {
        let vocab = self.decoder.spec().vocab;
        let wanted = logits.slice(0, rows * vocab * size_of::<f32>());
        self.device.view(&wanted, &mut |bytes| {
            let values: &[f32] = bytemuck::cast_slice(bytes);
            values.chunks_exact(vocab).enumerate().for_each(|(row, logits)| f(row, logits));
        });
    }

    /// Draws a token for every chunk that wants one.
    fn sample(&self, step: &StepRun, batch: usize) {
        let (run, buffers) = (&step.batches[batch], &self.buffers[batch]);
        let vocab = self.decoder.spec().vocab;
        let drawing: Vec<&ChunkRun> = run.sampling().collect();
        let wanted = buffers.logits.buf.slice(0, drawing.len() * vocab * size_of::<f32>());
        self.device.view(&wanted, &mut |bytes| {
            let values: &[f32] = bytemuck::cast_slice(bytes);
            self.team.run(|w| {
                for row in w.share(drawing.len()) {
                    lock(&drawing[row].sequence).draw(&values[row * vocab..][..vocab]);
                }
            });
        });
    }
}

/// Nothing for a sequence that had ended before.
fn outcome(chunk: &ChunkRun) -> Option<Outcome> {
    let mut sequence = lock(&chunk.sequence);
    let produced = sequence.produced(chunk.sample == Sampling::Sample)?;
    let full = sequence.filled_by(chunk.start..chunk.start + chunk.rows.len());
    Some(Outcome { seq: chunk.seq, produced, full })
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
