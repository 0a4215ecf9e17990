//! `ballast serve`: the APIs of OpenAI and Anthropic over HTTP.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use engine::job::{Limits, fingerprint};
use engine::{EngineConfig, KvMemory, KvRoom, LaneWatch, counted, kv_token_bytes};
use model::api::OwnTemplates;
use model::template::Tools;
use rustix::process::{Resource, getrlimit, setrlimit};
use server::{Config, Ended, KeySource, Log, LogFormat, LogLevel, Served, Server, Signals, SpoolLimits};
use spec::ModelSpec;

use crate::args::{LogFormatName, LogLevelName, ServeArgs};
use crate::batch;
use crate::console::{Misuse, exit_code, text_of, told};
use crate::display::Voice;
use crate::loaded;
use crate::plan::{Chosen, Ends, Work};
use crate::resolve::{Needs, engine_config, memory_limit};
use crate::wanted::{Wanted, with_more_beside};

/// Sequences at once, where no flag says; the scheduler runs as many as have KV.
const SEQUENCES: usize = 256;
/// Files that are no connections: weights, the spool, pipes and what the system wants.
const OTHER_FILES: usize = 128;
/// Connections and what may wait, where no flag says, are fewer than usual until clients take this share of all memory or less,
const CLIENTS_SHARE: u64 = 8;
/// but connections no fewer than this.
const LEAST_CONNECTIONS: usize = 64;
/// Where no flag says how many come at once, weights stay in memory as long as half as many of these have room beside them.
const CROWD: usize = 16;
/// KV for each sequence, where no flag says: about what a turn of a chat and its answer take.
const TOKENS_A_SEQUENCE: usize = 512;

pub(crate) fn serve(args: ServeArgs) -> Result<ExitCode> {
    let log = log(&args)?;
    log.hear_panics();
    Ok(served(args, &log).unwrap_or_else(|error| failed(&log, &told(&error), exit_code(&error))))
}

fn served(args: ServeArgs, log: &Log) -> Result<ExitCode> {
    let lanes = args.lanes.open()?;
    let config = config(&args, log.clone())?;
    let client_bytes = sized_bytes(&config);
    let is_open = config.keys.is_empty() && !config.address.ip().is_loopback();
    let server = Server::bind(config)?;
    log.say(LogLevel::Info, "listening", &format!("listening on http://{}", server.address()));
    if is_open {
        let why =
            "no key is asked for: whoever reaches this address may use the model (--api-key, --api-key-file)";
        log.say(LogLevel::Warn, "open", why);
    }
    let (heard, watched) = (log.clone(), Arc::new(OnceLock::new()));
    let wanted = lanes.spans();
    let watch = Arc::clone(&watched);
    let loading = move || -> Result<Served> {
        let served = load(&args, client_bytes, wanted, &heard)?;
        // It is loaded once.
        let _ = watch.set(served.engine.lane_watch());
        Ok(served)
    };
    let ended = server.run(loading, Signals::Obeyed);
    log.flush();
    watched.get().map_or(Ok(()), |watch: &LaneWatch| lanes.write(watch.ranges()))?;
    match ended? {
        Ended::Drained => {
            log.say(LogLevel::Info, "ended", "ended");
            log.flush();
            Ok(ExitCode::SUCCESS)
        }
        // It was asked to end, and did: what was cut short has been told so.
        Ended::CutShort => {
            log.say(LogLevel::Warn, "cut_short", "ballast: ended without waiting for what was under way");
            log.flush();
            Ok(ExitCode::SUCCESS)
        }
        Ended::EndedBadly(why) => Err(anyhow!(why)),
        Ended::EngineDied(why) => bail!("the engine died: {why}"),
    }
}

/// The last line is one of the log: whoever reads the others as JSON reads this one.
fn failed(log: &Log, why: &str, code: ExitCode) -> ExitCode {
    log.say(LogLevel::Error, "failed", &format!("ballast: {why}"));
    log.flush();
    code
}

fn log(args: &ServeArgs) -> Result<Log> {
    let format = match args.log_format {
        LogFormatName::Text => LogFormat::Text,
        LogFormatName::Json => LogFormat::Json,
    };
    let level = match args.log_level {
        LogLevelName::Error => LogLevel::Error,
        LogLevelName::Warn => LogLevel::Warn,
        LogLevelName::Info => LogLevel::Info,
        LogLevelName::Debug => LogLevel::Debug,
    };
    Log::to(std::io::stderr(), format, level).context("the system refuses threads")
}

