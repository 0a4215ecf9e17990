//! A model that has no choice calls, and calls as it should.

use std::time::Duration;

use serde_json::json;

use super::super::{NAMES, Tool, tests::calls, types::objects};
use super::*;
use crate::grammar::{Budget, Grammars};
use crate::sampling::{Sampler, SamplingParams};
use crate::tokenizer::{Special, TokenizerConfig};

#[test]
fn a_forced_call_is_one_whatever_the_model_says() {
    let fixture = include_str!("../../../tests/fixtures/tokenizer/smollm.json");
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
    let grammars = grammars(tokenizer);
    let schema = json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"],
                        "additionalProperties": false, "$defs": {"n": {"enum": [1, 22]}}});
    let tools = [
        json!({"type": "function", "function": {"name": "f", "parameters": schema}}),
        json!({"type": "function", "function": {"name": "g.h", "parameters": schema}}),
    ];
    let formats = NAMES.iter().map(|(format, _)| *format).chain([ToolFormat::MistralArgs]);
    for format in formats {
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

fn grammars(tokenizer: &Tokenizer) -> Grammars {
    Grammars::new(tokenizer, Budget { time: Duration::from_secs(3600), ..Budget::default() }).unwrap()
}

/// Which of these texts are calls of a tool with such parameters, as its grammar has it.
fn taken<'a>(format: ToolFormat, parameters: &Value, texts: &[&'a str]) -> Vec<&'a str> {
    let fixture: Value =
        serde_json::from_str(include_str!("../../../tests/fixtures/tokenizer/smollm.json")).unwrap();
    let tokenizer = from_hf(&fixture["hf"]);
    let tools = [json!({"function": {"name": "f", "parameters": parameters}})];
    let output = format.forced(&tools, Forced::Any, &tokenizer, 8);
    let grammar = grammars(&tokenizer).compile(&output).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let takes = |text: &&&str| {
        let mut guide = grammar.begin();
        let ids = tokenizer.encode(text, Special::Without).unwrap();
        ids.into_iter().chain([2]).all(|id| {
            let mut row = vec![0.0; tokenizer.vocab_size()];
            let may = guide.mask(&mut row, &[2], &[]).is_ok() && row[id as usize] == 0.0;
            guide.accept(id);
            may
        })
    };
    texts.iter().filter(takes).copied().collect()
}

#[test]
fn texts_in_tags_are_what_their_schemas_say() {
    let of = |schema: Value, texts: &[&str]| {
        let parameters =
            json!({"properties": {"x": schema}, "required": ["x"], "$defs": {"e": {"enum": ["up", "down"]}}});
        for (format, [before, behind]) in
            [(ToolFormat::QwenXml, tagged::OWN_LINES), (ToolFormat::Seed, tagged::ONE_LINE)]
        {
            let mark = if format == ToolFormat::Seed { "seed:tool_call" } else { "tool_call" };
            let call = |text: &&str| {
                format!(
                    "<{mark}>\n<function=f>\n<parameter=x{before}{text}{behind}</parameter>\n</function>\n</{mark}>"
                )
            };
            let all: Vec<String> = texts.iter().map(call).collect();
            let found = taken(format, &parameters, &all.iter().map(String::as_str).collect::<Vec<_>>());
            // The first half are such.
            assert_eq!(found, all[..texts.len() / 2], "{schema}");
        }
    };
    of(
        json!({"type": "string"}),
        &["", "a \"b\"\n</param>", "5", "</parameter>\nx", "</parameter>\n\n", "x</parameter>\n<"],
    );
    of(json!({}), &["any", "x</parameter>\n"]);
    of(json!({"enum": ["red", "green"]}), &["red", "green", "blue", "redgreen"]);
    of(json!({"$ref": "#/$defs/e"}), &["up", "down", "sideways", "\"up\""]);
    of(json!({"anyOf": [{"$ref": "#/$defs/e"}, {"type": "null"}]}), &["up", "null", "none", ""]);
    of(json!({"type": "string", "pattern": "^[a-c]+/\\d$"}), &["abc/1", "a/0", "d/1", "a/12"]);
    of(json!({"type": "string", "pattern": "b"}), &["abc", "b", "ac", ""]);
    of(json!({"type": "string", "pattern": "^foo$|^bar$"}), &["foo", "bar", "foobar", "xbar"]);
    of(json!({"type": "string", "pattern": "^a|b$"}), &["ax", "xb", "xa", "bx"]);
    of(json!({"type": "string", "pattern": "^[|)]\\\\$"}), &["|\\", ")\\", "|", "|\\\\"]);
    of(json!({"type": "string", "minLength": 2, "maxLength": 3}), &["ab", "a\nb", "a", "abcd"]);
    of(json!({"type": "integer"}), &["5", "-12", "5.5", "five"]);
    of(json!({"type": ["string", "integer"]}), &["5", "five", "x</parameter>\n", "</parameter>\nx"]);
    of(json!({"type": "array", "items": {"$ref": "#/$defs/e"}}), &["[\"up\", \"down\"]", "[]", "up", "[5]"]);
    of(json!({"enum": ["auto", 5]}), &["auto", "5", "6", "\"auto\""]);
}

