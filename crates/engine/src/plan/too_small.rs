//! Why a model does not fit, with the parts and what to do.

use crate::plan::hold::{at_least, size};
use crate::plan::nearest::{Nearest, Smaller};
use crate::words::counted;

/// What measuring and planning leave behind in a process that has room for them: whoever gives what was needed without gives too
/// little.
const MEASURING_BYTES: u64 = 8 << 20;

/// A model that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooSmall {
    /// Not even one sequence of the length asked for.
    #[error(
        "this needs {} and may take {}: weights {}, activations {}, {} {}, the process itself {}. Raise --memory to at least {}, \
         lower --max-model-len or --max-num-batched-tokens, or choose narrower weights (--weights int8 or int4){}",
        at_least(need),
        size(limit),
        size(weights),
        size(work),
        match on_drive {
            true => "slots for KV on the drive".into(),
            false => format!("KV for one sequence of {}", counted(*tokens, "token")),
        },
        size(kv),
        size(process),
        at_least(&(need + MEASURING_BYTES)),
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
        /// Bytes of KV of the shortest sequence, or of the slots that it passes through.
        kv: u64,
        /// Bytes of the process.
        process: u64,
        /// Tokens of that sequence.
        tokens: usize,
        /// Whether its KV is on the drive.
        on_drive: bool,
        /// Whether `weights` are only those that cannot be streamed, and the slots.
        streamed: bool,
    },
    /// A device with a budget of its own cannot hold what must be there.
    #[error(
        "this needs {} of the device's memory and may take {} there: weights {}, activations {}, KV for one sequence of \
         {} {}. Raise --device-memory to at least the former, lower --max-model-len or \
         --max-num-batched-tokens, or choose narrower weights (--weights int8 or int4)",
        at_least(need),
        size(limit),
        size(weights),
        size(work),
        counted(*tokens, "token"),
        size(kv)
    )]
    Device {
        /// Bytes needed.
        need: u64,
        /// Bytes allowed.
        limit: u64,
        /// Bytes of weights that are always there, and of the slots for the others.
        weights: u64,
        /// Bytes of activations.
        work: u64,
        /// Bytes of KV of the shortest sequence.
        kv: u64,
        /// Tokens of that sequence.
        tokens: usize,
    },
    /// The host cannot hold what must be there.
    #[error(
        "this needs {} on the host and may take {} there: weights {}, KV {}, the process itself {}. Raise --memory{}, or \
         leave more to the device or the drive",
        at_least(need),
        size(limit),
        size(weights),
        size(kv),
        size(process),
        if *carved { " or lower --device-memory, which is part of it" } else { "" }
    )]
    Host {
        /// Bytes needed.
        need: u64,
        /// Bytes allowed.
        limit: u64,
        /// Bytes of weights that live there, and of slots.
        weights: u64,
        /// Bytes of KV there.
        kv: u64,
        /// Bytes of the process.
        process: u64,
        /// Whether the device's memory comes out of the process's.
        carved: bool,
    },
    /// A device that is part of the process leaves it nothing.
    #[error(
        "--device-memory {} is part of --memory {}, and leaves nothing for the process itself and the host tier: lower \
         the former or raise the latter",
        size(device),
        size(memory)
    )]
    Carved {
        /// Bytes of the device.
        device: u64,
        /// Bytes of the process.
        memory: u64,
    },
    /// Shares that were asked for do not fit.
    #[error("{why}. {}", nearest.as_ref().map_or_else(
        || "Nothing near it fits either, neither other shares nor fewer or smaller batches".to_string(),
        |nearest| format!("The nearest that fits: {nearest}")
    ))]
    Shares {
        /// What does not fit.
        why: Box<TooSmall>,
        /// What would.
        nearest: Option<Box<Nearest>>,
    },
    /// Limits that were asked for do not fit.
    #[error("{why}. The nearest that fits: {nearest}")]
    Limits {
        /// What does not fit.
        why: Box<TooSmall>,
        /// What would.
        nearest: Smaller,
    },
    /// Weights that fit no memory have nowhere to go.
    #[error("{why}; and there is no folder for weights on the drive (--offload-dir)")]
    NoDrive {
        /// What does not fit.
        why: Box<TooSmall>,
    },
    /// KV or activations are to live where the schedule does not bring them from.
    #[error(
        "--schedule {asked} does not move {} between tiers: choose zigzag or diagonal, or leave them on the device \
         (--percent .. 100 0 100 0)",
        if *asked == "row" { "activations" } else { "KV and activations" }
    )]
    Schedule {
        /// The schedule.
        asked: &'static str,
    },
    /// Blocks for sequences that make way are asked for, and the schedule has none such.
    #[error(
        "--swap-tokens and --disk-cache-tokens keep KV on host and drive for --schedule plain alone: the others give each \
         sequence one home, and compute again what has to make way; leave them out, or choose --schedule plain with KV and \
         activations on the device"
    )]
    Swap,
    /// KV or activations are to live on the drive, and there is no folder for them.
    #[error(
        "KV or activations are to be on the drive, and there is no folder for them: name one with --offload-dir"
    )]
    NoFolder,
    /// The drive's share does not hold what must live there.
    #[error(
        "this needs {} on the drive and may take {} there: packed weights {}, KV and activations {}. Raise --disk (without it, \
         what is free there but for a margin) to at least the former, or leave less to the drive (--percent, \
         --disk-cache-tokens)",
        at_least(need),
        size(limit),
        size(weights),
        size(kv)
    )]
    Drive {
        /// Bytes needed.
        need: u64,
        /// Bytes allowed.
        limit: u64,
        /// Bytes of the store.
        weights: u64,
        /// Bytes of KV of one sequence, and of activations.
        kv: u64,
    },
    /// The store of all weights is larger than the drive's share.
    #[error(
        "the packed weights take {} on the drive, and may take {} there: raise --disk (without it, what is free there \
         but for a margin; `ballast stores` lists what is packed already) to at least the former, name another drive with \
         --offload-dir, or choose narrower weights (--weights int8 or int4)",
        at_least(need),
        size(limit)
    )]
    Disk {
        /// Bytes of the store.
        need: u64,
        /// Bytes allowed.
        limit: u64,
    },
}

