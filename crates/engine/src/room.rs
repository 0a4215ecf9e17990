//! The room that memory leaves, and what of the weights goes there.

use kernels::arena::ALIGN;
use kernels::attention::BLOCK_TOKENS;
use model::decoder::{Blueprint, Work, rope_bytes};
use model::store::{Cut, Layout};
use spec::{ByTier, ModelSpec, Split};

use crate::config::EngineConfig;
use crate::hold::{Hold, TooSmall, kv_block_bytes};

/// What a running engine needs beside its arena and what was resident when it was planned: stacks, queues,
/// tables, and what loading reads at a time.
const RUNTIME_BYTES: u64 = 6 << 20;
/// Scratch of each compute thread: sums of a block, expanded weights, partial attention.
const THREAD_BYTES: u64 = 1 << 20;
/// Rows of activations that are kept as tiles while a large product runs.
const TILED_ROWS: u64 = 832;

/// What must be there whatever the weights do.
pub(crate) struct Room<'a> {
    config: &'a EngineConfig,
    blueprint: &'a Blueprint,
    max_model_len: usize,
    process_bytes: u64,
    work_bytes: u64,
    /// Norms, biases, rotary tables.
    table_bytes: u64,
    block_bytes: u64,
}

/// Bytes of weights.
#[derive(Clone, Copy)]
pub(crate) struct WeightBytes {
    resident: u64,
    slots: u64,
    streamed: u64,
    disk: u64,
}

/// How much KV is planned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kv {
    /// What is wanted, as far as there is room.
    Wanted,
    /// That, but no more than half of what there is room for.
    Half,
}

impl WeightBytes {
    /// All on the device.
    pub(crate) fn resident(blueprint: &Blueprint) -> WeightBytes {
        let resident = (blueprint.bytes() - blueprint.vector_bytes()) as u64;
        WeightBytes { resident, slots: 0, streamed: 0, disk: 0 }
    }

    fn of(cut: &Cut, layout: &Layout) -> WeightBytes {
        // Two slots for each half of a layer: one is read while the other is computed with.
        let slots = cut.slot_bytes().iter().map(|bytes| 2 * bytes.next_multiple_of(ALIGN) as u64).sum();
        let (resident, streamed) = (cut.resident_bytes(), cut.streamed_bytes());
        WeightBytes { resident, slots, streamed, disk: layout.bytes() }
    }

    /// Of the device's memory.
    fn held(&self) -> u64 {
        self.resident + self.slots
    }
}

