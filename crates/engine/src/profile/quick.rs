//! A profile in a second or two, for a model that has none: one layer, few sizes, a small file on the drive.
//!
//! It takes no more memory than the engine that is planned with it: one layer beside embeddings and head, as a model has them
//! there whose layers pass through slots. What lies between the sizes that are measured is guessed, and so are the times
//! between steps, which are little where weights travel.

use std::io;
use std::path::Path;

use model::Checkpoint;
use model::decoder::{Blueprint, WorkSize};
use model::store::{Maker, SECTOR};
use policy::cost::{Curve, Decode, Tables};

use super::link::copy_bytes_per_s;
use super::rig::{Extent, Parts, Pass, Rig, Seqs, room};
use super::take::{
    Disturbed, beside, beside_copies, draw, halves, host_tables, least, linear_tables, median, on_host,
};
use super::trial_file::{PIECE_BYTES, TrialFile, room_for};
use super::wake::wake_s;
use crate::config::{DeviceChoice, EngineConfig};
use crate::plan::planned::StartError;

/// Rows of the larger and of the smaller rig. A GPU is at its best with more of them, which it computes in no time.
const ROWS: [usize; 4] = [1, 8, 64, 256];
const GPU_ROWS: [usize; 4] = [1, 8, 64, 1024];
const FEW_ROWS: [usize; 3] = [1, 8, 32];
/// From here on rows are those of prompts, of so many tokens.
const PROMPT: usize = 32;
/// Rows of the head.
const SAMPLES: usize = 8;
/// KV, and the longest context.
const EXTENT: Extent = Extent { layer_bytes: 0, kv_bytes: 32 << 20, positions: 512 };
/// Sequences of decode attention, and positions of each.
const SEQS: [usize; 2] = [1, 8];
const CONTEXTS: [usize; 3] = [32, 128, 512];
/// Runs of each, of which the least counts: there are too few to tell what is typical where other processes run.
const RUNS: usize = 6;
/// No factor of what runs beside the other is larger: more is not its doing.
const SLOWEST: f64 = 3.0;
/// Written to the drive, and read in these pieces.
const DRIVE_BYTES: u64 = 64 << 20;
const READS: [usize; 3] = [512 << 10, 4 << 20, 32 << 20];
/// Copied from memory to memory at a time.
const COPY_BYTES: usize = 8 << 20;
/// Between two steps, beside an op's kernels, and of that for each sequence, seconds: what profiles of processors say.
const STEP_S: f64 = 60e-6;
const NODE_S: f64 = 6e-6;
const NODE_SEQUENCE_S: f64 = 0.1e-6;

/// What was measured roughly.
pub struct Rough {
    /// The times.
    pub tables: Tables,
    /// Whether memory and drive had room for every size: only then is it as good for another budget.
    pub whole: bool,
}

/// Measures roughly; nothing where memory is too short for one layer and a few rows. Takes [`DRIVE_BYTES`] of `folder`'s drive
/// for a while, unless the engine may take less there.
///
/// # Errors
/// [`StartError`]: a checkpoint or a drive that cannot be read.
pub fn quick(
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    config: &EngineConfig,
    folder: &Path,
) -> Result<Option<Rough>, StartError> {
    let most = if config.device == DeviceChoice::Cuda { GPU_ROWS } else { ROWS };
    let rooms = [most.as_slice(), &FEW_ROWS].into_iter().map(|rows| (rows, size(rows, config)));
    let bytes = |size| Parts::of(checkpoint.spec(), blueprint, config, (size, EXTENT)).bytes() as u64;
    let buffer = buffer_bytes(config);
    // A device of its own has no buffers of ours.
    let reads = if config.device == DeviceChoice::Cuda { 0 } else { buffer as u64 };
    // What measures the host's own work is in its memory, beside what is on the device.
    let on_cpu = EngineConfig { device: DeviceChoice::Cpu, ..config.clone() };
    let host_bytes = |size| {
        Parts::of(checkpoint.spec(), blueprint, &on_cpu, (size, EXTENT)).bytes() as u64 + buffer as u64
    };
    let has_host = |size| config.device != DeviceChoice::Cuda || host_bytes(size) <= room(&on_cpu);
    let mut fitting = rooms.filter(|(_, size)| bytes(*size) + reads <= room(config) && has_host(*size));
    let Some((rows, size)) = fitting.next() else { return Ok(None) };
    let mut tables = Tables {
        step_gap_s: STEP_S,
        node_s: NODE_S,
        node_sequence_s: NODE_SEQUENCE_S,
        copy_bytes_per_s: copy_bytes_per_s(config, COPY_BYTES.min(buffer))?,
        ..Tables::default()
    };
    let rig = Rig::new(checkpoint, blueprint, config, (size, EXTENT))?;
    tables.wake_s = wake_s(&rig.team);
    linears(&rig, rows, &mut tables);
    attention(&rig, size.tokens, &mut tables);
    if config.device == DeviceChoice::Cuda {
        let host = on_host(checkpoint, blueprint, config, (size, EXTENT))?;
        let rows = rows.iter().map(|&rows| host.shortened(batch(rows)));
        let decodes = SEQS.iter().flat_map(|&count| CONTEXTS.map(|length| (count, length)));
        host_tables(&host, rows, decodes, &mut tables);
    }
    let refused = |source| StartError::Drive { folder: folder.display().to_string(), source };
    let Some((drive, written)) = trial(checkpoint, blueprint, config, folder).map_err(refused)? else {
        // Nothing of a size can live there.
        tables.disk_read = Curve::rate(tables.copy_bytes_per_s);
        tables.disk_write_bytes_per_s = tables.copy_bytes_per_s;
        return Ok(Some(Rough { tables, whole: false }));
    };
    let allowed = drive.bytes();
    tables.disk_write_bytes_per_s = drive.write_bytes_per_s();
    let mut reads = Vec::new();
    let longest = allowed.min(buffer as u64);
    for each in READS
        .into_iter()
        .chain(halves(&rig.blueprint.layers[0], longest))
        .filter(|&each| each as u64 <= longest)
    {
        let times = drive.read(each, allowed.min(16 * each as u64)).map_err(refused)?;
        reads.push((each as f64, median(times.into_iter())));
    }
    tables.disk_read = Curve::new(reads);
    let batches = [rows[1], rows[rows.len() - 1]].map(|rows| rig.shortened(batch(rows)));
    let disturbed = Disturbed {
        batches,
        turns: RUNS,
        typical: |times| least(times),
        slowest: SLOWEST,
        most_bytes: buffer,
    };
    tables.beside = beside(&rig, &drive, disturbed).map_err(refused)?;
    tables.beside_copies = beside_copies(&rig, disturbed, tables.copy_bytes_per_s).map_err(refused)?;
    let whole =
        rows.len() == ROWS.len() && written && allowed == DRIVE_BYTES && buffer == READS[READS.len() - 1];
    Ok(Some(Rough { tables, whole }))
}

