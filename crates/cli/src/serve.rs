//! `ballast serve`: the OpenAI API over HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::{EngineConfig, kv_token_bytes};
use model::template::Tools;
use server::{Config, Ended, KeySource, Served, Server, Signals};
use spec::ModelSpec;

use crate::args::ServeArgs;
use crate::display::Voice;
use crate::loaded;
use crate::resolve::{Needs, engine_config};

/// Sequences at once, where no flag says; the scheduler runs as many as have KV.
const SEQUENCES: usize = 256;
/// KV for each of them, where no flag says: about what a turn of a chat and its answer take.
const TOKENS_A_SEQUENCE: usize = 512;

pub(crate) fn serve(args: ServeArgs) -> Result<ExitCode> {
    let server = Server::bind(config(&args)?)?;
    eprintln!("listening on http://{}", server.address()?);
    match server.run(move || load(&args), Signals::Obeyed)? {
        Ended::Drained => Ok(ExitCode::SUCCESS),
        Ended::CutShort => {
            eprintln!("ballast: ended before all requests were finished");
            Ok(ExitCode::FAILURE)
        }
        Ended::EndedBadly(why) => bail!("{why}"),
        Ended::EngineDied(why) => bail!("the engine died: {why}"),
    }
}

fn config(args: &ServeArgs) -> Result<Config> {
    let keys = all_keys(&args.api_key, args.api_key_file.as_deref())?;
    if keys.iter().any(String::is_empty) {
        bail!("an API key must not be empty");
    }
    Ok(Config {
        keys,
        spool_dir: args.spool_dir.clone(),
        key_source: key_source(args),
        request_timeout: args.request_timeout,
        queue_timeout: args.queue_timeout,
        max_num_queued_reqs: args.max_num_queued_reqs,
        max_num_queued_tokens: args.max_num_queued_tokens,
        shutdown_timeout: Duration::from_secs(args.shutdown_timeout),
        ..Config::new(SocketAddr::new(args.host, args.port))
    })
}

fn all_keys(given: &[String], file: Option<&Path>) -> Result<Vec<String>> {
    let in_file = file.map(read_keys).transpose()?.unwrap_or_default();
    Ok([given, &in_file].concat())
}

/// Where SIGHUP reads keys from; while they cannot be read, the old ones stay.
fn key_source(args: &ServeArgs) -> Option<KeySource> {
    let (given, file) = (args.api_key.clone(), args.api_key_file.clone()?);
    let read = move || all_keys(&given, Some(&file)).map_err(|error| eprintln!("ballast: {error:#}")).ok();
    Some(KeySource::new(read))
}

/// A key a line; a file without any would leave the server open.
fn read_keys(file: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let keys: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string).collect();
    if keys.is_empty() {
        bail!("{} has no keys: write one a line", file.display());
    }
    Ok(keys)
}

/// What was asked for; else enough that most sequences run at once, and that the longest can.
fn kv_tokens(args: &ServeArgs, spec: &ModelSpec, settings: &EngineConfig) -> usize {
    match args.kv_cache_memory_bytes {
        Some(bytes) => (bytes / kv_token_bytes(spec, settings)) as usize,
        None => {
            let longest = settings.max_model_len.unwrap_or(spec.max_positions);
            longest.max(settings.max_num_seqs * TOKENS_A_SEQUENCE)
        }
    }
}

fn load(args: &ServeArgs) -> Result<Served> {
    let opened = loaded::open(Some(&args.model), &args.engine, Voice::Normal)?;
    let text = opened.text(args.engine.chat_template.as_deref())?;
    let (template, tool_template) = (text.template_for(Tools::Absent)?, text.template_for(Tools::Given)?);
    let needs = Needs { seqs: SEQUENCES, longest: None, kv_tokens: None, step_tokens: None };
    let mut settings = engine_config(&args.engine, needs)?;
    settings.kv_tokens = Some(kv_tokens(args, opened.checkpoint.spec(), &settings));
    let planned = opened.plan(settings, Voice::Normal)?;
    let engine = loaded::load(planned, Voice::Normal)?;
    let names = if args.served_model_name.is_empty() {
        let mut names = vec![args.model.clone(), opened.name.clone()];
        names.dedup();
        names
    } else {
        args.served_model_name.clone()
    };
    eprintln!("ready: {}", names.join(", "));
    Ok(Served {
        engine,
        names,
        template,
        tool_template,
        special: text.special,
        generation: text.generation,
        tokenizer: text.tokenizer,
    })
}
