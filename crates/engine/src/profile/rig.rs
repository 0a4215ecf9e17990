//! A decoder of a few of a model's layers on a device, whose ops are timed one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use kernels::Team;
use kernels::attention::{BLOCK_TOKENS, Span};
use kernels::device::{Device, KvPages};
use kernels::pick::Pick;
use kernels::queue::{self, Mark};
use model::Checkpoint;
use model::decoder::{
    Batch, Blueprint, Decoder, LoadError, Loader, STAGED_BYTES, Work, WorkSize, rope_bytes,
};
use spec::model::Window;
use spec::{ModelSpec, Tier};

use crate::config::{DeviceChoice, EngineConfig};
use crate::memory;
use crate::plan::hold::kv_layout;
use crate::plan::planned::{StartError, open, prepare};
use crate::plan::too_small::TooSmall;
use crate::step::run::rows_at_once;

/// How much of a model is there to be measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Weights of the layers that are loaded, at the least; one layer in any case.
    pub(super) layer_bytes: usize,
    /// KV of all layers that are loaded, unless batches need more.
    pub(super) kv_bytes: usize,
    /// The longest context that is measured.
    pub(super) positions: usize,
}

impl Extent {
    /// Passes over less would find it in a cache.
    pub(super) const BEYOND_CACHES: Extent =
        Extent { layer_bytes: 512 << 20, kv_bytes: 768 << 20, positions: 8192 };

    /// The least that is still beyond them: what passes find in caches says nothing of a model that is not there.
    const LEAST: usize = 128 << 20;

    /// As much of it as `room` bytes hold.
    ///
    /// # Errors
    /// [`TooSmall`], if what fits would be in caches.
    pub(super) fn within(
        mut self,
        room: u64,
        spec: &ModelSpec,
        blueprint: &Blueprint,
        (config, size): (&EngineConfig, WorkSize),
    ) -> Result<Extent, TooSmall> {
        loop {
            let parts = Parts::of(spec, blueprint, config, (size, self));
            if parts.bytes() as u64 <= room {
                return Ok(self);
            }
            if (self.layer_bytes, self.kv_bytes) == (Self::LEAST, Self::LEAST) {
                return Err(parts.too_small(room));
            }
            let less = |bytes: usize| (bytes / 2).max(Self::LEAST);
            self.layer_bytes = less(self.layer_bytes);
            self.kv_bytes = less(self.kv_bytes);
        }
    }
}

/// What a rig on this device may take: what the engine may there.
pub(super) fn room(config: &EngineConfig) -> u64 {
    match config.device {
        DeviceChoice::Cuda => config.offload.device_memory.unwrap_or(u64::MAX),
        DeviceChoice::Cpu | DeviceChoice::Virtual | DeviceChoice::Poisoned => {
            config.memory.saturating_sub(memory::resident_bytes())
        }
    }
}

/// What a rig is made of.
pub(super) struct Parts {
    blueprint: Blueprint,
    positions: usize,
    /// KV blocks of a layer.
    blocks: usize,
    kv_bytes: usize,
    work_bytes: usize,
    rope_bytes: usize,
}

