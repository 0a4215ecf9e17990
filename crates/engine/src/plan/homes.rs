//! What KV and activations take of each tier: homes, slots on the way, and what attention on the host needs.

use std::collections::BTreeSet;

use kernels::arena::PAGE;
use kernels::attention::{BLOCK_TOKENS, Demand, Scratch};
use model::decoder::{Projected, Turning, Work, WorkSize};
use policy::pipeline::{DiskPath, Values};
use policy::sched::{BlockConfig, Delegate, Schedule};
use spec::{ByTier, KvGroups, ModelSpec, Split, Tier};

use crate::config::{DeviceChoice, EngineConfig, KvRoom};
use crate::plan::groups::Groups;
use crate::plan::hold::kv_layout;
use crate::plan::room::largest;
use crate::tiers::kv::TURNS;
use crate::tiers::kv_sizes::KvFileSizes;

/// Blocks of the host through which prefixes pass between the drive and a device that cannot read it, at the least: one piece
/// arrives while another goes up.
const STAGED_BLOCKS: usize = 32;

/// Sizes that follow from where KV and activations live.
pub(crate) struct Homes<'a> {
    spec: &'a ModelSpec,
    config: &'a EngineConfig,
    blocks: BlockConfig,
    max_model_len: usize,
    pub(crate) groups: Groups,
}

/// Homes of so many KV blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KvHomes {
    pub(crate) blocks: ByTier<usize>,
    pub(crate) groups: KvGroups,
    /// Those of them where no sequence lives or rests: they keep prefixes.
    pub(crate) for_prefixes: ByTier<usize>,
    /// KV positions of one layer that a slot has room for.
    pub(crate) slot_tokens: u64,
    /// Bytes of all slots of a tier.
    pub(crate) slot_bytes: ByTier<u64>,
}

impl KvHomes {
    /// How many blocks the longest sequence fills that has room somewhere, all of its layers together.
    pub(crate) fn longest(&self) -> usize {
        let slot = self.slot_tokens as usize / BLOCK_TOKENS;
        let ByTier { device, host, disk } = self.blocks;
        self.groups.longest(device).max(host.max(disk).min(slot))
    }
}

