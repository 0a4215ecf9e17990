//! Limits of the first-come-first-served scheduler.

use super::ReadOrCompute;
use crate::sched::block::{BlockConfig, Schedule};
use serde::{Deserialize, Serialize};
use spec::{ByTier, KvGroups, Layout, Nanos, ReplicaId, Tokens};

/// How a running sequence makes room for older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preempt {
    /// Its KV is dropped and computed again later.
    Recompute,
    /// Its KV goes to the host tier where that has room, else it is dropped.
    Swap,
}

/// Limits, all of which the scheduler keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FcfsConfig {
    /// Positions computed in one batch of a step (a step is one batch, unless `block` says otherwise).
    pub max_num_batched_tokens: Tokens,
    /// Sequences that hold KV at a time, those at rest on the host left out.
    pub max_num_seqs: usize,
    /// Requests that may wait, beside those that there are seats for; a new one that finds as many is refused.
    pub max_queue: usize,
    /// Steps in flight: one, or more to hide what lies between steps.
    pub depth: usize,
    /// KV blocks of each tier. Under the continuous schedule those of the drive keep prefixes, else sequences live there.
    pub blocks: ByTier<u32>,
    /// How layers share blocks. Several groups live on the device alone, under the continuous schedule.
    #[serde(default)]
    pub groups: KvGroups,
    /// How room is made. Under block schedules the host is a home, and room is made by recomputation.
    pub preempt: Preempt,
    /// Blocks that one step moves, saves to the host, and brings up for those that begin (of each so many): more go in pieces,
    /// but for what comes up in a step that has nothing else to do.
    /// Under block schedules nobody waits for a step's tokens, and what is kept comes up at once.
    pub max_move_blocks: usize,
    /// Kept blocks that one step reads from the drive beside what it computes, and writes to it, unless it computes more.
    #[serde(default = "drive_blocks")]
    pub max_drive_blocks: usize,
    /// What the drive's prefixes take to read and to compute: those that are computed sooner are not read. None reads all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_or_compute: Option<ReadOrCompute>,
    /// How long nobody more may have come before the first of those that came to an idle engine begin, where a step costs as much
    /// for one as for many: four times as long at most. Zero begins at once.
    #[serde(default)]
    pub gather: Nanos,
    /// The copy of the model that runs the steps.
    pub replica: ReplicaId,
    /// How it is cut.
    pub layout: Layout,
    /// When sequences begin, and how a step is cut into batches.
    #[serde(default)]
    pub block: BlockConfig,
}

/// Limits under which nothing could ever run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// This one is none.
    #[error("{0} must be at least one, found zero")]
    Zero(&'static str),
    /// Groups of layers that the rest does not go with.
    #[error("groups of layers {0}")]
    Groups(&'static str),
}

impl FcfsConfig {
    /// Whether anything can run under these limits.
    ///
    /// # Errors
    /// The first limit that is zero and must not be, or how groups of layers are wrong.
    pub fn check(&self) -> Result<(), LimitError> {
        let limits = [
            ("max_num_batched_tokens", self.max_num_batched_tokens.0 as usize),
            ("max_num_seqs", self.max_num_seqs),
            ("depth", self.depth),
            ("max_move_blocks", self.max_move_blocks),
            ("max_drive_blocks", self.max_drive_blocks),
            ("block.batches", self.block.batches),
            ("block.batch_seqs", self.block.batch_seqs),
        ];
        let zero = limits.into_iter().find(|(_, limit)| *limit == 0);
        zero.map_or(Ok(()), |(limit, _)| Err(LimitError::Zero(limit)))?;
        self.check_groups().map_or(Ok(()), |why| Err(LimitError::Groups(why)))
    }

    /// What is wrong with the groups of layers.
    fn check_groups(&self) -> Option<&'static str> {
        /// More than any model has layers.
        const GROUPS_MAX: usize = 1024;
        let KvGroups { full, sliding, behind, ahead } = self.groups;
        let ByTier { device: _, host, disk } = self.blocks;
        let computed = self.depth as u64 * u64::from(self.max_num_batched_tokens.0);
        match (full, sliding) {
            (full, sliding) if full.max(sliding) > GROUPS_MAX => Some("are more than any model has layers"),
            (0, 0) => Some("are none"),
            _ if behind.max(ahead).0 > u32::MAX / 2 => Some("look further than any sequence is long"),
            (1, 0) => None,
            _ if (host, disk) != (0, 0) => Some("live on the device alone, and there are blocks elsewhere"),
            _ if self.preempt == Preempt::Swap => Some("are computed again, and not moved"),
            _ if self.block.schedule != Schedule::Continuous => Some("go with the continuous schedule alone"),
            _ if u64::from(ahead.0) < computed => Some("must allow for all that steps in flight compute"),
            _ => None,
        }
    }
}

/// A few milliseconds of a drive, for most models.
fn drive_blocks() -> usize {
    16
}

impl Default for FcfsConfig {
    /// One device, 2,048 tokens and 256 sequences a step, one step in flight, no KV blocks yet.
    fn default() -> Self {
        Self {
            max_num_batched_tokens: Tokens(2048),
            max_num_seqs: 256,
            max_queue: 4096,
            depth: 1,
            blocks: ByTier::default(),
            groups: KvGroups::default(),
            preempt: Preempt::Recompute,
            max_move_blocks: 64,
            max_drive_blocks: drive_blocks(),
            read_or_compute: None,
            gather: Nanos::ZERO,
            replica: ReplicaId(0),
            layout: Layout::SINGLE,
            block: BlockConfig::default(),
        }
    }
}
