//! `bench plan`: what the planner predicts, frozen, beside what the engine then does.
//!
//! For each model the machine is measured (`ballast profile`). Then, for each setting: what drifts of a machine is measured
//! again (`ballast profile --refresh`), the setting is planned with that (`ballast plan`), the prediction is written, and only
//! then is the plan run as it was emitted (`ballast bench throughput --config`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use engine::profile::Drift;
use engine::size;
use serde::Serialize;

use super::child::{Desk, number};
use super::foretold::{Foretold, Requests, percent, subject, summary, words, write};
use crate::args::{BenchPlanArgs, LoadFormat};
use crate::console::{note, show};
use crate::output_file::OutputFile;

/// Shares of the layers' weights that the budget leaves room for, sequences at once, requests, tokens in and out.
const SETTINGS: [(f64, usize, usize, usize, usize); 8] = [
    (1.0, 1, 4, 128, 32),
    (1.0, 16, 32, 128, 32),
    (1.0, 64, 64, 256, 32),
    (0.75, 16, 32, 64, 16),
    (0.5, 16, 32, 128, 16),
    (0.5, 64, 64, 128, 16),
    (0.25, 16, 32, 64, 16),
    (0.25, 64, 64, 128, 16),
];

/// The second model where none is named, its weights made up: another shape than SmolLM2's, and four times its layers' bytes.
const WIDE: &str = r#"{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 32000,
  "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16,
  "num_key_value_heads": 4, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
  "bos_token_id": 1, "eos_token_id": 2
}
"#;

/// A setting, its plan, and what came of it.
#[derive(Serialize)]
struct Row {
    model: String,
    weights_share: f64,
    memory_bytes: u64,
    max_num_seqs: usize,
    #[serde(flatten)]
    requests: Requests,
    #[serde(flatten)]
    foretold: Foretold,
    /// What the machine took when this was planned, over what it took when it was profiled.
    machine_drift: Drift,
}

struct Subject {
    name: String,
    flags: Vec<String>,
}

pub(crate) fn plan(args: BenchPlanArgs) -> Result<ExitCode> {
    let mut file = OutputFile::open(&args.json)?;
    let desk = Desk::new()?;
    let mut rows: Vec<Row> = Vec::new();
    for subject in subjects(&args, &desk)? {
        note!("measuring the machine for {}", subject.name);
        desk.run(&words("profile", &subject.flags))?;
        let mut drift = Drift::NONE;
        for setting in SETTINGS {
            match planned(&desk, &subject, setting, &mut drift) {
                Ok(row) => rows.push(row),
                Err(why) => {
                    note!("{}: left out: {why:#}", subject.name);
                    continue;
                }
            }
            // The prediction is there before anything is run.
            write(&mut file, "settings", &rows, "predicted")?;
            if let Some(row) = rows.last_mut() {
                row.foretold.measure(&desk, &subject.name, row.requests, args.reps)?;
                note!("{}; furthest off: {}", line(row), row.foretold.ops());
            }
            write(&mut file, "settings", &rows, "predicted")?;
        }
    }
    write(&mut file, "settings", &rows, "measured")?;
    table(&rows)?;
    Ok(if rows.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The models that are named, or two of different shapes.
fn subjects(args: &BenchPlanArgs, desk: &Desk) -> Result<Vec<Subject>> {
    let of = |name: &str, format| {
        let mut flags = subject(name, format, args.offload_dir.as_deref());
        flags.extend(args.threads.iter().flat_map(|threads| ["--threads".into(), threads.to_string()]));
        Subject { name: name.to_string(), flags }
    };
    if args.models.is_empty() && args.dummy.is_empty() {
        let wide = wide(&desk.file("wide"))?;
        return Ok(vec![of("smollm2", LoadFormat::Auto), of(&wide.display().to_string(), LoadFormat::Dummy)]);
    }
    let real = args.models.iter().map(|name| of(name, LoadFormat::Auto));
    Ok(real.chain(args.dummy.iter().map(|name| of(name, LoadFormat::Dummy))).collect())
}

fn wide(folder: &Path) -> Result<PathBuf> {
    let write = || {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("config.json"), WIDE)
    };
    write().with_context(|| format!("cannot write {}", folder.display()))?;
    Ok(folder.to_owned())
}

/// Plans a setting within its budget by what the machine does now, and freezes it.
fn planned(
    desk: &Desk,
    subject: &Subject,
    (share, seqs, num_prompts, input_len, output_len): (f64, usize, usize, usize, usize),
    drift: &mut Drift,
) -> Result<Row> {
    let requests = Requests { num_prompts, input_len, output_len };
    let mut flags = subject.flags.clone();
    flags.extend(["--max-num-seqs".into(), seqs.to_string()]);
    let roomy = desk.run(&words("plan", &[flags.clone(), requests.planned()].concat()))?;
    let all = number(&roomy, "/peak_bytes/device")? + number(&roomy, "/peak_bytes/host")?;
    // A little more than it holds: what the process has resident differs from run to run.
    let spare = f64::from(16 << 20);
    let memory = (all - (1.0 - share) * number(&roomy, "/layer_weight_bytes")? + spare) as u64;
    flags.extend(["--memory".into(), memory.to_string()]);
    let refresh = [&subject.flags[..], &["--refresh".into()]].concat();
    let refreshed = desk.run(&words("profile", &refresh))?;
    *drift = drift.then(&serde_json::from_value(refreshed["drift"].clone()).context("the drift")?);
    Ok(Row {
        model: subject.name.clone(),
        weights_share: share,
        memory_bytes: memory,
        max_num_seqs: seqs,
        requests,
        foretold: Foretold::plan(desk, requests, &flags)?,
        machine_drift: *drift,
    })
}

fn line(row: &Row) -> String {
    let model = row.model.trim_end_matches('/').rsplit('/').next().unwrap_or(&row.model);
    let measured = row.foretold.measured().map_or("-".into(), |rate| format!("{rate:.1}"));
    let (requests, drift) = (row.requests, row.machine_drift);
    format!(
        "| {model} | {} | {:.0} % | {} | {} x {} + {} | {:.1} | {measured} | {} | {:.2} / {:.2} / {:.2} |",
        size(&row.memory_bytes),
        100.0 * row.weights_share,
        row.max_num_seqs,
        requests.num_prompts,
        requests.input_len,
        requests.output_len,
        row.foretold.predicted(),
        percent(row.foretold.error()),
        drift.linears,
        drift.attention,
        drift.reads,
    )
}

fn table(rows: &[Row]) -> Result<()> {
    show!(
        "| model | memory | room for layers | at once | requests x in + out | predicted tokens/s | measured | error | machine drift, times (linears / attention / reads) |"
    )?;
    show!("|---|---|---|---|---|---|---|---|---|")?;
    rows.iter().try_for_each(|row| show!("{}", line(row)))?;
    show!("\n{}", summary(rows.iter().filter_map(|row| row.foretold.error()), 0.15))
}
