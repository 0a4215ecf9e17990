//! A step bound to its sequences and block tables: what lanes need to run its nodes.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use kernels::attention::{BLOCK_TOKENS, Chosen, GROUP_TOKENS, Span as KvSpan};
use policy::pipeline::DiskPath;
use spec::{ByTier, Chunk, Kept, Lane, Move, Program, Sampling, SeqId, Step, StepId, Tier};

use crate::step::late::{Asked, Coming};
use crate::step::sequence::Shared;
use crate::step::tables::ByGroup;
use crate::tiers::stowed::OnHost;
use kernels::lock::lock;

/// A step under way.
pub(crate) struct StepRun {
    pub(crate) id: StepId,
    pub(crate) moves: Vec<Move>,
    pub(crate) kept: Vec<Kept>,
    pub(crate) program: Program,
    pub(crate) batches: Vec<BatchRun>,
    pub(crate) on_host: OnHost,
    pub(crate) started: Instant,
    /// Between which tiers kept blocks could not be copied.
    pub(crate) lost: Mutex<Vec<(Tier, Tier)>>,
    /// What nodes have asked a device for that is done later.
    pub(crate) asked: Mutex<Vec<Asked>>,
}

/// A batch of it.
#[derive(Default)]
pub(crate) struct BatchRun {
    pub(crate) chunks: Vec<ChunkRun>,
    /// Known once the steps before have drawn their tokens: made by the batch's first node that needs them.
    inputs: OnceLock<Inputs>,
    /// The rows that attend on the host.
    host_inputs: OnceLock<Inputs>,
    /// Tokens that the device takes.
    pub(crate) coming: Mutex<Option<Coming>>,
    /// Which values its decodes chose in the layer that they are in, by where they attend.
    pub(crate) chosen: Mutex<ByTier<Option<Arc<Chosen>>>>,
}

/// A chunk with its sequence and its blocks.
pub(crate) struct ChunkRun {
    pub(crate) seq: SeqId,
    pub(crate) sequence: Shared,
    pub(crate) start: usize,
    pub(crate) rows: Range<usize>,
    /// Of the home. Where KV leaves the device, all layers share them.
    pub(crate) blocks: ByGroup,
    /// Of a KV slot, where it is attended away from its home.
    pub(crate) slot_blocks: Vec<u32>,
    /// Of the host's buffers, where it is attended there.
    pub(crate) host_rows: Range<usize>,
    pub(crate) home: Tier,
    pub(crate) attend: Tier,
    pub(crate) sample: Sampling,
}

impl ChunkRun {
    /// Which positions of its sequence it computes.
    pub(crate) fn positions(&self) -> Range<usize> {
        self.start..self.start + self.rows.len()
    }
}

/// A batch's rows, or those of them that attend on one tier.
#[derive(Default)]
pub(crate) struct Inputs {
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) lengths: Vec<u32>,
    pub(crate) samples: Vec<u32>,
}

/// Spans of a batch that one kernel call attends: over the pages of their home, or over a KV slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// Pages of the tier that attends.
    Pages,
    /// A slot of it.
    Slot,
}

impl StepRun {
    /// Binds a step to its sequences and tables (one table a chunk, in order of the chunks).
    pub(crate) fn new(
        step: &Step,
        program: Program,
        tables: Vec<ByGroup>,
        on_host: OnHost,
        sequence: impl Fn(SeqId) -> Shared,
    ) -> StepRun {
        let mut tables = tables.into_iter();
        let batches = step.batches.iter().map(|chunks| {
            let mut next = Next::default();
            let bind =
                |chunk: &Chunk| next.bind(chunk, sequence(chunk.seq), tables.next().unwrap_or_default());
            let chunks = chunks.iter().map(bind).collect();
            BatchRun { chunks, ..BatchRun::default() }
        });
        let batches = batches.collect();
        StepRun {
            id: step.id,
            moves: step.moves.clone(),
            kept: step.kept.clone(),
            program,
            batches,
            on_host,
            started: Instant::now(),
            lost: Mutex::default(),
            asked: Mutex::default(),
        }
    }
}

impl StepRun {
    /// Kept blocks between these tiers could not be copied.
    pub(crate) fn lose(&self, from: Tier, to: Tier) {
        lock(&self.lost).push((from, to));
    }

    /// Whether that is so already.
    pub(crate) fn has_lost(&self, from: Tier, to: Tier) -> bool {
        lock(&self.lost).contains(&(from, to))
    }

    /// What could not be copied.
    pub(crate) fn losses(&self) -> Vec<Kept> {
        self.kept.iter().filter(|kept| self.has_lost(kept.from, kept.to)).cloned().collect()
    }

    /// Whether it is one batch of decodes, over KV and weights that are all on the device.
    pub(crate) fn only_decodes_here(&self) -> bool {
        let decodes = |chunk: &ChunkRun| {
            chunk.rows.len() == 1 && (chunk.home, chunk.attend) == (Tier::Device, Tier::Device)
        };
        self.batches.len() == 1
            && self.batches[0].chunks.iter().all(decodes)
            && self.program.nodes().iter().all(|node| node.lane == Lane::Device)
    }
}

/// What of a batch's rows and slots the chunks so far have.
#[derive(Default)]
struct Next {
    row: usize,
    slot_block: u32,
    host_row: usize,
}

