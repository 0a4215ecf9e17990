//! `ballast profile`: what this machine takes for a model's ops, measured into a file that plans are made with.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use engine::profile::{Drift, Profile, ProfileKey, Rough, STAGES, quick, refresh, take};
use engine::{DeviceChoice, EngineConfig, Foresight, StartError, TooSmall, blueprint, size};
use model::source::Places;
use policy::cost::{Correction, Linear, Pace, Tables};

use crate::args::{ActivationsAs, EngineArgs, Kv, LoadFormat, ProfileArgs, typed};
use crate::console::{note, show};
use crate::display::{Progress, Unit, Voice};
use crate::loaded::{self, Opened};
use crate::output_file::JsonReport;
use crate::resolve::{Needs, engine_config};
use crate::slow::Slow;

/// Needs of a command that only measures.
const NEEDS: Needs = Needs { seqs: 1, longest: None, kv_tokens: None, step_tokens: None, expected: None };

pub(crate) fn profile(args: ProfileArgs) -> Result<ExitCode> {
    let json = JsonReport::open(args.json.as_deref())?;
    args.engine.note_conversations();
    if args.engine.record.is_some() {
        note!("--record changes nothing here: no run is recorded");
    }
    let config = engine_config(&args.engine, NEEDS)?;
    let opened = loaded::open(args.model.as_deref(), &args.engine, Voice::Normal)?;
    let config = config.with_weights_in_room(&opened.checkpoint);
    let before = kept(&opened, &config)?;
    if args.refresh {
        return refreshed(&args, &opened, &config, before, json);
    }
    if before.is_some() {
        note!("there is a profile of this model on this machine: it will be replaced");
    }
    let profile = match taken(&opened, &config, &args.engine) {
        Err(StartError::TooSmall(TooSmall::Memory { need, limit, .. })) => bail!(
            "no room to measure the model as it runs: that takes {} in all, and less would find it in caches. Leave --memory \
             out, or raise it so far (here it is {})",
            size(&(need + config.memory.saturating_sub(limit))),
            size(&config.memory)
        ),
        taken => taken?,
    };
    let path = profile.keep(&folder())?;
    json.write(&profile)?;
    table(&profile.tables)?;
    note!("measured in {:.0} s, kept in {}", profile.seconds, path.display());
    Ok(ExitCode::SUCCESS)
}

/// Measures what drifts again.
fn refreshed(
    args: &ProfileArgs,
    opened: &Opened,
    config: &EngineConfig,
    before: Option<Profile>,
    json: JsonReport,
) -> Result<ExitCode> {
    let Some(before) = before else {
        bail!("there is no profile of this model on this machine to measure again: leave --refresh out");
    };
    let blueprint = blueprint(&opened.checkpoint, config);
    let (profile, drift) = refresh(before, &opened.checkpoint, &blueprint, config, &drive(&args.engine))?;
    profile.keep(&folder())?;
    let mut report = serde_json::to_value(&profile)?;
    report["drift"] = serde_json::to_value(drift)?;
    json.write(&report)?;
    let Drift { linears, attention, reads } = drift;
    show!(
        "times now over times then: linears {linears:.2}, attention {attention:.2}, reads of the drive {reads:.2}"
    )?;
    Ok(ExitCode::SUCCESS)
}

/// The folder of profiles.
fn folder() -> PathBuf {
    Places::from_env().cache.join("profiles")
}

/// The folder whose drive is measured.
pub(crate) fn drive(args: &EngineArgs) -> PathBuf {
    args.offload_dir.clone().unwrap_or_else(crate::resolve::packed_folder)
}

/// Measures now.
fn taken(opened: &Opened, config: &EngineConfig, args: &EngineArgs) -> Result<Profile, StartError> {
    let blueprint = blueprint(&opened.checkpoint, config);
    let progress = Progress::new("measuring", STAGES, Unit::Items, Voice::Normal);
    let profile = take(&opened.checkpoint, &blueprint, config, &drive(args), &|done| progress.set(done));
    progress.end();
    profile
}

