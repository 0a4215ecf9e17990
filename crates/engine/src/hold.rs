//! What lives where, in bytes, decided before anything heavy happens.

use std::fmt;

use kernels::attention::{BLOCK_TOKENS, KvDtype, KvLayout};
use kernels::device::Dtype;
use model::decoder::{Blueprint, Work, WorkSize, rope_bytes};
use spec::ModelSpec;

use crate::config::EngineConfig;

const _: () =
    assert!(BLOCK_TOKENS == spec::BLOCK_TOKENS.0 as usize, "policy and kernels mean the same blocks");

/// What a running engine needs beside its arena and what was resident when it was planned: stacks, queues,
/// tables, and what loading reads at a time.
const RUNTIME_BYTES: u64 = 6 << 20;
/// Scratch of each compute thread: sums of a block, expanded weights, partial attention.
const THREAD_BYTES: u64 = 1 << 20;
/// Rows of activations that are kept as tiles while a large product runs.
const TILED_ROWS: u64 = 832;

/// A plan of all memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What the process had resident before (the program, the tokenizer), and a margin.
    pub process_bytes: u64,
    /// Packed weights, norms, rotary tables.
    pub weight_bytes: u64,
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
         the process itself {}. Raise --memory, lower --max-model-len or --max-num-batched-tokens, or choose \
         narrower weights (--weights int8 or int4)",
        size(need),
        size(limit),
        size(weights),
        size(work),
        size(kv),
        size(process)
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
    },
}

impl Hold {
    /// Plans an engine of `config` within its memory, given what the process has resident already.
    ///
    /// # Errors
    /// [`TooSmall`], with the parts and what to do.
    pub fn plan(
        spec: &ModelSpec,
        blueprint: &Blueprint,
        config: &EngineConfig,
        resident_bytes: u64,
    ) -> Result<Hold, TooSmall> {
        let max_model_len = config.max_model_len.unwrap_or(spec.max_positions).min(spec.max_positions);
        let work_bytes = Work::bytes(spec, config.work_size()) as u64;
        let weight_bytes = (blueprint.bytes() + rope_bytes(spec, max_model_len)) as u64;
        let block_bytes = kv_block_bytes(spec, config.kv_dtype());
        let process_bytes = resident_bytes + overhead(spec, config);
        let host_kv_blocks = config.host_kv_tokens.div_ceil(BLOCK_TOKENS);
        let host_kv_bytes = host_kv_blocks as u64 * block_bytes;
        let fixed = process_bytes + weight_bytes + work_bytes + host_kv_bytes;
        let wanted = config.kv_tokens.unwrap_or(config.max_num_seqs * max_model_len);
        let blocks_of = |tokens: usize| tokens.div_ceil(BLOCK_TOKENS) + 1;
        let room = (config.memory.saturating_sub(fixed) / block_bytes) as usize;
        let kv_blocks = blocks_of(wanted).min(room);
        let shortest = if config.max_model_len.is_some() { max_model_len } else { max_model_len.min(256) };
        let shortest = shortest.min(config.kv_tokens.unwrap_or(shortest));
        if kv_blocks < blocks_of(shortest) {
            let kv = blocks_of(shortest) as u64 * block_bytes;
            return Err(TooSmall::Memory {
                need: fixed + kv,
                limit: config.memory,
                weights: weight_bytes,
                work: work_bytes,
                kv,
                process: process_bytes,
                tokens: shortest,
            });
        }
        let max_model_len = max_model_len.min((kv_blocks - 1) * BLOCK_TOKENS);
        let kv_bytes = kv_blocks as u64 * block_bytes;
        Ok(Hold {
            process_bytes,
            weight_bytes,
            work_bytes,
            kv_bytes,
            kv_blocks,
            host_kv_bytes,
            host_kv_blocks,
            max_model_len,
            limit_bytes: config.memory,
        })
    }

    /// Bytes of the device's arena.
    pub fn arena_bytes(&self) -> u64 {
        self.weight_bytes + self.work_bytes + self.kv_bytes
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
            "weights {}, KV {} ({} tokens), {}activations {}, process {}: {} of {}",
            size(&self.weight_bytes),
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

/// An estimate from above of what is not in the arena.
fn overhead(spec: &ModelSpec, config: &EngineConfig) -> u64 {
    let widest = spec.ffn.max(spec.hidden).max(spec.q_rows()) as u64;
    let rows = TILED_ROWS.min(config.max_num_batched_tokens as u64);
    RUNTIME_BYTES + config.threads as u64 * THREAD_BYTES + rows * widest * 2
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

/// `1.5 GiB`, for people.
pub fn size(bytes: &u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= unit) {
        Some((name, unit)) => format!("{:.1} {name}", *bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}
