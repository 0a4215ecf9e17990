//! Renders chat templates for `clients/templates.py`, which compares them with Jinja2: a JSON object a line in
//! (`template`, `conversation`, `special`, `now`), a JSON object a line out (`text`, or `refused`, or `failed`).

use std::io::{self, BufRead, Write};

use model::template::{ChatTemplate, Conversation, Ending, SpecialTexts, TemplateError, WallClock};
use serde_json::{Value, json};

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let answer = match render(&case) {
            Ok(text) => json!({ "text": text }),
            Err(TemplateError::Refused(why)) => json!({ "refused": why }),
            Err(other) => json!({ "failed": other.to_string() }),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}

fn render(case: &Value) -> Result<String, TemplateError> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let template = ChatTemplate::new(case["template"].as_str().unwrap_or_default())?;
    let conversation = &case["conversation"];
    let mut extra = conversation.as_object().cloned().unwrap_or_default();
    ["messages", "tools", "add_generation_prompt"].iter().for_each(|name| drop(extra.shift_remove(*name)));
    let plain = conversation["add_generation_prompt"] == false;
    let special = &case["special"];
    template.render(&Conversation {
        messages: conversation["messages"].as_array().map_or(&[][..], Vec::as_slice),
        tools: conversation.get("tools"),
        extra: Some(&extra),
        ending: if plain { Ending::Plain } else { Ending::GenerationPrompt },
        special: SpecialTexts {
            bos: text(&special["bos_token"]),
            eos: text(&special["eos_token"]),
            pad: None,
            unk: text(&special["unk_token"]),
        },
        now: WallClock { unix_s: case["now"].as_i64().unwrap_or(0), utc_offset_s: 0 },
        ..Conversation::default()
    })
}
