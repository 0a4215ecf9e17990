//! KV of decodes that choose among their values: keys come first, then the pages of values that some query of a head chose.
//!
//! The page that the new position is written to comes whole with the keys: all of it goes home again. Over the link between
//! memories, which has no sectors, only those tokens of a page come that were chosen, where each has numbers of its own; the
//! others weigh nothing, and are zeros.

use std::sync::Arc;

use kernels::arena::Buf;
use kernels::attention::{BLOCK_TOKENS, Chosen, KvDtype};
use kernels::device::KvPages;
use spec::{Lane, Node, Tier};

use crate::step::bound::{BatchRun, ChunkRun, StepRun};
use crate::step::run::Machine;
use crate::tiers::kv_halves::{Half, Plane};
use crate::tiers::link::Pace;
use crate::tiers::travel::{carry_each, link_to};
use crate::watch::stats::Moved;
use kernels::lock::lock;

/// Whether a token's value has numbers that no other shares.
pub(crate) fn by_token(dtype: KvDtype) -> bool {
    match dtype {
        KvDtype::Bf16 | KvDtype::F16 | KvDtype::F32 | KvDtype::Fp8 => true,
        KvDtype::Int4 => false,
    }
}

/// Pages that pass the link at a time.
const TOGETHER: usize = 256;

/// A page of a head's values, and which of its tokens were chosen.
type Page = (Plane, u32);
/// A chunk, and the pages that it chose.
type Choosing<'a> = (&'a ChunkRun, Vec<Page>);

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
            let chunks = self.chosen_pages(batch, layer, home, (from, to));
            if chunks.is_empty() {
                continue;
            }
            match from {
                Tier::Disk => self.read_chosen(step, (node, layer, to), &chunks),
                _ => {
                    let pages: Vec<Page> = chunks.into_iter().flat_map(|(_, pages)| pages).collect();
                    self.lift_chosen(step, (node, layer), home, &pages);
                }
            }
        }
    }

    /// The chunks of a home that choose among values which make this hop, and the pages that they chose.
    fn chosen_pages<'a>(
        &self,
        batch: &'a BatchRun,
        layer: usize,
        home: Tier,
        (from, to): (Tier, Tier),
    ) -> Vec<Choosing<'a>> {
        let layout = self.kv.layers[layer].host.layout;
        let window = self.decoder.spec().window_of(layer);
        let (mut chunks, mut left) = (Vec::new(), 0);
        for on in [Tier::Device, Tier::Host] {
            let passes = |chunk: &ChunkRun| chunk.home == home && chunk.hops(self.kv.path, from, to);
            let of_tier: Vec<(usize, &ChunkRun)> =
                batch.choosing(on).enumerate().filter(|(_, chunk)| passes(chunk)).collect();
            let told: Option<Arc<Chosen>> = lock(&batch.chosen)[on].clone().filter(|_| !of_tier.is_empty());
            let Some(told) = told else { continue };
            for (number, chunk) in of_tier {
                let (blocks, mut pages) = (chunk.carried(from, to, window), Vec::new());
                for index in blocks.start..blocks.end.min(chunk.full_blocks()) {
                    let pair = (chunk.block(from, index), chunk.block(to, index));
                    for plane in Plane::all(layout, pair, Half::Values) {
                        match told.tokens(number, plane.head, index) {
                            0 => left += layout.plane_bytes(),
                            tokens => pages.push((plane, tokens)),
                        }
                    }
                }
                chunks.push((chunk, pages));
            }
        }
        self.stats.left(Lane::of_copy(from, to), left);
        chunks
    }

    fn read_chosen(&self, step: &StepRun, (node, layer, to): (&Node, usize, Tier), chunks: &[Choosing<'_>]) {
        let drive = self.kv.drive.as_ref().expect("KV lives on the drive");
        let slot = self.kv.slot(&step.program, node, to).expect("KV of the drive passes a slot");
        carry_each(
            chunks,
            |(chunk, _)| chunk,
            |chunks| {
                let planes: Vec<Plane> =
                    chunks.iter().flat_map(|(_, pages)| pages).map(|page| page.0).collect();
                let mut result = Ok(());
                self.memory(to).fill(&slot.buf, &mut |into| result = drive.read_planes(layer, &planes, into));
                result
            },
        );
    }

    fn lift_chosen(&self, step: &StepRun, (node, layer): (&Node, usize), home: Tier, pages: &[Page]) {
        let here = &self.kv.layers[layer];
        let _alone = lock(&here.host_touched);
        let slot = |tier| self.kv.slot(&step.program, node, tier).expect("KV that passes has a slot");
        let source = if home == Tier::Host { here.host } else { slot(Tier::Host) };
        let (target, mut pace) = (slot(Tier::Device), self.link.begin());
        if by_token(source.layout.dtype) {
            pages.chunks(TOGETHER).for_each(|pages| self.lift_tokens(&mut pace, pages, source, target));
        } else {
            let planes: Vec<Plane> = pages.iter().map(|page| page.0).collect();
            self.copy_planes(&mut pace, &planes, (Tier::Host, source), (Tier::Device, target));
        }
        let (moved, all) = (pace.end(), pages.len() * source.layout.plane_bytes());
        self.stats.moved(link_to(Tier::Device), Moved::Kv, moved);
        self.stats.left(link_to(Tier::Device), all - moved);
    }

    /// Of each page the chosen tokens, and zeros for the others.
    fn lift_tokens(&self, pace: &mut Pace, pages: &[Page], source: KvPages, target: KvPages) {
        let plane_bytes = source.layout.plane_bytes();
        let to: Vec<Buf> = pages.iter().map(|(plane, _)| plane.of(target, plane.there)).collect();
        let mut plane = vec![0; plane_bytes];
        self.device.spread(&to, &mut |first, into| {
            let end = first + into.len();
            for (page, begin) in pages.iter().zip((0..).step_by(plane_bytes)).skip(first / plane_bytes) {
                let here = begin.max(first)..(begin + plane_bytes).min(end);
                if here.is_empty() {
                    break;
                }
                self.host.view(&page.0.of(source, page.0.here), &mut |from| {
                    only_tokens(page.1, (from, &mut plane), source.layout.head_dim);
                });
                into[here.start - first..here.end - first]
                    .copy_from_slice(&plane[here.start - begin..here.end - begin]);
            }
        });
        let chosen: usize = pages.iter().map(|(_, tokens)| tokens.count_ones() as usize).sum();
        pace.pass(chosen * plane_bytes / BLOCK_TOKENS);
    }

    /// Copies planes of one memory to another.
    pub(crate) fn copy_planes(
        &self,
        pace: &mut Pace,
        planes: &[Plane],
        (from, source): (Tier, KvPages),
        (to, target): (Tier, KvPages),
    ) {
        let here: Vec<Buf> = planes.iter().map(|plane| plane.of(source, plane.here)).collect();
        let there: Vec<Buf> = planes.iter().map(|plane| plane.of(target, plane.there)).collect();
        pace.copy_all((self.memory(from), &here), (self.memory(to), &there));
    }
}

/// A plane of values lies dim by dim: of each these tokens, and zeros for the others.
fn only_tokens(tokens: u32, (from, into): (&[u8], &mut [u8]), head_dim: usize) {
    let dim = from.len() / head_dim;
    let number = dim / BLOCK_TOKENS;
    into.fill(0);
    for (into, from) in into.chunks_exact_mut(dim).zip(from.chunks_exact(dim)) {
        for at in (0..BLOCK_TOKENS).filter(|token| tokens >> token & 1 == 1).map(|token| token * number) {
            into[at..][..number].copy_from_slice(&from[at..][..number]);
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
