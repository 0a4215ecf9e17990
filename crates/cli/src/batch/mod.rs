//! `ballast batch`: a file of requests in OpenAI's batch format, answered in the order of the input.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use engine::{Answer, Engine, memory, size};
use model::api::{ApiError, BatchLine, Context, Generate, Meta, Streaming, batch_output, response};
use model::template::{ChatTemplate, WallClock};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::args::BatchArgs;
use crate::console::{note, show};
use crate::display::{Progress, Unit, Voice};
use crate::loaded::{self, Text};
use crate::output_file::OutputFile;
use crate::resolve::{Needs, engine_config};

/// Requests handed to the engine ahead of the one whose answer is written next.
const AHEAD: usize = 1024;
/// Sequences at once, where no flag says; the scheduler runs as many as have KV, of which one line takes no more than
/// one of the greatest length.
const SEQUENCES: usize = 256;
/// The name of standard input and output.
const STANDARD: &str = "-";
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Some lines failed; all were answered.
const EXIT_SOME_FAILED: u8 = 3;

pub(crate) fn batch(args: BatchArgs) -> Result<ExitCode> {
    let input = read_input(&args.input)?;
    let mut output = Output::open(&args)?;
    let opened = loaded::open(Some(&args.model), &args.engine, Voice::Normal)?;
    let text = opened.text(args.engine.chat_template.as_deref())?;
    let template = text.template()?;
    let lines: Vec<(usize, &[u8])> = lines(&input).collect();
    let kv_tokens = lines.len().clamp(1, SEQUENCES) * opened.checkpoint.spec().max_positions;
    let needs = Needs { seqs: SEQUENCES, longest: None, kv_tokens: Some(kv_tokens), step_tokens: None };
    let planned = opened.plan(engine_config(&args.engine, needs)?, Voice::Normal)?;
    let engine = loaded::load(planned, Voice::Normal)?;
    let served = served_names(&args, &opened.name);
    let job = Job::new(&engine, &text, template.as_ref(), &served, &input);
    let summary = job.run(&lines, &mut output)?;
    engine.finish()?;
    summary.print(lines.len());
    Ok(if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_SOME_FAILED) })
}

/// What requests may call the model: what the flags say, or else the model's name and its last part.
fn served_names(args: &BatchArgs, name: &str) -> Vec<String> {
    if !args.served_model_name.is_empty() {
        return args.served_model_name.clone();
    }
    let last = Path::new(name).file_name().map(|last| last.to_string_lossy().into_owned());
    let mut names = vec![args.model.clone()];
    for other in [Some(name.to_string()), last].into_iter().flatten() {
        if !names.contains(&other) {
            names.push(other);
        }
    }
    names
}

/// Everything that turns one line into one answer.
struct Job<'a> {
    engine: &'a Engine,
    text: &'a Text,
    context: Context<'a>,
    /// Begins every id: the digest of the input.
    digest: String,
    created: u64,
}

/// A line under way.
struct Pending {
    line: usize,
    custom_id: String,
    outcome: Result<(Generate, Answer), ApiError>,
}

#[derive(Default)]
struct Summary {
    names: HashSet<String>,
    /// Lines whose custom_id an earlier line has.
    same_name: usize,
    failed: usize,
    prompt_tokens: u64,
    completion_tokens: u64,
    seconds: f64,
}

impl<'a> Job<'a> {
    fn new(
        engine: &'a Engine,
        text: &'a Text,
        template: Option<&'a ChatTemplate>,
        served: &'a [String],
        input: &[u8],
    ) -> Job<'a> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let context = Context {
            tokenizer: &text.tokenizer,
            template,
            tool_template: None,
            special: text.special.clone(),
            generation: &text.generation,
            served,
            vocab_size: engine.spec().vocab,
            context_len: engine.hold().max_model_len,
            streaming: Streaming::Refused,
            now: WallClock { unix_s: now as i64, utc_offset_s: 0 },
        };
        let digest = Sha256::digest(input).iter().take(8).map(|b| format!("{b:02x}")).collect();
        Job { engine, text, context, digest, created: now }
    }

    /// Answers all lines in order, some ahead of the one that is written next.
    fn run(&self, lines: &[(usize, &[u8])], output: &mut Output) -> Result<Summary> {
        output.begin()?;
        let started = Instant::now();
        let progress = Progress::new("requests", lines.len() as u64, Unit::Items, Voice::Normal);
        let mut ahead: VecDeque<Pending> = VecDeque::new();
        let mut summary = Summary::default();
        let mut next = lines.iter();
        for done in 1..=lines.len() {
            ahead.extend(next.by_ref().take(AHEAD - ahead.len()).map(|(line, text)| self.begin(*line, text)));
            let Some(pending) = ahead.pop_front() else { break };
            let answer = self.finish(pending, &mut summary);
            self.engine.alive()?;
            output.line(&answer)?;
            progress.set(done as u64);
        }
        progress.end();
        summary.seconds = started.elapsed().as_secs_f64();
        Ok(summary)
    }

    fn begin(&self, line: usize, bytes: &[u8]) -> Pending {
        let parsed = parse(line, bytes);
        let custom_id = parsed.as_ref().map_or_else(|_| custom_id(bytes), |line| line.custom_id.clone());
        let outcome = parsed.and_then(|line| line.generate(&self.context)).and_then(|request| {
            let answer = Answer::begin(self.engine, &self.text.tokenizer, &request, line as u64)?;
            Ok((request, answer))
        });
        Pending { line, custom_id, outcome }
    }

    fn finish(&self, pending: Pending, summary: &mut Summary) -> Value {
        summary.name(&pending.custom_id);
        let id = format!("{}-{}", self.digest, pending.line);
        let outcome = pending.outcome.and_then(|(request, answer)| {
            let choices = answer.wait()?;
            let meta = Meta { id: id.clone(), created: self.created, cached_tokens: None };
            Ok(response(&request, &choices, &meta, &self.text.tokenizer))
        });
        match &outcome {
            Ok(body) => summary.count(&body["usage"]),
            Err(_) => summary.failed += 1,
        }
        batch_output(&id, &pending.custom_id, &outcome)
    }
}

