//! A slow correction of measured costs: what ops take in runs, against what the tables said they would.
//!
//! Tables are measured once, with nothing beside; clocks, neighbours and drives change afterwards, by about the same for all
//! ops of a family. Each family has a factor of time: seconds taken over seconds said, where the newest count most and the
//! tables' own word counts as [`Pace::trust_s`] that went as they said. So a stall moves little, a short run next to nothing,
//! and what stays is learned. No factor leaves 1/4 to 4: beyond that a machine is another one, and is to be measured again.

use serde::{Deserialize, Serialize};
use spec::{Op, Tier};

use super::{Decode, Linear, Tables};

/// The most that a factor differs from 1: so many times slower, or faster.
pub const FACTOR_MAX: f64 = 4.0;

/// Ops that become slower together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
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

impl Family {
    /// How many there are.
    pub const COUNT: usize = 6;
    /// All of them, in order.
    pub const ALL: [Family; Family::COUNT] = [
        Family::Linears,
        Family::Attention,
        Family::HostAttention,
        Family::Copies,
        Family::Reads,
        Family::Writes,
    ];

    /// That of an op; none for what passes between ranks, of which nothing is measured.
    pub fn of(op: &Op) -> Option<Family> {
        Some(match *op {
            Op::Embed { .. }
            | Op::Qkv { .. }
            | Op::OutProj { .. }
            | Op::Mlp { .. }
            | Op::Head { .. }
            | Op::Sample { .. } => Family::Linears,
            Op::Attend { on: Tier::Device, .. } | Op::Choose { on: Tier::Device, .. } => Family::Attention,
            Op::Attend { .. } | Op::Choose { .. } => Family::HostAttention,
            Op::LoadWeights { from, to, .. }
            | Op::MoveKv { from, to, .. }
            | Op::CopyKv { from, to, .. }
            | Op::CopyChosen { from, to, .. }
            | Op::MoveHidden { from, to, .. } => match (from, to) {
                (Tier::Disk, _) => Family::Reads,
                (_, Tier::Disk) => Family::Writes,
                _ => Family::Copies,
            },
            Op::AllReduce { .. } | Op::SendRecv { .. } => return None,
        })
    }

    /// For people and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Family::Linears => "linears",
            Family::Attention => "attention",
            Family::HostAttention => "host_attention",
            Family::Copies => "copies",
            Family::Reads => "reads",
            Family::Writes => "writes",
        }
    }
}

/// Seconds of each family, by `family as usize`.
pub type ByFamily = [f64; Family::COUNT];

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

/// What was said of a family and what it took, the newest counting most, seconds.
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
    fn heard(&self, family: Family) -> Heard {
        match family {
            Family::Linears => self.linears,
            Family::Attention => self.attention,
            Family::HostAttention => self.host_attention,
            Family::Copies => self.copies,
            Family::Reads => self.reads,
            Family::Writes => self.writes,
        }
    }

    fn heard_mut(&mut self, family: Family) -> &mut Heard {
        match family {
            Family::Linears => &mut self.linears,
            Family::Attention => &mut self.attention,
            Family::HostAttention => &mut self.host_attention,
            Family::Copies => &mut self.copies,
            Family::Reads => &mut self.reads,
            Family::Writes => &mut self.writes,
        }
    }

    /// Whether nothing was heard.
    pub fn is_none(&self) -> bool {
        *self == Correction::default()
    }

    /// How many times as long ops of a family take as the tables say.
    pub fn factor(&self, family: Family) -> f64 {
        self.heard(family).factor()
    }

    /// Ops of a family took so long, and the tables, uncorrected, said so long.
    pub fn hear(&mut self, family: Family, said_s: f64, took_s: f64, pace: &Pace) {
        self.heard_mut(family).hear(said_s, took_s, pace);
    }

    /// Whether a factor differs from another's by more than this share.
    pub fn differs(&self, other: &Correction, share: f64) -> bool {
        Family::ALL.into_iter().any(|family| {
            let ratio = self.factor(family) / other.factor(family);
            ratio.max(1.0 / ratio) > 1.0 + share
        })
    }

    /// The tables as they are now.
    pub fn of(&self, tables: Tables) -> Tables {
        let by = |family| self.factor(family);
        let linear = |linear: Linear| Linear { seconds: linear.seconds.times(by(Family::Linears)), ..linear };
        let rows = |rows: Vec<Decode>, family| {
            let times = |row: Decode| Decode { seconds: row.seconds.times(by(family)), ..row };
            rows.into_iter().map(times).collect()
        };
        Tables {
            qkv: linear(tables.qkv),
            out: linear(tables.out),
            mlp: linear(tables.mlp),
            head: linear(tables.head),
            embed: tables.embed.times(by(Family::Linears)),
            sample: tables.sample.times(by(Family::Linears)),
            decode: rows(tables.decode, Family::Attention),
            prefill: tables.prefill.times(by(Family::Attention)),
            host_decode: rows(tables.host_decode, Family::HostAttention),
            copy_bytes_per_s: tables.copy_bytes_per_s / by(Family::Copies),
            disk_read: tables.disk_read.times(by(Family::Reads)),
            disk_write_bytes_per_s: tables.disk_write_bytes_per_s / by(Family::Writes),
            ..tables
        }
    }

    /// For people: the factors that are not about 1, or nothing.
    pub fn told(&self) -> Option<String> {
        let off = Family::ALL.into_iter().filter(|&family| (self.factor(family) - 1.0).abs() >= 0.005);
        let told: Vec<String> = off
            .map(|family| format!("{} x {:.2}", family.name().replace('_', " "), self.factor(family)))
            .collect();
        (!told.is_empty()).then(|| told.join(", "))
    }
}

#[cfg(test)]
mod tests;