impl Next {
    fn bind(&mut self, chunk: &Chunk, sequence: Shared, blocks: ByGroup) -> ChunkRun {
        let len = chunk.span.len.0 as usize;
        let in_slot = if chunk.home == chunk.attend { 0 } else { chunk.span.end().blocks() as u32 };
        let on_host = if chunk.attend == Tier::Host { len } else { 0 };
        let bound = ChunkRun {
            seq: chunk.seq,
            sequence,
            start: chunk.span.start.0 as usize,
            rows: self.row..self.row + len,
            blocks,
            slot_blocks: (self.slot_block..self.slot_block + in_slot).collect(),
            host_rows: self.host_row..self.host_row + on_host,
            home: chunk.home,
            attend: chunk.attend,
            sample: chunk.sample,
        };
        (self.row, self.slot_block, self.host_row) =
            (bound.rows.end, self.slot_block + in_slot, bound.host_rows.end);
        bound
    }
}

impl ChunkRun {
    /// Over what it is attended.
    fn over(&self) -> Over {
        if self.home == self.attend { Over::Pages } else { Over::Slot }
    }

    /// Whether its KV makes this hop between its home and where it is attended.
    pub(crate) fn hops(&self, path: DiskPath, from: Tier, to: Tier) -> bool {
        let staged = (self.home, self.attend, path) == (Tier::Disk, Tier::Device, DiskPath::ThroughHost);
        let (outer, inner) = (from.max(to), from.min(to));
        match staged {
            true => (outer, inner) != (Tier::Disk, Tier::Device),
            false => (outer, inner) == (self.home, self.attend),
        }
    }

    /// Which of its blocks such a hop carries: the context that rows see (the last `window` positions each, or all) on its
    /// way to attention, else those with new positions.
    pub(crate) fn carried(&self, from: Tier, to: Tier, window: Option<usize>) -> Range<usize> {
        let inward = from > to;
        match inward {
            true => {
                let end = self.start.div_ceil(BLOCK_TOKENS);
                first_seen(self.start, window).min(end)..end
            }
            false => self.start / BLOCK_TOKENS..self.positions().end.div_ceil(BLOCK_TOKENS),
        }
    }

    /// What a kernel attends for it: its blocks of a group of layers or those of its slot, and its rows where it attends.
    pub(crate) fn span(&self, group: usize) -> KvSpan<'_> {
        let blocks = if self.over() == Over::Pages { &self.blocks[group] } else { &self.slot_blocks };
        let rows = if self.attend == Tier::Host { &self.host_rows } else { &self.rows };
        KvSpan { blocks, start: self.start, rows: rows.clone() }
    }

    /// The block of a tier that holds its `index`th block's positions: of its home, or of a slot.
    pub(crate) fn block(&self, tier: Tier, index: usize) -> u32 {
        if tier == self.home { self.blocks[0][index] } else { self.slot_blocks[index] }
    }
}

impl BatchRun {
    pub(crate) fn inputs(&self) -> &Inputs {
        self.inputs.get_or_init(|| {
            let mut inputs = Inputs::default();
            self.chunks.iter().for_each(|chunk| inputs.add(chunk));
            inputs
        })
    }

    /// The rows that attend on the host.
    pub(crate) fn host_inputs(&self) -> &Inputs {
        self.host_inputs.get_or_init(|| {
            let (all, mut inputs) = (self.inputs(), Inputs::default());
            for chunk in self.chunks.iter().filter(|chunk| chunk.attend == Tier::Host) {
                inputs.ids.extend_from_slice(&all.ids[chunk.rows.clone()]);
                inputs.positions.extend_from_slice(&all.positions[chunk.rows.clone()]);
                inputs.lengths.extend_from_slice(&all.lengths[chunk.rows.clone()]);
            }
            inputs
        })
    }

    /// What attends on a tier over its pages, of a group of layers, or over a slot: rows of the device's buffers, or of the host's.
    pub(crate) fn spans(&self, on: Tier, over: Over, group: usize) -> Vec<KvSpan<'_>> {
        let wanted = self.chunks.iter().filter(|chunk| chunk.attend == on && chunk.over() == over);
        wanted.map(|chunk| chunk.span(group)).collect()
    }

    /// Chunks that draw a token, in the order of their logits.
    pub(crate) fn sampling(&self) -> impl Iterator<Item = &ChunkRun> {
        self.chunks.iter().filter(|c| c.sample == Sampling::Sample)
    }
}

/// The block in which what a row at `start`, and those after it, see begins. Kernels read whole groups of positions, also where
/// a window begins inside one.
fn first_seen(start: usize, window: Option<usize>) -> usize {
    let first = window.map_or(0, |window| (start + 1).saturating_sub(window));
    first / GROUP_TOKENS * (GROUP_TOKENS / BLOCK_TOKENS)
}

impl Inputs {
    fn add(&mut self, chunk: &ChunkRun) {
        let sequence = lock(&chunk.sequence);
        let positions = chunk.positions();
        self.ids.extend(sequence.inputs(positions.clone()));
        self.positions.extend(positions.clone().map(|p| p as u32));
        let from = sequence.turned_from();
        self.lengths.extend(positions.map(|p| (p + 1).max(from) as u32));
        if chunk.sample == Sampling::Sample {
            self.samples.push(chunk.rows.end as u32 - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_begins_with_the_group_of_the_first_position_that_it_sees() {
        assert_eq!(first_seen(1000, None), 0);
        for (start, window, block) in
            [(99, 100, 0), (226, 100, 0), (227, 100, 4), (1000, 100, 28), (1000, 1, 28)]
        {
            assert_eq!(first_seen(start, Some(window)), block, "{window} before {start}");
        }
    }
}
