//! What lives where, in bytes, decided before anything heavy happens.

use std::fmt;

use kernels::attention::{BLOCK_TOKENS, KvDtype, KvLayout};
use kernels::device::Dtype;
use model::decoder::{Blueprint, WorkSize};
use model::store::Cut;
use policy::sched::{BlockConfig, Schedule};
use spec::{ByTier, KvGroups, ModelSpec, Split, Tier};

use crate::config::{EngineConfig, KvFormat, WeightShare};
use crate::plan::blocks::Passes;
use crate::plan::budget::Budget;
use crate::plan::nearest::Refused;
use crate::plan::room::{Kv, Room, WeightBytes};
use crate::plan::too_small::TooSmall;

const _: () =
    assert!(BLOCK_TOKENS == spec::BLOCK_TOKENS.0 as usize, "policy and kernels mean the same blocks");

/// Positions of a prompt that are scored at a time.
const SCORED_AT_ONCE: usize = 32;

/// A plan of all memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What the process had resident before (the program, the tokenizer), what threads, attention, the scheduler and others
    /// beside the engine keep, and a margin.
    pub process_bytes: u64,
    /// Weights that are on the device, norms, rotary tables.
    pub weight_bytes: u64,
    /// Slots of the device that the other weights pass through.
    pub slot_bytes: u64,
    /// Weights that live on the host.
    pub host_weight_bytes: u64,
    /// Slots of the host that weights from the drive pass through on their way to a device that cannot read it.
    pub host_slot_bytes: u64,
    /// Activations of linears that the host computes with weights that live there.
    pub host_linear_bytes: u64,
    /// Weights that a pass over the model copies from the host to the device.
    pub copied_bytes: u64,
    /// Weights that a pass over the model reads from the drive.
    pub streamed_bytes: u64,
    /// The packed store on the drive; none where no weights are read from it.
    pub disk_bytes: u64,
    /// Activations of the largest step.
    pub work_bytes: u64,
    /// All KV blocks.
    pub kv_bytes: u64,
    /// How many there are.
    pub kv_blocks: usize,
    /// Which layers share one.
    pub kv_groups: KvGroups,
    /// Positions that KV of sequences has room for at the least, on all tiers.
    pub kv_tokens: usize,
    /// KV blocks of the host tier.
    pub host_kv_bytes: u64,
    /// How many there are.
    pub host_kv_blocks: usize,
    /// KV blocks of the drive.
    pub drive_kv_blocks: usize,
    /// Their part of its file.
    pub drive_kv_bytes: u64,
    /// Those of the host's and the drive's blocks where no sequence lives or rests: they keep prefixes.
    pub prefix_blocks: ByTier<usize>,
    /// The file of KV and activations on the drive; none where none live there.
    pub drive_bytes: u64,
    /// KV positions of one layer that a slot has room for, which KV away from the device passes on its way to attention.
    pub kv_slot_tokens: u64,
    /// Such slots of the device.
    pub kv_slot_bytes: u64,
    /// Such slots of the host.
    pub host_kv_slot_bytes: u64,
    /// What attention on the host and activations that rest there need.
    pub host_work_bytes: u64,
    /// The shares of all weights that make this very plan of them (see `WeightShare::Exactly`).
    pub weight_share: Split,
    /// The longest sequence that is served.
    pub max_model_len: usize,
    /// What the process may take.
    pub limit_bytes: u64,
    /// Whose memory the device's is, and how much.
    pub budget: Budget,
}

impl Hold {
    /// Plans an engine of `config` within its memory, given what the process has resident already: with all weights on the
    /// device if they fit there, else with as many as fit, the next on the host where that is apart, the rest on the drive;
    /// and how they are cut then.
    ///
    /// # Errors
    /// [`TooSmall`], with the parts and what to do, and with the nearest that fits, if anything does.
    pub fn plan(
        spec: &ModelSpec,
        blueprint: &Blueprint,
        config: &EngineConfig,
        resident_bytes: u64,
    ) -> Result<(Hold, Option<Cut>), TooSmall> {
        let found = Hold::plan_only(spec, blueprint, config, resident_bytes);
        let refused = Refused { spec, blueprint, config, resident_bytes };
        match (found, config.offload.share) {
            (Err(why), WeightShare::Exactly(split)) if why.is_of_room() => {
                let nearest = refused.nearest(split).map(Box::new);
                Err(TooSmall::Shares { why: Box::new(why), nearest })
            }
            (Err(why), _) if why.is_of_room() => Err(match refused.smaller() {
                Some(nearest) => TooSmall::Limits { why: Box::new(why), nearest },
                None => why,
            }),
            (found, _) => found,
        }
    }

