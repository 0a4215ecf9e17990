//! The order in which things are measured.

use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kernels::calibrate::copy_until;
use kernels::linear::Format;
use model::Checkpoint;
use model::decoder::{Blueprint, LayerPlan, MatrixPlan, WorkSize};
use model::sampling::{Sampler, SamplingParams};
use model::store::SECTOR;
use policy::cost::{Beside, Correction, Curve, Decode, Linear, Tables};

use super::link::copy_bytes_per_s;
use super::rig::{Extent, Pass, Rig, Seqs, room};
use super::trial_file::TrialFile;
use super::wake::wake_s;
use super::{Profile, ProfileKey, overhead};
use crate::config::{DeviceChoice, EngineConfig};
use crate::plan::planned::StartError;

/// Rows that linears are measured with.
const ROWS: [usize; 19] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048];
/// From here on rows are those of prompts.
const PROMPT_ROWS: usize = 384;
/// Tokens of those prompts.
const PROMPT: usize = 128;
/// Most rows of the head.
const SAMPLES: usize = 256;
/// Sequences of decode attention.
const SEQS: [usize; 5] = [1, 4, 16, 64, 256];
/// Positions of each.
const CONTEXTS: [usize; 5] = [32, 128, 512, 2048, 8192];
/// Lengths of prompts in prefill attention, and rows of a batch of them.
const PROMPTS: [usize; 7] = [16, 32, 128, 256, 512, 1024, 2048];
const PREFILL_ROWS: usize = 1024;
/// Bytes of a read of the drive.
const READS: [usize; 7] = [128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 64 << 20, 128 << 20];
/// Bytes that are written to the drive.
const DRIVE_BYTES: u64 = 512 << 20;
/// Bytes that are read from it in each size, at the most.
const READ_BYTES: u64 = 384 << 20;
/// Rows of passes beside reads.
const BESIDE_ROWS: [usize; 2] = [8, 512];
/// Rows that a host may compute linears of.
const HOST_ROWS: usize = 64;
/// Runs of each.
const BESIDE_TURNS: usize = 5;
/// And at the least: two times are held against each other.
const BESIDE_TURNS_MIN: usize = 3;
/// What takes as long says enough: it has met what disturbs a machine, and of a large model on a slow one runs take ten seconds.
const LONG: Duration = Duration::from_secs(2);
/// Bytes of reads beside passes, at the most: larger ones fare the same.
const BESIDE_BYTES: u64 = 8 << 20;
/// Bytes of copies beside passes: six of these are within a rig's margin.
const COPIED_BYTES: usize = 2 << 20;
/// Copied from memory to memory at a time.
const COPY_BYTES: usize = 64 << 20;
/// No factor of what runs beside the other is larger.
const SLOWEST: f64 = 10.0;

/// How many times `progress` is told that something is done.
pub const STAGES: u64 = (ROWS.len() + SEQS.len() * CONTEXTS.len() + PROMPTS.len() + READS.len() + 7) as u64;

