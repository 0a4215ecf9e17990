//! A chat on the terminal: the conversation so far is sent each time, and its KV is reused.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use engine::Engine;
use model::sampling::SamplingParams;
use model::template::ChatTemplate;
use serde_json::{Value, json};

use crate::args::RunArgs;
use crate::console::{Hangup, note, show, told};
use crate::display::Voice;
use crate::interrupts::Interrupts;
use crate::lanes::LanesFile;
use crate::loaded::{self, Opened, Text};
use crate::plan::{Ends, Work};
use crate::resolve::{Needs, engine_config};
use crate::run::{answer_to, render};

/// The longest chat, where no flag says.
const CHAT_TOKENS: usize = 8192;
/// Tokens computed in a step: a chat's messages are short.
const STEP_TOKENS: usize = 512;

/// Tokens of a turn, and of what is said to it, as planning takes them.
const TURN_TOKENS: usize = 256;

/// Talks until the input ends or somebody says `/bye`.
pub(crate) fn chat(
    args: &RunArgs,
    lanes: LanesFile,
    opened: &Opened,
    text: &Text,
    template: Option<ChatTemplate>,
    params: &SamplingParams,
) -> Result<ExitCode> {
    let Some(template) = template else {
        bail!(
            "no chat without a chat template: give a prompt after the model (or a file with --chat-template)"
        );
    };
    let longest = longest(args.engine.max_model_len, opened.checkpoint.spec().max_positions);
    let needs = Needs {
        seqs: 1,
        longest: Some(longest),
        kv_tokens: Some(longest),
        step_tokens: Some(STEP_TOKENS),
        expected: None,
    };
    let voice = if args.quiet { Voice::Quiet } else { Voice::Normal };
    let config = lanes.wanted(engine_config(&args.engine, needs)?);
    let work = Work::likely(1, (TURN_TOKENS, TURN_TOKENS), longest, Ends::Open);
    let engine = loaded::load(opened.plan_for(config, &args.engine, work, voice)?.planned, voice)?;
    let opening = args.system.iter().map(|s| json!({"role": "system", "content": s})).collect();
    let interrupts = Interrupts::heard()?;
    Chat { engine: &engine, text, template: &template, params, opening, interrupts }.talk()?;
    lanes.end(engine)?;
    Ok(ExitCode::SUCCESS)
}

/// Tokens of the longest conversation: as many as were asked for, which a model was found to read.
fn longest(asked: Option<usize>, max_positions: usize) -> usize {
    asked.unwrap_or(CHAT_TOKENS.min(max_positions))
}

struct Chat<'a> {
    engine: &'a Engine,
    text: &'a Text,
    template: &'a ChatTemplate,
    params: &'a SamplingParams,
    /// What every conversation begins with.
    opening: Vec<Value>,
    interrupts: Interrupts,
}

impl Chat<'_> {
    fn talk(&self) -> Result<()> {
        note!("Say something; Ctrl-C ends an answer, /new begins anew, /bye ends (so does Ctrl-D).");
        let mut messages = self.opening.clone();
        while let Some(line) = ask()? {
            match line.trim() {
                "" => {}
                "/bye" => break,
                "/new" => messages.clone_from(&self.opening),
                said => self.turn(said, &mut messages)?,
            }
        }
        Ok(())
    }

    /// One message and its answer. What cannot be answered is said, and forgotten.
    fn turn(&self, said: &str, messages: &mut Vec<Value>) -> Result<()> {
        messages.push(json!({"role": "user", "content": said}));
        match self.answer(messages) {
            Ok(answer) => messages.push(json!({"role": "assistant", "content": answer})),
            Err(error) if error.is::<Hangup>() => return Err(error),
            Err(error) => {
                messages.pop();
                note!("{}", told(&error));
                self.engine.alive()?;
            }
        }
        Ok(())
    }

    fn answer(&self, messages: &[Value]) -> Result<String> {
        let ids = render(self.text, self.template, messages)?;
        let (tokens, max) = (ids.len(), self.engine.hold().max_model_len);
        if tokens >= max {
            bail!(
                "With this message the conversation has {tokens} tokens, and {max} have room: say /new to begin \
                 anew, or less."
            );
        }
        let said = answer_to(self.engine, self.text, ids, self.params, &self.interrupts)?;
        show!("")?;
        if said.conversation_tokens() >= max {
            note!("The conversation is full ({max} tokens), so this answer was cut: say /new to begin anew.");
        }
        Ok(said.text)
    }
}

/// A line, or nothing at the end of the input.
fn ask() -> Result<Option<String>> {
    let mut prompt = io::stderr().lock();
    let _ = prompt.write_all(b"> ").and_then(|()| prompt.flush());
    let mut line = Vec::new();
    let read = io::stdin().lock().read_until(b'\n', &mut line).context("cannot read standard input")?;
    Ok((read > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_is_as_long_as_was_asked() {
        assert_eq!((longest(None, 512), longest(None, 32_768)), (512, CHAT_TOKENS));
        assert_eq!((longest(Some(16_384), 32_768), longest(Some(1024), 32_768)), (16_384, 1024));
    }
}
