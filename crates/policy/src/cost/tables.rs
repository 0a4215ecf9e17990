//! What a machine was measured to take for the ops of one model: the content of a profile.

use super::{Curve, Dims};
use crate::pipeline::Pauses;
use serde::{Deserialize, Serialize};
use spec::{ByTier, Bytes, DeviceSpec, DiskSpec, HardwareSpec, HostSpec, LinkSpec, Nanos, Tier};

/// Times of one device for one model, seconds. `ballast profile` fills them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tables {
    /// Norm, projections, and keys and values put into their pages; over rows.
    pub qkv: Linear,
    /// The projection after attention; over rows.
    pub out: Linear,
    /// Norm and MLP; over rows.
    pub mlp: Linear,
    /// The head, its norm included; over rows.
    pub head: Linear,
    /// Embedding; over rows.
    pub embed: Curve,
    /// Drawing tokens; over rows.
    pub sample: Curve,
    /// Decode attention of a layer: for a number of sequences, over the positions that each has.
    pub decode: Vec<Decode>,
    /// The same on the host, where its processor is not the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_decode: Vec<Decode>,
    /// Norm and MLP there, over rows.
    #[serde(default, skip_serializing_if = "Curve::is_empty")]
    pub host_mlp: Curve,
    /// Prefill attention of a layer: seconds for a row, over the keys that a row sees on average.
    pub prefill: Curve,
    /// A read of the drive, past the page cache; over bytes.
    pub disk_read: Curve,
    /// Bytes per second that the drive is written with.
    pub disk_write_bytes_per_s: f64,
    /// Bytes per second that one thread copies memory with: the link between host and device where both are memory.
    pub copy_bytes_per_s: f64,
    /// From the start of a step to its first op, and from its last to the next step.
    pub step_gap_s: f64,
    /// Until a lane works again that fell asleep while it waited, the threads that it computes with among it.
    #[serde(default)]
    pub wake_s: f64,
    /// What an op takes on its lane beside its kernels.
    pub node_s: f64,
    /// What it takes more for each sequence of its batch.
    pub node_sequence_s: f64,
    /// What reading and computing at the same time do to each other.
    pub beside: Beside,
    /// The same of copies between host and device, where these are made by threads of the processor that computes.
    #[serde(default)]
    pub beside_copies: Beside,
}

/// The weights of an op, and its times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Linear {
    /// Their formats in memory, the one with most bytes first.
    pub formats: Vec<String>,
    /// Output and input features of each matrix.
    pub matrices: Vec<(usize, usize)>,
    /// Bytes of them in memory.
    pub bytes: f64,
    /// Seconds over rows.
    pub seconds: Curve,
}

impl Linear {
    /// Operations of a row.
    pub fn flops(&self) -> f64 {
        self.matrices.iter().map(|(n, k)| 2.0 * *n as f64 * *k as f64).sum()
    }
}

/// Decode attention of so many sequences.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decode {
    /// Sequences of the batch.
    pub seqs: u32,
    /// Seconds over the positions of each.
    pub seconds: Curve,
}

/// Factors of time while bytes are moved and the device computes, over each alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// Of what is moved: reads of the drive, or copies of memory.
    pub moved: f64,
    /// Of linears over few rows, which are bound by memory.
    pub few_rows: f64,
    /// Of linears over many rows, which are bound by arithmetic.
    pub many_rows: f64,
}

impl Default for Beside {
    fn default() -> Self {
        Self { moved: 1.0, few_rows: 1.0, many_rows: 1.0 }
    }
}

/// Rows from which linears count as many; between one and these, the factor goes from that of few to that of many.
const MANY_ROWS: f64 = 256.0;

impl Beside {
    /// Of linears over so many rows.
    pub fn linear(&self, rows: f64) -> f64 {
        let share = (rows.max(1.0).ln() / MANY_ROWS.ln()).min(1.0);
        self.few_rows + (self.many_rows - self.few_rows) * share
    }
}

impl Tables {
    /// When nothing runs.
    pub fn pauses(&self) -> Pauses {
        Pauses { gap: Nanos::from_secs(self.step_gap_s), wake: Nanos::from_secs(self.wake_s) }
    }

    /// Decode attention of a layer over `positions` in all: between two measured numbers of sequences a straight line,
    /// beyond the largest in proportion.
    pub fn decode(&self, seqs: f64, positions: f64) -> f64 {
        between(&self.decode, seqs, positions)
    }

    /// The same on a tier's own processor.
    pub fn decode_on(&self, on: Tier, seqs: f64, positions: f64) -> f64 {
        let apart = on != Tier::Device && !self.host_decode.is_empty();
        between(if apart { &self.host_decode } else { &self.decode }, seqs, positions)
    }

