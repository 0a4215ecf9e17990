//! Copies of KV and activations between tiers: what a program's copying nodes do.

use kernels::arena::Buf;
use kernels::device::{Device, KvPages};
use policy::pipeline::Values;
use spec::{Buffer, Lane, Node, Program, Tensor, Tier};

use crate::front::request::Failure;
use crate::step::bound::{BatchRun, ChunkRun, StepRun};
use crate::step::run::Machine;
use crate::tiers::kv::LayerPages;
use crate::tiers::kv_file::Run;
use crate::tiers::kv_halves::Plane;
use crate::tiers::link::Pace;
use crate::watch::stats::Moved;
use kernels::lock::lock;

fn attended_on_host(step: &StepRun, batch: u16) -> impl Iterator<Item = &ChunkRun> {
    step.batches[usize::from(batch)].chunks.iter().filter(|chunk| chunk.attend == Tier::Host)
}

impl Machine {
    pub(crate) fn memory(&self, tier: Tier) -> &dyn Device {
        match tier {
            Tier::Device => &*self.device,
            Tier::Host => &*self.host,
            Tier::Disk => panic!("the drive is no memory"),
        }
    }

    /// One layer of the blocks that this step moves between two tiers.
    pub(crate) fn move_kv(&self, step: &StepRun, layer: usize, from: Tier, to: Tier) {
        if from.max(to) == Tier::Disk {
            return self.move_kept(step, layer, from, to);
        }
        let pages = &self.kv.layers[layer];
        let (_device, _host) = (self.alone_on_device(pages), lock(&pages.host_touched));
        let moves = step.moves.iter().filter(|m| (m.from, m.to) == (from, to));
        let kept = step.kept.iter().filter(|kept| (kept.from, kept.to) == (from, to));
        let mut pairs: Vec<(u32, u32)> = moves.flat_map(|m| &m.blocks).map(|(a, b)| (a.0, b.0)).collect();
        // What comes back from the host was this sequence's alone; on the device others may have its beginning still.
        let gone = if from == Tier::Host { runs(&pairs, true) } else { Vec::new() };
        pairs.extend(kept.flat_map(|kept| &kept.blocks).map(|(a, b)| (a.0, b.0)));
        let mut pace = self.link.begin();
        self.copy_blocks(&mut pace, &pairs, (from, pages.of(from)), (to, pages.of(to)));
        self.stats.moved(link_to(to), Moved::Kv, pace.end());
        for (here, _, count) in gone {
            self.memory(from).discard(&pages.of(from).blocks(here, count));
        }
    }

    fn copy_blocks(
        &self,
        pace: &mut Pace,
        pairs: &[(u32, u32)],
        (from, source): (Tier, KvPages),
        (to, target): (Tier, KvPages),
    ) {
        let both = |(here, there, count): Run| (source.blocks(here, count), target.blocks(there, count));
        let (sources, targets): (Vec<Buf>, Vec<Buf>) = runs(pairs, true).into_iter().map(both).unzip();
        pace.copy_all((self.memory(from), &sources), (self.memory(to), &targets));
    }

    /// One layer of a batch's KV on its way to attention, or of its new KV on its way home.
    pub(crate) fn copy_kv(
        &self,
        step: &StepRun,
        (node, layer, batch): (&Node, usize, u16),
        (from, to): (Tier, Tier),
    ) {
        let batch = &step.batches[usize::from(batch)];
        if from > to {
            self.discard_slot(step, node, batch, (from, to));
        }
        match (from, to) {
            (Tier::Disk, _) | (_, Tier::Disk) => {
                self.copy_kv_of_drive(step, (node, layer), batch, (from, to));
            }
            _ => self.copy_kv_in_memory(step, (node, layer), batch, (from, to)),
        }
    }

    /// What a slot had of the layers and steps before: nobody may take it for what comes now.
    fn discard_slot(&self, step: &StepRun, node: &Node, batch: &BatchRun, (from, to): (Tier, Tier)) {
        let Some(slot) = self.kv.slot(&step.program, node, to) else { return };
        for chunk in batch.chunks.iter().filter(|chunk| chunk.hops(self.kv.path, from, to)) {
            let Some(&first) = chunk.slot_blocks.first() else { continue };
            self.memory(to).discard(&slot.blocks(first, chunk.slot_blocks.len()));
        }
    }