impl<'a> Homes<'a> {
    pub(crate) fn new(
        spec: &'a ModelSpec,
        config: &'a EngineConfig,
        blocks: BlockConfig,
        max_model_len: usize,
        groups: Groups,
    ) -> Homes<'a> {
        Homes { spec, config, blocks, max_model_len, groups }
    }

    /// Blocks that sequences need which have so many positions together, and one more for each group: sequences begin blocks
    /// before they have filled others.
    pub(crate) fn blocks_for(&self, tokens: usize) -> usize {
        let (seqs, kv) = (self.config.max_num_seqs, self.groups.kv);
        let each = tokens.div_ceil(seqs.max(1)).div_ceil(BLOCK_TOKENS);
        let all = tokens.div_ceil(BLOCK_TOKENS);
        let wanted = match self.config.kv_room {
            KvRoom::Needed => kv.most_of(seqs, each).min(kv.count() * all),
            KvRoom::Whole => all * self.spec.layers / self.groups.slots,
        };
        wanted + kv.count()
    }

    /// Positions for which so many blocks will do: where windows make room, of no more than are wanted or can be.
    pub(crate) fn tokens_of(&self, blocks: usize) -> usize {
        let longest = self.max_model_len.next_multiple_of(BLOCK_TOKENS);
        let most = (self.config.max_num_seqs * longest).max(self.config.kv_tokens.unwrap_or(0));
        match self.groups.kv.sliding {
            0 => blocks * BLOCK_TOKENS,
            _ => largest(most.try_into().unwrap_or(u32::MAX), |n| self.blocks_for(n as usize) <= blocks)
                as usize,
        }
    }

    /// Homes of `total` blocks. Blocks for preempted sequences come on top.
    pub(crate) fn of(&self, total: usize) -> KvHomes {
        let share = self.config.blocks.kv;
        let mut blocks = ByTier::default();
        Tier::ALL.into_iter().for_each(|tier| blocks[tier] = share.of(tier, total as u64) as usize);
        let slot_tokens = self.slot_tokens(blocks.host + blocks.disk);
        let slots = |wanted| if wanted { TURNS as u64 * self.slot_bytes(slot_tokens) } else { 0 };
        let disk = blocks.disk > 0;
        // Prompts always attend on the device.
        let slot_bytes = ByTier {
            device: slots(slot_tokens > 0),
            host: slots(disk && (self.attends_on_host() || self.config.disk_path() == DiskPath::ThroughHost)),
            disk: 0,
        };
        blocks.host += self.config.host_kv_tokens.div_ceil(BLOCK_TOKENS);
        let for_prefixes = self.for_prefixes(blocks.host);
        Tier::ALL.into_iter().for_each(|tier| blocks[tier] += for_prefixes[tier]);
        KvHomes { blocks, groups: self.groups.kv, for_prefixes, slot_tokens, slot_bytes }
    }

    /// Blocks for prefixes on the drive, and on the way there, beside `on_host` blocks for whatever makes way.
    fn for_prefixes(&self, on_host: usize) -> ByTier<usize> {
        let disk = self.config.drive_kv_tokens.div_ceil(BLOCK_TOKENS);
        let staged = disk > 0 && self.config.disk_path() == DiskPath::ThroughHost;
        let host = if staged { STAGED_BLOCKS.saturating_sub(on_host) } else { 0 };
        ByTier { device: 0, host, disk }
    }

    /// A batch's share of the blocks that are away from the device, and at least the longest sequence.
    fn slot_tokens(&self, away: usize) -> u64 {
        let longest = (self.max_model_len.div_ceil(BLOCK_TOKENS) + 1).min(away);
        let batch = away.div_ceil(self.blocks.batches) + longest;
        (batch.min(self.blocks.batch_seqs.saturating_mul(longest)).max(longest) * BLOCK_TOKENS) as u64
    }

    fn slot_bytes(&self, tokens: u64) -> u64 {
        let layout = kv_layout(self.spec, self.config.kv_dtype());
        let blocks = tokens as usize / BLOCK_TOKENS;
        (blocks * layout.block_bytes()).next_multiple_of(PAGE) as u64
    }

    /// Whether decodes attend on the host.
    pub(crate) fn attends_on_host(&self) -> bool {
        let away = self.config.blocks.kv.part(Tier::Device) < Split::WHOLE;
        away && self.blocks.delegate == Delegate::Host
    }

    /// What becomes of queries, keys and values once they are projected.
    pub(crate) fn projected(&self) -> Projected {
        if self.attends_on_host() { Projected::Travels } else { Projected::UsedUp }
    }

    /// Activations of the device.
    pub(crate) fn work_bytes(&self) -> u64 {
        let size = self.config.work_size(&self.blocks);
        let others = (self.buffers() - 1) * Work::bytes_beside(self.spec, size, self.projected());
        (Work::bytes(self.spec, size) + others) as u64
    }

    /// Activation buffers that programs name: one for each batch, or turns. Row by row they all take turns in one.
    pub(crate) fn buffers(&self) -> usize {
        if self.blocks.schedule == Schedule::Row {
            return 1;
        }
        let named = |n: u64| {
            let first = self.config.blocks.hidden.of(Tier::Device, n);
            first + (n - first).min(TURNS as u64)
        };
        (1..=self.blocks.batches as u64).map(named).max().unwrap_or(1) as usize
    }

    /// Rows that attention on the host has at most, and their numbers.
    pub(crate) fn host_size(&self) -> WorkSize {
        let tokens = self.config.batch_seqs(&self.blocks);
        WorkSize { tokens, samples: 0, dtype: self.config.dtype() }
    }

    /// Batches whose activations may rest on the host.
    pub(crate) fn host_batches(&self) -> BTreeSet<u16> {
        let hidden = self.config.blocks.hidden;
        let of = |n: u64| {
            let first = hidden.of(Tier::Device, n);
            first..first + hidden.of(Tier::Host, n)
        };
        (1..=self.blocks.batches as u64).flat_map(of).map(|batch| batch as u16).collect()
    }

    /// Buffers that activations of the drive pass through on the host.
    pub(crate) fn staged(&self) -> usize {
        let drive = self.config.blocks.hidden.part(Tier::Disk) > 0;
        if drive && self.config.disk_path() == DiskPath::ThroughHost { TURNS } else { 0 }
    }

    /// Bytes of the residual stream of a batch.
    pub(crate) fn hidden_bytes(&self) -> usize {
        self.config.max_num_batched_tokens * self.spec.hidden * size_of::<f32>()
    }

    /// What the host needs beside homes and slots.
    pub(crate) fn host_work_bytes(&self) -> u64 {
        let attention = match self.attends_on_host() {
            true => {
                let buffers = self.buffers() * Work::attention_bytes(self.spec, self.host_size());
                buffers + Turning::bytes(self.spec, self.max_model_len)
            }
            false => 0,
        };
        let resting = self.host_batches().len() + self.staged();
        (attention + resting * self.hidden_bytes().next_multiple_of(PAGE)) as u64
    }

    /// What attention keeps between calls, on each device that is the processor, over so many positions of a sequence.
    pub(crate) fn scratch_bytes(&self, context: usize) -> u64 {
        let (spec, config) = (self.spec, self.config);
        let layout = kv_layout(spec, config.kv_dtype());
        let of = |rows| {
            let (threads, heads, sparse) = (config.threads, spec.heads, config.sparse.is_some());
            let demand = Demand { threads, heads, rows, context, sparse };
            Scratch::bytes_at_most(config.isa, layout, demand) as u64
        };
        let device = if config.device == DeviceChoice::Cuda { 0 } else { of(config.max_num_batched_tokens) };
        device + if self.attends_on_host() { of(self.host_size().tokens) } else { 0 }
    }

    /// The file of what lives on the drive.
    pub(crate) fn drive(&self, blocks: usize) -> KvFileSizes {
        let drive = self.config.blocks.hidden.part(Tier::Disk) > 0;
        let layout = kv_layout(self.spec, self.config.kv_dtype());
        KvFileSizes {
            layers: self.spec.layers,
            blocks,
            block_bytes: layout.block_bytes(),
            // Prefixes come and go as whole blocks.
            halves: (self.config.values() == Values::Chosen && self.config.drive_kv_tokens == 0)
                .then_some(layout),
            batches: if drive { self.blocks.batches } else { 0 },
            hidden_bytes: self.hidden_bytes(),
        }
    }

    /// Memory that the process needs to reach the drive.
    pub(crate) fn bounce_bytes(&self) -> u64 {
        if self.config.uses_drive() { self.drive(0).bounce_bytes() as u64 } else { 0 }
    }

    /// Bytes of a block, all layers that share it.
    pub(crate) fn block_bytes(&self) -> u64 {
        (self.groups.slots * kv_layout(self.spec, self.config.kv_dtype()).block_bytes()) as u64
    }
}