fn config(args: &ServeArgs, log: Log) -> Result<Config> {
    let keys = all_keys(&args.api_key, args.api_key_file.as_deref())?;
    let sized = sized(args, memory_limit(&args.engine)?);
    Ok(Config {
        address: address(&args.host, args.port)?,
        keys,
        key_source: key_source(args, log.clone()),
        request_timeout: args.request_timeout,
        queue_timeout: args.queue_timeout,
        open_metrics: args.open_metrics,
        timings: args.timings,
        model_name: args
            .served_model_name
            .first()
            .map(String::as_str)
            .or(args.model.name())
            .unwrap_or_default()
            .into(),
        max_connections: connections(sized.max_connections, &log),
        shutdown_timeout: Duration::from_secs(args.shutdown_timeout),
        log,
        ..sized
    })
}

/// The settings that decide about memory, of so much.
fn sized(args: &ServeArgs, memory: u64) -> Config {
    let usual = usual_config(memory);
    Config {
        spool_dir: args.spool_dir.clone(),
        max_file_bytes: args.spool.max_file_size,
        spool: SpoolLimits {
            files: args.spool.spool_max_files,
            batches: args.spool.spool_max_batches,
            bytes: args.spool.spool_max_bytes,
            window: args.spool.batch_window,
            keep: args.spool.spool_keep,
            memory: SpoolLimits::memory_of(memory),
        },
        max_connections: args.max_connections.unwrap_or(usual.max_connections),
        max_num_queued_reqs: args.max_num_queued_reqs,
        max_num_queued_tokens: args.max_num_queued_tokens.unwrap_or(usual.max_num_queued_tokens),
        ..usual
    }
}

/// What these settings take beside the engine.
fn sized_bytes(sized: &Config) -> u64 {
    sized.client_bytes() + sized.batch_bytes()
}

/// What clients take where no flag says how many there may be, of so much memory.
pub(crate) fn client_bytes_by_default(memory: u64) -> u64 {
    usual_config(memory).client_bytes()
}

/// The server's own settings, with as many connections, and as long a queue, as memory is for.
fn usual_config(memory: u64) -> Config {
    let mut config = Config::new((Ipv4Addr::LOCALHOST, 0).into());
    while config.client_bytes() > memory / CLIENTS_SHARE && config.max_connections > LEAST_CONNECTIONS {
        config.max_connections /= 2;
        config.max_num_queued_tokens /= 2;
    }
    config
}

/// The address of that name; of several one of IPv4, which clients try first.
fn address(host: &str, port: u16) -> Result<SocketAddr> {
    let sound = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
    if host.is_empty() || !host.chars().all(sound) {
        bail!(Misuse(format!("--host {host}: expected an address, such as 127.0.0.1, or a host's name")));
    }
    let found: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("--host {host}: there is no such address; write one, such as 127.0.0.1"))?
        .collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().with_context(|| format!("--host {host}: the name has no address"))
}

/// So many connections, or as many as the system lets this process have files for, which is said.
fn connections(wanted: usize, log: &Log) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let needed = (wanted + OTHER_FILES + server::CONNECTIONS_BESIDE) as u64;
    if limit.current.is_some_and(|current| current < needed) {
        limit.current = Some(limit.maximum.map_or(needed, |maximum| maximum.min(needed)));
        // What comes of it is read below.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    let files = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize);
    let room = files.saturating_sub(OTHER_FILES);
    // Where there are few, who is turned away may wait for one.
    let room = room.saturating_sub(server::CONNECTIONS_BESIDE).max(room / 2).max(1);
    if room < wanted {
        let told = format!(
            "ballast: the system lets this process open {}: {} at a time, not {wanted}; raise it (`ulimit -n`), or lower \
             --max-connections",
            counted(files, "file"),
            counted(room, "connection")
        );
        log.say(LogLevel::Warn, "few_files", &told);
    }
    wanted.min(room)
}