    fn copy_kv_of_drive(
        &self,
        step: &StepRun,
        (node, layer): (&Node, usize),
        batch: &BatchRun,
        (from, to): (Tier, Tier),
    ) {
        let drive = self.kv.drive.as_ref().expect("KV lives on the drive");
        let inner = from.min(to);
        let slot = self.kv.slot(&step.program, node, inner).expect("KV of the drive passes a slot");
        let window = self.decoder.spec().window_of(layer);
        let carried = |chunk: &ChunkRun| chunk.carried(from, to, window);
        let passes = |chunk: &&ChunkRun| {
            let hops = chunk.home == Tier::Disk && chunk.hops(self.kv.path, from, to);
            hops && !carried(chunk).is_empty()
        };
        let chunks: Vec<&ChunkRun> = batch.chunks.iter().filter(passes).collect();
        let carry = |chunks: &[&ChunkRun]| {
            let pairs = chunks.iter().flat_map(|chunk| {
                carried(chunk).map(|index| (chunk.block(Tier::Disk, index), chunk.block(inner, index)))
            });
            let pairs: Vec<(u32, u32)> = pairs.collect();
            let mut result = Ok(());
            match from {
                Tier::Disk if self.kv.values == Values::Chosen => {
                    let planes = chunks.iter().flat_map(|c| self.planes_with_keys(c, (from, to), layer));
                    let planes: Vec<Plane> = planes.collect();
                    self.memory(inner).fill(&slot.buf, &mut |into| {
                        result = drive.read_planes(layer, &planes, into);
                    });
                }
                Tier::Disk => self.memory(inner).fill(&slot.buf, &mut |into| {
                    result = drive.read_kv(layer, &pairs, into);
                }),
                _ => self.memory(inner).view(&slot.buf, &mut |bytes| {
                    result = drive.write_kv(layer, &pairs, bytes);
                }),
            }
            result
        };
        carry_each(&chunks, |chunk| chunk, carry);
    }

    fn copy_kv_in_memory(
        &self,
        step: &StepRun,
        (node, layer): (&Node, usize),
        batch: &BatchRun,
        (from, to): (Tier, Tier),
    ) {
        let pages = &self.kv.layers[layer];
        let _alone = lock(&pages.host_touched);
        let window = self.decoder.spec().window_of(layer);
        let mut pace = self.link.begin();
        for chunk in batch.chunks.iter().filter(|chunk| chunk.hops(self.kv.path, from, to)) {
            let place = |tier| {
                let pages = (tier == chunk.home).then(|| pages.of(tier));
                let pages = pages.or_else(|| self.kv.slot(&step.program, node, tier));
                (tier, pages.expect("KV that passes has a slot"))
            };
            if from > to && self.kv.values == Values::Chosen && chunk.chooses() {
                let planes = self.planes_with_keys(chunk, (from, to), layer);
                self.copy_planes(&mut pace, &planes, place(from), place(to));
                continue;
            }
            let carried = chunk
                .carried(from, to, window)
                .map(|index| (chunk.block(from, index), chunk.block(to, index)));
            self.copy_blocks(&mut pace, &carried.collect::<Vec<_>>(), place(from), place(to));
        }
        self.stats.moved(link_to(to), Moved::Kv, pace.end());
    }

    /// A batch's activation between two tiers.
    pub(crate) fn move_hidden(
        &self,
        step: &StepRun,
        (node, batch): (usize, u16),
        what: Tensor,
        (from, to): (Tier, Tier),
    ) {
        match what {
            Tensor::Qkv => self.queries_down(step, node, batch),
            Tensor::Attended => self.attended_up(step, node, batch),
            Tensor::Hidden => self.rest(step, (node, batch), (from, to)),
            what => panic!("{what:?} does not travel between tiers"),
        }
    }

    /// Rows of chunks that the host attends to, from the device's buffers to the host's.
    fn queries_down(&self, step: &StepRun, node: usize, batch: u16) {
        let (device, host) = (self.buffers_of(step, node), self.host_buffers_of(step, node));
        let rows = attended_on_host(step, batch).map(|chunk| {
            (device.qkv.range(chunk.rows.clone()).buf, host.qkv.range(chunk.host_rows.clone()).buf)
        });
        self.pass((Tier::Device, Tier::Host), rows.unzip());
    }

    /// What they came to, back.
    fn attended_up(&self, step: &StepRun, node: usize, batch: u16) {
        let (device, host) = (self.buffers_of(step, node), self.host_buffers_of(step, node));
        let rows = attended_on_host(step, batch).map(|chunk| {
            (host.attended.range(chunk.host_rows.clone()).buf, device.attended.range(chunk.rows.clone()).buf)
        });
        self.pass((Tier::Host, Tier::Device), rows.unzip());
    }

