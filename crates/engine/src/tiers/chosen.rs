//! KV of decodes that choose among their values: keys come first, then the pages of values that some query of a head chose.
//!
//! The page that the new position is written to comes whole with the keys: all of it goes home again.

use std::sync::Arc;

use kernels::attention::{BLOCK_TOKENS, Chosen};
use kernels::device::KvPages;
use spec::{Lane, Node, Tier};

use crate::lock::lock;
use crate::step::bound::{BatchRun, ChunkRun, StepRun};
use crate::step::run::Machine;
use crate::tiers::kv_halves::{Half, Plane};
use crate::tiers::link::Pace;
use crate::tiers::travel::{link_to, lose};
use crate::watch::stats::Moved;

impl Machine {
    /// What comes of a chunk's blocks before anything is chosen: their keys, and all of what is not full.
    pub(crate) fn planes_with_keys(
        &self,
        chunk: &ChunkRun,
        (from, to): (Tier, Tier),
        layer: usize,
    ) -> Vec<Plane> {
        let layout = self.kv.layers[layer].host.layout;
        let blocks = chunk.carried(from, to, self.decoder.spec().window_of(layer));
        let planes = |index: usize| {
            let pair = (chunk.block(from, index), chunk.block(to, index));
            let values = !chunk.chooses() || index >= chunk.full_blocks();
            let values = values.then(|| Plane::all(layout, pair, Half::Values));
            Plane::all(layout, pair, Half::Keys).chain(values.into_iter().flatten())
        };
        blocks.flat_map(planes).collect()
    }

    /// One layer of the values that a batch's decodes chose, a hop nearer to them.
    pub(crate) fn copy_chosen(
        &self,
        step: &StepRun,
        (node, layer, batch): (&Node, usize, u16),
        (from, to): (Tier, Tier),
    ) {
        let batch = &step.batches[usize::from(batch)];
        for home in [Tier::Host, Tier::Disk] {
            let (chunks, planes) = self.chosen_planes(batch, layer, home, (from, to));
            if chunks.is_empty() {
                continue;
            }
            match from {
                Tier::Disk => self.read_chosen(step, (node, layer, to), &chunks, &planes),
                _ => self.lift_chosen(step, (node, layer), home, &planes),
            }
        }
    }

    /// The chunks of a home that choose among values which make this hop, and the planes that they chose.
    fn chosen_planes<'a>(
        &self,
        batch: &'a BatchRun,
        layer: usize,
        home: Tier,
        (from, to): (Tier, Tier),
    ) -> (Vec<&'a ChunkRun>, Vec<Plane>) {
        let layout = self.kv.layers[layer].host.layout;
        let window = self.decoder.spec().window_of(layer);
        let (mut chunks, mut planes, mut left) = (Vec::new(), Vec::new(), 0);
        for on in [Tier::Device, Tier::Host] {
            let passes = |chunk: &ChunkRun| chunk.home == home && chunk.hops(self.kv.path, from, to);
            let of_tier: Vec<(usize, &ChunkRun)> =
                batch.choosing(on).enumerate().filter(|(_, chunk)| passes(chunk)).collect();
            let told: Option<Arc<Chosen>> = lock(&batch.chosen)[on].clone().filter(|_| !of_tier.is_empty());
            let Some(told) = told else { continue };
            for (number, chunk) in of_tier {
                let blocks = chunk.carried(from, to, window);
                for index in blocks.start..blocks.end.min(chunk.full_blocks()) {
                    let pair = (chunk.block(from, index), chunk.block(to, index));
                    for plane in Plane::all(layout, pair, Half::Values) {
                        match told.tokens(number, plane.head, index) {
                            0 => left += layout.plane_bytes(),
                            _ => planes.push(plane),
                        }
                    }
                }
                chunks.push(chunk);
            }
        }
        self.stats.left(Lane::of_copy(from, to), left);
        (chunks, planes)
    }

    fn read_chosen(
        &self,
        step: &StepRun,
        (node, layer, to): (&Node, usize, Tier),
        chunks: &[&ChunkRun],
        planes: &[Plane],
    ) {
        let drive = self.kv.drive.as_ref().expect("KV lives on the drive");
        let slot = self.kv.slot(&step.program, node, to).expect("KV of the drive passes a slot");
        let mut result = Ok(());
        self.memory(to).fill(&slot.buf, &mut |into| result = drive.read_planes(layer, planes, into));
        lose(chunks.iter().copied(), result);
    }

    fn lift_chosen(&self, step: &StepRun, (node, layer): (&Node, usize), home: Tier, planes: &[Plane]) {
        let pages = &self.kv.layers[layer];
        let _alone = lock(&pages.host_touched);
        let slot = |tier| self.kv.slot(&step.program, node, tier).expect("KV that passes has a slot");
        let source = if home == Tier::Host { pages.host } else { slot(Tier::Host) };
        let mut pace = self.link.begin();
        self.copy_planes(&mut pace, planes, (Tier::Host, source), (Tier::Device, slot(Tier::Device)));
        self.stats.moved(link_to(Tier::Device), Moved::Kv, pace.end());
    }

    /// Copies planes of one memory to another.
    pub(crate) fn copy_planes(
        &self,
        pace: &mut Pace,
        planes: &[Plane],
        (from, source): (Tier, KvPages),
        (to, target): (Tier, KvPages),
    ) {
        let layout = source.layout;
        for plane in planes {
            let of =
                |pages: KvPages, block| pages.buf.slice(plane.start(layout, block), layout.plane_bytes());
            let (here, there) = (of(source, plane.here), of(target, plane.there));
            pace.copy((self.memory(from), &here), (self.memory(to), &there));
        }
    }
}

impl ChunkRun {
    /// Whether it may choose among values that are away from where it attends.
    pub(crate) fn chooses(&self) -> bool {
        self.rows.len() == 1 && self.home != self.attend
    }

    /// Blocks that were full before it: nothing is written to them.
    fn full_blocks(&self) -> usize {
        self.start / BLOCK_TOKENS
    }
}

impl BatchRun {
    /// The chunks that choose on a tier, in the order in which what they chose is told.
    pub(crate) fn choosing(&self, on: Tier) -> impl Iterator<Item = &ChunkRun> {
        self.chunks.iter().filter(move |chunk| chunk.attend == on && chunk.chooses())
    }
}
