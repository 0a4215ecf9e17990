//! A chat on the terminal: the conversation so far is sent each time, and its KV is reused.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use anyhow::Result;
use engine::Engine;
use model::sampling::SamplingParams;
use model::template::ChatTemplate;
use serde_json::{Value, json};

use crate::loaded::Text;
use crate::run::{answer_to, render};

/// Talks until the input ends or somebody says `/bye`.
pub(crate) fn chat(
    engine: &Engine,
    text: &Text,
    template: &ChatTemplate,
    params: &SamplingParams,
    system: Option<&str>,
) -> Result<ExitCode> {
    eprintln!("Say something; /new begins anew, /bye ends (so does Ctrl-D).");
    let opening: Vec<Value> = system.iter().map(|s| json!({"role": "system", "content": s})).collect();
    let mut messages = opening.clone();
    while let Some(line) = ask()? {
        match line.trim() {
            "" => continue,
            "/bye" => break,
            "/new" => messages.clone_from(&opening),
            said => {
                messages.push(json!({"role": "user", "content": said}));
                match render(text, template, &messages).and_then(|ids| answer_to(engine, text, ids, params)) {
                    Ok(answer) => messages.push(json!({"role": "assistant", "content": answer.text})),
                    Err(error) => {
                        messages.pop();
                        eprintln!("{error:#}");
                        engine.alive()?;
                    }
                }
                println!();
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn ask() -> Result<Option<String>> {
    eprint!("> ");
    std::io::stderr().flush()?;
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line)?;
    Ok((read > 0).then_some(line))
}
