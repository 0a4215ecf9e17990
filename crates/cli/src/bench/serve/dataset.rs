//! What is asked: prompts, lengths, and times where a trace has them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use engine::counted;
use serde_json::{Map, Value, json};
use sim::Rng;

use super::cutter::Cutter;
use super::trace;
use super::words::{Filler, said};
use crate::args::{Backend, BenchServeArgs, DatasetArgs, DatasetName, typed};
use crate::console::{Misuse, note, text_of};

/// Requests where neither a flag nor a file says how many.
const REQUESTS: usize = 1000;
/// Tokens generated for a prompt of a file where nothing says how many.
const OUTPUT_LEN: usize = 256;

/// One request to be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// The field `prompt` or `messages`.
    pub(super) prompt: Value,
    /// Tokens of the prompt, where they are known before the server says.
    pub(super) input_len: usize,
    pub(super) output_len: usize,
    /// Of a trace.
    pub(super) at: Option<Duration>,
}

/// A dataset before its random prompts are made.
pub(super) enum Dataset {
    /// Lengths, whose prompts are random.
    Lengths(Vec<trace::Row>),
    /// Prompts of a file.
    Given(Vec<Sample>),
}

impl Dataset {
    /// Reads what there is to read, and draws lengths.
    pub(super) fn open(args: &BenchServeArgs, cutter: Option<&Cutter>, rng: &mut Rng) -> Result<Dataset> {
        let (dataset, wanted) = (&args.dataset, args.traffic.num_prompts);
        note_of_others(dataset);
        let file = dataset.dataset_path.as_deref();
        match (dataset.dataset_name, file) {
            (DatasetName::Random, None) => {
                Ok(Dataset::Lengths(random(dataset, wanted.unwrap_or(REQUESTS), rng)))
            }
            (DatasetName::Random, Some(_)) => {
                bail!(Misuse("--dataset-path needs --dataset-name trace or custom".into()))
            }
            (_, None) => bail!(Misuse("--dataset-name trace and custom need --dataset-path FILE".into())),
            (DatasetName::Trace, Some(file)) => {
                let mut rows = trace::read(file)?;
                if rows.iter().all(|row| row.at.is_none()) {
                    without_times(args)?;
                }
                rows.iter_mut().for_each(|row| row.output_len = dataset.output_len.unwrap_or(row.output_len));
                Ok(Dataset::Lengths(first(of_length(rows, dataset)?, wanted, file)?))
            }
            (DatasetName::Custom, Some(file)) => Ok(Dataset::Given(custom(args, file, cutter, rng)?)),
        }
    }

    /// Whether prompts are still to be made.
    pub(super) fn needs_filler(&self) -> bool {
        matches!(self, Dataset::Lengths(_))
    }

    /// All requests.
    pub(super) fn fill(self, filler: Option<&Filler>, rng: &mut Rng) -> Vec<Sample> {
        match (self, filler) {
            (Dataset::Given(samples), _) => samples,
            (Dataset::Lengths(rows), Some(filler)) => {
                rows.iter().map(|row| filled(row, filler, rng)).collect()
            }
            (Dataset::Lengths(_), None) => Vec::new(),
        }
    }
}

/// A trace that does not say when its requests came: whoever counts on that hears of it.
fn without_times(args: &BenchServeArgs) -> Result<()> {
    let why = format!("the trace has no column of times ({})", trace::TIMES.join(", "));
    if args.dataset.self_timed {
        bail!(Misuse(format!("--self-timed: {why}")));
    }
    let says = args.traffic.request_rate.is_some() || args.traffic.ramp.ramp_up_strategy.is_some();
    if !says && !args.dataset.no_self_timed {
        note!("{why}: all its requests are sent at once");
    }
    Ok(())
}