/// What stands around a key, a line's end in a secret say, no client can send.
fn all_keys(given: &[String], file: Option<&Path>) -> Result<Vec<String>> {
    let in_file = file.map(read_keys).transpose()?.unwrap_or_default();
    let keys: Vec<String> = given.iter().map(|key| key.trim().to_string()).chain(in_file).collect();
    if keys.iter().any(String::is_empty) {
        bail!(Misuse("an API key must not be empty".into()));
    }
    let is_sent = |key: &String| key.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if !keys.iter().all(is_sent) {
        let why =
            "an API key has a character that no client can send: use letters, digits and signs of ASCII";
        bail!(Misuse(why.into()));
    }
    Ok(keys)
}

/// Where SIGHUP reads keys from; while they cannot be read, the old ones stay.
fn key_source(args: &ServeArgs, log: Log) -> Option<KeySource> {
    let (given, file) = (args.api_key.clone(), args.api_key_file.clone()?);
    let tell = move |error| log.say(LogLevel::Warn, "keys_not_read", &format!("ballast: {error:#}"));
    let read = move || all_keys(&given, Some(&file)).map_err(&tell).ok();
    Some(KeySource::new(read))
}

/// A key a line, but for lines that begin with `#`; a file without any would leave the server open.
fn read_keys(file: &Path) -> Result<Vec<String>> {
    let text = text_of(file)?;
    let keys: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_string)
        .collect();
    if keys.is_empty() {
        bail!(Misuse(format!("{} has no keys: write one a line", file.display())));
    }
    Ok(keys)
}

/// What was asked for; else enough that most sequences run at once, and that the longest can.
fn kv_tokens(args: &ServeArgs, spec: &ModelSpec, settings: &EngineConfig) -> Result<usize> {
    let Some(bytes) = args.kv_cache_memory_bytes else {
        let longest = settings.max_model_len.unwrap_or(spec.max_positions);
        return Ok(longest.max(settings.max_num_seqs * TOKENS_A_SEQUENCE));
    };
    let (token, block) = (kv_token_bytes(spec, settings), u64::from(spec::BLOCK_TOKENS.0));
    // One block for what a request asks, and one for what is answered.
    let least = 2 * block * token;
    if bytes < least {
        bail!(Misuse(format!(
            "--kv-cache-memory-bytes {bytes} has no room for any request: give it {least} at least"
        )));
    }
    Ok((bytes / token) as usize)
}

/// Who may come: as many as run at once, and as many again.
fn work(args: &ServeArgs, spec: &ModelSpec, settings: &EngineConfig) -> Work {
    let longest = settings.max_model_len.unwrap_or(spec.max_positions);
    let turn = TOKENS_A_SEQUENCE / 2;
    let likely = Work::likely(2 * settings.max_num_seqs, (turn, turn), longest, Ends::Open);
    let work = if args.engine.max_num_seqs.is_none() { likely.of_a_crowd_from(CROWD) } else { likely };
    match args.kv_cache_memory_bytes {
        Some(_) => work.within(settings.kv_tokens.unwrap_or_default()),
        None => work,
    }
}

/// What is to be told where requests cannot be as long as the model reads, and no flag says so.
fn cut_context(args: &ServeArgs, spec: &ModelSpec, longest: usize) -> Option<String> {
    let of_kv = args.kv_cache_memory_bytes.map(|_| "--kv-cache-memory-bytes");
    let of_device = args.engine.device_memory.map(|_| "--device-memory");
    let more = of_kv.or(of_device).unwrap_or("--memory");
    (args.engine.max_model_len.is_none() && longest < spec.max_positions).then(|| {
        format!(
            "context: {longest} tokens at the most, of the model's {}, as there is KV for no more; it grows with {more}, and \
             with a narrower --kv",
            spec.max_positions
        )
    })
}

