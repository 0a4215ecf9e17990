//! Settings near those asked for that fit: what a refusal tells to write instead.

use std::fmt;

use model::decoder::Blueprint;
use spec::{ByTier, ModelSpec, Split, Tier};

use crate::config::EngineConfig;
use crate::plan::blocks::Passes;
use crate::plan::hold::{Hold, check_schedule};
use crate::plan::room::Room;

/// Nobody reads less than this.
const SHORTEST: usize = 64;
/// Steps of fewer tokens read weights for little: sequences are made shorter before.
const STEP: usize = 64;
/// Of a model's whole context so much is promised, where nobody asks for more.
const PROMISED: usize = 256;

/// Flags that fit in the place of those asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// Where weights live.
    pub weights: Split,
    /// Where KV lives.
    pub kv: Split,
    /// Where activations rest.
    pub hidden: Split,
    /// Batches of a step, sequences of a batch and tokens of a batch, unless they are those asked for.
    pub batches: Option<[usize; 3]>,
    /// The longest sequence, unless it is that asked for.
    pub max_model_len: Option<usize>,
}

impl fmt::Display for Nearest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--percent")?;
        for split in [self.weights, self.kv, self.hidden] {
            let percent = |tier| f64::from(split.part(tier)) / f64::from(Split::WHOLE / 100);
            write!(f, " {} {}", percent(Tier::Device), percent(Tier::Host))?;
        }
        if let Some([batches, seqs, tokens]) = self.batches {
            write!(f, " --num-batches {batches} --batch-size {seqs} --max-num-batched-tokens {tokens}")?;
        }
        self.max_model_len.map_or(Ok(()), |tokens| write!(f, " --max-model-len {tokens}"))
    }
}

/// Limits that fit in the place of those asked for, where no flag says what lives where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Smaller {
    /// Tokens of a step, unless they are those asked for.
    pub max_num_batched_tokens: Option<usize>,
    /// The longest sequence, likewise.
    pub max_model_len: Option<usize>,
}

impl fmt::Display for Smaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.max_num_batched_tokens.map(|tokens| format!("--max-num-batched-tokens {tokens}"));
        let longest = self.max_model_len.map(|tokens| format!("--max-model-len {tokens}"));
        f.write_str(&[tokens, longest].into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

/// What does not fit.
pub(crate) struct Refused<'a> {
    pub(crate) spec: &'a ModelSpec,
    pub(crate) blueprint: &'a Blueprint,
    pub(crate) config: &'a EngineConfig,
    pub(crate) resident_bytes: u64,
}

impl Refused<'_> {
    /// The first that fits of: other shares of weights; KV and activations elsewhere; fewer batches, smaller ones, shorter
    /// sequences; these with KV and activations elsewhere.
    pub(crate) fn nearest(&self, weights: Split) -> Option<Nearest> {
        let asked = self.config.settled(Passes::Streamed);
        let less = less(&asked);
        let last = less.last().map(elsewhere).unwrap_or_default();
        let all = [vec![asked.clone()], elsewhere(&asked), less, last].concat();
        all.iter().find_map(|config| self.beside(config, &asked, weights))
    }

    /// The first of smaller limits that fit, where the engine's own rule says what lives where.
    pub(crate) fn smaller(&self) -> Option<Smaller> {
        let asked = self.config;
        let fits = |config: &EngineConfig| {
            Hold::plan_only(self.spec, self.blueprint, config, self.resident_bytes).is_ok()
        };
        let found = less(asked).into_iter().find(fits)?;
        let tokens = found.max_num_batched_tokens;
        Some(Smaller {
            max_num_batched_tokens: Some(tokens).filter(|_| tokens != asked.max_num_batched_tokens),
            max_model_len: found.max_model_len.filter(|_| found.max_model_len != asked.max_model_len),
        })
        .filter(|_| found.blocks == asked.blocks)
    }

    /// Shares of weights that fit with these settings.
    fn beside(&self, config: &EngineConfig, asked: &EngineConfig, weights: Split) -> Option<Nearest> {
        check_schedule(config).ok()?;
        let room = Room::new(self.spec, self.blueprint, config, self.resident_bytes).ok()?;
        let weights = room.nearest(weights)?;
        let batches = |config: &EngineConfig| {
            let blocks = &config.blocks;
            Some([blocks.num_batches?, blocks.batch_size?, config.max_num_batched_tokens])
        };
        Some(Nearest {
            weights,
            kv: config.blocks.kv,
            hidden: config.blocks.hidden,
            batches: batches(config).filter(|_| batches(config) != batches(asked)),
            max_model_len: config.max_model_len.filter(|_| config.max_model_len != asked.max_model_len),
        })
    }
}

/// The same with KV, with activations, and with both on another tier, by halves and whole.
fn elsewhere(config: &EngineConfig) -> Vec<EngineConfig> {
    use Tier::{Device, Disk, Host};
    let mut all = Vec::new();
    let ways = [(Device, Host), (Host, Disk), (Device, Disk), (Host, Device), (Disk, Host), (Disk, Device)];
    for (from, to) in ways {
        for halves in [1, 2] {
            let (kv, hidden) = (config.blocks.kv, config.blocks.hidden);
            let move_both = (moved(kv, halves, from, to), moved(hidden, halves, from, to));
            for (kv, hidden) in [(move_both.0, hidden), (kv, move_both.1), move_both] {
                let mut config = config.clone();
                (config.blocks.kv, config.blocks.hidden) = (kv, hidden);
                all.push(config);
            }
        }
    }
    all.retain(|other| other.blocks != config.blocks);
    all
}

/// In whole percents.
fn moved(split: Split, halves: u32, from: Tier, to: Tier) -> Split {
    let percent = Split::WHOLE / 100;
    let mut parts = ByTier { device: 0, host: 0, disk: 0 };
    Tier::ALL.into_iter().for_each(|tier| parts[tier] = split.part(tier));
    let moves = if halves == 2 { parts[from] } else { parts[from] / 2 / percent * percent };
    parts[from] -= moves;
    parts[to] += moves;
    Split::new(parts).unwrap_or(split)
}

/// Ever less at once: batches of a step, tokens of a batch, its sequences, then the longest sequence, and at last tokens
/// that are few already.
fn less(asked: &EngineConfig) -> Vec<EngineConfig> {
    let halved = |of: usize, least: usize| Some((of / 2).max(least)).filter(|half| *half < of);
    let mut all: Vec<EngineConfig> = Vec::new();
    loop {
        let mut config = all.last().unwrap_or(asked).clone();
        let blocks = &mut config.blocks;
        let longest = match config.max_model_len {
            None => Some(PROMISED),
            Some(tokens) => halved(tokens, SHORTEST),
        };
        if let Some(batches) = blocks.num_batches.and_then(|batches| halved(batches, 1)) {
            blocks.num_batches = Some(batches);
        } else if let Some(tokens) = halved(config.max_num_batched_tokens, config.max_num_seqs.max(STEP)) {
            config.max_num_batched_tokens = tokens;
            blocks.batch_size = blocks.batch_size.map(|seqs| seqs.min(tokens));
        } else if let Some(seqs) = blocks.batch_size.and_then(|seqs| halved(seqs, 1)) {
            blocks.batch_size = Some(seqs);
        } else if let Some(longest) = longest {
            config.max_model_len = Some(longest);
        } else if let Some(tokens) = halved(config.max_num_batched_tokens, config.max_num_seqs) {
            config.max_num_batched_tokens = tokens;
        } else {
            return all;
        }
        all.push(config);
    }
}