    /// Copies buffers, which nobody reads afterwards where they came from.
    fn pass(&self, (from, to): (Tier, Tier), (here, there): (Vec<Buf>, Vec<Buf>)) {
        let mut pace = self.link.begin();
        if !here.is_empty() {
            pace.copy_all((self.memory(from), &here), (self.memory(to), &there));
        }
        here.iter().for_each(|here| self.memory(from).discard(here));
        self.stats.moved(link_to(to), Moved::Activations, pace.end());
    }

    /// The residual stream to where it rests between layers, or from there.
    fn rest(&self, step: &StepRun, (node, batch): (usize, u16), (from, to): (Tier, Tier)) {
        let chunks = &step.batches[usize::from(batch)].chunks;
        let rows: usize = chunks.iter().map(|chunk| chunk.rows.len()).sum();
        let here = &step.program.nodes()[node];
        let on_host = || {
            let name = name_on_host(&step.program, here).expect("an activation on the host has a name");
            self.kv.hidden.named(name, step.batches.len())
        };
        let place = |tier| match tier {
            Tier::Device => Some(self.buffers_of(step, node).x.first(rows).buf),
            Tier::Host => {
                let bytes = rows * self.decoder.spec().hidden * size_of::<f32>();
                Some(on_host().slice(0, bytes))
            }
            Tier::Disk => None,
        };
        let mut result = Ok(());
        let drive = || self.kv.drive.as_ref().expect("activations rest on the drive");
        match (place(from), place(to)) {
            (Some(source), Some(target)) => {
                let mut pace = self.link.begin();
                pace.copy((self.memory(from), &source), (self.memory(to), &target));
                self.stats.moved(link_to(to), Moved::Activations, pace.end());
            }
            (None, Some(target)) => self.memory(to).fill(&target, &mut |into| {
                result = drive().read_hidden(batch.into(), into);
            }),
            (Some(source), None) => self.memory(from).view(&source, &mut |bytes| {
                result = drive().write_hidden(batch.into(), bytes);
            }),
            (None, None) => panic!("an activation goes from the drive to the drive"),
        }
        if let Some(source) = place(from) {
            self.memory(from).discard(&source);
        }
        lose(chunks, result);
        if to == Tier::Device {
            self.with(step, node, batch, |batch, buffers| self.decoder.rotate(&*self.device, batch, buffers));
        }
    }
}

/// Carries what belongs to single sequences over the drive, that of all at once; if some of it fails, each alone, so that it ends
/// none but its own.
pub(crate) fn carry_each<'a, T>(
    all: &[T],
    of: impl Fn(&T) -> &'a ChunkRun,
    mut carry: impl FnMut(&[T]) -> model::Result<()>,
) {
    if carry(all).is_err() {
        for one in all.chunks(1) {
            let moved = carry(one);
            lose(one.iter().map(&of), moved);
        }
    }
}

/// What did not come from the drive, or not get there, ends the sequences that it belongs to. The step goes on for the others:
/// no row of a batch has a part in another's.
pub(crate) fn lose<'a>(chunks: impl IntoIterator<Item = &'a ChunkRun>, moved: model::Result<()>) {
    let Err(error) = moved else { return };
    for chunk in chunks {
        lock(&chunk.sequence).fail(Failure::Drive(error.to_string()));
    }
}

impl LayerPages {
    pub(crate) fn of(&self, tier: Tier) -> KvPages {
        match tier {
            Tier::Device => self.device,
            Tier::Host => self.host,
            Tier::Disk => panic!("pages of the drive are in a file"),
        }
    }
}

/// The link between host and device, by where a copy ends.
pub(crate) fn link_to(tier: Tier) -> Lane {
    if tier == Tier::Device { Lane::Up } else { Lane::Down }
}

fn name_on_host(program: &Program, node: &Node) -> Option<u16> {
    program.touches(node).iter().find_map(|touch| match touch.buffer {
        Buffer::Hidden { batch, tier: Tier::Host } => Some(batch),
        _ => None,
    })
}

/// Pairs as (first here, first there, how many): those that follow one another on both sides together, if they are joined.
pub(crate) fn runs(pairs: &[(u32, u32)], joined: bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &(here, there) in pairs {
        match runs.last_mut() {
            Some((h, t, n)) if joined && (*h + *n as u32, *t + *n as u32) == (here, there) => *n += 1,
            _ => runs.push((here, there, 1)),
        }
    }
    runs
}