/// Schemas that say a thing by others.
#[test]
fn what_a_schema_says_by_others() {
    let tagged = |all: &[(&str, &str)]| {
        let values = all.iter().map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"));
        format!("<tool_call>\n<function=f>\n{}</function>\n</tool_call>", values.collect::<String>())
    };
    let takes = |parameters: Value, sound: &[&[(&str, &str)]], wrong: &[&[(&str, &str)]]| {
        let sound: Vec<String> = sound.iter().map(|all| tagged(all)).collect();
        let wrong: Vec<String> = wrong.iter().map(|all| tagged(all)).collect();
        let texts: Vec<&str> = sound.iter().chain(&wrong).map(String::as_str).collect();
        assert_eq!(taken(ToolFormat::QwenXml, &parameters, &texts), sound, "{parameters}");
    };
    // An object that must have one of two is that object.
    let either = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
                        "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    takes(either, &[&[("a", "1")], &[("b", "true")]], &[&[("a", "x")]]);
    // One of two objects.
    let integer = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let boolean = json!({"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]});
    takes(
        json!({"oneOf": [integer, boolean]}),
        &[&[("a", "1")], &[("b", "true")]],
        &[&[], &[("a", "1"), ("b", "true")]],
    );
    // As tools of MCP say it, whose parameters are objects first of all.
    takes(
        json!({"type": "object", "anyOf": [integer, boolean]}),
        &[&[("a", "1")], &[("b", "true")]],
        &[&[], &[("a", "x")]],
    );
    takes(
        json!({"type": "object", "properties": {"c": {"type": "string"}}, "allOf": [integer, {"$ref": "#/$defs/b"}], "$defs": {"b": boolean}}),
        &[&[("c", "x"), ("a", "1"), ("b", "true")], &[("a", "1"), ("b", "true")]],
        &[&[("a", "1")], &[("c", "x")]],
    );
    // What is named may stand anywhere in the whole.
    takes(
        json!({"properties": {"a": {"type": "integer"}, "l": {"type": "array", "items": {"$ref": "#/properties/a"}}}, "required": ["l"]}),
        &[&[("l", "[1, 2]")]],
        &[&[("l", "[\"x\"]")]],
    );
    takes(
        json!({"type": "object", "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["kids"]}),
        &[&[("kids", "[{\"v\": 1, \"kids\": []}]")]],
        &[&[("kids", "[[]]")]],
    );
    takes(
        json!({"properties": {"n": {"$ref": "#/$defs/L%3Cint%3E"}}, "required": ["n"], "$defs": {"L<int>": {"type": "integer"}}}),
        &[&[("n", "5")]],
        &[&[("n", "five")]],
    );
    takes(
        json!({"properties": {"n": {"allOf": [{"$ref": "#/$defs/c"}, {"description": "d"}]}}, "required": ["n"], "$defs": {"c": {"enum": [1, 2]}}}),
        &[&[("n", "1")]],
        &[&[("n", "zz")]],
    );
    // A value that must be all of two is no text.
    let all = json!({"allOf": [{"$ref": "#/$defs/n"}, {"minimum": 3}]});
    let all = json!({"properties": {"n": all}, "required": ["n"], "$defs": {"n": {"type": "integer"}}});
    takes(all, &[&[("n", "5")]], &[&[("n", "five")]]);
    // What names itself says nothing.
    let round = json!({"properties": {"r": {"$ref": "#/$defs/r"}}, "required": ["r"],
                       "$defs": {"r": {"anyOf": [{"$ref": "#/$defs/r"}, {"allOf": [{"$ref": "#/$defs/r"}]}]}}});
    takes(round, &[&[("r", "whatever")]], &[&[]]);
}

#[test]
fn arguments_that_may_be_left_out() {
    let schema = |required: &[&str]| json!({"properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "string"}}, "required": required});
    let python = |required: &[&str], arguments: &[&str]| {
        let all: Vec<String> =
            arguments.iter().map(|text| format!("<function_calls>f({text})</function_calls>")).collect();
        let texts: Vec<&str> = all.iter().map(String::as_str).collect();
        let found = taken(ToolFormat::Olmo, &schema(required), &texts);
        let cut = |text: &str| text["<function_calls>f(".len()..text.find(")</").unwrap()].to_owned();
        found.into_iter().map(cut).collect::<Vec<_>>()
    };
    let all = [
        "",
        "a=1",
        "b=true",
        "c=\"x\"",
        "a=1, c=\"x\"",
        "b=true, a=1, c=\"\"",
        "a=1, b=true, c=\"(\"",
        ", a=1",
        "a=1, ",
    ];
    assert_eq!(python(&[], &all), ["", "a=1", "b=true", "c=\"x\"", "a=1, c=\"x\"", "a=1, b=true, c=\"(\""]);
    assert_eq!(python(&["b"], &all), ["b=true", "b=true, a=1, c=\"\""]);
    assert_eq!(python(&["a", "c"], &all), ["a=1, c=\"x\""]);
    let tags = |some: &[(&str, &str)]| {
        let values = some.iter().map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"));
        format!("<tool_call>\n<function=f>\n{}</function>\n</tool_call>", values.collect::<String>())
    };
    let (a, b, c) = (("a", "1"), ("b", "true"), ("c", "x"));
    let sound = [tags(&[b]), tags(&[a, b]), tags(&[b, c]), tags(&[a, b, c])];
    let wrong = [tags(&[]), tags(&[a, c]), tags(&[b, a]), tags(&[b, b])];
    let texts: Vec<&str> = sound.iter().chain(&wrong).map(String::as_str).collect();
    assert_eq!(taken(ToolFormat::QwenXml, &schema(&["b"]), &texts), sound);
    let none = json!({"type": "object", "properties": {}});
    assert_eq!(taken(ToolFormat::QwenXml, &none, &[&tags(&[]), &tags(&[a])]), [tags(&[])]);
    assert_eq!(taken(ToolFormat::Olmo, &Value::Null, &["<function_calls>f()</function_calls>"]).len(), 1);
}

/// Schemas that lead on and on, or to much, are looked at for as long as any other.
#[test]
fn schemas_without_end_take_no_time_and_no_memory() {
    let wide = |key: &str, to: usize| json!({key: vec![json!({"$ref": format!("#/$defs/{to}")}); 1000]});
    for key in ["allOf", "anyOf"] {
        let all: serde_json::Map<String, Value> = (0..8).map(|i| (i.to_string(), wide(key, i + 1))).collect();
        let mut parameters = wide(key, 0);
        parameters["$defs"] = all.into();
        parameters["properties"] = json!({"a": {"$ref": "#/$defs/0"}, "b": {"type": "integer"}});
        let tool = Tool::of(&json!({"function": {"name": "f", "parameters": parameters}})).unwrap();
        assert!(!tool.types_of("b").is_text() && tool.types_of("a").is_text());
        let own = objects(&parameters);
        assert_eq!((own.len(), own[0].0.len()), (1, 2), "what it says itself");
    }
    // Each of many parameters has a copy of what may be referred to.
    let long: serde_json::Map<String, Value> =
        (0..20_000).map(|i| (format!("p{i}"), json!({"type": "integer"}))).collect();
    let tool = json!({"function": {"name": "f", "parameters": {"properties": long, "$defs": {"d": "x".repeat(10_000)}}}});
    let fixture: Value =
        serde_json::from_str(include_str!("../../../tests/fixtures/tokenizer/smollm.json")).unwrap();
    for format in [ToolFormat::QwenXml, ToolFormat::Olmo] {
        let OutputFormat::Lark(text) =
            format.forced(std::slice::from_ref(&tool), Forced::Any, &from_hf(&fixture["hf"]), 8)
        else {
            panic!("a grammar");
        };
        assert!((SOURCE_BYTES..8 * SOURCE_BYTES).contains(&text.len()), "{format:?}: {}", text.len());
    }
}