impl Summary {
    fn name(&mut self, custom_id: &str) {
        if !custom_id.is_empty() && !self.names.insert(custom_id.to_string()) {
            self.same_name += 1;
        }
    }

    fn count(&mut self, usage: &Value) {
        self.prompt_tokens += usage["prompt_tokens"].as_u64().unwrap_or(0);
        self.completion_tokens += usage["completion_tokens"].as_u64().unwrap_or(0);
    }

    fn print(&self, lines: usize) {
        if self.same_name > 0 {
            note!(
                "{} lines repeat the custom_id of another: only their order tells them apart",
                self.same_name
            );
        }
        note!(
            "{lines} requests, {} failed; {} prompt and {} generated tokens in {:.1} s ({:.1} generated/s); peak memory {}",
            self.failed,
            self.prompt_tokens,
            self.completion_tokens,
            self.seconds,
            self.completion_tokens as f64 / self.seconds,
            size(&memory::peak_resident_bytes())
        );
    }
}

/// A line of the input as a request. Errors of the line itself name it.
fn parse(line: usize, bytes: &[u8]) -> Result<BatchLine, ApiError> {
    let parsed = match std::str::from_utf8(bytes) {
        Ok(text) => BatchLine::parse(text),
        Err(error) => {
            Err(ApiError::invalid("body", format!("byte {} is not UTF-8 text", error.valid_up_to() + 1)))
        }
    };
    parsed.map_err(|error| ApiError { message: format!("line {line}: {}", error.message), ..error })
}

/// The name of a line that is wrong in another place.
fn custom_id(line: &[u8]) -> String {
    let value: Option<Value> = serde_json::from_slice(line).ok();
    value.and_then(|v| v["custom_id"].as_str().map(str::to_string)).unwrap_or_default()
}

/// Lines that are not blank, numbered from 1. Only `\n` ends a line: JSON may hold a bare `\r`.
fn lines(input: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let numbered = (1..).zip(input.split(|&byte| byte == b'\n'));
    numbered.map(|(i, line)| (i, line.trim_ascii_end())).filter(|(_, line)| !line.is_empty())
}

fn read_input(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == Path::new(STANDARD) {
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
    } else {
        bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(bytes)
}

/// Where the answers go.
enum Output {
    File(OutputFile),
    Standard,
}

impl Output {
    /// Finds the output writable before anything heavy happens.
    fn open(args: &BatchArgs) -> Result<Output> {
        let path = &args.output;
        if path == Path::new(STANDARD) {
            return Ok(Output::Standard);
        }
        if same_file(&args.input, path) {
            bail!("{} is the input too: choose another output file", path.display());
        }
        if path.is_file() && !args.overwrite {
            bail!("{} exists: choose another output file, or say --overwrite", path.display());
        }
        OutputFile::open(path).map(Output::File)
    }

    fn begin(&mut self) -> Result<()> {
        match self {
            Output::File(file) => file.begin(),
            Output::Standard => Ok(()),
        }
    }

    /// A whole line at once: whatever ends the process leaves whole lines.
    fn line(&mut self, answer: &Value) -> Result<()> {
        match self {
            Output::File(file) => file.write(format!("{answer}\n").as_bytes()),
            Output::Standard => show!("{answer}"),
        }
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_line_feeds_end_lines_and_blank_ones_do_not_count() {
        let found: Vec<_> = lines(b"a\r\n\n b\rc \n").collect();
        assert_eq!(found, [(1, &b"a"[..]), (3, b" b\rc")]);
    }

    #[test]
    fn a_broken_line_keeps_its_name() {
        assert_eq!(custom_id(br#"{"custom_id": "x", "method": "GET"}"#), "x");
        assert_eq!(custom_id(b"{"), "");
    }
}