    /// The same for one of many plans that are tried: nobody asks what would fit in its place.
    pub(crate) fn plan_only(
        spec: &ModelSpec,
        blueprint: &Blueprint,
        config: &EngineConfig,
        resident_bytes: u64,
    ) -> Result<(Hold, Option<Cut>), TooSmall> {
        check_schedule(config)?;
        let settled = [Passes::Resident, Passes::Streamed].map(|passes| config.settled(passes));
        let room = |config| Room::new(spec, blueprint, config, resident_bytes);
        let (resident, streamed) = (room(&settled[0])?, room(&settled[1])?);
        let whole = || resident.hold(&WeightBytes::resident(blueprint), Kv::Wanted);
        let cut = || streamed.cut().map(|(hold, cut)| (hold, Some(cut)));
        match config.offload.share {
            WeightShare::Exactly(Split::RESIDENT) if config.blocks.stay() => whole().map(|hold| (hold, None)),
            WeightShare::Exactly(split) => streamed.cut_exactly(split).map(|(hold, cut)| (hold, Some(cut))),
            share => match whole() {
                Err(_) if streamed.has_elsewhere() => cut(),
                Ok(hold) if share == WeightShare::AfterKv && hold.kv_tokens < resident.wanted() => {
                    // Where there is nowhere else for weights, KV has what they leave.
                    cut().or(Ok((hold, None)))
                }
                result => result.map(|hold| (hold, None)),
            },
        }
    }

    /// Positions that KV of the device has room for.
    pub fn device_kv_tokens(&self) -> usize {
        if self.kv_groups.sliding == 0 { self.kv_blocks * BLOCK_TOKENS } else { self.kv_tokens }
    }

    /// Bytes of the device's arena.
    pub fn arena_bytes(&self) -> u64 {
        self.weight_bytes + self.slot_bytes + self.work_bytes + self.kv_bytes + self.kv_slot_bytes
    }

    /// Bytes of the host's arena.
    pub fn host_bytes(&self) -> u64 {
        let kv = self.host_kv_bytes + self.host_kv_slot_bytes + self.host_work_bytes;
        kv + self.host_weight_bytes + self.host_slot_bytes + self.host_linear_bytes
    }

    /// Bytes of the whole process at its peak: without a device that has memory of its own.
    pub fn total_bytes(&self) -> u64 {
        let device = match self.budget {
            Budget::Apart { .. } => 0,
            Budget::Common(_) | Budget::Carved { .. } => self.arena_bytes(),
        };
        self.process_bytes + device + self.host_bytes()
    }

    /// What the device may take.
    pub fn device_limit_bytes(&self) -> u64 {
        self.budget.device(self.process_bytes + self.host_bytes())
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weights {}", size(&self.weight_bytes))?;
        let mut away = Vec::new();
        if self.host_weight_bytes > 0 {
            away.push(format!("{} on the host", size(&self.host_weight_bytes)));
        }
        if self.streamed_bytes > 0 {
            away.push(format!("{} streamed from the drive for each pass", size(&self.streamed_bytes)));
        }
        if !away.is_empty() {
            let slots = size(&(self.slot_bytes + self.host_slot_bytes));
            write!(f, " (and {}, through slots of {slots})", away.join(", "))?;
        }
        write!(f, ", KV {} ({} tokens), ", size(&self.kv_bytes), self.device_kv_tokens())?;
        if self.host_kv_bytes > 0 {
            let what = match (self.kv_slot_tokens > 0, self.prefix_blocks.host == self.host_kv_blocks) {
                (true, _) => "KV on the host",
                (false, true) => "prefixes on their way to the drive",
                (false, false) => "preempted KV",
            };
            write!(f, "{what} {}, ", size(&self.host_kv_bytes))?;
        }
        if self.prefix_blocks.disk > 0 {
            let tokens = self.prefix_blocks.disk * BLOCK_TOKENS;
            write!(f, "prefixes on the drive {} ({tokens} tokens), ", size(&self.drive_bytes))?;
        } else if self.drive_bytes > 0 {
            write!(f, "KV and activations on the drive {}, ", size(&self.drive_bytes))?;
        }
        let slots = self.kv_slot_bytes + self.host_kv_slot_bytes;
        if slots > 0 {
            write!(f, "slots for KV {}, ", size(&slots))?;
        }
        let work = self.work_bytes + self.host_work_bytes + self.host_linear_bytes;
        write!(f, "activations {}, process {}: ", size(&work), size(&self.process_bytes))?;
        let all = |f: &mut fmt::Formatter<'_>| {
            write!(f, "{} of {}", size(&self.total_bytes()), size(&self.limit_bytes))
        };
        let device =
            format!("{} of {} on the device", size(&self.arena_bytes()), size(&self.device_limit_bytes()));
        match self.budget {
            Budget::Common(_) => all(f),
            Budget::Carved { .. } => all(f).and_then(|()| write!(f, ", of that {device}")),
            Budget::Apart { .. } => write!(f, "{device}, ").and_then(|()| all(f)),
        }
    }
}

