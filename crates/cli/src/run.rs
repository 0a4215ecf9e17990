//! `ballast run`: one prompt, or a chat.

use std::collections::VecDeque;
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use engine::Failure;
use model::sampling::{Limits, Overrides, ParamError, SamplingParams};
use model::template::{ChatTemplate, Conversation, Ending};
use model::tokenizer::Special;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use spec::ModelSpec;

use crate::answer::Asked;
use crate::args::RunArgs;
use crate::chat;
use crate::clock;
use crate::console::{EXIT_CTRL_C, Misuse, note, show};
use crate::display::Voice;
use crate::interrupts::Interrupts;
use crate::loaded::{self, Text};
use crate::output_file::apart;
use crate::plan::{Ends, Work};
use crate::resolve::{Needs, engine_config, kv_tokens};
use crate::wanted::Wanted;

/// What a newcomer's first run asks.
const DEFAULT_PROMPT: &str = "Why is the sea salty?";
/// Tokens that one prompt may be answered with, where no flag says.
const ANSWER_TOKENS: u32 = 256;
/// Answers to one prompt that are generated beside each other, at most.
const ANSWERS_AT_ONCE: usize = 64;

pub(crate) fn run(args: RunArgs) -> Result<ExitCode> {
    let started = Instant::now();
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    refuse_a_prompt_alone(&args)?;
    apart([args.lanes.path(), args.engine.record.as_deref()])?;
    let lanes = args.lanes.open()?;
    match args.raw {
        _ if voice == Voice::Quiet => {}
        true => args.engine.note_conversations(),
        false => args.engine.note_tools(),
    }
    let mut opened = loaded::open(args.model.as_deref(), &args.engine, voice)?;
    let template = args.engine.chat_template.as_deref().filter(|_| !args.raw);
    let text = opened.text(template)?;
    let template = if args.raw { None } else { text.template()? };
    if template.is_none() && args.system.is_some() {
        bail!(Misuse(
            "--system goes into a chat template, and the model has none: name a file with --chat-template"
                .into()
        ));
    }
    let mut params = sampling(&args, &text, opened.checkpoint.spec().vocab)?;
    let Some(prompt) = prompt(&args)? else {
        if let Some(flag) = args.answers.given() {
            bail!("{flag} is for answers to one prompt: give it after the model, or on standard input");
        }
        return chat::chat(&args, lanes, &opened, &text, template, &params);
    };
    let ids = encode(&text, template.as_ref(), args.system.as_deref(), &prompt)?;
    let answer = params.max_tokens.get_or_insert(ANSWER_TOKENS.max(params.min_tokens));
    // No answer goes beyond what the model can read, however long it may be.
    let positions = opened.checkpoint.spec().max_positions;
    let most = args.engine.max_model_len.unwrap_or(positions);
    let longest = (ids.len() + *answer as usize).min(most);
    let answers = args.answers.n.unwrap_or(1);
    // Only who reads an answer sees a stop string in it: nothing is generated beyond one.
    let seqs = if params.stop.is_empty() { (answers as usize).min(ANSWERS_AT_ONCE) } else { 1 };
    let needs = Needs {
        seqs,
        longest: Some(longest),
        kv_tokens: Some(kv_tokens(seqs, longest)),
        step_tokens: Some(ids.len()),
        expected: None,
    };
    let work = Work::likely(seqs, (ids.len(), *answer as usize), longest, Ends::Open);
    let mut config = lanes.wanted(engine_config(&args.engine, needs)?);
    config.scores_prompts = args.answers.prompt_logprobs.is_some();
    let wanted = Wanted { opened: &opened, config, args: &args.engine, work: Some(work), voice };
    let planned = wanted.plan()?.planned;
    fits(&ids, planned.hold().max_model_len, opened.checkpoint.spec())?;
    let engine = wanted.load(planned)?.engine;
    if voice == Voice::Normal {
        if template.is_none() && !args.raw {
            note!("the model has no chat template: it goes on with the prompt as it is");
        }
        if let Some(asked) = args.sampling.max_tokens
            && ids.len() + asked as usize > most
        {
            let room = most - ids.len();
            note!(
                "--max-tokens {asked}: the model reads {most} tokens, so the answer ends after {room} at the latest"
            );
        }
        note!("prompt: {}\n", beginning(&prompt));
    }
    let interrupts = Interrupts::heard()?;
    let ask = |number: u32| {
        let seed = params.seed.map(|seed| seed.wrapping_add(u64::from(number)));
        Asked::new(&engine, &text, ids.clone(), &SamplingParams { seed, ..params.clone() }, &interrupts)
    };
    // Others are generated beside the one that is told, once what they share with the first, the prompt, is computed.
    let (mut asked, mut others) = (VecDeque::from([ask(0)?]), 1..answers);
    let mut interrupted = false;
    for number in 0..answers {
        if answers > 1 {
            show!("{}answer {} of {answers}:", if number == 0 { "" } else { "\n" }, number + 1)?;
        }
        let answer = asked.pop_front().expect("one is asked before another is told");
        let mut fill = |most: usize| -> Result<()> {
            while asked.len() < most
                && let Some(number) = others.next()
            {
                asked.push_back(ask(number)?);
            }
            Ok(())
        };
        let said = answer.told(&engine, &interrupts, &mut || fill(seqs - 1))?;
        if !said.interrupted {
            fill(seqs)?;
        }
        show!("")?;
        said.probabilities(&text, number == 0)?;
        if voice == Voice::Normal {
            said.summary(started, &engine);
        }
        if said.interrupted {
            interrupted = true;
            break;
        }
    }
    drop(asked);
    if interrupted {
        lanes.end_soon(engine, args.engine.record.as_deref())?;
        return Ok(ExitCode::from(EXIT_CTRL_C));
    }
    lanes.end(engine)?;
    Ok(ExitCode::SUCCESS)
}

