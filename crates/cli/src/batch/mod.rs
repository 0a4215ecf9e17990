//! `ballast batch`: a file of requests in OpenAI's batch format, answered so that nothing is lost and nothing twice.

mod follow;
mod forecast;
mod lines;
mod merge;
mod progress;
mod reasons;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use engine::job::{
    Ended, Existing, Files, Input, Job, JobError, Limits, Outlook, Output, Paths, Record, Tally, clash,
    fingerprint,
};
use engine::{KvMemory, counted};
use model::api::{Context, OwnTemplates, Streaming};
use model::sampling::MAX_LOGPROBS;
use model::template::{ChatTemplate, Tools, WallClock};
use model::thoughts::Manner;
use server::{Log, LogFormat, LogLevel};
use sha2::{Digest, Sha256};

use self::follow::{Follow, SAME_COMMAND, Signals};
use self::lines::Lines;
use crate::args::{
    BatchArgs, BatchCommand, BatchJob, EngineArgs, LoadFormat, OnInvalid, ThoughtsArgs, typed,
};
use crate::console::{EXIT_INTERRUPTED, Misuse, note, unreadable};
use crate::display::Voice;
use crate::loaded::{self, Opened, Text};
use crate::output_file::is_the_shells;
use crate::resolve::{Needs, engine_config, host_memory};
use crate::wanted::{Wanted, with_more_beside};

/// Sequences at once, where no flag says; the scheduler runs as many as have KV.
const SEQUENCES: usize = 256;
/// Lines begun and not written, for each line in the engine: how far a slow line may be overtaken.
const WINDOW: usize = 4;
/// The name of standard input and output.
const STANDARD: &str = "-";
/// Bytes of an input that is taken whole.
const SHORT_BYTES: u64 = 8 << 20;
/// Some lines failed; all were answered.
const EXIT_SOME_FAILED: u8 = 3;

pub(crate) fn batch(args: BatchArgs) -> Result<ExitCode> {
    match args.command {
        Some(BatchCommand::Merge(args)) => merge::merge(args),
        None => run(args.job.settled()?),
    }
}