impl<'a> Room<'a> {
    pub(crate) fn new(
        spec: &ModelSpec,
        blueprint: &'a Blueprint,
        config: &'a EngineConfig,
        resident_bytes: u64,
    ) -> Room<'a> {
        let max_model_len = config.max_model_len.unwrap_or(spec.max_positions).min(spec.max_positions);
        Room {
            config,
            blueprint,
            max_model_len,
            process_bytes: resident_bytes + overhead(spec, config),
            work_bytes: Work::bytes(spec, config.work_size()) as u64,
            table_bytes: (blueprint.vector_bytes() + rope_bytes(spec, max_model_len)) as u64,
            block_bytes: kv_block_bytes(spec, config.kv_dtype()),
        }
    }

    /// A plan with these weights.
    ///
    /// # Errors
    /// [`TooSmall::Memory`], if KV of one sequence has no room beside them.
    pub(crate) fn hold(&self, weights: &WeightBytes, kv: Kv) -> Result<Hold, TooSmall> {
        let config = self.config;
        let host_kv_blocks = config.host_kv_tokens.div_ceil(BLOCK_TOKENS);
        let host_kv_bytes = host_kv_blocks as u64 * self.block_bytes;
        let fixed = self.process_bytes + self.table_bytes + weights.held() + self.work_bytes + host_kv_bytes;
        let room = (config.memory.saturating_sub(fixed) / self.block_bytes) as usize;
        let shortest = blocks_of(self.shortest());
        let most = if kv == Kv::Half { (room / 2).max(shortest.min(room)) } else { room };
        let kv_blocks = blocks_of(self.wanted()).min(most);
        if kv_blocks < shortest {
            return Err(self.too_small(fixed, weights));
        }
        Ok(Hold {
            process_bytes: self.process_bytes,
            weight_bytes: weights.resident + self.table_bytes,
            slot_bytes: weights.slots,
            streamed_bytes: weights.streamed,
            disk_bytes: weights.disk,
            work_bytes: self.work_bytes,
            kv_bytes: kv_blocks as u64 * self.block_bytes,
            kv_blocks,
            host_kv_bytes,
            host_kv_blocks,
            max_model_len: self.max_model_len.min((kv_blocks - 1) * BLOCK_TOKENS),
            limit_bytes: config.memory,
        })
    }

    /// KV in all, in tokens, if there were room.
    fn wanted(&self) -> usize {
        self.config.kv_tokens.unwrap_or(self.config.max_num_seqs * self.max_model_len)
    }

    /// The least that makes sense, in tokens.
    fn shortest(&self) -> usize {
        let length = self.max_model_len;
        let shortest = if self.config.max_model_len.is_some() { length } else { length.min(256) };
        shortest.min(self.config.kv_tokens.unwrap_or(shortest))
    }

    fn too_small(&self, fixed: u64, weights: &WeightBytes) -> TooSmall {
        let kv = blocks_of(self.shortest()) as u64 * self.block_bytes;
        TooSmall::Memory {
            need: fixed + kv,
            limit: self.config.memory,
            weights: weights.held() + self.table_bytes,
            work: self.work_bytes,
            kv,
            process: self.process_bytes,
            tokens: self.shortest(),
            streamed: weights.streamed > 0,
        }
    }

    /// As many weights resident as fit beside everything else; the rest is streamed. KV comes first: a larger batch
    /// shares each pass over the weights, which is worth more than a shorter pass.
    ///
    /// # Errors
    /// [`TooSmall`], if not even streaming fits.
    pub(crate) fn streamed(&self) -> Result<(Hold, Cut), TooSmall> {
        let layout = Layout::of(self.blueprint);
        self.check_disk(&layout)?;
        let cut = |parts| Cut::new(self.blueprint, &layout, device_share(parts));
        // What a server may need one day must not push out weights that every pass needs.
        let kv = if self.config.kv_tokens.is_some() { Kv::Wanted } else { Kv::Half };
        let none = WeightBytes::of(&cut(0), &layout);
        let least = self.hold(&none, kv)?;
        let budget = self.config.memory - (least.total_bytes() - none.held());
        let fits = |parts| WeightBytes::of(&cut(parts), &layout).held() <= budget;
        let (mut parts, mut above) = (0, Split::WHOLE);
        while above - parts > 1 {
            let middle = parts + (above - parts) / 2;
            if fits(middle) { parts = middle } else { above = middle }
        }
        let weights = WeightBytes::of(&cut(parts), &layout);
        let hold = Hold {
            weight_bytes: weights.resident + self.table_bytes,
            slot_bytes: weights.slots,
            streamed_bytes: weights.streamed,
            ..least
        };
        Ok((hold, cut(parts)))
    }

    /// The share of all weights that was asked for: embeddings and head count, and are always resident.
    ///
    /// # Errors
    /// [`TooSmall`], if that does not fit.
    pub(crate) fn streamed_exactly(&self, split: Split) -> Result<(Hold, Cut), TooSmall> {
        let layout = Layout::of(self.blueprint);
        self.check_disk(&layout)?;
        let whole = u64::from(Split::WHOLE);
        let wanted = layout.bytes() * u64::from(split.part(spec::Tier::Device)) / whole;
        let always = Cut::new(self.blueprint, &layout, device_share(0)).resident_bytes();
        let layers = (layout.bytes() - always).max(1);
        let parts = (wanted.saturating_sub(always) * whole / layers).min(whole) as u32;
        let cut = Cut::new(self.blueprint, &layout, device_share(parts));
        Ok((self.hold(&WeightBytes::of(&cut, &layout), Kv::Wanted)?, cut))
    }

    fn check_disk(&self, layout: &Layout) -> Result<(), TooSmall> {
        match self.config.offload.disk {
            Some(limit) if layout.bytes() > limit => Err(TooSmall::Disk { need: layout.bytes(), limit }),
            _ => Ok(()),
        }
    }
}

/// A block more than the tokens need: sequences begin blocks before they have filled others.
fn blocks_of(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS) + 1
}

fn device_share(parts: u32) -> Split {
    let split = Split::new(ByTier { device: parts, host: 0, disk: Split::WHOLE - parts });
    split.unwrap_or(Split::RESIDENT)
}

/// An estimate from above of what is not in the arena.
fn overhead(spec: &ModelSpec, config: &EngineConfig) -> u64 {
    let widest = spec.ffn.max(spec.hidden).max(spec.q_rows()) as u64;
    let rows = TILED_ROWS.min(config.max_num_batched_tokens as u64);
    RUNTIME_BYTES + config.threads as u64 * THREAD_BYTES + rows * widest * 2
}
