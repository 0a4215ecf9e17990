//! `ballast serve`: the OpenAI API over HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use model::template::Tools;
use server::{Config, Ended, Served, Server, Signals};

use crate::args::ServeArgs;
use crate::display::Voice;
use crate::loaded;
use crate::resolve::{Needs, engine_config};

/// Sequences at once, where no flag says; the scheduler runs as many as have KV.
const SEQUENCES: usize = 256;

pub(crate) fn serve(args: ServeArgs) -> Result<ExitCode> {
    let server = Server::bind(config(&args)?)?;
    eprintln!("listening on http://{}", server.address()?);
    match server.run(move || load(&args), Signals::Obeyed)? {
        Ended::Drained => Ok(ExitCode::SUCCESS),
        Ended::CutShort => {
            eprintln!("ballast: ended before all requests were finished");
            Ok(ExitCode::SUCCESS)
        }
        Ended::EngineDied(why) => bail!("the engine died: {why}"),
    }
}

fn config(args: &ServeArgs) -> Result<Config> {
    let mut keys = args.api_key.clone();
    if let Some(file) = &args.api_key_file {
        keys.extend(read_keys(file)?);
    }
    if keys.iter().any(String::is_empty) {
        bail!("an API key must not be empty");
    }
    Ok(Config {
        keys,
        spool_dir: args.spool_dir.clone(),
        max_num_queued_reqs: args.max_num_queued_reqs,
        max_num_queued_tokens: args.max_num_queued_tokens,
        shutdown_timeout: Duration::from_secs(args.shutdown_timeout),
        ..Config::new(SocketAddr::new(args.host, args.port))
    })
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

fn load(args: &ServeArgs) -> Result<Served> {
    let opened = loaded::open(Some(&args.model), &args.engine, Voice::Normal)?;
    let text = opened.text(args.engine.chat_template.as_deref())?;
    let (template, tool_template) = (text.template_for(Tools::Absent)?, text.template_for(Tools::Given)?);
    let needs = Needs { seqs: SEQUENCES, longest: None, kv_tokens: None, step_tokens: None };
    let planned = opened.plan(engine_config(&args.engine, needs)?, Voice::Normal)?;
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
