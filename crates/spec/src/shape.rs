//! A step in counts, with no sequences: what is lowered and costed.

use crate::{ByTier, Chunk, Layout, Pipeline, Sampling, Step, Tier};

/// What one batch asks of every layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Load {
    /// Chunks.
    pub seqs: u32,
    /// Rows of the linears: positions to compute.
    pub tokens: u32,
    /// Rows of the head.
    pub samples: u32,
    /// Pairs of query and key in spans longer than one, by the tier that attends.
    pub prefill_pairs: ByTier<u64>,
    /// KV positions read by attention, by the tier that attends: context and the chunk itself, once a chunk.
    pub context: ByTier<u64>,
    /// KV positions of the context whose home is this tier but which are attended elsewhere: brought in for each layer.
    pub kv_in: ByTier<u64>,
    /// New KV positions whose home is this tier but which are computed elsewhere: stored out after each layer.
    pub kv_out: ByTier<u64>,
    /// Those of `tokens` that attend on the host: their queries go down to it, and what was attended comes up.
    pub host_tokens: u32,
    /// Those of `kv_in.disk` that are attended on the device.
    pub disk_up: u64,
    /// Those of `kv_out.disk` that are attended on the device.
    pub disk_down: u64,
    /// Those of `kv_in` that a single row attends: a decode may choose among them.
    pub decode_in: ByTier<u64>,
    /// Those of `decode_in.disk` that are attended on the device.
    pub decode_up: u64,
}

/// KV blocks that go from one tier to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoveLoad {
    /// Where they are read.
    pub from: Tier,
    /// Where they are written.
    pub to: Tier,
    /// How many.
    pub blocks: u32,
}

/// A step in counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// How it is lowered.
    pub pipeline: Pipeline,
    /// Over which ranks.
    pub layout: Layout,
    /// One for every batch.
    pub loads: Vec<Load>,
    /// One for every pair of tiers that moves use.
    pub moves: Vec<MoveLoad>,
}

impl Load {
    /// The counts of some chunks.
    pub fn of(chunks: &[Chunk]) -> Self {
        let mut load = Load::default();
        chunks.iter().for_each(|chunk| load.add(chunk));
        load
    }

    fn add(&mut self, chunk: &Chunk) {
        let (start, len) = (u64::from(chunk.span.start.0), u64::from(chunk.span.len.0));
        let decoded = if len == 1 { start } else { 0 };
        self.seqs += 1;
        self.tokens += chunk.span.len.0;
        self.samples += u32::from(chunk.sample == Sampling::Sample);
        self.context[chunk.attend] += start + len;
        if len > 1 {
            self.prefill_pairs[chunk.attend] += len * start + len * (len + 1) / 2;
        }
        if chunk.attend == Tier::Host {
            self.host_tokens += chunk.span.len.0;
        }
        if chunk.home != chunk.attend {
            self.kv_in[chunk.home] += start;
            self.kv_out[chunk.home] += len;
            self.decode_in[chunk.home] += decoded;
        }
        if (chunk.home, chunk.attend) == (Tier::Disk, Tier::Device) {
            self.disk_up += start;
            self.disk_down += len;
            self.decode_up += decoded;
        }
    }
}

impl Shape {
    /// The counts of a step.
    pub fn of(step: &Step) -> Self {
        let loads = step.batches.iter().map(|chunks| Load::of(chunks)).collect();
        Shape { pipeline: step.pipeline, layout: step.layout, loads, moves: moves(step) }
    }
}

fn moves(step: &Step) -> Vec<MoveLoad> {
    let moves = step.moves.iter().map(|m| (m.from, m.to, m.blocks.len()));
    let kept = step.kept.iter().map(|kept| (kept.from, kept.to, kept.blocks.len()));
    let mut loads: Vec<MoveLoad> = Vec::new();
    for (from, to, blocks) in moves.chain(kept) {
        let blocks = blocks as u32;
        match loads.iter_mut().find(|l| (l.from, l.to) == (from, to)) {
            Some(load) => load.blocks += blocks,
            None => loads.push(MoveLoad { from, to, blocks }),
        }
    }
    loads
}