/// Flags of datasets that are not this one say so.
fn note_of_others(args: &DatasetArgs) {
    let (trace, custom) = (DatasetName::Trace, DatasetName::Custom);
    let given = [
        ("--skip-longer-than", args.skip_longer_than.is_some(), trace),
        ("--self-timed", args.self_timed, trace),
        ("--no-self-timed", args.no_self_timed, trace),
        ("--custom-output-len", args.custom_output_len.is_some(), custom),
        ("--disable-shuffle", args.disable_shuffle, custom),
    ];
    for (flag, _, of) in given.into_iter().filter(|(_, given, of)| *given && *of != args.dataset_name) {
        note!("{flag} changes nothing: it is of --dataset-name {}", typed(of));
    }
}

fn filled(row: &trace::Row, filler: &Filler, rng: &mut Rng) -> Sample {
    let prompt = filler.prompt(row.input_len, rng);
    Sample { prompt, input_len: row.input_len, output_len: row.output_len, at: row.at }
}

fn random(args: &DatasetArgs, count: usize, rng: &mut Rng) -> Vec<trace::Row> {
    let ratio = args.random_range_ratio;
    let mut draw = |len: usize| {
        let (low, high) = ((len as f64 * (1.0 - ratio)).floor(), (len as f64 * (1.0 + ratio)).ceil());
        rng.within((low as u64).max(1), high as u64) as usize
    };
    let mut row = || trace::Row {
        at: None,
        input_len: draw(args.random_input_len),
        output_len: draw(args.output_len.unwrap_or(args.random_output_len)),
    };
    (0..count).map(|_| row()).collect()
}

/// Without what is too long for the server.
fn of_length(rows: Vec<trace::Row>, args: &DatasetArgs) -> Result<Vec<trace::Row>> {
    let Some(most) = args.skip_longer_than else { return Ok(rows) };
    let all = rows.len();
    let mut kept: Vec<_> = rows.into_iter().filter(|row| row.input_len + row.output_len <= most).collect();
    // The first that is kept begins: nobody waits for those that are left out.
    let first = kept.first().and_then(|row| row.at);
    kept.iter_mut().for_each(|row| row.at = row.at.zip(first).map(|(at, first)| at - first));
    note!(
        "{} of {} of the trace left out, of more than {}",
        all - kept.len(),
        counted(all, "request"),
        counted(most, "token")
    );
    Ok(kept)
}

fn first<T>(mut all: Vec<T>, wanted: Option<usize>, file: &Path) -> Result<Vec<T>> {
    let count = wanted.unwrap_or(REQUESTS.min(all.len()));
    if all.is_empty() {
        bail!("{} has no requests to send", file.display());
    }
    if count > all.len() {
        let has = counted(all.len(), "request");
        bail!("{} has {has}: ask for --num-prompts 1 to {}", file.display(), all.len());
    }
    all.truncate(count);
    Ok(all)
}

/// Prompts of JSON lines (or of one JSON list, as ShareGPT is published).
fn custom(args: &BenchServeArgs, file: &Path, cutter: Option<&Cutter>, rng: &mut Rng) -> Result<Vec<Sample>> {
    let text = text_of(file)?;
    let mut samples = Vec::new();
    for (number, item) in items(&text).with_context(|| format!("{} is not JSON", file.display()))? {
        let sample = sample(&item, args.server.backend, |item| answer_len(item, &args.dataset, cutter));
        let mut sample = sample.with_context(|| format!("{}, request {number}", file.display()))?;
        sample.input_len = cutter.and_then(|cutter| sample.counted(cutter)).unwrap_or(0);
        sample.output_len = args.dataset.output_len.unwrap_or(sample.output_len);
        samples.push(sample);
    }
    if !args.dataset.disable_shuffle {
        for i in (1..samples.len()).rev() {
            samples.swap(i, rng.below(i as u64 + 1) as usize);
        }
    }
    first(samples, args.traffic.num_prompts, file)
}

