//! Calls are found in texts, however those are cut.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::grammar::{Budget, Grammars};
use crate::sampling::{Sampler, SamplingParams};
use crate::tokenizer::{Special, TokenizerConfig};

fn calls(format: ToolFormat) -> Calls {
    Calls { format, names: ["f".to_owned(), "g.h".to_owned()].into(), most: 8, beside: Beside::Text }
}

/// Reads a text whole and in pieces of every size; all give the same.
fn read(format: ToolFormat, text: &str) -> (String, Vec<(String, String)>) {
    let calls = calls(format);
    let whole = calls.split(text);
    for size in 1..8 {
        let (mut parser, mut shown, mut got) = (calls.parser(), String::new(), Vec::<Call>::new());
        let chars: Vec<char> = text.chars().collect();
        let mut parts: Vec<Part> =
            chars.chunks(size).flat_map(|piece| parser.push(&piece.iter().collect::<String>())).collect();
        parts.extend(parser.finish());
        for part in parts {
            match part {
                Part::Text(text) => shown.push_str(&text),
                Part::Call { index, name } => {
                    assert_eq!(index, got.len());
                    got.push(Call { name, arguments: String::new() });
                }
                Part::Arguments { index, text } => got[index].arguments.push_str(&text),
            }
        }
        assert_eq!((shown, got), whole, "{text:?} in pieces of {size}");
        assert_eq!(parser.n_calls(), whole.1.len());
    }
    (whole.0, whole.1.into_iter().map(|call| (call.name, call.arguments)).collect())
}

fn check(format: ToolFormat, text: &str, shown: &str, calls: &[(&str, &str)]) {
    let got = read(format, text);
    let calls: Vec<_> = calls.iter().map(|(n, a)| ((*n).to_owned(), (*a).to_owned())).collect();
    assert_eq!(got, (shown.to_owned(), calls), "{text:?}");
}

#[test]
fn hermes() {
    let check =
        |text: &str, shown: &str, calls: &[(&str, &str)]| check(ToolFormat::Hermes, text, shown, calls);
    check("Hello < you", "Hello < you", &[]);
    check(
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\\\"\"]}}\n</tool_call>",
        "",
        &[("f", "{\"a\": [1, \"}\\\"\"]}")],
    );
    check(
        "Well.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"arguments\": {\"x\": 1}, \"name\": \"z\"}\n</tool_call>\n",
        "Well.",
        &[("f", "{}"), ("z", "{\"x\": 1}")],
    );
    // What stood between text and call stands between text and text.
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    check(&format!("Sure.\n\n{call} {call}\n Done."), "Sure.\n\nDone.", &[("f", "{}"), ("f", "{}")]);
    check(&format!("Sure.{call}Done."), "Sure.\nDone.", &[("f", "{}")]);
    check(&format!("{call}\nDone."), "Done.", &[("f", "{}")]);
    let open = "<tool_call>{\"name\":\"f\",\"arguments\":{}}";
    check(&format!("{open}\n{open}</tool_call>"), "", &[("f", "{}"), ("f", "{}")]);
    check(&format!("{open}<b>"), "<b>", &[("f", "{}")]);
    check("<tool_call>{\"name\": \"f\"}</tool_call> done", "done", &[("f", "{}")]);
    check("<tool_call>{\"name\": \"f\", \"arguments\": 5}</tool_call>", "", &[("f", "5")]);
    check("<tool_call>{\"nam\": 1}</tool_call>", "<tool_call>{\"nam\": 1}</tool_call>", &[]);
    check("<tool_call> soup", "<tool_call> soup", &[]);
    check("<<tool_call", "<<tool_call", &[]);
    check("<tool_call>{\"name\": \"f\", \"arguments\": {\"a", "", &[("f", "{\"a")]);
    check("<tool_call>{\"name\": \"f", "<tool_call>{\"name\": \"f", &[]);
    check("ends in space \n", "ends in space \n", &[]);
    check("<tool_call>{\"name\": 5, \"arguments\": {}}", "<tool_call>{\"name\": 5, \"arguments\": {}}", &[]);
    check(
        "<tool_call>{\"name\":\"f\",\"arguments\":{},\"arguments\":{\"a\":1}}</tool_call>",
        "",
        &[("f", "{}")],
    );
}