/// Measures what a profile holds; takes a minute or two (of a 7B model on two cores with AVX2: four), about 2 GiB of memory where the
/// engine may take as much (else what it may, which is enough from some 400 MiB on), and half a GiB of `folder`'s drive for a while (of
/// what the engine may take there, 128 MiB at the least). `progress` is told how many of
/// [`STAGES`] are done.
///
/// # Errors
/// [`StartError`]: too little memory or room on the drive, or a checkpoint that cannot be read.
pub fn take(
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    config: &EngineConfig,
    folder: &Path,
    progress: &dyn Fn(u64),
) -> Result<Profile, StartError> {
    let begin = Instant::now();
    let size = WorkSize { tokens: ROWS[ROWS.len() - 1], samples: SAMPLES, dtype: config.dtype() };
    let mut stage = Stages { done: 0, progress };
    let fitting = |config: &EngineConfig| extent_of(checkpoint, blueprint, config, size);
    let extent = fitting(config)?;
    let overhead = overhead::measure(checkpoint.spec(), config)?;
    let copy_bytes_per_s = copy_bytes_per_s(config, COPY_BYTES.min(buffer_bytes(config)))?;
    stage.next();
    let rig = Rig::new(checkpoint, blueprint, config, (size, extent))?;
    stage.next();
    let refused = |source| StartError::Drive { folder: folder.display().to_string(), source };
    let drive = TrialFile::within(folder, DRIVE_BYTES, config.offload.disk).map_err(refused)?;
    stage.next();
    let mut tables = Tables {
        step_gap_s: overhead.step_s,
        wake_s: wake_s(&rig.team),
        node_s: overhead.node_s,
        node_sequence_s: overhead.node_sequence_s,
        copy_bytes_per_s,
        disk_write_bytes_per_s: drive.write_bytes_per_s(),
        ..Tables::default()
    };
    stage.next();
    linears(&rig, &mut tables, &mut stage);
    attention(&rig, &mut tables, &mut stage);
    if config.device == DeviceChoice::Cuda {
        let on_cpu = EngineConfig { device: DeviceChoice::Cpu, ..config.clone() };
        let extent = Extent { layer_bytes: 0, ..fitting(&on_cpu)? };
        let host = on_host(checkpoint, blueprint, config, (size, extent))?;
        let few = ROWS.into_iter().filter(|&rows| rows <= HOST_ROWS);
        let rows = few.map(|rows| host.shortened(batch(rows)));
        host_tables(
            &host,
            rows,
            SEQS.iter().flat_map(|&count| CONTEXTS.map(|length| (count, length))),
            &mut tables,
        );
    }
    let most = buffer_bytes(config).min(drive.bytes() as usize);
    tables.disk_read = reads(&drive, most, &rig.blueprint.layers[0], &mut stage).map_err(refused)?;
    (tables.beside, tables.beside_copies) = disturbances(&rig, &drive, copy_bytes_per_s).map_err(refused)?;
    stage.next();
    let key = ProfileKey::of(checkpoint, blueprint, config)?;
    Ok(Profile { key, tables, seconds: begin.elapsed().as_secs_f64(), correction: Correction::default() })
}

/// How much of a model is loaded to be measured.
pub(super) fn extent_of(
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    config: &EngineConfig,
    size: WorkSize,
) -> Result<Extent, StartError> {
    Ok(Extent::BEYOND_CACHES.within(rig_room(config), checkpoint.spec(), blueprint, (config, size))?)
}

/// What passes of few rows and of many do to reads and copies, and these to them.
pub(super) fn disturbances(rig: &Rig, drive: &TrialFile, copied: f64) -> io::Result<(Beside, Beside)> {
    let batches = BESIDE_ROWS.map(|rows| rig.shortened(batch(rows)));
    let what = Disturbed {
        batches,
        turns: BESIDE_TURNS,
        typical: |times| median(times.into_iter()),
        slowest: SLOWEST,
        most_bytes: usize::MAX,
    };
    Ok((beside(rig, drive, what)?, beside_copies(rig, what, copied)?))
}

struct Stages<'a> {
    done: u64,
    progress: &'a dyn Fn(u64),
}

impl Stages<'_> {
    fn next(&mut self) {
        self.done += 1;
        (self.progress)(self.done);
    }
}

/// Decodes of short sequences, or prompts, that come to so many rows.
pub(super) fn batch(rows: usize) -> Seqs {
    match rows {
        PROMPT_ROWS.. => Seqs { count: rows / PROMPT, rows: PROMPT, length: PROMPT },
        _ => Seqs { count: rows, rows: 1, length: 32 },
    }
}

/// What so many runs find; of runs that have taken [`LONG`] by then no more than the least.
fn repeated<T>(times: RangeInclusive<usize>, run: impl FnMut(usize) -> T) -> Vec<T> {
    repeated_for(LONG, times, run)
}

fn repeated_for<T>(long: Duration, times: RangeInclusive<usize>, mut run: impl FnMut(usize) -> T) -> Vec<T> {
    let begin = Instant::now();
    let mut found = Vec::new();
    while found.len() < *times.end() && (found.len() < *times.start() || begin.elapsed() < long) {
        found.push(run(found.len()));
    }
    found
}

/// More repetitions of what is short.
fn repetitions(rows: usize) -> usize {
    if rows < PROMPT_ROWS { 7 } else { 3 }
}

