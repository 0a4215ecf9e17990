//! What lives where, in bytes, decided before anything heavy happens.

use std::fmt;

use kernels::attention::{BLOCK_TOKENS, KvDtype, KvLayout};
use kernels::device::Dtype;
use model::decoder::{Blueprint, WorkSize};
use model::store::Cut;
use spec::ModelSpec;

use crate::config::{EngineConfig, WeightShare};
use crate::room::{Kv, Room, WeightBytes};

const _: () =
    assert!(BLOCK_TOKENS == spec::BLOCK_TOKENS.0 as usize, "policy and kernels mean the same blocks");

/// A plan of all memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What the process had resident before (the program, the tokenizer), and a margin.
    pub process_bytes: u64,
    /// Weights that are resident, norms, rotary tables.
    pub weight_bytes: u64,
    /// Slots that the other weights are streamed through.
    pub slot_bytes: u64,
    /// Weights that a pass over the model reads from the drive.
    pub streamed_bytes: u64,
    /// The packed store on the drive; none where all weights are resident.
    pub disk_bytes: u64,
    /// Activations of the largest step.
    pub work_bytes: u64,
    /// All KV blocks.
    pub kv_bytes: u64,
    /// How many there are.
    pub kv_blocks: usize,
    /// KV blocks of the host tier.
    pub host_kv_bytes: u64,
    /// How many there are.
    pub host_kv_blocks: usize,
    /// The longest sequence that is served.
    pub max_model_len: usize,
    /// What the whole may take.
    pub limit_bytes: u64,
}

/// A model that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooSmall {
    /// Not even one sequence of the length asked for.
    #[error(
        "this needs {} and may take {}: weights {}, activations {}, KV for one sequence of {tokens} tokens {}, \
         the process itself {}. Raise --memory to at least the former, lower --max-model-len or \
         --max-num-batched-tokens, or choose narrower weights (--weights int8 or int4){}",
        size(need),
        size(limit),
        size(weights),
        size(work),
        size(kv),
        size(process),
        if *streamed { "; weights are streamed from the drive already" } else { "" }
    )]
    Memory {
        /// Bytes needed.
        need: u64,
        /// Bytes allowed.
        limit: u64,
        /// Bytes of weights.
        weights: u64,
        /// Bytes of activations.
        work: u64,
        /// Bytes of KV of the shortest sequence.
        kv: u64,
        /// Bytes of the process.
        process: u64,
        /// Tokens of that sequence.
        tokens: usize,
        /// Whether `weights` are only those that cannot be streamed, and the slots.
        streamed: bool,
    },
    /// The store of all weights is larger than the drive's share.
    #[error(
        "the packed weights take {} on the drive, and --disk allows {}: raise it to at least the former, or choose \
         narrower weights (--weights int8 or int4)",
        size(need),
        size(limit)
    )]
    Disk {
        /// Bytes of the store.
        need: u64,
        /// Bytes allowed.
        limit: u64,
    },
}

impl Hold {
    /// Plans an engine of `config` within its memory, given what the process has resident already: with all weights on the
    /// device if they fit there, else with as many as fit, and how they are cut then.
    ///
    /// # Errors
    /// [`TooSmall`], with the parts and what to do.
    pub fn plan(
        spec: &ModelSpec,
        blueprint: &Blueprint,
        config: &EngineConfig,
        resident_bytes: u64,
    ) -> Result<(Hold, Option<Cut>), TooSmall> {
        let room = Room::new(spec, blueprint, config, resident_bytes);
        match config.offload.share {
            WeightShare::Exactly(split) => room.streamed_exactly(split).map(|(hold, cut)| (hold, Some(cut))),
            WeightShare::Fitting => match room.hold(&WeightBytes::resident(blueprint), Kv::Wanted) {
                Err(_) if config.offload.folder.is_some() => {
                    room.streamed().map(|(hold, cut)| (hold, Some(cut)))
                }
                result => result.map(|hold| (hold, None)),
            },
        }
    }

    /// Bytes of the device's arena.
    pub fn arena_bytes(&self) -> u64 {
        self.weight_bytes + self.slot_bytes + self.work_bytes + self.kv_bytes
    }

    /// Bytes of the whole process at its peak.
    pub fn total_bytes(&self) -> u64 {
        self.process_bytes + self.arena_bytes() + self.host_kv_bytes
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "weights {}{}, KV {} ({} tokens), {}activations {}, process {}: {} of {}",
            size(&self.weight_bytes),
            match self.disk_bytes {
                0 => String::new(),
                _ => format!(
                    " (and {} streamed from the drive for each pass, through slots of {})",
                    size(&self.streamed_bytes),
                    size(&self.slot_bytes)
                ),
            },
            size(&self.kv_bytes),
            self.kv_blocks * BLOCK_TOKENS,
            match self.host_kv_bytes {
                0 => String::new(),
                bytes => format!("preempted KV {}, ", size(&bytes)),
            },
            size(&self.work_bytes),
            size(&self.process_bytes),
            size(&self.total_bytes()),
            size(&self.limit_bytes)
        )
    }
}

/// Bytes of one block, all layers.
pub(crate) fn kv_block_bytes(spec: &ModelSpec, dtype: KvDtype) -> u64 {
    (spec.layers * kv_layout(spec, dtype).block_bytes()) as u64
}

pub(crate) fn kv_layout(spec: &ModelSpec, dtype: KvDtype) -> KvLayout {
    KvLayout { kv_heads: spec.kv_heads, head_dim: spec.head_dim, dtype }
}

impl EngineConfig {
    /// How large the activation buffers are.
    pub(crate) fn work_size(&self) -> WorkSize {
        WorkSize { tokens: self.max_num_batched_tokens, samples: self.max_num_seqs, dtype: self.dtype() }
    }

    /// f32 weights are computed with in f32, all others in bf16.
    pub(crate) fn dtype(&self) -> Dtype {
        if self.weights == model::decoder::WeightsAs::F32 { Dtype::F32 } else { Dtype::Bf16 }
    }

    /// KV is stored as activations are.
    pub(crate) fn kv_dtype(&self) -> KvDtype {
        if self.dtype() == Dtype::F32 { KvDtype::F32 } else { KvDtype::Bf16 }
    }
}

/// Bytes of KV that a token takes under these settings, all layers.
pub fn kv_token_bytes(spec: &ModelSpec, config: &EngineConfig) -> u64 {
    kv_block_bytes(spec, config.kv_dtype()) / BLOCK_TOKENS as u64
}

/// `1.5 GiB`, for people.
pub fn size(bytes: &u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= unit) {
        Some((name, unit)) => format!("{:.1} {name}", *bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}