#[test]
fn llama() {
    let check =
        |text: &str, shown: &str, calls: &[(&str, &str)]| check(ToolFormat::Llama3, text, shown, calls);
    check("{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "", &[("f", "{\"a\": 1}")]);
    check("<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "", &[("f", "{}")]);
    check(
        "\n {\"type\": \"function\", \"name\": \"g.h\", \"arguments\": {}}; {\"name\": \"f\", \"parameters\": {}}",
        "",
        &[("g.h", "{}"), ("f", "{}")],
    );
    let call = "{\"name\": \"f\", \"parameters\": {}}";
    check(&format!("{call}, done"), ", done", &[("f", "{}")]);
    check(&format!("{call}; <|python_tag|>{call}"), "", &[("f", "{}"), ("f", "{}")]);
    for between in ["\n", ",\n", ""] {
        let call = "{\"name\": \"f\", \"parameters\": {\"a\": 1}}";
        check(&format!("{call}{between}{call}"), "", &[("f", "{\"a\": 1}"), ("f", "{\"a\": 1}")]);
    }
    check("{\"name\": \"Anna\", \"parameters\": {}}", "{\"name\": \"Anna\", \"parameters\": {}}", &[]);
    check(" {\"answer\": 5}", " {\"answer\": 5}", &[]);
    check("I would call {\"name\": \"f\"}", "I would call {\"name\": \"f\"}", &[]);
    check("<|python", "<|python", &[]);
    check("<|python_tag|>print(1)", "<|python_tag|>print(1)", &[]);
}

#[test]
fn mistral() {
    let check =
        |text: &str, shown: &str, calls: &[(&str, &str)]| check(ToolFormat::Mistral, text, shown, calls);
    check(
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}, {\"name\": \"q\", \"arguments\": {}}]",
        "",
        &[("f", "{\"a\": \"]\"}"), ("q", "{}")],
    );
    check(
        "Look: [1] [TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]q_2[ARGS]{}",
        "Look: [1]",
        &[("f", "{\"a\": 1}"), ("q_2", "{}")],
    );
    check(
        "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{\"a\": 1}[TOOL_CALLS]q[ARGS]{}",
        "",
        &[("f", "{\"a\": 1}"), ("q", "{}")],
    );
    check("[TOOL_CALLS]f[ARGS]\n{\"a\": 1}", "", &[("f", "{\"a\": 1}")]);
    check("[TOOL_CALLS]f[CALL_ID]a1[", "[TOOL_CALLS]f[CALL_ID]a1[", &[]);
    check("[TOOL_CALLS]f[CALL]{}", "[TOOL_CALLS]f[CALL]{}", &[]);
    check("[TOOL_CALLS] [5]", "[TOOL_CALLS] [5]", &[]);
    check("[TOOL_CALLS] what is this", "[TOOL_CALLS] what is this", &[]);
    check("[TOOL_CAL", "[TOOL_CAL", &[]);
}

#[test]
fn granite() {
    let check =
        |text: &str, shown: &str, calls: &[(&str, &str)]| check(ToolFormat::Granite, text, shown, calls);
    check(
        "<|tool_call|>[{\"arguments\":{\"a\":\"]\"},\"name\":\"f\"}, {\"name\": \"q\", \"arguments\": {}}]",
        "",
        &[("f", "{\"a\":\"]\"}"), ("q", "{}")],
    );
    check("Yes. <|tool_call|>\n[{\"name\": \"f\", \"arguments\": {}}]", "Yes.", &[("f", "{}")]);
    check("<|tool_call|>f{}", "<|tool_call|>f{}", &[]);
    check("<|tool_call|> [5]", "<|tool_call|> [5]", &[]);
    check("<|tool", "<|tool", &[]);
}

#[test]
fn an_end_within_what_closes_a_call_leaves_nothing_of_it() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n";
    for cut in ["<", "</tool_", "</tool_call"] {
        check(ToolFormat::Hermes, &format!("{call}{cut}"), "", &[("f", "{}")]);
    }
    check(ToolFormat::Hermes, &format!("{call}</b> bold"), "</b> bold", &[("f", "{}")]);
}

#[test]
fn an_answer_that_had_to_be_calls_has_no_text_where_it_was_cut() {
    for (format, whole) in [
        (ToolFormat::Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"),
        (ToolFormat::Llama3, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}"),
        (ToolFormat::Mistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}]"),
        (ToolFormat::MistralArgs, "[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{\"a\": 1}"),
        (ToolFormat::Granite, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]"),
    ] {
        let forced = Calls { beside: Beside::Nothing, ..calls(format) };
        for end in 0..=whole.len() {
            assert_eq!(forced.split(&whole[..end]).0, "", "{}", &whole[..end]);
        }
        assert_eq!(forced.split(whole).1.len(), 1);
    }
}