fn linears(rig: &Rig, tables: &mut Tables, stage: &mut Stages<'_>) {
    let mut all = Vec::new();
    // Page faults of the first pass are not the machine's speed.
    rig.pass(rig.shortened(batch(ROWS[ROWS.len() - 1])), 0);
    for rows in ROWS {
        let batch = rig.shortened(batch(rows));
        let run = |turn| (rig.pass(batch, turn), (rows <= SAMPLES).then(|| rig.head(rows, &draw)));
        let (passes, heads): (_, Vec<_>) = repeated(1..=repetitions(rows), run).into_iter().unzip();
        all.push((rows, passes, heads.into_iter().flatten().collect()));
        stage.next();
    }
    linear_tables(rig, all, tables);
}

/// Passes of so many rows, and heads of as many with what drawing took; none of more rows than are drawn from.
pub(super) type Passes = (usize, Vec<Pass>, Vec<(f64, f64)>);

/// Fills tables of linears, embedding and drawing with the medians of passes.
pub(super) fn linear_tables(rig: &Rig, all: Vec<Passes>, tables: &mut Tables) {
    let mut points: [Vec<(f64, f64)>; 4] = Default::default();
    let (mut head, mut sample) = (Vec::new(), Vec::new());
    for (rows, passes, heads) in all {
        let parts: [fn(&Pass) -> f64; 4] = [|p| p.embed, |p| p.qkv, |p| p.out, |p| p.mlp];
        for (points, part) in points.iter_mut().zip(parts) {
            points.push((rows as f64, median(passes.iter().map(part))));
        }
        if !heads.is_empty() {
            head.push((rows as f64, median(heads.iter().map(|run| run.0))));
            sample.push((rows as f64, median(heads.iter().map(|run| run.1))));
        }
    }
    tables.sample = Curve::new(sample);
    let matrix = rig.blueprint.head.as_ref().unwrap_or(&rig.blueprint.embed);
    tables.head = Linear {
        formats: formats(std::iter::once(matrix)),
        matrices: vec![(matrix.n, matrix.k)],
        bytes: matrix.bytes() as f64,
        seconds: Curve::new(head).in_pieces(),
    };
    let [embed, qkv, out, mlp] = points.map(|points| Curve::new(points).in_pieces());
    let layers = &rig.blueprint.layers;
    tables.embed = embed;
    tables.qkv = linear(layers, |layer| layer.qkv.iter().collect(), qkv);
    tables.out = linear(layers, |layer| vec![&layer.out], out);
    tables.mlp = linear(layers, |layer| vec![&layer.up, &layer.down], mlp);
}

/// Matrices of the first layer stand for all; bytes are the layers' average.
fn linear(layers: &[LayerPlan], of: impl Fn(&LayerPlan) -> Vec<&MatrixPlan>, seconds: Curve) -> Linear {
    let bytes: usize = layers.iter().flat_map(&of).map(MatrixPlan::bytes).sum();
    let first: Vec<&MatrixPlan> = layers.first().map(of).unwrap_or_default();
    Linear {
        formats: formats(
            layers
                .iter()
                .flat_map(|layer| of_all(layer))
                .filter(|m| first.iter().any(|f| f.k == m.k && f.n == m.n)),
        ),
        matrices: first.iter().map(|m| (m.n, m.k)).collect(),
        bytes: bytes as f64 / layers.len().max(1) as f64,
        seconds,
    }
}

fn of_all(layer: &LayerPlan) -> Vec<&MatrixPlan> {
    layer.qkv.iter().chain([&layer.out, &layer.up, &layer.down]).collect()
}