/// `client_bytes`: what clients may take beside the engine. `lane_spans`: nodes that are kept for `--lanes`.
fn load(args: &ServeArgs, client_bytes: u64, lane_spans: usize, log: &Log) -> Result<Served> {
    // What is said while loading is for people: a log that programs read has it as events, below.
    let voice = match args.log_format {
        LogFormatName::Text => Voice::Normal,
        LogFormatName::Json => Voice::Quiet,
    };
    let model = args.model.name();
    let mut opened = loaded::open(model, &args.engine, voice)?;
    // Which weights these are, for whoever looks for what changed.
    let digest = fingerprint(opened.path()).unwrap_or_else(|why| format!("unknown: {why}"));
    log.say(LogLevel::Info, "model", &format!("model: {}, fingerprint {digest}", opened.name));
    let text = opened.text(args.engine.chat_template.as_deref())?;
    if voice == Voice::Normal {
        args.thoughts.note();
    }
    let (template, tool_template) = (text.template_for(Tools::Absent)?, text.template_for(Tools::Given)?);
    args.thoughts.check(template.as_ref(), &text.tokenizer)?;
    if args.engine.tool_call_parser.is_some() && tool_template.as_ref().is_some_and(|it| !it.shows_tools()) {
        let why = "--tool-call-parser: this model's chat template shows it no tools, so that it calls only those that a request \
                   forces (tool_choice); --chat-template names another";
        log.say(LogLevel::Warn, "tools", why);
    }
    let needs = Needs { seqs: SEQUENCES, longest: None, kv_tokens: None, step_tokens: None, expected: None };
    let mut settings = engine_config(&args.engine, needs)?;
    settings.kv_tokens = Some(kv_tokens(args, opened.checkpoint.spec(), &settings)?);
    // Who asks for bytes gets them.
    settings.kv_room = if args.kv_cache_memory_bytes.is_some() { KvRoom::Whole } else { KvRoom::Needed };
    // All of it is used sooner or later, since blocks that were freed stay to be found again; taking it later would make
    // steps wait for the system, and a machine without so much would tell in the night.
    settings.kv_memory = KvMemory::AtStart;
    text.tokenizer.keep_grammars(Limits::waiting_bytes(settings.memory));
    let beside = |memory, clients| clients + Limits::waiting_bytes(memory) as u64;
    settings.beside_bytes = beside(settings.memory, client_bytes);
    settings.lane_spans = lane_spans;
    let isa = settings.isa.to_string();
    let work = work(args, opened.checkpoint.spec(), &settings);
    let wanted = Wanted { opened: &opened, config: settings, args: &args.engine, work: Some(work), voice };
    let Chosen { planned, told } = wanted.plan().map_err(|error| {
        with_more_beside(error, &|memory| beside(memory, sized_bytes(&sized(args, memory))))
    })?;
    if voice == Voice::Quiet {
        log.say(LogLevel::Info, "memory", &format!("memory: {}", planned.hold()));
        told.iter().for_each(|told| log.say(LogLevel::Info, "plan", told));
    }
    if let Some(told) = cut_context(args, opened.checkpoint.spec(), planned.hold().max_model_len) {
        log.say(LogLevel::Info, "context", &told);
    }
    let engine = wanted.load(planned)?.engine;
    // What memory has room for is another length at each start, and a batch goes on whatever it is.
    let longest = args.engine.max_model_len.map_or("as memory allows".into(), |len| len.to_string());
    let names = batch::served_names(&args.served_model_name, model.unwrap_or(&opened.name), &opened.name);
    let vocab = engine.spec().vocab as u32;
    let settings = batch::settings(&args.engine, &args.thoughts, &opened, &names, isa, longest)?;
    Ok(Served {
        engine,
        settings,
        names,
        template,
        tool_template,
        special: text.special,
        generation: text.generation,
        tokenizer: text.tokenizer,
        // Without a limit of its own it is that of the vocabulary.
        max_logprobs: u32::try_from(args.max_logprobs).unwrap_or(vocab).min(vocab),
        own_templates: match args.trust_request_chat_template {
            true => OwnTemplates::Taken,
            false => OwnTemplates::Refused,
        },
        thoughts: args.thoughts.manner(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_fewer_and_wait_less_where_memory_is_small() {
        let sizes = |memory| {
            let config = usual_config(memory);
            (config.max_connections, config.max_num_queued_tokens)
        };
        assert_eq!(sizes(8 << 30), (2048, 4 << 20));
        assert_eq!(sizes(256 << 20), (64, 128 << 10));
        // What waits is a part of what clients take, whoever says how much it is.
        let config = usual_config(8 << 30);
        let longer = Config { max_num_queued_tokens: 8 << 20, ..usual_config(8 << 30) };
        assert!(longer.client_bytes() - config.client_bytes() > 16 << 20);
        let more = Config { max_num_queued_reqs: 4096, ..usual_config(8 << 30) };
        assert!(more.client_bytes() > config.client_bytes());
    }
}
