//! A slow correction of measured costs: what ops take in runs, against what the tables said they would.
//!
//! Tables are measured once, with nothing beside; clocks, neighbours and drives change afterwards, by about the same for all
//! ops of a sort. Each sort has a factor of time: seconds taken over seconds said, where the newest count most and the
//! tables' own word counts as [`Pace::trust_s`] that went as they said. So a stall moves little, a short run next to nothing,
//! and what stays is learned. No factor leaves 1/4 to 4: beyond that a machine is another one, and is to be measured again.

use serde::{Deserialize, Serialize};
use spec::{Op, Tier};

use super::{Decode, Linear, Tables};

/// The most that a factor differs from 1: so many times slower, or faster.
pub const FACTOR_MAX: f64 = 4.0;

/// Ops that become slower together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpSort {
    /// Linears on the device, and the little that goes with them.
    Linears,
    /// Attention on the device.
    Attention,
    /// Attention on the host.
    HostAttention,
    /// Copies between host and device.
    Copies,
    /// Reads of the drive.
    Reads,
    /// Writes to it.
    Writes,
}

impl OpSort {
    /// How many there are.
    pub const COUNT: usize = 6;
    /// All of them, in order.
    pub const ALL: [OpSort; OpSort::COUNT] = [
        OpSort::Linears,
        OpSort::Attention,
        OpSort::HostAttention,
        OpSort::Copies,
        OpSort::Reads,
        OpSort::Writes,
    ];

    /// That of an op; none for what passes between ranks, of which nothing is measured.
    pub fn of(op: &Op) -> Option<OpSort> {
        Some(match *op {
            Op::Embed { .. }
            | Op::Qkv { .. }
            | Op::OutProj { .. }
            | Op::Mlp { .. }
            | Op::Head { .. }
            | Op::Sample { .. } => OpSort::Linears,
            Op::Attend { on: Tier::Device, .. } | Op::Choose { on: Tier::Device, .. } => OpSort::Attention,
            Op::Attend { .. } | Op::Choose { .. } => OpSort::HostAttention,
            Op::LoadWeights { from, to, .. }
            | Op::MoveKv { from, to, .. }
            | Op::CopyKv { from, to, .. }
            | Op::CopyChosen { from, to, .. }
            | Op::MoveHidden { from, to, .. } => match (from, to) {
                (Tier::Disk, _) => OpSort::Reads,
                (_, Tier::Disk) => OpSort::Writes,
                _ => OpSort::Copies,
            },
            Op::AllReduce { .. } | Op::SendRecv { .. } => return None,
        })
    }

    /// For people and metrics.
    pub fn name(self) -> &'static str {
        match self {
            OpSort::Linears => "linears",
            OpSort::Attention => "attention",
            OpSort::HostAttention => "host_attention",
            OpSort::Copies => "copies",
            OpSort::Reads => "reads",
            OpSort::Writes => "writes",
        }
    }
}

/// Seconds of each sort, by `sort as usize`.
pub type BySort = [f64; OpSort::COUNT];

/// How fast a correction learns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds of work that the tables' own word counts as, at the beginning.
    pub trust_s: f64,
    /// Seconds of work that are remembered: of two stretches so far apart, the newer counts e times as much.
    pub memory_s: f64,
    /// Seconds of work that are heard at once: steps in flight overlap, and their times with them.
    pub window_s: f64,
    /// A run that was heard for less is not kept, seconds of work.
    pub least_s: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { trust_s: 20.0, memory_s: 300.0, window_s: 1.0, least_s: 10.0 }
    }
}

/// What was said of a sort and what it took, the newest counting most, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Heard {
    said_s: f64,
    took_s: f64,
}

impl Heard {
    fn factor(self) -> f64 {
        let factor = self.took_s / self.said_s;
        if factor.is_finite() { factor.clamp(1.0 / FACTOR_MAX, FACTOR_MAX) } else { 1.0 }
    }

    fn hear(&mut self, said_s: f64, took_s: f64, pace: &Pace) {
        if said_s.is_nan() || said_s <= 0.0 || took_s.is_nan() || took_s <= 0.0 {
            return;
        }
        if self.said_s <= 0.0 {
            *self = Heard { said_s: pace.trust_s, took_s: pace.trust_s };
        }
        // A machine that was asleep did not become slow.
        let took_s = took_s.clamp(said_s / FACTOR_MAX, said_s * FACTOR_MAX);
        let (said_s, took_s) = (self.said_s + said_s, self.took_s + took_s);
        let kept = (pace.memory_s / took_s).min(1.0);
        *self = Heard { said_s: said_s * kept, took_s: took_s * kept };
    }

