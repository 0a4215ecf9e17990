//! `ballast batch`: a file of requests in OpenAI's batch format, answered in the order of the input.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
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
use crate::display::{Progress, Unit, Voice};
use crate::loaded::{self, Text};
use crate::resolve::{Needs, engine_config};

/// Requests handed to the engine ahead of the one whose answer is written next.
const AHEAD: usize = 1024;
/// Sequences at once, where no flag says; the scheduler runs as many as have KV.
const SEQUENCES: usize = 256;
/// Some lines failed; all were answered.
const EXIT_SOME_FAILED: u8 = 3;

pub(crate) fn batch(args: BatchArgs) -> Result<ExitCode> {
    let input = read_input(&args.input)?;
    let mut output = create_output(&args)?;
    let opened = loaded::open(Some(&args.model), &args.engine, Voice::Normal)?;
    let text = opened.text(args.engine.chat_template.as_deref())?;
    let needs = Needs { seqs: SEQUENCES, longest: None, kv_tokens: None, step_tokens: None };
    let engine = opened.start(engine_config(&args.engine, needs)?, Voice::Normal)?;
    let served = [args.model.clone(), opened.name.clone()];
    let template = text.template()?;
    let job = Job::new(&engine, &text, template.as_ref(), &served, &input);
    let lines: Vec<(usize, &str)> = lines(&input).collect();
    let summary = job.run(&lines, &mut output)?;
    output.flush().with_context(|| format!("cannot write {}", args.output.display()))?;
    summary.print(lines.len());
    Ok(if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_SOME_FAILED) })
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
        input: &str,
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
        let digest = Sha256::digest(input.as_bytes()).iter().take(8).map(|b| format!("{b:02x}")).collect();
        Job { engine, text, context, digest, created: now }
    }

    /// Answers all lines in order, some ahead of the one that is written next.
    fn run(&self, lines: &[(usize, &str)], output: &mut impl Write) -> Result<Summary> {
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
            serde_json::to_writer(&mut *output, &answer).context("cannot write the output")?;
            output.write_all(b"\n").context("cannot write the output")?;
            progress.set(done as u64);
        }
        progress.end();
        summary.seconds = started.elapsed().as_secs_f64();
        Ok(summary)
    }

    fn begin(&self, line: usize, text: &str) -> Pending {
        let parsed = BatchLine::parse(text);
        let custom_id = parsed.as_ref().map_or_else(|_| custom_id(text), |line| line.custom_id.clone());
        let outcome = parsed.and_then(|line| line.generate(&self.context)).and_then(|request| {
            let answer = Answer::begin(self.engine, &self.text.tokenizer, &request, line as u64)?;
            Ok((request, answer))
        });
        Pending { line, custom_id, outcome }
    }

    fn finish(&self, pending: Pending, summary: &mut Summary) -> Value {
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
    fn count(&mut self, usage: &Value) {
        self.prompt_tokens += usage["prompt_tokens"].as_u64().unwrap_or(0);
        self.completion_tokens += usage["completion_tokens"].as_u64().unwrap_or(0);
    }

    fn print(&self, lines: usize) {
        eprintln!(
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

/// The name of a line that is wrong in another place.
fn custom_id(line: &str) -> String {
    let value: Option<Value> = serde_json::from_str(line).ok();
    value.and_then(|v| v["custom_id"].as_str().map(str::to_string)).unwrap_or_default()
}

/// Lines that are not blank, numbered from 1. Only `\n` ends a line: JSON may hold a bare `\r`.
fn lines(input: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = input.split('\n').enumerate().map(|(i, line)| (i + 1, line.trim_end_matches('\r')));
    numbered.filter(|(_, line)| !line.trim().is_empty())
}

fn read_input(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        io::stdin().lock().read_to_end(&mut bytes)?;
    } else {
        bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        anyhow::anyhow!(
            "{} is not UTF-8 text: byte {} is wrong",
            path.display(),
            e.utf8_error().valid_up_to()
        )
    })?;
    Ok(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_string))
}

/// Creates the output before anything heavy happens, so that a wrong path is found at once.
fn create_output(args: &BatchArgs) -> Result<BufWriter<File>> {
    let path = &args.output;
    if same_file(&args.input, path) {
        bail!("{} is the input too: choose another output file", path.display());
    }
    if path.exists() && !args.overwrite {
        bail!("{} exists: choose another output file, or say --overwrite", path.display());
    }
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path);
    Ok(BufWriter::new(file.with_context(|| format!("cannot create {}", path.display()))?))
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_line_feeds_end_lines_and_blank_ones_do_not_count() {
        let found: Vec<_> = lines("a\r\n\n b\rc \n").collect();
        assert_eq!(found, [(1, "a"), (3, " b\rc ")]);
    }

    #[test]
    fn a_broken_line_keeps_its_name() {
        assert_eq!(custom_id(r#"{"custom_id": "x", "method": "GET"}"#), "x");
        assert_eq!(custom_id("{"), "");
    }
}