/// Costs of what was measured before, or else now, and kept; where there is no room to measure as the model runs, roughly.
pub(crate) fn kept_or_taken(opened: &Opened, config: &EngineConfig, args: &EngineArgs) -> Result<Foresight> {
    if let Some(profile) = kept(opened, config)? {
        return Ok(foresight(profile));
    }
    note!("nothing was measured of this model on this machine yet (see `ballast profile`)");
    let profile = match taken(opened, config, args) {
        Err(StartError::TooSmall(TooSmall::Memory { .. })) => {
            note!(
                "--memory {} has no room to measure it well: costs are measured roughly (`{}` without --memory measures \
                 better, once)",
                size(&config.memory),
                as_typed(opened, config, args)
            );
            return rough(opened, config, args)?.with_context(|| {
                format!(
                    "--memory {} has not even room to measure one layer: run `{}` without it first",
                    size(&config.memory),
                    as_typed(opened, config, args)
                )
            });
        }
        taken => taken?,
    };
    let path = profile.keep(&folder())?;
    note!("measured in {:.0} s, kept for the next plan and run in {}", profile.seconds, path.display());
    Ok(foresight(profile))
}

/// The command that measures what a plan with these flags asks for: the same model, by the same name, kept and computed alike.
fn as_typed(opened: &Opened, config: &EngineConfig, args: &EngineArgs) -> String {
    let kept = typed(args.weights.as_kept(config.weights));
    let flags = [
        ("--weights", Some(kept)),
        ("--device", (config.device == DeviceChoice::Cuda).then(|| "cuda".to_owned())),
        ("--activations", (args.activations != ActivationsAs::Exact).then(|| typed(args.activations))),
        ("--kv", (args.kv != Kv::Auto).then(|| typed(args.kv))),
        ("--sparse-attention", args.sparse_attention.map(|share| share.to_string())),
        ("--load-format", (args.load_format != LoadFormat::Auto).then(|| typed(args.load_format))),
        ("--threads", args.threads.map(|threads| threads.to_string())),
        ("--offload-dir", args.offload_dir.as_ref().map(|folder| quoted(&folder.to_string_lossy()))),
    ];
    let flags = flags.into_iter().filter_map(|(flag, value)| Some(format!(" {flag} {}", value?)));
    format!("ballast profile {}{}", quoted(&opened.asked), flags.collect::<String>())
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-:@~+,=".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// What was measured before, if it was.
pub(crate) fn kept(opened: &Opened, config: &EngineConfig) -> Result<Option<Profile>> {
    let blueprint = blueprint(&opened.checkpoint, config);
    let key = ProfileKey::of(&opened.checkpoint, &blueprint, config)?;
    Ok(Profile::find(&folder(), &key)?)
}

/// For so long what was measured roughly is believed.
const ROUGH_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// What a plan is made with that a profile was found for: runs keep what they learn beside it.
pub(crate) fn foresight(profile: Profile) -> Foresight {
    learning(profile, folder())
}

fn learning(profile: Profile, folder: PathBuf) -> Foresight {
    let (tables, correction) = (profile.tables.clone(), profile.correction);
    let keep = move |learned: &Correction| {
        if let Err(why) = profile.learn(&folder, learned) {
            note!("what this run took is not kept for the next plan: {why}");
        }
    };
    Foresight { tables, correction, pace: Pace::default(), keep: Some(Arc::new(keep)) }
}

/// What was measured roughly on this drive in the last day, or else now, in a second or two; nothing where there is not even
/// room for one layer.
pub(crate) fn rough(opened: &Opened, config: &EngineConfig, args: &EngineArgs) -> Result<Option<Foresight>> {
    let (blueprint, folder) = (blueprint(&opened.checkpoint, config), folder().join("rough"));
    let key = ProfileKey::of(&opened.checkpoint, &blueprint, config)?;
    // One that cannot be read is measured again, and so is one that is old: nobody is told that there is one to renew.
    let oldest = SystemTime::now().checked_sub(ROUGH_FOR).unwrap_or(SystemTime::UNIX_EPOCH);
    if let Ok(Some(kept)) = Profile::find_since(&folder, &key, oldest) {
        return Ok(Some(learning(kept, folder)));
    }
    let _told = Slow::told("measuring roughly what this machine takes for a layer of this model");
    let begin = Instant::now();
    let Some(Rough { tables, whole }) = quick(&opened.checkpoint, &blueprint, config, &drive(args))? else {
        return Ok(None);
    };
    let seconds = begin.elapsed().as_secs_f64();
    let profile = Profile { key, tables, seconds, correction: Correction::default() };
    if whole && let Err(why) = profile.keep(&folder) {
        note!("{why}: the next start measures again");
    }
    Ok(Some(learning(profile, folder)))
}

fn table(tables: &Tables) -> Result<()> {
    const ROWS: [f64; 6] = [1.0, 8.0, 64.0, 256.0, 1024.0, 2048.0];
    show!("{:28}{}", "rows", ROWS.map(|rows| format!("{rows:>16}")).join(""))?;
    let linears = [("qkv", &tables.qkv), ("out", &tables.out), ("mlp", &tables.mlp), ("head", &tables.head)];
    for (name, linear) in linears {
        let rates: Vec<String> = ROWS.iter().map(|&rows| format!("{:>16}", rate(linear, rows))).collect();
        show!("{:28}{}", format!("{name} {}", linear.formats.join(" ")), rates.join(""))?;
    }
    for row in &tables.decode {
        let points = row.seconds.points().iter();
        let cells: Vec<String> = points.map(|(each, s)| format!("{each:>6}: {:8.1} us", s * 1e6)).collect();
        show!("decode, {:>3} sequences of   {}", row.seqs, cells.join("  "))?;
    }
    let prefill: Vec<String> =
        tables.prefill.points().iter().map(|(keys, s)| format!("{keys:>6}: {:.2} us", s * 1e6)).collect();
    show!("prefill, a row over keys    {}", prefill.join("  "))?;
    let reads: Vec<String> = tables
        .disk_read
        .points()
        .iter()
        .map(|(bytes, s)| format!("{:>5.0} KiB: {:.2} GB/s", bytes / 1024.0, bytes / s / 1e9))
        .collect();
    show!("drive, reads of             {}", reads.join("  "))?;
    let beside = tables.beside;
    show!(
        "drive written {:.2} GB/s; memory copied {:.1} GB/s; between steps {:.0} us, beside an op's kernels {:.1} us and {:.3} us for each sequence",
        tables.disk_write_bytes_per_s / 1e9,
        tables.copy_bytes_per_s / 1e9,
        tables.step_gap_s * 1e6,
        tables.node_s * 1e6,
        tables.node_sequence_s * 1e6
    )?;
    show!(
        "beside each other: reads take {:.2} times as long, linears {:.2} (few rows) to {:.2} (many); copies {:.2}, linears {:.2} \
         to {:.2}",
        beside.moved,
        beside.few_rows,
        beside.many_rows,
        tables.beside_copies.moved,
        tables.beside_copies.few_rows,
        tables.beside_copies.many_rows
    )
}

/// Bytes of weights, or operations, in a second.
fn rate(linear: &Linear, rows: f64) -> String {
    let seconds = linear.seconds.at(rows);
    if rows < 64.0 {
        format!("{:.1} GB/s", linear.bytes / seconds / 1e9)
    } else {
        format!("{:.2} TFLOP/s", rows * linear.flops() / seconds / 1e12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_typed() {
        let words = ["org/name:Q4_K_M", "a b", "it's", "$HOME"].map(quoted);
        assert_eq!(words, ["org/name:Q4_K_M", "'a b'", r"'it'\''s'", "'$HOME'"]);
    }
}