fn run(args: BatchJob) -> Result<ExitCode> {
    let input = read_input(&args.input)?;
    check(&input, &args)?;
    let mut output = Place::open(&args)?;
    let signals = Signals::heard(EXIT_INTERRUPTED, output.unbegun())?;
    // Lines are as secret as requests are.
    Log::to(io::stderr(), LogFormat::Text, LogLevel::Error)
        .context("the system refuses threads")?
        .hear_panics();
    let lanes = args.flags.lanes.open()?;
    let mut opened = loaded::open(Some(&args.model), &args.flags.engine, Voice::Normal)?;
    let text = opened.text(args.flags.engine.chat_template.as_deref())?;
    let (engine, thoughts) = (&args.flags.engine, &args.flags.thoughts);
    thoughts.note();
    let (template, tool_template) = (text.template_for(Tools::Absent)?, text.template_for(Tools::Given)?);
    thoughts.check(template.as_ref(), &text.tokenizer)?;
    let max = engine.max_model_len.unwrap_or(opened.checkpoint.spec().max_positions);
    let served = served_names(&args.flags.served_model_name, &args.model, &opened.name);
    let vocab = opened.checkpoint.spec().vocab;
    let templates = [template.as_ref(), tool_template.as_ref()];
    let context = Context { thoughts: thoughts.manner(), ..context(&text, templates, &served, (vocab, max)) };
    let waiting_bytes = Limits::waiting_bytes(host_memory(engine)?);
    text.tokenizer.keep_grammars(waiting_bytes);
    let known = Lines::of(&input, &context)?;
    known.ignored().into_iter().for_each(|told| note!("{told}"));
    let requests = known.count(args.flags.shard);
    let needs = Needs {
        seqs: SEQUENCES,
        longest: Some(known.longest()),
        kv_tokens: Some(known.kv_tokens(engine.max_num_seqs.unwrap_or(SEQUENCES))),
        step_tokens: None,
        expected: Some(known.expected(requests)),
    };
    let mut config = lanes.wanted(engine_config(engine, needs)?);
    // Lengths are bounds: most lines end before, and what nobody uses is not taken.
    config.kv_memory = KvMemory::AsUsed;
    config.scores_prompts = known.scores_prompts();
    let (of_input, grammars) = (known.input_bytes(&input), text.tokenizer.kept_grammar_bytes());
    config.beside_bytes = (known.beside_bytes(waiting_bytes, grammars) + of_input) as u64;
    let beside = |memory| {
        let most = Limits::waiting_bytes(memory);
        (known.beside_bytes(most, if grammars == 0 { 0 } else { most }) + of_input) as u64
    };
    let isa = config.isa.to_string();
    // Of no requests there is nothing to plan; the record has the longest sequence all the same.
    let (work, voice) = match requests {
        0 => (None, Voice::Quiet),
        _ => (Some(known.work(requests)), Voice::Normal),
    };
    let wanted = Wanted { opened: &opened, config, args: &args.flags.engine, work, voice };
    let planned = wanted.plan().map_err(|error| with_more_beside(error, &beside))?.planned;
    // Where there is room for the longest line the limit is the model's own: errors tell it.
    let room = planned.hold().max_model_len;
    let context_len = if room < known.longest() { room } else { max };
    let settings = settings(engine, thoughts, &opened, &served, isa, context_len.to_string())?;
    let record = record(&args, &input, output.error_name(), settings);
    let outlook = output.outlook(record, &input, &args)?;
    if outlook.answered > 0 {
        note!(
            "going on: {} of {} lines are answered",
            outlook.answered,
            outlook.answered + outlook.todo.len()
        );
    }
    if let Some(wanted) = args.flags.created.filter(|wanted| *wanted != outlook.record.created) {
        note!(
            "--created {wanted} changes nothing: the job that goes on was created {}",
            outlook.record.created
        );
    }
    let follow =
        |signals| Follow::new(args.flags.progress, signals, Duration::from_secs(args.flags.drain_timeout));
    if outlook.todo.is_empty() {
        if outlook.answered == 0 {
            let output = output.begin(&outlook, args.flags.fsync_interval)?;
            nothing(&input, output, follow(signals))?;
        }
        return Ok(code(Ended::Finished, outlook.failed));
    }
    let engine = wanted.load(planned)?.engine;
    let resumes = output.resumes(args.flags.existing());
    let output = output.begin(&outlook, args.flags.fsync_interval)?;
    let now = WallClock { unix_s: outlook.record.created as i64, utc_offset_s: 0 };
    let context = Context { context_len, now, ..context };
    let limits = Limits {
        in_flight: args.flags.max_inflight,
        prompt_tokens: Limits::prompt_tokens(&engine),
        window: args.flags.max_inflight.saturating_mul(WINDOW),
        waiting_bytes,
        queue_bytes: waiting_bytes,
        // Nobody else waits for the engine.
        line_sequences: usize::MAX,
    };
    let job = Job { engine: &engine, tokenizer: &text.tokenizer, context, input: &input, limits };
    let mut follow = follow(signals);
    follow.resumes = resumes;
    let (ended, tally) =
        job.run(&outlook, output, &mut follow).map_err(|error| named(error, &args.output))?;
    follow.end(ended, &tally);
    if ended == Ended::Interrupted && outlook.rewrites() {
        note!(
            "--retry-errors: the earlier answers stay until all is answered that is asked again; that begins anew"
        );
    }
    match ended {
        Ended::Interrupted => lanes.end_soon(engine, args.flags.engine.record.as_deref())?,
        Ended::Finished => lanes.end(engine)?,
    }
    Ok(code(ended, tally.failed))
}

/// Ends a job without a line: its output is there, and empty.
fn nothing(input: &Input, output: Output, mut follow: Follow) -> Result<()> {
    let why =
        if input.is_empty() { "the input has no lines" } else { "no line of the input is this shard's" };
    note!("{why}: the output is empty");
    output.nothing()?;
    follow.end(Ended::Finished, &Tally::default());
    Ok(())
}

/// A full device by its name; a reader that left, with what becomes of that.
fn named(error: JobError, output: &Path) -> JobError {
    match error {
        JobError::Stream(source) if source.kind() == io::ErrorKind::BrokenPipe => {
            let why = "who read them left; the same command begins anew";
            JobError::Stream(io::Error::new(source.kind(), why))
        }
        JobError::Stream(source) => {
            let path = if output == Path::new(STANDARD) { Path::new("standard output") } else { output };
            JobError::File { what: "write", path: path.to_owned(), source }
        }
        other => other,
    }
}