impl Parts {
    pub(super) fn of(
        spec: &ModelSpec,
        blueprint: &Blueprint,
        config: &EngineConfig,
        (size, extent): (WorkSize, Extent),
    ) -> Parts {
        let blueprint = blueprint.spread(extent.layer_bytes);
        let (pools, positions) = (blueprint.layers.len(), spec.max_positions.min(extent.positions));
        let each = kv_layout(spec, config.kv_dtype()).block_bytes();
        let blocks = (extent.kv_bytes / pools / each).max(2 * size.tokens / BLOCK_TOKENS);
        Parts {
            positions,
            blocks,
            kv_bytes: blocks * each,
            work_bytes: Work::bytes(spec, size),
            rope_bytes: rope_bytes(spec, positions),
            blueprint,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let kv = self.blueprint.layers.len() * self.kv_bytes;
        self.blueprint.bytes() + kv + self.work_bytes + self.rope_bytes + MARGIN
    }

    fn too_small(&self, limit: u64) -> TooSmall {
        TooSmall::Memory {
            need: self.bytes() as u64,
            limit,
            weights: self.blueprint.bytes() as u64,
            work: self.work_bytes as u64,
            kv: (self.blueprint.layers.len() * self.kv_bytes) as u64,
            process: (self.rope_bytes + MARGIN) as u64,
            tokens: self.blocks * BLOCK_TOKENS,
            on_drive: false,
            streamed: false,
        }
    }
}

/// Buffers that are not counted one by one.
const MARGIN: usize = 16 << 20;

/// See the module.
pub(super) struct Rig {
    pub(super) device: Box<dyn Device>,
    pub(super) team: Arc<Team>,
    decoder: Decoder,
    /// One for each layer that is there.
    pools: Vec<KvPages>,
    blocks: usize,
    /// Whether all layers of the model are there: then a pass finds in caches what it would find there in a run.
    whole: bool,
    work: Work,
    /// Of the layers that are there.
    pub(super) blueprint: Blueprint,
    pub(super) positions: usize,
    /// Marks that were made.
    marks: AtomicU64,
}

/// Sequences of a batch: so many, each with so many rows that end at this length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seqs {
    pub(super) count: usize,
    pub(super) rows: usize,
    pub(super) length: usize,
}

/// Seconds of one pass: of embedding, and of each op of a layer on average.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    pub(super) embed: f64,
    pub(super) qkv: f64,
    pub(super) attend: f64,
    pub(super) out: f64,
    pub(super) mlp: f64,
}

impl Rig {
    /// Loads layers of a model for batches of up to `rows` and `samples`.
    pub(super) fn new(
        checkpoint: &Checkpoint,
        blueprint: &Blueprint,
        config: &EngineConfig,
        (size, extent): (WorkSize, Extent),
    ) -> Result<Rig, StartError> {
        let layers = blueprint.layers.len();
        let parts = Parts::of(checkpoint.spec(), blueprint, config, (size, extent));
        let team = Arc::new(Team::start(config.threads)?);
        let mut device = open(config, Tier::Device, parts.bytes(), &team)?;
        let Parts { blueprint, positions, blocks, kv_bytes, .. } = parts;
        let (pools, whole) = (blueprint.layers.len(), blueprint.layers.len() == layers);
        // Tables are of whole contexts: what layers with a window see of these is the costs' to say.
        let spec = ModelSpec { layers: pools, window: Window::Full, ..checkpoint.spec().clone() };
        let layout = kv_layout(&spec, config.kv_dtype());
        let sparse = config.sparse.map(|_| positions);
        prepare(&*device, &blueprint, (&spec, config.kv_dtype()), size, sparse)?;
        let loader = Loader { checkpoint, team: &team, positions, progress: &|_| {}, store: None, cut: None };
        let weights = loader.load(&blueprint, &mut *device)?;
        let mut taken = Vec::new();
        for _ in 0..pools {
            let buf = device.take(kv_bytes).map_err(LoadError::Full)?;
            for at in (0..kv_bytes).step_by(STAGED_BYTES) {
                device.fill(&buf.slice(at, STAGED_BYTES.min(kv_bytes - at)), &mut |bytes| noise(bytes));
            }
            taken.push(KvPages { layout, buf });
        }
        let work = Work::take(&mut *device, &spec, size).map_err(LoadError::Full)?;
        let decoder = Decoder::new(spec, weights).sparse(config.sparse);
        let marks = AtomicU64::new(0);
        Ok(Rig { device, team, decoder, pools: taken, blocks, whole, work, blueprint, positions, marks })
    }

    /// How many layers are there.
    pub(super) fn layers(&self) -> usize {
        self.pools.len()
    }

    /// As many rows, of sequences no longer than the model's.
    pub(super) fn shortened(&self, seqs: Seqs) -> Seqs {
        let (rows, length) = (seqs.rows.min(self.positions), seqs.length.min(self.positions));
        Seqs { count: seqs.count * seqs.rows / rows, rows, length }
    }

    /// Whether there is room for their KV, and for their rows.
    pub(super) fn has_room(&self, seqs: Seqs) -> bool {
        let blocks = seqs.count * seqs.length.div_ceil(BLOCK_TOKENS);
        let rows = seqs.count * seqs.rows;
        blocks <= self.blocks && rows <= self.work.x.rows && seqs.length <= self.positions
    }