impl TooSmall {
    /// Whether the drive has no room for the weights, wherever else things live.
    pub fn is_of_store(&self) -> bool {
        matches!(self.lacks(), TooSmall::Disk { .. })
    }

    /// The same where more memory is also for more beside the engine (`beside`: bytes there, of so many in all): where a figure is
    /// told to be enough, it is then.
    pub fn with_more_beside(self, beside: &dyn Fn(u64) -> u64) -> TooSmall {
        let more = |why: Box<TooSmall>| Box::new(why.with_more_beside(beside));
        match self {
            TooSmall::Memory { need, limit, weights, work, kv, process, tokens, on_drive, streamed } => {
                let (others, mut enough) = (need.saturating_sub(beside(limit)), need);
                while others + beside(enough + MEASURING_BYTES) > enough {
                    enough = others + beside(enough + MEASURING_BYTES);
                }
                let process = process + (enough - need);
                TooSmall::Memory {
                    need: enough,
                    limit,
                    weights,
                    work,
                    kv,
                    process,
                    tokens,
                    on_drive,
                    streamed,
                }
            }
            TooSmall::Shares { why, nearest } => TooSmall::Shares { why: more(why), nearest },
            TooSmall::Limits { why, nearest } => TooSmall::Limits { why: more(why), nearest },
            other => other,
        }
    }

    /// The same, or the `other` way of doing it where that needs less of the same memory: so much is enough then, and no less.
    pub fn or_less(self, other: TooSmall) -> TooSmall {
        match self {
            TooSmall::Shares { why, nearest } => {
                TooSmall::Shares { why: Box::new(why.or_less(other)), nearest }
            }
            TooSmall::Limits { why, nearest } => {
                TooSmall::Limits { why: Box::new(why.or_less(other)), nearest }
            }
            this if other.needs_less_than(&this) => other,
            this => this,
        }
    }

    fn needs_less_than(&self, other: &TooSmall) -> bool {
        use TooSmall::{Device, Host, Memory};
        match (self, other) {
            (Memory { need: this, .. }, Memory { need, .. })
            | (Device { need: this, .. }, Device { need, .. })
            | (Host { need: this, .. }, Host { need, .. }) => this < need,
            _ => false,
        }
    }

    /// What there is no room for, without what would fit in its place.
    pub fn lacks(&self) -> &TooSmall {
        match self {
            TooSmall::Shares { why, .. } | TooSmall::Limits { why, .. } => why.lacks(),
            why => why,
        }
    }

    /// Whether less of something would fit.
    pub(super) fn is_of_room(&self) -> bool {
        match self {
            TooSmall::Memory { .. } | TooSmall::Device { .. } | TooSmall::Host { .. } => true,
            TooSmall::Drive { .. } | TooSmall::Disk { .. } | TooSmall::NoDrive { .. } => true,
            TooSmall::Carved { .. } | TooSmall::Shares { .. } | TooSmall::Limits { .. } => false,
            TooSmall::Schedule { .. } | TooSmall::Swap | TooSmall::NoFolder => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_ways_the_one_that_needs_less_of_the_same_is_told() {
        let device = |need| TooSmall::Device { need, limit: 1, weights: 1, work: 1, kv: 1, tokens: 1 };
        let host = TooSmall::Host { need: 1, limit: 0, weights: 0, kv: 0, process: 1, carved: false };
        let needs = |first: TooSmall, other: TooSmall| first.or_less(other).lacks().clone();
        assert_eq!(needs(device(3), device(2)), device(2));
        assert_eq!(needs(device(2), device(3)), device(2));
        assert_eq!(needs(device(3), host), device(3), "of another memory");
        let nearest = Smaller { max_num_batched_tokens: Some(64), max_model_len: None };
        let limits = |why| TooSmall::Limits { why: Box::new(why), nearest };
        assert_eq!(
            limits(device(3)).or_less(device(2)),
            limits(device(2)),
            "what fits in its place fits still"
        );
    }

    #[test]
    fn memory_that_is_told_to_be_enough_is_enough_for_more_beside() {
        const MIB: u64 = 1 << 20;
        // A quarter of all memory, 40 MiB at the most; 100 MiB are needed beside that.
        let beside = |memory: u64| (memory / 4).min(40 * MIB);
        for limit in [20 * MIB, 120 * MIB] {
            let need = 100 * MIB + beside(limit);
            let (weights, work, kv, process) = (90 * MIB, 5 * MIB, 5 * MIB, beside(limit));
            let told = TooSmall::Memory {
                need,
                limit,
                weights,
                work,
                kv,
                process,
                tokens: 16,
                on_drive: false,
                streamed: false,
            };
            let TooSmall::Memory { need, process, .. } = told.with_more_beside(&beside) else {
                unreachable!("the same")
            };
            let advised = need + MEASURING_BYTES;
            assert!(100 * MIB + beside(advised) <= need, "{advised}");
            assert_eq!((need, process), (100 * MIB + beside(advised), beside(advised)), "and no more");
        }
    }
}
