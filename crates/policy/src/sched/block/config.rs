//! Which schedule, and how a step is cut into batches.

use serde::{Deserialize, Serialize};
use spec::{Pipeline, Tier, Tokens};

/// When sequences begin, and how their steps are lowered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schedule {
    /// As soon as there is room for the tokens that are known; the youngest makes room when they grow. All KV lives on the
    /// device.
    #[default]
    Continuous,
    /// As zig-zag, but each batch by itself through all layers: the baseline.
    Row,
    /// When there is room for all that they may become: a block begins together and ends together.
    Zigzag,
    /// Staggered, so that what runs always fits as it grows and the hold is full at all times.
    Diagonal,
}

impl Schedule {
    /// What suits streamed weights: diagonal where its block is larger by a tenth, (2s+2n)/(2s+n), and there are requests
    /// enough to fill the hold twice, since it fills slowly; zig-zag otherwise.
    pub fn auto(prompt: Tokens, output: Tokens, requests: usize, hold: Tokens) -> Self {
        let (s, n) = (u64::from(prompt.0), u64::from(output.0));
        let gains = (2 * s + 2 * n) * 10 >= (2 * s + n) * 11;
        let lasts = requests as u64 * (2 * s + n) >= 4 * u64::from(hold.0);
        if gains && lasts { Schedule::Diagonal } else { Schedule::Zigzag }
    }

    /// How its steps are lowered.
    pub fn pipeline(self) -> Pipeline {
        match self {
            Schedule::Continuous => Pipeline::Plain,
            Schedule::Row => Pipeline::Row,
            Schedule::Zigzag | Schedule::Diagonal => Pipeline::Zigzag,
        }
    }
}

/// Where steps of one token attend whose KV does not live on the device. Longer pieces of prompts always attend there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delegate {
    /// On the host: queries go down.
    #[default]
    Host,
    /// On the device: KV goes up.
    Streamed,
}

/// A schedule with its limits. FlexGen's block is `batches` times `batch_seqs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockConfig {
    /// Which.
    pub schedule: Schedule,
    /// Batches of a step.
    pub batches: usize,
    /// Sequences of a batch.
    pub batch_seqs: usize,
    /// KV positions that a batch may attend away from their home, in one layer.
    pub kv_slot_tokens: u64,
    /// Where decodes attend.
    pub delegate: Delegate,
}

impl Default for BlockConfig {
    /// Continuous batching, a batch a step.
    fn default() -> Self {
        Self {
            schedule: Schedule::Continuous,
            batches: 1,
            batch_seqs: usize::MAX,
            kv_slot_tokens: 0,
            delegate: Delegate::Host,
        }
    }
}

impl BlockConfig {
    /// Where a chunk of `len` positions attends whose sequence lives at `home`.
    pub fn attend(&self, home: Tier, len: Tokens) -> Tier {
        match self.delegate {
            Delegate::Host if home != Tier::Device && len == Tokens(1) => Tier::Host,
            _ => Tier::Device,
        }
    }
}