    /// One pass over all layers, its ops timed. Passes with other turns use other KV, unless they decode and all layers
    /// are there.
    pub(super) fn pass(&self, seqs: Seqs, turn: usize) -> Pass {
        self.with(seqs, turn, |batch| {
            let (device, work) = (&*self.device, &self.work);
            let embed = self.timed(|| {
                self.decoder.rotate(device, batch, work);
                self.decoder.embed(device, batch, work);
            });
            let mut pass = Pass { embed, ..Pass::default() };
            let share = 1.0 / self.pools.len() as f64;
            for (layer, &kv) in self.pools.iter().enumerate() {
                pass.qkv += share * self.timed(|| self.decoder.qkv(device, layer, batch, kv, work));
                pass.attend += share * self.timed(|| self.decoder.attend(device, layer, batch, kv, work));
                pass.out += share * self.timed(|| self.decoder.out_proj(device, layer, batch, work));
                pass.mlp += share * self.timed(|| self.decoder.mlp(device, layer, batch, work));
            }
            pass
        })
    }

    /// The head of the first rows of the last pass, and what taking the likeliest of each of their logits takes: by the
    /// device, where it picks; else `draw` does it, by the team.
    pub(super) fn head(&self, samples: usize, draw: &(dyn Fn(&[f32]) + Sync)) -> (f64, f64) {
        let rows: Vec<u32> = (0..samples as u32).collect();
        let head = self.timed(|| {
            self.decoder.head(&*self.device, self.work.x.first(samples), &self.work);
        });
        let logits = self.work.logits.first(samples);
        if self.device.picks(logits.cols) {
            let greedy = Pick { edits: vec![], repetition: 1.0, frequency: 0.0, presence: 0.0, draw: None };
            let picks: Vec<(u32, Pick)> = rows.into_iter().map(|row| (row, greedy.clone())).collect();
            return (head, self.timed(|| drop(self.device.picked(self.device.pick(logits, &picks)))));
        }
        let step = rows_at_once(&*self.device, samples, logits.cols * size_of::<f32>());
        let drawn = self.timed(|| {
            for first in (0..samples).step_by(step) {
                let count = step.min(samples - first);
                self.device.view(&logits.range(first..first + count).buf, &mut |bytes| {
                    let values: &[f32] = bytemuck::cast_slice(bytes);
                    self.team.run(|worker| {
                        worker.share(count).for_each(|row| draw(&values[row * logits.cols..][..logits.cols]));
                    });
                });
            }
        });
        (head, drawn)
    }

    /// Seconds: by the device's own clock, where it has one. What the host needs to ask for it is hidden then, as it is in steps.
    fn timed(&self, run: impl FnOnce()) -> f64 {
        let (from, begin) = (self.mark(), Instant::now());
        run();
        let to = self.mark();
        self.device.wait();
        let by_host = begin.elapsed();
        let took = match (self.device.when(from), self.device.when(to)) {
            (Some(from), Some(to)) => to.saturating_duration_since(from),
            _ => by_host,
        };
        took.as_secs_f64()
    }

    fn mark(&self) -> Mark {
        let mark = Mark { queue: queue::current(), number: 1 + self.marks.fetch_add(1, Ordering::Relaxed) };
        self.device.mark(mark);
        mark
    }