    /// Norm and MLP over so many rows, on a tier's own processor.
    pub fn mlp_on(&self, on: Tier, rows: f64) -> f64 {
        let apart = on != Tier::Device && !self.host_mlp.is_empty();
        if apart { self.host_mlp.at(rows) } else { self.mlp.seconds.at(rows) }
    }

    /// The same machine as a few rates, for the linear programme: linears at their best, attention over a few hundred
    /// positions, large reads. Memory is for the caller to say.
    pub fn rates(&self, dims: &Dims, kv_bytes: f64, memory: ByTier<Bytes>) -> HardwareSpec {
        let linears = [&self.qkv, &self.out, &self.mlp];
        let layer = |rows: f64| linears.iter().map(|linear| linear.seconds.at(rows)).sum::<f64>();
        let flops: f64 = linears.iter().map(|linear| linear.flops()).sum();
        let bytes: f64 = linears.iter().map(|linear| linear.bytes).sum();
        let rows = self.mlp.seconds.points().iter().map(|(rows, _)| *rows);
        let best = |rate: &dyn Fn(f64) -> f64| rows.clone().map(rate).fold(1.0, f64::max);
        let (keys, seqs, each) = (256.0, 16.0, 512.0);
        let attention = 4.0 * (dims.heads * dims.head_dim) as f64 * keys / self.prefill.at(keys).max(1e-12);
        let kv =
            seqs * each * dims.kv() * kv_bytes / self.decode_on(Tier::Host, seqs, seqs * each).max(1e-12);
        let link = LinkSpec { bytes_per_s: self.copy_bytes_per_s, latency: Nanos::ZERO };
        let matmul_flops = best(&|rows| rows * flops / layer(rows));
        HardwareSpec {
            name: "this machine".into(),
            devices: 1,
            device: DeviceSpec {
                memory: memory.device,
                read_bytes_per_s: best(&|rows| bytes / layer(rows)),
                matmul_flops,
                attention_flops: attention,
                launch: Nanos::ZERO,
            },
            host: HostSpec {
                memory: memory.host,
                attention_bytes_per_s: kv,
                matmul_flops,
                launch: Nanos::ZERO,
            },
            disk: DiskSpec {
                capacity: memory.disk,
                read_bytes_per_s: self.disk_read.best_rate(),
                write_bytes_per_s: self.disk_write_bytes_per_s,
                latency: Nanos::ZERO,
            },
            up: link,
            down: link,
            peer: link,
            step_gap: Nanos::from_secs(self.step_gap_s),
        }
    }

    /// What is wrong with tables that somebody else may have written, if something is.
    pub fn fault(&self) -> Option<String> {
        let linears = [("qkv", &self.qkv), ("out", &self.out), ("mlp", &self.mlp), ("head", &self.head)];
        let linears = linears.map(|(name, linear)| (name, &linear.seconds));
        let others = [
            ("embed", &self.embed),
            ("sample", &self.sample),
            ("prefill", &self.prefill),
            ("disk_read", &self.disk_read),
        ];
        let decodes = self.decode.iter().map(|row| ("decode", &row.seconds));
        let needed = linears.into_iter().chain(others).chain(decodes);
        let host = self.host_decode.iter().map(|row| ("host_decode", &row.seconds));
        let all = needed.clone().chain([("host_mlp", &self.host_mlp)]).chain(host);
        if let Some((name, _)) = needed.clone().find(|(_, curve)| curve.is_empty()) {
            return Some(format!("the table {name} is empty"));
        }
        let sound = |seconds: f64| (0.0..=LONGEST_S).contains(&seconds);
        if let Some((name, _)) =
            all.clone().find(|(_, curve)| !curve.points().iter().all(|point| sound(point.1)))
        {
            return Some(format!("a time of {name} is none: more than {LONGEST_S} s"));
        }
        let ordered = |rows: &[Decode]| rows.is_sorted_by(|a, b| a.seqs < b.seqs);
        if self.decode.is_empty() || !ordered(&self.decode) || !ordered(&self.host_decode) {
            return Some("decode has no rows, or not in order of their sequences".into());
        }
        let takes = |curve: &Curve| curve.points().last().is_some_and(|point| point.1 > 0.0);
        if let Some((name, _)) = linears.iter().find(|(_, curve)| !takes(curve)) {
            return Some(format!("{name} takes no time"));
        }
        let factors = [self.beside, self.beside_copies].map(|by| [by.moved, by.few_rows, by.many_rows]);
        if let Some(factor) = factors.as_flattened().iter().find(|factor| !FACTORS.contains(factor)) {
            return Some(format!("a factor of what runs beside the other is {factor}"));
        }
        let pauses = [
            ("step_gap_s", self.step_gap_s),
            ("wake_s", self.wake_s),
            ("node_s", self.node_s),
            ("node_sequence_s", self.node_sequence_s),
        ];
        let rates = [
            ("copy_bytes_per_s", self.copy_bytes_per_s),
            ("disk_write_bytes_per_s", self.disk_write_bytes_per_s),
        ];
        let pauses = pauses.into_iter().filter(|(_, seconds)| !sound(*seconds));
        let rates = rates.into_iter().filter(|(_, rate)| !(rate.is_finite() && *rate > 0.0));
        pauses.chain(rates).next().map(|(name, found)| format!("{name} is {found}"))
    }
}