    /// Other work went on for so long, and nothing was heard: the factor stays, but what comes next counts for more.
    fn fade(&mut self, silent_s: f64, pace: &Pace) {
        if self.said_s > pace.window_s {
            let kept = (1.0 - silent_s / pace.memory_s).max(pace.window_s / self.said_s).min(1.0);
            *self = Heard { said_s: self.said_s * kept, took_s: self.took_s * kept };
        }
    }
}

/// See the module. The default corrects nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Correction {
    linears: Heard,
    attention: Heard,
    host_attention: Heard,
    copies: Heard,
    reads: Heard,
    writes: Heard,
}

impl Correction {
    fn heard(&self, sort: OpSort) -> Heard {
        match sort {
            OpSort::Linears => self.linears,
            OpSort::Attention => self.attention,
            OpSort::HostAttention => self.host_attention,
            OpSort::Copies => self.copies,
            OpSort::Reads => self.reads,
            OpSort::Writes => self.writes,
        }
    }

    fn heard_mut(&mut self, sort: OpSort) -> &mut Heard {
        match sort {
            OpSort::Linears => &mut self.linears,
            OpSort::Attention => &mut self.attention,
            OpSort::HostAttention => &mut self.host_attention,
            OpSort::Copies => &mut self.copies,
            OpSort::Reads => &mut self.reads,
            OpSort::Writes => &mut self.writes,
        }
    }

    /// Whether nothing was heard.
    pub fn is_none(&self) -> bool {
        *self == Correction::default()
    }

    /// How many times as long ops of a sort take as the tables say.
    pub fn factor(&self, sort: OpSort) -> f64 {
        self.heard(sort).factor()
    }

    /// Ops of a sort took so long, and the tables, uncorrected, said so long.
    pub fn hear(&mut self, sort: OpSort, said_s: f64, took_s: f64, pace: &Pace) {
        self.heard_mut(sort).hear(said_s, took_s, pace);
    }

    /// Nothing was heard of a sort while other work went on for so long: what was heard before counts for less beside what
    /// comes next, and the factor stays.
    pub fn fade(&mut self, sort: OpSort, silent_s: f64, pace: &Pace) {
        self.heard_mut(sort).fade(silent_s, pace);
    }

    /// Whether a factor differs from another's by more than this share.
    pub fn differs(&self, other: &Correction, share: f64) -> bool {
        OpSort::ALL.into_iter().any(|sort| {
            let ratio = self.factor(sort) / other.factor(sort);
            ratio.max(1.0 / ratio) > 1.0 + share
        })
    }

    /// The tables as they are now.
    pub fn of(&self, tables: Tables) -> Tables {
        let by = |sort| self.factor(sort);
        let linear = |linear: Linear| Linear { seconds: linear.seconds.times(by(OpSort::Linears)), ..linear };
        let rows = |rows: Vec<Decode>, sort| {
            let times = |row: Decode| Decode { seconds: row.seconds.times(by(sort)), ..row };
            rows.into_iter().map(times).collect()
        };
        Tables {
            qkv: linear(tables.qkv),
            out: linear(tables.out),
            mlp: linear(tables.mlp),
            host_mlp: tables.host_mlp.times(by(OpSort::Linears)),
            head: linear(tables.head),
            embed: tables.embed.times(by(OpSort::Linears)),
            sample: tables.sample.times(by(OpSort::Linears)),
            decode: rows(tables.decode, OpSort::Attention),
            prefill: tables.prefill.times(by(OpSort::Attention)),
            host_decode: rows(tables.host_decode, OpSort::HostAttention),
            copy_bytes_per_s: tables.copy_bytes_per_s / by(OpSort::Copies),
            disk_read: tables.disk_read.times(by(OpSort::Reads)),
            disk_write_bytes_per_s: tables.disk_write_bytes_per_s / by(OpSort::Writes),
            ..tables
        }
    }

    /// For people: the factors that are not about 1, or nothing.
    pub fn told(&self) -> Option<String> {
        let off = OpSort::ALL.into_iter().filter(|&sort| (self.factor(sort) - 1.0).abs() >= 0.005);
        let told: Vec<String> =
            off.map(|sort| format!("{} x {:.2}", sort.name().replace('_', " "), self.factor(sort))).collect();
        (!told.is_empty()).then(|| told.join(", "))
    }
}

#[cfg(test)]
mod tests;