/// What is asked, or nothing where somebody wants to chat.
fn prompt(args: &RunArgs) -> Result<Option<String>> {
    match (&args.prompt, &args.model) {
        (Some(dash), _) if dash == "-" => piped().map(Some),
        (Some(prompt), _) => Ok(Some(prompt.clone())),
        // Without a model the first run is to say something by itself, and to wait for nobody.
        (None, None) if !something_is_piped() => Ok(Some(DEFAULT_PROMPT.to_string())),
        (None, None) => Ok(Some(read_stdin()?.unwrap_or_else(|| DEFAULT_PROMPT.to_string()))),
        (None, Some(_)) if std::io::stdin().is_terminal() => Ok(None),
        (None, Some(_)) => piped().map(Some),
    }
}

fn piped() -> Result<String> {
    match read_stdin()? {
        Some(prompt) => Ok(prompt),
        None => bail!("no prompt: give one after the model, or on standard input"),
    }
}

/// Whether standard input is no terminal, and has something by now.
fn something_is_piped() -> bool {
    let stdin = std::io::stdin();
    let mut waits = [PollFd::new(&stdin, PollFlags::IN)];
    let nothing_more = Timespec { tv_sec: 0, tv_nsec: 0 };
    !stdin.is_terminal() && poll(&mut waits, Some(&nothing_more)).is_ok_and(|ready| ready > 0)
}

/// Whether a prompt can be answered, before the weights are loaded for it.
fn fits(ids: &[u32], max: usize, spec: &ModelSpec) -> Result<()> {
    let (prompt, vocab, positions) = (ids.len(), spec.vocab, spec.max_positions);
    if let Some(&token) = ids.iter().find(|&&token| token as usize >= vocab) {
        bail!(Failure::UnknownToken { token, vocab });
    }
    match prompt {
        0 => bail!("the prompt is empty: there is nothing to go on from"),
        _ if prompt >= max => bail!(Failure::TooLong { prompt, max, positions }),
        _ => Ok(()),
    }
}

/// As much of a prompt as one wants to see again.
fn beginning(prompt: &str) -> String {
    const SHOWN: usize = 400;
    match prompt.char_indices().nth(SHOWN) {
        None => prompt.to_string(),
        Some((end, _)) => format!("{}... ({} bytes)", &prompt[..end], prompt.len()),
    }
}

/// All of standard input, less the line end that `echo` and editors add; nothing where it is blank.
fn read_stdin() -> Result<Option<String>> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
    let Ok(text) = String::from_utf8(bytes) else {
        bail!("standard input is not UTF-8 text: a prompt must be");
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Some(text.strip_suffix('\r').unwrap_or(text).to_string()))
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
    Ok(text.tokenizer.encode(&render(text, template, &messages)?, Special::Without)?)
}

/// A conversation's text, up to where the answer begins.
pub(crate) fn render(text: &Text, template: &ChatTemplate, messages: &[Value]) -> Result<String> {
    let conversation = Conversation {
        messages,
        ending: Ending::GenerationPrompt,
        special: text.special.clone(),
        now: clock::now(),
        ..Conversation::default()
    };
    Ok(template.render(&conversation)?)
}

/// Whether words where the model goes are rather something to say to one.
pub(crate) fn is_a_prompt(words: &str) -> bool {
    let is_path = words.contains('/') || words.ends_with(".gguf") || Path::new(words).exists();
    !is_path && words.contains(char::is_whitespace)
}

/// A prompt where the model goes.
fn refuse_a_prompt_alone(args: &RunArgs) -> Result<()> {
    let alone = args.model.as_deref().filter(|words| args.prompt.is_none() && is_a_prompt(words));
    let Some(words) = alone else { return Ok(()) };
    bail!(Misuse(format!(
        "no model `{words}`: the model comes before the prompt; to ask the default one, write\n  \
         ballast run {} \"{words}\"",
        loaded::DEFAULT
    )))
}

/// Flags first, then the publisher's defaults, then the likeliest token every time, unless flags ask to choose among several.
fn sampling(args: &RunArgs, text: &Text, vocab: usize) -> Result<SamplingParams> {
    let mut overrides = Overrides {
        logprobs: args.answers.logprobs,
        prompt_logprobs: args.answers.prompt_logprobs,
        ..args.sampling.overrides()
    };
    let chooses = args.sampling.chooses() || args.answers.n.is_some_and(|n| n > 1);
    if !chooses && overrides.temperature.is_none() && text.generation.overrides.temperature.is_none() {
        overrides.temperature = Some(0.0);
    }
    let limits = Limits { vocab_size: vocab as u32, max_logprobs: vocab as u32 };
    // What the publisher says was checked when it was read: a flag of the parameter's name is out of range.
    SamplingParams::resolve(&overrides, &text.generation, limits).map_err(|wrong| {
        let ParamError { param, expected, found } = wrong;
        Misuse(format!("--{}: expected {expected}, found {found}", param.replace('_', "-"))).into()
    })
}