/// What reads of the drive are measured with: a file that is written, or where that cannot be, weights that are there already, and
/// whether it is the former. Nothing where the engine may have nothing there.
fn trial(
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    config: &EngineConfig,
    folder: &Path,
) -> io::Result<Option<(TrialFile, bool)>> {
    let wanted = config.offload.disk.unwrap_or(u64::MAX).min(DRIVE_BYTES) / PIECE_BYTES * PIECE_BYTES;
    let written = match room_for(folder, wanted) {
        0 => Err(io::ErrorKind::StorageFull.into()),
        allowed => TrialFile::write(folder, allowed),
    };
    let home = config.offload.folder.as_deref().unwrap_or(folder);
    let store = Maker { checkpoint, blueprint, home }.panels();
    match written {
        Ok(trial) => Ok(Some((trial, true))),
        Err(_) if wanted == 0 => Ok(None),
        Err(why) => {
            let there = store.ok().and_then(|path| TrialFile::there(&path, wanted).ok());
            there.map(|trial| Some((trial, false))).ok_or(why)
        }
    }
}

/// What there is beside a rig for a buffer to read into, or for one of the six of a copy.
fn buffer_bytes(config: &EngineConfig) -> usize {
    let host = EngineConfig { device: DeviceChoice::Cpu, ..config.clone() };
    (room(&host) / 8 / SECTOR as u64 * SECTOR as u64).clamp(READS[0] as u64, READS[READS.len() - 1] as u64)
        as usize
}

fn size(rows: &[usize], config: &EngineConfig) -> WorkSize {
    WorkSize { tokens: rows[rows.len() - 1], samples: SAMPLES, dtype: config.dtype() }
}

/// Decodes, or prompts, that come to so many rows.
fn batch(rows: usize) -> Seqs {
    match rows {
        PROMPT.. => Seqs { count: rows / PROMPT, rows: PROMPT, length: PROMPT },
        _ => Seqs { count: rows, rows: 1, length: PROMPT },
    }
}

fn linears(rig: &Rig, rows: &[usize], tables: &mut Tables) {
    let passes = rows.iter().map(|&rows| {
        let passes: Vec<Pass> = (0..RUNS).map(|turn| rig.pass(rig.shortened(batch(rows)), turn)).collect();
        let of = |part: fn(&Pass) -> f64| least(passes.iter().map(part));
        let pass = Pass {
            embed: of(|pass| pass.embed),
            qkv: of(|pass| pass.qkv),
            attend: of(|pass| pass.attend),
            out: of(|pass| pass.out),
            mlp: of(|pass| pass.mlp),
        };
        let heads: Vec<(f64, f64)> = match rows {
            ..=SAMPLES => (0..RUNS).map(|_| rig.head(rows, &draw)).collect(),
            _ => Vec::new(),
        };
        let head = (least(heads.iter().map(|run| run.0)), least(heads.iter().map(|run| run.1)));
        (rows, vec![pass], heads.first().map(|_| head).into_iter().collect())
    });
    linear_tables(rig, passes.collect(), tables);
}

fn attention(rig: &Rig, rows: usize, tables: &mut Tables) {
    let timed = |seqs: Seqs| {
        let seqs = Some(seqs).filter(|&seqs| rig.has_room(seqs))?;
        Some(least((0..RUNS).map(|turn| rig.pass(seqs, turn).attend)))
    };
    for count in SEQS {
        let point = |length| Some((length as f64, timed(Seqs { count, rows: 1, length })?));
        let points: Vec<_> = CONTEXTS.into_iter().filter_map(point).collect();
        if !points.is_empty() {
            tables.decode.push(Decode { seqs: count as u32, seconds: Curve::new(points) });
        }
    }
    let prompts = [PROMPT, rows].into_iter().filter_map(|length| {
        let seconds = timed(Seqs { count: rows / length, rows: length, length })?;
        Some(((length + 1) as f64 / 2.0, seconds / rows as f64))
    });
    tables.prefill = Curve::new(prompts.collect());
}