fn code(ended: Ended, failed: usize) -> ExitCode {
    match ended {
        Ended::Interrupted => ExitCode::from(EXIT_INTERRUPTED),
        Ended::Finished if failed > 0 => ExitCode::from(EXIT_SOME_FAILED),
        Ended::Finished => ExitCode::SUCCESS,
    }
}

/// Finds lines that are no requests before anything heavy happens. They are answered with errors, unless the job is to end.
fn check(input: &Input, args: &BatchJob) -> Result<()> {
    let checked = input.check()?;
    if checked.same_name > 0 {
        note!(
            "{} with the custom_id of another: only their order tells them apart",
            counted(checked.same_name, "line")
        );
    }
    if checked.invalid == 0 {
        return Ok(());
    }
    if args.flags.on_invalid == OnInvalid::Record {
        note!(
            "{} of {} lines are no requests: they are answered with errors (--on-invalid fail ends here instead)",
            checked.invalid,
            input.len()
        );
        return Ok(());
    }
    let mut shown: Vec<String> = checked.wrong.iter().map(|error| format!("  {}", error.message)).collect();
    if checked.invalid > shown.len() {
        shown.push(format!("  and {} more", checked.invalid - shown.len()));
    }
    bail!(Misuse(format!(
        "{} of {} lines are no requests (without --on-invalid fail they are answered with errors):\n{}",
        checked.invalid,
        input.len(),
        shown.join("\n")
    )))
}

/// What requests may call the model, each name once: what a flag says, or else what it was called here, its name and the last part of
/// that.
pub(crate) fn served_names(said: &[String], called: &str, name: &str) -> Vec<String> {
    let last = Path::new(name).file_name().map(|last| last.to_string_lossy().into_owned());
    let own = [called.to_string(), name.to_string()].into_iter().chain(last);
    let mut names: Vec<String> = if said.is_empty() { own.collect() } else { said.to_vec() };
    let mut known = BTreeSet::new();
    names.retain(|name| known.insert(name.clone()));
    names
}

/// Everything beside the input that decides about the answers.
pub(crate) fn settings(
    args: &EngineArgs,
    thoughts: &ThoughtsArgs,
    opened: &Opened,
    served: &[String],
    isa: String,
    longest: String,
) -> Result<BTreeMap<String, String>> {
    let model = fingerprint(opened.path()).with_context(|| format!("cannot read {}", opened.name))?;
    let source = match args.load_format {
        LoadFormat::Auto => model,
        LoadFormat::Dummy => format!("dummy {model}"),
    };
    let template = match &args.chat_template {
        None => "the model's own".to_string(),
        Some(file) => {
            let text = std::fs::read(file).map_err(unreadable(file))?;
            Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
        }
    };
    let parser = args.tool_call_parser.map_or("the template's own".into(), |format| format!("{format:?}"));
    let settings = [
        ("the model's fingerprint", source),
        ("--weights", typed(args.weights)),
        ("--activations", typed(args.activations)),
        ("--kv", args.kv_name().to_string()),
        ("--sparse-attention", args.sparse_attention.map_or("off".into(), |share| share.to_string())),
        ("--tool-call-parser", parser),
        ("--reasoning-format", typed(thoughts.reasoning_format)),
        ("--reasoning-budget", thoughts.budget()),
        ("--device", typed(args.device)),
        ("the longest sequence (--max-model-len)", longest),
        ("the names served", served.join(", ")),
        ("the chat template", template),
        ("the instruction set (BALLAST_ISA)", isa),
    ];
    Ok(settings.map(|(name, value)| (name.to_string(), value)).into())
}

fn record(
    args: &BatchJob,
    input: &Input,
    error_file: Option<String>,
    settings: BTreeMap<String, String>,
) -> Record {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let created = args.flags.created.unwrap_or_else(now);
    let mut record = Record::new(input, created, settings);
    record.shard = args.flags.shard;
    record.order = args.flags.order();
    record.error_file = error_file;
    record
}

/// What lines are read against, on no day yet.
fn context<'a>(
    text: &'a Text,
    [template, tool_template]: [Option<&'a ChatTemplate>; 2],
    served: &'a [String],
    (vocab_size, context_len): (usize, usize),
) -> Context<'a> {
    Context {
        tokenizer: &text.tokenizer,
        template,
        tool_template,
        special: text.special.clone(),
        generation: &text.generation,
        served,
        vocab_size,
        context_len,
        max_logprobs: MAX_LOGPROBS,
        own_templates: OwnTemplates::Refused,
        thoughts: Manner::default(),
        streaming: Streaming::Refused,
        now: WallClock::default(),
    }
}