/// Longer takes nothing that is measured.
const LONGEST_S: f64 = 1e6;
/// What one thing may do to another beside it.
const FACTORS: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// Decode attention by rows for so many sequences, `positions` in all.
fn between(rows: &[Decode], seqs: f64, positions: f64) -> f64 {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return 0.0 };
    if seqs <= 0.0 || positions <= 0.0 {
        return 0.0;
    }
    let each = positions / seqs;
    let at = |row: &Decode| row.seconds.at(each);
    if seqs <= f64::from(first.seqs) {
        return at(first);
    }
    if seqs >= f64::from(last.seqs) {
        return at(last) * seqs / f64::from(last.seqs);
    }
    let above = rows.partition_point(|row| f64::from(row.seqs) <= seqs);
    let (low, high) = (&rows[above - 1], &rows[above]);
    let (x0, x1) = (f64::from(low.seqs), f64::from(high.seqs));
    at(low) + (at(high) - at(low)) * (seqs - x0) / (x1 - x0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_attention_lies_between_what_was_measured() {
        let row =
            |seqs, each: f64| Decode { seqs, seconds: Curve::new(vec![(1.0, each), (101.0, 101.0 * each)]) };
        let tables = Tables { decode: vec![row(1, 1.0), row(5, 3.0)], ..Tables::default() };
        assert_eq!(tables.decode(1.0, 50.0), 50.0);
        assert_eq!(tables.decode(5.0, 250.0), 150.0);
        assert_eq!(tables.decode(3.0, 150.0), 100.0);
        assert_eq!(tables.decode(10.0, 500.0), 300.0);
        assert_eq!((tables.decode(0.0, 10.0), tables.decode(2.0, 0.0)), (0.0, 0.0));
    }

    #[test]
    fn what_cannot_have_been_measured_is_a_fault() {
        let curve = |seconds| Curve::new(vec![(1.0, seconds / 2.0), (8.0, seconds)]);
        let linear = || Linear { seconds: curve(1e-3), ..Linear::default() };
        let row = |seqs| Decode { seqs, seconds: curve(1e-3) };
        let sound = || Tables {
            qkv: linear(),
            out: linear(),
            mlp: linear(),
            head: linear(),
            embed: curve(0.0),
            sample: curve(1e-3),
            prefill: curve(1e-3),
            disk_read: curve(1e-3),
            decode: vec![row(1), row(4)],
            copy_bytes_per_s: 1e9,
            disk_write_bytes_per_s: 1e9,
            ..Tables::default()
        };
        assert_eq!(sound().fault(), None);
        type Change = fn(&mut Tables);
        let faults: [(&str, Change); 8] = [
            ("table embed is empty", |tables| tables.embed = Curve::default()),
            ("a time of head", |tables| tables.head.seconds = Curve::new(vec![(1.0, 1e9)])),
            ("not in order", |tables| tables.decode.reverse()),
            ("not in order", |tables| tables.decode.clear()),
            ("mlp takes no time", |tables| tables.mlp.seconds = Curve::new(vec![(1.0, -1.0)])),
            ("is 1000", |tables| tables.beside.few_rows = 1000.0),
            ("wake_s is -1", |tables| tables.wake_s = -1.0),
            ("copy_bytes_per_s is 0", |tables| tables.copy_bytes_per_s = 0.0),
        ];
        for (fault, make) in faults {
            let mut tables = sound();
            make(&mut tables);
            let found = tables.fault();
            assert!(found.as_ref().is_some_and(|found| found.contains(fault)), "{fault}: {found:?}");
        }
    }

    #[test]
    fn the_factor_of_linears_goes_from_few_rows_to_many() {
        let beside = Beside { moved: 1.0, few_rows: 1.2, many_rows: 1.6 };
        assert_eq!((beside.linear(1.0), beside.linear(4096.0)), (1.2, 1.6));
        assert!((beside.linear(16.0) - 1.4).abs() < 1e-9);
    }
}
