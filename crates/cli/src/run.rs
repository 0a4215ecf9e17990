//! `ballast run`: one prompt, or a chat.

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use engine::{Engine, Event, Request, memory, size};
use model::output::TextStream;
use model::sampling::{Limits, SamplingParams};
use model::template::{ChatTemplate, Conversation, Ending};
use model::tokenizer::Special;
use serde_json::{Value, json};

use crate::args::{RunArgs, SamplingArgs};
use crate::chat;
use crate::display::Voice;
use crate::loaded::{self, Text};
use crate::resolve::{Needs, engine_config};

/// What a newcomer's first run asks.
const DEFAULT_PROMPT: &str = "What is ballast on a ship, and why does it matter?";
/// Tokens that one prompt may be answered with, where no flag says.
const ANSWER_TOKENS: u32 = 256;
/// The longest chat, where no flag says.
const CHAT_TOKENS: usize = 8192;

pub(crate) fn run(args: RunArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    let opened = loaded::open(args.model.as_deref(), &args.engine, voice)?;
    let text = opened.text(args.engine.chat_template.as_deref())?;
    let template = if args.raw { None } else { text.template()? };
    let mut params = sampling(&args.sampling, &text, opened.checkpoint.spec().vocab)?;
    let prompt = match &args.prompt {
        Some(prompt) => prompt.clone(),
        None if args.model.is_some() && std::io::stdin().is_terminal() => {
            let needs = Needs {
                seqs: 1,
                longest: Some(CHAT_TOKENS),
                kv_tokens: Some(CHAT_TOKENS),
                step_tokens: Some(512),
            };
            let engine = opened.start(engine_config(&args.engine, needs)?, voice)?;
            let Some(template) = template else { bail!("this model has no chat template: give it a prompt") };
            return chat::chat(&engine, &text, &template, &params, args.system.as_deref());
        }
        None if args.model.is_some() => read_stdin()?,
        None => DEFAULT_PROMPT.to_string(),
    };
    let ids = encode(&text, template.as_ref(), args.system.as_deref(), &prompt)?;
    let answer = params.max_tokens.get_or_insert(ANSWER_TOKENS);
    let longest = ids.len() + *answer as usize;
    let needs =
        Needs { seqs: 1, longest: Some(longest), kv_tokens: Some(longest), step_tokens: Some(ids.len()) };
    let engine = opened.start(engine_config(&args.engine, needs)?, voice)?;
    if voice == Voice::Normal {
        eprintln!("prompt: {prompt}\n");
    }
    let said = answer_to(&engine, &text, ids, &params)?;
    println!();
    if voice == Voice::Normal {
        said.summary(started, &engine);
    }
    Ok(ExitCode::SUCCESS)
}

/// An answer, and how long it took.
pub(crate) struct Said {
    pub(crate) text: String,
    prompt_tokens: usize,
    tokens: usize,
    begun: Instant,
    first: Option<Instant>,
    last: Instant,
}

/// Generates an answer and prints it as it comes.
pub(crate) fn answer_to(
    engine: &Engine,
    text: &Text,
    ids: Vec<u32>,
    params: &SamplingParams,
) -> Result<Said> {
    let eos = &engine.spec().eos;
    let mut stream = TextStream::new(text.tokenizer.clone(), params, eos, usize::MAX);
    let now = Instant::now();
    let mut said =
        Said { text: String::new(), prompt_tokens: ids.len(), tokens: 0, begun: now, first: None, last: now };
    let ticket =
        engine.submit(Request { prompt: ids, params: params.clone(), seed: fresh_seed(), salt: 0 })?;
    for event in &ticket.events {
        let delta = match event {
            Event::Token(token) => {
                said.tokens += 1;
                said.first.get_or_insert(token.at);
                said.last = token.at;
                stream.push(token.id)
            }
            Event::Finished(_) => stream.abort(),
            Event::Failed(why) => bail!(why),
            Event::Prompt(..) => continue,
        };
        print!("{}", delta.text);
        std::io::stdout().flush()?;
        said.text.push_str(&delta.text);
        if stream.is_finished() {
            break;
        }
    }
    Ok(said)
}

impl Said {
    fn summary(&self, started: Instant, engine: &Engine) {
        let first = self.first.unwrap_or(self.last);
        let decode = (self.last - first).as_secs_f64();
        let rate = if self.tokens > 1 { (self.tokens - 1) as f64 / decode } else { 0.0 };
        let prefill = (first - self.begun).as_secs_f64();
        eprintln!(
            "\n{} prompt tokens ({:.0}/s), {} generated ({rate:.1}/s); first token {:.0} ms after the start of the \
             process, {:.0} ms after the prompt",
            self.prompt_tokens,
            self.prompt_tokens as f64 / prefill,
            self.tokens,
            (first - started).as_secs_f64() * 1e3,
            prefill * 1e3,
        );
        let hold = engine.hold();
        eprintln!(
            "peak memory {} of {} announced; weights {} and KV {} in memory, nothing on disk",
            size(&memory::peak_resident_bytes()),
            size(&hold.total_bytes()),
            size(&hold.weight_bytes),
            size(&hold.kv_bytes)
        );
    }
}

fn read_stdin() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    if text.trim().is_empty() {
        bail!("no prompt: give one after the model, or on standard input");
    }
    Ok(text)
}

/// A prompt's tokens: through the chat template where there is one, plain otherwise.
fn encode(
    text: &Text,
    template: Option<&ChatTemplate>,
    system: Option<&str>,
    prompt: &str,
) -> Result<Vec<u32>> {
    let Some(template) = template else { return Ok(text.tokenizer.encode(prompt, Special::With)?) };
    let mut messages: Vec<Value> = system.iter().map(|s| json!({"role": "system", "content": s})).collect();
    messages.push(json!({"role": "user", "content": prompt}));
    render(text, template, &messages)
}

/// A conversation's tokens, up to where the answer begins.
pub(crate) fn render(text: &Text, template: &ChatTemplate, messages: &[Value]) -> Result<Vec<u32>> {
    let conversation = Conversation {
        messages,
        ending: Ending::GenerationPrompt,
        special: text.special.clone(),
        ..Conversation::default()
    };
    Ok(text.tokenizer.encode(&template.render(&conversation)?, Special::Without)?)
}

/// Flags first, then the publisher's defaults, then the likeliest token every time.
pub(crate) fn sampling(args: &SamplingArgs, text: &Text, vocab: usize) -> Result<SamplingParams> {
    let mut overrides = args.overrides();
    if overrides.temperature.is_none() && text.generation.temperature.is_none() {
        overrides.temperature = Some(0.0);
    }
    Ok(SamplingParams::resolve(&overrides, &text.generation, Limits { vocab_size: vocab as u32 })?)
}

/// For sampling without `--seed`.
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}
