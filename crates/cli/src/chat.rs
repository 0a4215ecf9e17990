//! A chat on the terminal: the conversation so far is sent each time, and its KV is reused.

use std::process::ExitCode;

use anyhow::{Result, bail};
use engine::Engine;
use model::sampling::SamplingParams;
use model::template::ChatTemplate;
use model::thoughts::{Apart, Manner, Thoughts};
use model::tokenizer::Special;
use serde_json::{Value, json};

use crate::answer::Asked;
use crate::args::RunArgs;
use crate::console::{Hangup, note, show, told};
use crate::display::Voice;
use crate::interrupts::Interrupts;
use crate::keyboard::Keyboard;
use crate::lanes::LanesFile;
use crate::loaded::{Opened, Text};
use crate::plan::{Ends, Work};
use crate::resolve::{Needs, engine_config};
use crate::run::render;
use crate::wanted::Wanted;

/// The longest chat, where no flag says.
const CHAT_TOKENS: usize = 8192;
/// Tokens computed in a step: a chat's messages are short.
const STEP_TOKENS: usize = 512;

/// Tokens of a turn, and of what is said to it, as planning takes them.
const TURN_TOKENS: usize = 256;

const HELP: &str = "\
/new   begins anew
/bye   ends the chat (so does Ctrl-D)
/help  shows this
Ctrl-C ends an answer; between answers it ends the chat.
The arrow keys bring earlier lines back, and lines that are pasted together
are one message.";

/// What a line is.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Nothing,
    Bye,
    New,
    Help,
    Unknown(&'a str),
    Said(&'a str),
}

impl Line<'_> {
    fn of(line: &str) -> Line<'_> {
        // A path is no command, nor is what goes on after a word.
        let command = |word: &str| {
            word.strip_prefix('/').is_some_and(|name| name.bytes().all(|b| b.is_ascii_lowercase()))
        };
        match line.trim() {
            "" => Line::Nothing,
            "/bye" | "/exit" | "/quit" => Line::Bye,
            "/new" | "/clear" => Line::New,
            "/help" | "/?" => Line::Help,
            word if command(word) => Line::Unknown(word),
            said => Line::Said(said),
        }
    }
}

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
        let instead =
            if args.raw { "leave --raw out, or give" } else { "name a file with --chat-template, or give" };
        bail!("no chat without a chat template: {instead} a prompt after the model");
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
    let wanted = Wanted { opened, config, args: &args.engine, work: Some(work), voice };
    let engine = wanted.load(wanted.plan()?.planned)?.engine;
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
        let mut keyboard = Keyboard::open()?;
        note!("Say something, or /help; Ctrl-C ends an answer, and Ctrl-D the chat.");
        let mut messages = self.opening.clone();
        while let Some(line) = keyboard.line()? {
            match Line::of(&line) {
                Line::Nothing => {}
                Line::Bye => break,
                Line::New => messages.clone_from(&self.opening),
                Line::Help => note!("{HELP}"),
                Line::Unknown(command) => note!("There is no {command}.\n{HELP}"),
                Line::Said(said) => self.turn(said, &mut messages)?,
            }
        }
        Ok(())
    }

    /// One message and its answer. What cannot be answered is said, and forgotten.
    fn turn(&self, said: &str, messages: &mut Vec<Value>) -> Result<()> {
        messages.push(json!({"role": "user", "content": said}));
        match self.answer(messages) {
            Ok(answer) => messages.push(answer),
            Err(error) if error.is::<Hangup>() => return Err(error),
            Err(error) => {
                messages.pop();
                note!("{}", told(&error));
                self.engine.alive()?;
            }
        }
        Ok(())
    }

    /// Prints an answer; as templates want it: what was thought before it is no part of what was said.
    fn answer(&self, messages: &[Value]) -> Result<Value> {
        let (prompt, tokenizer) = (render(self.text, self.template, messages)?, &self.text.tokenizer);
        let ids = tokenizer.encode(&prompt, Special::Without)?;
        let (tokens, max) = (ids.len(), self.engine.hold().max_model_len);
        if tokens >= max {
            bail!(
                "With this message the conversation has {tokens} tokens, and {max} have room: say /new to begin \
                 anew, or less."
            );
        }
        let thoughts = self.template.thoughts();
        let thoughts = thoughts
            .and_then(|markers| Thoughts::behind(&prompt, None, markers, tokenizer, Manner::default()));
        let mut params = self.params.clone();
        params.skip_special_tokens &= !thoughts.as_ref().is_some_and(|it| it.has_special_marker(tokenizer));
        let asked = Asked::new(self.engine, self.text, ids, &params, &self.interrupts)?;
        let said = asked.told(self.engine, &self.interrupts, &mut || Ok(()))?;
        show!("")?;
        if said.conversation_tokens() >= max {
            note!("The conversation is full ({max} tokens), so this answer was cut: say /new to begin anew.");
        }
        let Some(thoughts) = thoughts else { return Ok(json!({"role": "assistant", "content": said.text})) };
        let Apart { thought, text } = thoughts.split().whole(&said.text);
        Ok(json!({"role": "assistant", "content": text, "reasoning_content": thought}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_what_is_said() {
        let lines =
            [" /bye ", "/exit", "/clear", "/help", "/unknown", "/etc/passwd", "/new words", "Hello", "\t"];
        let found = [
            Line::Bye,
            Line::Bye,
            Line::New,
            Line::Help,
            Line::Unknown("/unknown"),
            Line::Said("/etc/passwd"),
            Line::Said("/new words"),
            Line::Said("Hello"),
            Line::Nothing,
        ];
        assert_eq!(lines.map(Line::of), found);
    }

    #[test]
    fn a_chat_is_as_long_as_was_asked() {
        assert_eq!((longest(None, 512), longest(None, 32_768)), (512, CHAT_TOKENS));
        assert_eq!((longest(Some(16_384), 32_768), longest(Some(1024), 32_768)), (16_384, 1024));
    }
}