#[test]
fn calls_beyond_the_most_are_left_out() {
    let one = Calls { most: 1, ..calls(ToolFormat::Hermes) };
    let text = "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>".repeat(3);
    assert_eq!(one.split(&text).1.len(), 1);
}

#[test]
fn templates_name_their_format() {
    let source = |name: &str| {
        let path = format!("{}/tests/fixtures/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    for (name, format) in [
        ("qwen2.5", Some(ToolFormat::Hermes)),
        ("qwen3", Some(ToolFormat::Hermes)),
        ("llama-3.1", Some(ToolFormat::Llama3)),
        ("mistral-v3", Some(ToolFormat::Mistral)),
        ("granite-3", Some(ToolFormat::Granite)),
        ("granite-4", Some(ToolFormat::Hermes)),
        ("chatml", None),
        ("smollm2", None),
        ("llama-3", None),
    ] {
        assert_eq!(ToolFormat::of_template(&source(name)), format, "{name}");
    }
    let newer = "{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' + arguments }}";
    assert_eq!(ToolFormat::of_template(newer), Some(ToolFormat::MistralArgs));
    assert_eq!(ToolFormat::MistralArgs.or_named(ToolFormat::Mistral), ToolFormat::MistralArgs);
    assert_eq!(ToolFormat::MistralArgs.or_named(ToolFormat::Hermes), ToolFormat::Hermes);
    for format in [ToolFormat::Mistral, ToolFormat::MistralArgs] {
        assert_eq!(format.call_id("7").len(), 9, "what its template insists on");
    }
    assert_ne!(ToolFormat::Hermes.call_id("7"), ToolFormat::Hermes.call_id("8"));
}

#[test]
fn a_forced_call_is_one_whatever_the_model_says() {
    let fixture = include_str!("../../tests/fixtures/tokenizer/smollm.json");
    let fixture: serde_json::Value = serde_json::from_str(fixture).unwrap();
    let mut hf = fixture["hf"].clone();
    for special in [false, true] {
        if special {
            let first = from_hf(&hf).vocab_size();
            let added =
                ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"].into_iter().zip(first..).map(|(content, id)| {
                    json!({"id": id, "content": content, "special": true, "normalized": false,
                       "single_word": false, "lstrip": false, "rstrip": false})
                });
            hf["added_tokens"].as_array_mut().unwrap().extend(added);
        }
        let tokenizer = from_hf(&hf);
        assert_eq!(ToolFormat::MistralArgs.has_special_marker(&tokenizer), special);
        every_form_is_forced(&tokenizer);
    }
}

fn from_hf(hf: &serde_json::Value) -> Tokenizer {
    Tokenizer::from_hf(&serde_json::to_vec(hf).unwrap(), &TokenizerConfig::default()).unwrap()
}

fn every_form_is_forced(tokenizer: &Tokenizer) {
    let budget = Budget { time: Duration::from_secs(3600), ..Budget::default() };
    let grammars = Grammars::new(tokenizer, budget).unwrap();
    let schema = json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"],
                        "additionalProperties": false, "$defs": {"n": {"enum": [1, 22]}}});
    let tools = [
        json!({"type": "function", "function": {"name": "f", "parameters": schema}}),
        json!({"type": "function", "function": {"name": "g.h", "parameters": schema}}),
    ];
    for format in [
        ToolFormat::Hermes,
        ToolFormat::Llama3,
        ToolFormat::Mistral,
        ToolFormat::MistralArgs,
        ToolFormat::Granite,
    ] {
        for which in [Forced::Any, Forced::Only("g.h")] {
            let output = format.forced(&tools, which, tokenizer, 8);
            let grammar = grammars.compile(&output).unwrap_or_else(|e| panic!("{e}: {output:?}"));
            let params = SamplingParams { grammar: Some(grammar), ..SamplingParams::default() };
            let mut sampler = Sampler::new(params, &[], &[2], 5);
            let mut logits = vec![0.0; tokenizer.vocab_size()];
            logits[2] = 20.0;
            let mut ids: Vec<u32> = (0..300).map(|_| sampler.sample(&logits).unwrap().token).collect();
            let end = ids.iter().position(|&id| id == 2).expect("an end");
            ids.truncate(end);
            let text = tokenizer.decode(&ids, Special::With);
            let (shown, found) = calls(format).split(&text);
            assert_eq!((shown.as_str(), found.len()), ("", 1), "{text}");
            assert!(["{\"n\": 1}", "{\"n\": 22}"].contains(&found[0].arguments.as_str()), "{text}");
            assert!(found[0].name == "g.h" || which == Forced::Any, "{text}");
        }
    }
}