fn items(text: &str) -> Result<Vec<(usize, Value)>> {
    if text.trim_start().starts_with('[') {
        let list: Vec<Value> = serde_json::from_str(text)?;
        return Ok((1..).zip(list).collect());
    }
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| Ok((number, serde_json::from_str(line).context(format!("line {number}"))?)))
        .collect()
}

/// Tokens to generate where the file does not say.
fn answer_len(item: &Value, args: &DatasetArgs, cutter: Option<&Cutter>) -> usize {
    let answered = || cutter?.count(item["conversations"][1]["value"].as_str()?).filter(|n| *n > 0);
    args.custom_output_len.or_else(answered).unwrap_or(OUTPUT_LEN)
}

fn sample(item: &Value, backend: Backend, output_len: impl Fn(&Value) -> usize) -> Result<Sample> {
    let prompt = if let Some(text) = item["prompt"].as_str() {
        said(text, backend)
    } else if item["messages"].is_array() {
        if !backend.is_chat() {
            bail!("it has messages: they need --backend openai-chat");
        }
        item["messages"].clone()
    } else if let Some(text) = item["conversations"][0]["value"].as_str() {
        said(text, backend)
    } else {
        bail!("expected `prompt`, `messages` or `conversations`");
    };
    let output_len = match item.get("output_tokens") {
        None | Some(Value::Null) => output_len(item),
        Some(tokens) => {
            tokens.as_u64().filter(|n| *n > 0).context("output_tokens is no number from 1")? as usize
        }
    };
    Ok(Sample { prompt, input_len: 0, output_len, at: None })
}

impl Sample {
    /// Tokens of a prompt of text, or of what a conversation says, whose template the server has.
    fn counted(&self, cutter: &Cutter) -> Option<usize> {
        match &self.prompt {
            Value::Array(messages) => {
                messages.iter().map(|message| cutter.count(message["content"].as_str()?)).sum()
            }
            prompt => cutter.count(prompt.as_str()?),
        }
    }

    /// The body that asks for it.
    pub(super) fn body(&self, model: &str, backend: Backend, more: &Map<String, Value>) -> String {
        let (limit, field) =
            if backend.is_chat() { ("max_completion_tokens", "messages") } else { ("max_tokens", "prompt") };
        let options = json!({"include_usage": true});
        let mut body =
            json!({"model": model, limit: self.output_len, "stream": true, "stream_options": options});
        body[field] = self.prompt.clone();
        for (name, value) in more {
            body[name.as_str()] = value.clone();
        }
        body.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_lists_of_prompts() {
        let of = |item: Value, backend| sample(&item, backend, |_| 9);
        let plain = of(json!({"prompt": "a", "output_tokens": 4}), Backend::Openai).unwrap();
        assert_eq!((plain.prompt, plain.output_len), (json!("a"), 4));
        let shared =
            json!({"conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": "c"}]});
        let chat = of(shared, Backend::OpenaiChat).unwrap();
        assert_eq!((chat.prompt, chat.output_len), (json!([{"role": "user", "content": "b"}]), 9));
        let messages = json!({"messages": [{"role": "user", "content": "d"}]});
        assert!(of(messages.clone(), Backend::Openai).is_err());
        let body =
            of(messages.clone(), Backend::OpenaiChat).unwrap().body("m", Backend::OpenaiChat, &Map::new());
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&body["messages"], &body["max_completion_tokens"]), (&messages["messages"], &json!(9)));
        assert!(of(json!({"prompt": "a", "output_tokens": 0}), Backend::Openai).is_err());
        assert!(of(json!({"text": "a"}), Backend::Openai).is_err());
        let numbers = |text| items(text).unwrap().into_iter().map(|(number, _)| number).collect::<Vec<_>>();
        assert_eq!((numbers("{}\n\n{}\n"), numbers(" [{}, {}]")), (vec![1, 3], vec![1, 2]));
        assert!(items("{\n").is_err());
    }
}