/// A short file is taken whole, so that nobody can change it while the batch is under way; what is no file has to be.
fn read_input(path: &Path) -> Result<Input> {
    if path == Path::new(STANDARD) {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(Input::new(bytes));
    }
    let is_long = std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() > SHORT_BYTES);
    let input = if is_long { Input::open(path) } else { std::fs::read(path).map(Input::new) };
    input.map_err(unreadable(path))
}

/// Where the answers go.
enum Place {
    Files(Files, Option<String>),
    /// A pipe or device: nothing there can be read again.
    Stream(Box<dyn io::Write>),
}

impl Place {
    /// Finds the output writable before anything heavy happens.
    fn open(args: &BatchJob) -> Result<Place> {
        let path = &args.output;
        let is_stream = path == Path::new(STANDARD)
            || path.exists() && !path.is_dir() && (!path.is_file() || is_the_shells(path));
        if !is_stream {
            args.flags.error_file.as_deref().map_or(Ok(()), only_a_file)?;
            let paths = Paths { answers: path.clone(), errors: args.flags.error_file.clone() };
            apart(&[&args.input], Some(&paths), &beside(args))?;
            let name = paths.error_name();
            let mut files = Files::open(paths)?;
            files.refuse_unknown(args.flags.existing())?;
            return Ok(Place::Files(files, name));
        }
        if args.flags.error_file.is_some() {
            bail!(Misuse("--error-file needs an output that is a file".into()));
        }
        apart(&[&args.input], None, &beside(args))?;
        if path == Path::new(STANDARD) {
            return Ok(Place::Stream(Box::new(io::stdout())));
        }
        let file = std::fs::OpenOptions::new().append(true).open(path);
        Ok(Place::Stream(Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)))
    }

    /// What goes where no line is ever begun.
    fn unbegun(&self) -> Vec<PathBuf> {
        match self {
            Place::Files(files, _) => files.unbegun(),
            Place::Stream(_) => Vec::new(),
        }
    }

    fn error_name(&self) -> Option<String> {
        match self {
            Place::Files(_, name) => name.clone(),
            Place::Stream(_) => None,
        }
    }

    fn outlook(&mut self, record: Record, input: &Input, args: &BatchJob) -> Result<Outlook> {
        match self {
            Place::Files(files, _) => {
                Ok(files.outlook(record, input, args.flags.existing(), args.flags.retry())?)
            }
            Place::Stream(_) => Ok(Outlook::fresh(record, input)),
        }
    }

    /// How a job goes on that was interrupted.
    fn resumes(&self, existing: Existing) -> &'static str {
        match (self, existing) {
            (Place::Files(..), Existing::Continue) => SAME_COMMAND,
            (Place::Files(..), Existing::Replace) => "the same command without --overwrite goes on",
            (Place::Stream(_), _) => "what was answered is written; the same command begins anew",
        }
    }

    fn begin(self, outlook: &Outlook, sync_every: u64) -> Result<Output> {
        match self {
            Place::Files(files, _) => {
                Ok(Output::Files(Box::new(files.begin(outlook, Duration::from_secs(sync_every))?)))
            }
            Place::Stream(stream) => Ok(Output::Stream(stream)),
        }
    }
}

/// Refuses what is no file: some outputs are cut, read again, or replaced by a new file of their name.
fn only_a_file(path: &Path) -> Result<()> {
    if path == Path::new(STANDARD) || path.exists() && !path.is_file() {
        bail!(Misuse(format!("{} is no file, and has to be one: name another", path.display())));
    }
    Ok(())
}

/// Files that a run writes beside its answers.
fn beside(args: &BatchJob) -> Vec<&Path> {
    [args.flags.engine.record.as_deref(), args.flags.lanes.path()].into_iter().flatten().collect()
}

/// Every file has one use.
fn apart(read: &[&Path], written: Option<&Paths>, beside: &[&Path]) -> Result<()> {
    let Some(twice) = clash(read, written, beside) else { return Ok(()) };
    bail!(Misuse(format!(
        "{} would be two of the input, the output, the error file and what is written beside them: choose other names",
        twice.display()
    )))
}
