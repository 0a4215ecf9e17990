//! What drifts of a machine, measured again: clocks, neighbours and the drive make it faster and slower from hour to hour,
//! by about the same for all sizes of an op. A few sizes say by how much, and the whole profile follows.

use std::path::Path;
use std::time::Instant;

use model::Checkpoint;
use model::decoder::{Blueprint, WorkSize};
use policy::cost::{Correction, Decode, Linear, Tables};
use serde::{Deserialize, Serialize};

use super::rig::{Pass, Rig, Seqs};
use super::take::{disturbances, extent_of, median};
use super::trial_file::TrialFile;
use super::wake::wake_s;
use super::{Profile, take};
use crate::config::EngineConfig;
use crate::plan::planned::StartError;

/// Rows that linears are measured with, as decodes or as prompts of so many tokens.
const ROWS: [usize; 4] = [1, 16, 64, 512];
/// Decodes that attention is measured with, and positions of each: of so many that it takes much longer than to begin.
const DECODES: [(usize, usize); 4] = [(1, 2048), (4, 512), (16, 128), (16, 512)];
/// Prompts, and tokens of each.
const PROMPTS: [(usize, usize); 2] = [(4, 128), (1, 512)];
/// Runs of each that count, after one that does not.
const RUNS: usize = 9;
/// Bytes of a read, and of all reads.
const READ_BYTES: usize = 8 << 20;
const DRIVE_BYTES: u64 = 192 << 20;

/// Times now over times then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Of linears, and of what little is beside them.
    pub linears: f64,
    /// Of attention.
    pub attention: f64,
    /// Of reads of the drive.
    pub reads: f64,
}

impl Drift {
    /// None at all.
    pub const NONE: Drift = Drift { linears: 1.0, attention: 1.0, reads: 1.0 };

    /// This, then that.
    pub fn then(&self, later: &Drift) -> Drift {
        Drift {
            linears: self.linears * later.linears,
            attention: self.attention * later.attention,
            reads: self.reads * later.reads,
        }
    }

    fn of(&self, tables: Tables) -> Tables {
        let linear = |linear: Linear| Linear { seconds: linear.seconds.times(self.linears), ..linear };
        let decode = |row: Decode| Decode { seconds: row.seconds.times(self.attention), ..row };
        Tables {
            qkv: linear(tables.qkv),
            out: linear(tables.out),
            mlp: linear(tables.mlp),
            head: linear(tables.head),
            embed: tables.embed.times(self.linears),
            sample: tables.sample.times(self.linears),
            decode: tables.decode.into_iter().map(decode).collect(),
            prefill: tables.prefill.times(self.attention),
            disk_read: tables.disk_read.times(self.reads),
            ..tables
        }
    }
}

/// Measures what drifts of a profile again, in some seconds: the profile as it would be now, and by how much it is another.
///
/// # Errors
/// [`StartError`], as [`take`](super::take()).
pub fn refresh(
    profile: Profile,
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    config: &EngineConfig,
    folder: &Path,
) -> Result<(Profile, Drift), StartError> {
    let begin = Instant::now();
    let size = WorkSize { tokens: ROWS[ROWS.len() - 1], samples: 1, dtype: config.dtype() };
    let rig =
        Rig::new(checkpoint, blueprint, config, (size, extent_of(checkpoint, blueprint, config, size)?))?;
    let refused = |source| StartError::Drive { folder: folder.display().to_string(), source };
    let drive = TrialFile::within(folder, DRIVE_BYTES, config.offload.disk).map_err(refused)?;
    let tables = profile.tables;
    let (linears, attention) = compute(&rig, &tables);
    let read = median(drive.read(READ_BYTES, DRIVE_BYTES).map_err(refused)?.into_iter());
    let drift = Drift { linears, attention, reads: ratio(read, tables.disk_read.at(READ_BYTES as f64)) };
    let (beside, beside_copies) = disturbances(&rig, &drive, tables.copy_bytes_per_s).map_err(refused)?;
    let tables = Tables { beside, beside_copies, wake_s: wake_s(&rig.team), ..drift.of(tables) };
    let seconds = begin.elapsed().as_secs_f64();
    Ok((Profile { tables, seconds, correction: Correction::default(), ..profile }, drift))
}

/// The middle ones of what all sizes say. All sizes in each turn: what disturbs the machine for a while is not one size's.
fn compute(rig: &Rig, tables: &Tables) -> (f64, f64) {
    let rows = ROWS.map(|rows| rig.shortened(take::batch(rows)));
    let decodes = DECODES.map(|(count, length)| Seqs { count, rows: 1, length });
    let prompts = PROMPTS.map(|(count, rows)| Seqs { count, rows, length: rows });
    let attends: Vec<Seqs> = decodes.into_iter().chain(prompts).filter(|&seqs| rig.has_room(seqs)).collect();
    let sizes: Vec<Seqs> = rows.into_iter().chain(attends).collect();
    let turns: Vec<Vec<Pass>> =
        (0..=RUNS).map(|turn| sizes.iter().map(|&seqs| rig.pass(seqs, turn)).collect()).collect();
    let typical =
        |size: usize, part: fn(&Pass) -> f64| median(turns.iter().skip(1).map(|passes| part(&passes[size])));
    let linears = rows.iter().enumerate().map(|(size, seqs)| {
        let rows = (seqs.count * seqs.rows) as f64;
        let then = [&tables.qkv, &tables.out, &tables.mlp].map(|linear| linear.seconds.at(rows));
        ratio(typical(size, |pass| pass.qkv + pass.out + pass.mlp), then.iter().sum())
    });
    let attends = sizes.iter().enumerate().skip(ROWS.len());
    let attends =
        attends.map(|(size, &seqs)| ratio(typical(size, |pass| pass.attend), attention(tables, seqs)));
    (median(linears), Some(median(attends)).filter(|&attends| attends > 0.0).unwrap_or(1.0))
}

fn attention(tables: &Tables, seqs: Seqs) -> f64 {
    let rows = (seqs.count * seqs.rows) as f64;
    match seqs.rows {
        1 => tables.decode(seqs.count as f64, (seqs.count * seqs.length) as f64),
        _ => rows * tables.prefill.at((seqs.length + 1) as f64 / 2.0),
    }
}

fn ratio(now: f64, then: f64) -> f64 {
    if now > 0.0 && then > 0.0 { now / then } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::cost::Curve;

    #[test]
    fn a_profile_follows_its_drift() {
        let linear = Linear { seconds: Curve::rate(1.0), ..Linear::default() };
        let tables = Tables {
            mlp: linear,
            decode: vec![Decode { seqs: 1, seconds: Curve::rate(1.0) }],
            disk_read: Curve::rate(1.0),
            copy_bytes_per_s: 7.0,
            ..Tables::default()
        };
        let once = Drift { linears: 2.0, attention: 3.0, reads: 0.5 };
        let drifted = once.then(&Drift { linears: 1.5, ..Drift::NONE }).of(tables);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} for {b}");
        near(drifted.mlp.seconds.at(4.0), 12.0);
        near(drifted.decode(1.0, 4.0), 12.0);
        near(drifted.disk_read.at(4.0), 2.0);
        near(drifted.copy_bytes_per_s, 7.0);
    }
}