fn formats<'a>(matrices: impl Iterator<Item = &'a MatrixPlan>) -> Vec<String> {
    let mut names = Vec::new();
    for format in matrices.map(|matrix| matrix.format) {
        let name = match format {
            Format::Narrow(narrow) => format!("{narrow:?}"),
            wide => format!("{wide:?}"),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// What a greedy request does with its logits.
pub(super) fn draw(logits: &[f32]) {
    let drawn = Sampler::new(SamplingParams::greedy(), &[], &[], 0).sample(logits);
    std::hint::black_box(drawn.is_ok());
}

fn attention(rig: &Rig, tables: &mut Tables, stage: &mut Stages<'_>) {
    // In whole passes: what attention reads was written by another core, or long ago.
    let timed = |seqs: Seqs| {
        let times = repeated(1..=5, |turn| rig.pass(seqs, turn).attend);
        let first = usize::from(times.len() > 1);
        median(times.into_iter().skip(first))
    };
    for count in SEQS {
        let mut points = Vec::new();
        for length in CONTEXTS {
            let seqs = Seqs { count, rows: 1, length };
            if rig.has_room(seqs) {
                points.push((length as f64, timed(seqs)));
            }
            stage.next();
        }
        if !points.is_empty() {
            tables.decode.push(Decode { seqs: count as u32, seconds: Curve::new(points) });
        }
    }
    let mut prefill = Vec::new();
    for length in PROMPTS {
        let seqs = Seqs { count: (PREFILL_ROWS / length).max(1), rows: length, length };
        if rig.has_room(seqs) {
            let rows = (seqs.count * seqs.rows) as f64;
            prefill.push(((length + 1) as f64 / 2.0, timed(seqs) / rows));
        }
        stage.next();
    }
    tables.prefill = Curve::new(prefill);
}

/// The host's processor beside a device that is another.
pub(super) fn on_host(
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    config: &EngineConfig,
    size: (WorkSize, Extent),
) -> Result<Rig, StartError> {
    let config = EngineConfig { device: DeviceChoice::Cpu, ..config.clone() };
    Rig::new(checkpoint, blueprint, &config, size)
}

/// What the host may be given to do: linears of these batches, decodes of so many sequences and so many positions each.
pub(super) fn host_tables(
    rig: &Rig,
    batches: impl Iterator<Item = Seqs>,
    decodes: impl Iterator<Item = (usize, usize)>,
    tables: &mut Tables,
) {
    let timed =
        |seqs: Seqs, part: fn(&Pass) -> f64| median((0..4).map(|turn| part(&rig.pass(seqs, turn))).skip(1));
    let batches = batches.filter(|&batch| rig.has_room(batch));
    let mlp = batches.map(|batch| ((batch.count * batch.rows) as f64, timed(batch, |pass| pass.mlp)));
    tables.host_mlp = Curve::new(mlp.collect());
    for (count, length) in decodes {
        let seqs = Seqs { count, rows: 1, length };
        if !rig.has_room(seqs) {
            continue;
        }
        let point = (length as f64, timed(seqs, |pass| pass.attend));
        match tables.host_decode.last_mut().filter(|row| row.seqs == count as u32) {
            Some(row) => row.seconds = Curve::new([row.seconds.points(), &[point]].concat()),
            None => tables.host_decode.push(Decode { seqs: count as u32, seconds: Curve::new(vec![point]) }),
        }
    }
}

/// What is left beside a rig for a buffer to read into, or for one of those that are copied between.
fn buffer_bytes(config: &EngineConfig) -> usize {
    let host = EngineConfig { device: DeviceChoice::Cpu, ..config.clone() };
    (room(&host) / 8).clamp(READS[0] as u64, READS[READS.len() - 1] as u64) as usize
}

/// What is left for the rig.
fn rig_room(config: &EngineConfig) -> u64 {
    let buffer = if config.device == DeviceChoice::Cuda { 0 } else { buffer_bytes(config) as u64 };
    room(config).saturating_sub(buffer)
}

/// Of sizes from small to large, and of those that a layer has.
fn reads(drive: &TrialFile, most: usize, layer: &LayerPlan, stage: &mut Stages<'_>) -> io::Result<Curve> {
    let mut points = Vec::new();
    for each in READS.into_iter().chain(halves(layer, most as u64)) {
        if each > most {
            stage.next();
            continue;
        }
        // Small reads say enough after fewer bytes.
        let in_all = READ_BYTES.min(48 * each as u64);
        points.push((each as f64, median(drive.read(each, in_all)?.into_iter())));
        stage.next();
    }
    Ok(Curve::new(points))
}

/// Passes, and what is moved beside them.
#[derive(Clone, Copy)]
pub(super) struct Disturbed {
    /// Of few rows, and of many.
    pub(super) batches: [Seqs; 2],
    pub(super) turns: usize,
    /// What turns say together.
    pub(super) typical: fn(Vec<f64>) -> f64,
    /// No factor is larger.
    pub(super) slowest: f64,
    /// Of memory that reads go to, and of that which is copied.
    pub(super) most_bytes: usize,
}

/// Bytes of the reads of a layer that is streamed as a whole: attention's weights and the MLP's. Small reads suffer more from
/// what runs beside them than large ones: each begins with waking those who ask the drive.
pub(super) fn halves(layer: &LayerPlan, most: u64) -> [usize; 2] {
    let bytes = |plans: &[&MatrixPlan]| plans.iter().map(|plan| plan.bytes()).sum::<usize>();
    let attention: Vec<&MatrixPlan> = layer.qkv.iter().chain([&layer.out]).collect();
    let most = (most as usize / SECTOR).max(1) * SECTOR;
    [bytes(&attention), bytes(&[&layer.up, &layer.down])]
        .map(|bytes| bytes.next_multiple_of(SECTOR).clamp(SECTOR, most))
}

/// What passes and reads do to each other.
pub(super) fn beside(rig: &Rig, drive: &TrialFile, what: Disturbed) -> io::Result<Beside> {
    let sizes = halves(&rig.blueprint.layers[0], BESIDE_BYTES.min(drive.bytes()).min(what.most_bytes as u64));
    let times = drive.read_by_turns(&sizes)?;
    let bytes: usize = sizes.iter().cycle().take(times.len()).sum();
    let alone = bytes as f64 / times.iter().sum::<f64>();
    disturbed(rig, what, alone, &|stop, read| drive.read_until(stop, &sizes, read))
}

/// What passes and copies of memory do to each other; nothing where the device's bytes are moved by itself.
pub(super) fn beside_copies(rig: &Rig, what: Disturbed, alone: f64) -> io::Result<Beside> {
    if rig.device.is_far() {
        return Ok(Beside::default());
    }
    disturbed(rig, what, alone, &|stop, copied| {
        copy_until(COPIED_BYTES.min(what.most_bytes / 6), stop, copied);
        Ok(())
    })
}

/// Passes alone, and beside what moves bytes until it is stopped, and counts them; `alone` of them in a second by itself.
fn disturbed(
    rig: &Rig,
    what: Disturbed,
    alone: f64,
    moves: &(dyn Fn(&AtomicBool, &AtomicU64) -> io::Result<()> + Sync),
) -> io::Result<Beside> {
    let Disturbed { batches, turns, typical, slowest, .. } = what;
    let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    let layers = |pass: &Pass| pass.qkv + pass.out + pass.mlp;
    let turns = BESIDE_TURNS_MIN.min(turns)..=turns;
    let time = |batch| typical(repeated(turns.clone(), |turn| layers(&rig.pass(batch, turn))));
    let quiet = batches.map(time);
    let (pressed, result) = std::thread::scope(|scope| {
        let stops = Stops(&stop);
        let mover = scope.spawn(|| moves(&stop, &moved));
        let begin = Instant::now();
        let pressed = batches.map(time);
        let rate = moved.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
        drop(stops);
        let ended = mover.join().unwrap_or_else(|_| Err(io::Error::other("what moved bytes panicked")));
        ((pressed, rate), ended)
    });
    result?;
    let (times, rate) = pressed;
    let factor = |i: usize| (times[i] / quiet[i]).clamp(1.0, slowest);
    // A mover that never had its turn says that it is slow, not how slow.
    Ok(Beside { moved: (alone / rate).clamp(1.0, slowest), few_rows: factor(0), many_rows: factor(1) })
}

/// Ends the reader, also where a pass panics: a scope waits for its threads.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The least: what disturbs a machine only ever adds to it.
pub(super) fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().min_by(f64::total_cmp).unwrap_or(0.0)
}

/// The middle one.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_run_less_often() {
        let turns = |long| repeated_for(long, 2..=4, |turn| turn);
        assert_eq!(turns(Duration::MAX), [0, 1, 2, 3]);
        assert_eq!(turns(Duration::ZERO), [0, 1]);
    }
}