    fn with<T>(&self, seqs: Seqs, turn: usize, run: impl FnOnce(&Batch<'_>) -> T) -> T {
        let each = seqs.length.div_ceil(BLOCK_TOKENS);
        // Prompts go where nothing was before; decodes come back to the same KV, all of which a pass has read since.
        let stays = self.whole && seqs.rows == 1;
        let first = if stays { 0 } else { turn * seqs.count * each };
        // Neighbouring blocks of a sequence are far apart in memory, as they come to be in a pool that was used.
        let stride = if self.blocks.is_multiple_of(7919) { 1 } else { 7919 };
        let block = |i: usize| ((first + i) * stride % self.blocks) as u32;
        let tables: Vec<Vec<u32>> =
            (0..seqs.count).map(|seq| (seq * each..(seq + 1) * each).map(block).collect()).collect();
        let start = seqs.length - seqs.rows;
        let spans: Vec<Span<'_>> = (0..seqs.count)
            .map(|seq| Span { blocks: &tables[seq], start, rows: seq * seqs.rows..(seq + 1) * seqs.rows })
            .collect();
        let rows = seqs.count * seqs.rows;
        let vocab = self.decoder.spec().vocab;
        let ids: Vec<u32> = (0..rows).map(|row| (row * 7919 % vocab) as u32).collect();
        let positions: Vec<u32> = (0..rows).map(|row| (start + row % seqs.rows) as u32).collect();
        let lengths = vec![seqs.length as u32; rows];
        run(&Batch {
            ids: &ids,
            positions: &positions,
            lengths: &lengths,
            spans: &spans,
            samples: &[],
            slots: Default::default(),
            host: None,
        })
    }
}

/// Numbers near one in bf16 and in f32: KV that was never written would be zeros of one page.
fn noise(bytes: &mut [u8]) {
    for (i, pair) in bytes.chunks_exact_mut(4).enumerate() {
        let low = (i as u32).wrapping_mul(2_654_435_761) >> 16;
        pair.copy_from_slice(&(0x3f80_3f80u32 ^ (low & 0x003f) ^ ((low & 0x003f) << 16)).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::overhead::tiny;
    use super::*;
    use crate::plan::planned::blueprint;

    const SIZE: WorkSize = WorkSize { tokens: 256, samples: 4, dtype: kernels::device::Dtype::Bf16 };

    fn config() -> EngineConfig {
        EngineConfig { max_num_seqs: 4, ..EngineConfig::plain(1 << 30, 1) }
    }

    #[test]
    fn a_rig_takes_no_more_than_it_may() {
        let (checkpoint, config) = (Checkpoint::dummy(tiny(3), 0), config());
        let blueprint = blueprint(&checkpoint, &config);
        let within =
            |room| Extent::BEYOND_CACHES.within(room, checkpoint.spec(), &blueprint, (&config, SIZE));
        let bytes = |extent| Parts::of(checkpoint.spec(), &blueprint, &config, (SIZE, extent)).bytes() as u64;
        assert_eq!(within(4 << 30).unwrap().kv_bytes, Extent::BEYOND_CACHES.kv_bytes);
        for room in [900 << 20, 400 << 20, 160 << 20] {
            assert!(bytes(within(room).unwrap()) <= room, "{room}");
        }
        assert!(within(140 << 20).is_err(), "that little is in caches");
        let text = within(1 << 20).unwrap_err().to_string();
        assert!(text.contains("may take 1.0 MiB") && text.contains("--memory"), "{text}");
    }

    #[test]
    fn contexts_are_measured_whole_where_layers_have_windows() {
        let checkpoint = Checkpoint::dummy(ModelSpec { window: Window::Sliding(4), ..tiny(2) }, 0);
        let config = config();
        let blueprint = blueprint(&checkpoint, &config);
        let extent = Extent { layer_bytes: 0, kv_bytes: 1 << 20, positions: 64 };
        let rig = Rig::new(&checkpoint, &blueprint, &config, (SIZE, extent)).unwrap();
        assert_eq!(rig.decoder.spec().window_of(0), None);
    }

    #[test]
    fn batches_have_room_in_a_model_of_few_positions() {
        let checkpoint = Checkpoint::dummy(ModelSpec { max_positions: 20, ..tiny(1) }, 0);
        let config = config();
        let blueprint = blueprint(&checkpoint, &config);
        let extent = Extent { layer_bytes: 0, kv_bytes: 8 << 20, positions: 512 };
        let rig = Rig::new(&checkpoint, &blueprint, &config, (SIZE, extent)).unwrap();
        for seqs in [Seqs { count: 2, rows: 128, length: 128 }, Seqs { count: 8, rows: 1, length: 32 }] {
            assert!(!rig.has_room(seqs));
            let short = rig.shortened(seqs);
            assert!(rig.has_room(short) && short.length == 20, "{short:?}");
            assert!(rig.pass(short, 0).mlp > 0.0);
        }
    }
}