/// Whether the schedule that was asked for can have KV and activations where they shall be, and there is a drive for them.
pub(crate) fn check_schedule(config: &EngineConfig) -> Result<(), TooSmall> {
    let blocks = &config.blocks;
    let away = |split: Split| split != Split::RESIDENT;
    match blocks.schedule {
        Some(Schedule::Continuous) if !blocks.stay() => return Err(TooSmall::Schedule { asked: "plain" }),
        Some(Schedule::Row) if away(blocks.hidden) => return Err(TooSmall::Schedule { asked: "row" }),
        _ => {}
    }
    let plain = matches!(blocks.schedule, None | Some(Schedule::Continuous)) && blocks.stay();
    if config.host_kv_tokens + config.drive_kv_tokens > 0 && !plain {
        return Err(TooSmall::Swap);
    }
    if config.uses_drive() && config.offload.folder.is_none() { Err(TooSmall::NoFolder) } else { Ok(()) }
}

/// Bytes of one block, all layers.
pub(crate) fn kv_block_bytes(spec: &ModelSpec, dtype: KvDtype) -> u64 {
    (spec.layers * kv_layout(spec, dtype).block_bytes()) as u64
}

pub(crate) fn kv_layout(spec: &ModelSpec, dtype: KvDtype) -> KvLayout {
    KvLayout { kv_heads: spec.kv_heads, head_dim: spec.head_dim, dtype }
}

/// A format of KV that nothing attends, or a way to attend that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchKv {
    /// Queries in f32 meet pages in f32.
    #[error(
        "KV in f16, in 8 or in 4 bits meets queries in bf16, and f32 weights make them f32: leave --kv out, or choose other --weights"
    )]
    WithF32,
    /// No share at all, or more than all.
    #[error("sparse attention takes a share of the keys, above 0 and up to 1: 0.1 is a tenth")]
    NoShare,
}

impl EngineConfig {
    /// Whether KV or activations are on the drive.
    pub(crate) fn uses_drive(&self) -> bool {
        let lives = |split: Split| split.part(Tier::Disk) > 0;
        lives(self.blocks.kv) || lives(self.blocks.hidden) || self.drive_kv_tokens > 0
    }

    /// Sequences of a batch at most.
    pub(crate) fn batch_seqs(&self, blocks: &BlockConfig) -> usize {
        self.max_num_seqs.min(blocks.batch_seqs)
    }

    /// How large the activation buffers of a batch are.
    pub(crate) fn work_size(&self, blocks: &BlockConfig) -> WorkSize {
        // The head is read for so many positions of a prompt at a time: for one by one it would take most of the time.
        let scored = if self.scores_prompts { SCORED_AT_ONCE.min(self.max_num_batched_tokens) } else { 0 };
        let samples = self.batch_seqs(blocks).max(scored);
        WorkSize { tokens: self.max_num_batched_tokens, samples, dtype: self.dtype() }
    }

    /// f32 weights are computed with in f32, all others in bf16.
    pub(crate) fn dtype(&self) -> Dtype {
        if self.weights == model::decoder::WeightsAs::F32 { Dtype::F32 } else { Dtype::Bf16 }
    }

    /// What pages hold.
    pub(crate) fn kv_dtype(&self) -> KvDtype {
        match (self.kv, self.dtype()) {
            (KvFormat::F16, _) => KvDtype::F16,
            (KvFormat::Fp8, _) => KvDtype::Fp8,
            (KvFormat::Int4, _) => KvDtype::Int4,
            (KvFormat::AsActivations, Dtype::F32) => KvDtype::F32,
            (KvFormat::AsActivations, Dtype::Bf16) => KvDtype::Bf16,
        }
    }

    /// Whether kernels are there for this format of KV.
    ///
    /// # Errors
    /// [`NoSuchKv`]: which are not, and what to do.
    pub(crate) fn check_kv(&self) -> Result<(), NoSuchKv> {
        match (self.kv, self.dtype()) {
            (KvFormat::F16 | KvFormat::Fp8 | KvFormat::Int4, Dtype::F32) => Err(NoSuchKv::WithF32),
            _ if self.sparse.is_some_and(|share| !(share > 0.0 && share <= 1.0)) => Err(NoSuchKv::NoShare),
            _ => Ok(()),
        }
    }
}

/// Bytes of KV that a token takes under these settings, all layers.
pub fn kv_token_bytes(spec: &ModelSpec, config: &EngineConfig) -> u64 {
    kv_block_bytes(spec, config.kv_dtype()) / BLOCK_TOKENS as u64
}

/// `1.5 GiB`, for people.
pub fn size(bytes: &u64) -> String {
    in_units(*bytes, f64::round)
}

/// The same, and no less than it is: who gives so much gives enough.
pub(super) fn at_least(bytes: &u64) -> String {
    in_units(*bytes, f64::ceil)
}

fn in_units(bytes: u64, rounded: fn(f64) -> f64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", rounded(bytes as f64 * 10.0 / *unit as f64) / 10.0),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_scored_some_positions_at_a_time_however_few_sequences_there_are() {
        let blocks = BlockConfig { batch_seqs: 2, ..BlockConfig::default() };
        let samples = |scores_prompts, max_num_batched_tokens| {
            let config =
                EngineConfig { scores_prompts, max_num_batched_tokens, ..EngineConfig::plain(1 << 30, 1) };
            config.work_size(&blocks).samples
        };
        assert_eq!([samples(false, 256), samples(true, 256), samples(true, 8)], [1, SCORED_AT_ONCE, 8]);
    }
}
