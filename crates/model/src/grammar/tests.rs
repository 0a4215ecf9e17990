//! Texts that random logits make are texts of their grammar, and what is wrong is refused.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::sampling::{Sampler, SamplingParams};
use crate::tokenizer::{Special, TokenizerConfig};

const END: u32 = 2;

fn tokenizer() -> Tokenizer {
    let fixture = include_str!("../../tests/fixtures/tokenizer/smollm.json");
    let fixture: Value = serde_json::from_str(fixture).unwrap();
    let json = serde_json::to_vec(&fixture["hf"]).unwrap();
    Tokenizer::from_hf(&json, &TokenizerConfig::default()).unwrap()
}

fn grammars() -> Grammars {
    Grammars::new(&tokenizer(), Budget { time: Duration::from_secs(3600), ..Budget::default() }).unwrap()
}

/// What a model of noise says under a grammar, and whether it came to its end.
fn babble(tokenizer: &Tokenizer, grammar: &Grammar, seed: u64) -> (String, bool) {
    let params = SamplingParams { grammar: Some(grammar.clone()), ..SamplingParams::default() };
    let mut sampler = Sampler::new(params, &[], &[END], seed);
    // Wider than the vocabulary, as padded models are; ends are likely, so that texts are short.
    let mut logits = vec![0.0; tokenizer.vocab_size() + 7];
    logits[END as usize] = 9.0;
    for byte in *b"\"}]0123 " {
        let id = (0..tokenizer.vocab_size() as u32).find(|&id| tokenizer.token_bytes(id) == [byte]);
        logits[id.unwrap() as usize] = 4.0;
    }
    let mut ids = Vec::new();
    for _ in 0..200 {
        let token = sampler.sample(&logits).unwrap().token;
        if token == END {
            return (tokenizer.decode(&ids, Special::With), true);
        }
        ids.push(token);
    }
    (tokenizer.decode(&ids, Special::With), false)
}

fn texts(format: OutputFormat) -> Vec<String> {
    let (tokenizer, grammars) = (tokenizer(), grammars());
    let grammar = grammars.compile(&format).unwrap();
    let all = (0..6).map(|seed| babble(&tokenizer, &grammar, seed));
    let ended: Vec<String> = all.filter(|(_, ended)| *ended).map(|(text, _)| text).collect();
    assert!(ended.len() > 3, "{format:?}: {ended:?}");
    ended
}

/// What a sampler says until an end of these, by logits of bytes alone.
fn said(format: OutputFormat, ends: &[u32], seed: u64, likely: &[(u8, f32)]) -> String {
    let (tokenizer, grammars) = (tokenizer(), grammars());
    let params =
        SamplingParams { grammar: Some(grammars.compile(&format).unwrap()), ..SamplingParams::default() };
    let mut sampler = Sampler::new(params, &[], ends, seed);
    let mut logits = vec![0.0; tokenizer.vocab_size()];
    likely.iter().for_each(|&(byte, logit)| logits[word(&tokenizer, byte) as usize] = logit);
    let next = || Some(sampler.sample(&logits).unwrap().token).filter(|token| !ends.contains(token));
    tokenizer.decode(&std::iter::from_fn(next).collect::<Vec<u32>>(), Special::With)
}

/// The token of a byte alone.
fn word(tokenizer: &Tokenizer, byte: u8) -> u32 {
    (0..tokenizer.vocab_size() as u32).find(|&id| tokenizer.token_bytes(id) == [byte]).unwrap()
}

#[test]
fn a_class_that_excludes_quotes_has_none() {
    for pattern in [r#"^[^"]{1,5}$"#, r#"^[^"\\]{1,5}$"#, r#"^[^-"]{1,5}$"#] {
        let schema = OutputFormat::Schema(json!({"type": "string", "pattern": pattern}));
        for seed in 0..8 {
            let text = said(schema.clone(), &[END], seed, &[(b'\\', 9.0), (b'"', 9.0)]);
            let said: String = serde_json::from_str(&text).unwrap();
            assert!(!said.contains('"'), "{pattern}: {text}");
        }
    }
}

/// An id that the tokenizer has as a word, and the model ends texts with.
#[test]
fn an_end_that_is_a_word_is_none_within_a_text() {
    let five = OutputFormat::Regex("[ab]{5}".to_owned());
    let ends = [END, word(&tokenizer(), b'a')];
    assert_eq!(said(five, &ends, 0, &[(b'a', 9.0)]).len(), 5);
}

#[test]
fn a_choice_may_be_any_character() {
    let texts = texts(OutputFormat::Choice(vec!["\u{7f}".to_owned()]));
    assert_eq!(texts[0], "\u{7f}");
}

#[test]
fn an_ignored_end_comes_where_nothing_else_can() {
    let (tokenizer, grammars) = (tokenizer(), grammars());
    let grammar = grammars.compile(&OutputFormat::Regex("[0-9]{1,9}".to_owned())).unwrap();
    let params = SamplingParams { grammar: Some(grammar), ignore_eos: true, ..SamplingParams::default() };
    let mut logits = vec![0.0; tokenizer.vocab_size()];
    logits[END as usize] = 30.0;
    for seed in 0..4 {
        let mut sampler = Sampler::new(params.clone(), &[], &[END], seed);
        let mut ids = Vec::new();
        while ids.last() != Some(&END) {
            ids.push(sampler.sample(&logits).unwrap().token);
        }
        let text = tokenizer.decode(&ids[..ids.len() - 1], Special::With);
        assert_eq!(text.len(), 9, "{text}: it goes on as long as it may");
    }
}

#[test]
fn choices_and_expressions_match() {
    let choices = ["yes", "no \"quoted\"\n", "è🚢"];
    let found = texts(OutputFormat::Choice(choices.map(str::to_owned).to_vec()));
    assert!(found.iter().all(|text| choices.contains(&text.as_str())), "{found:?}");
    let found = texts(OutputFormat::Regex("[a-c]{2}/[0-9]{1,3}".to_owned()));
    for text in found {
        let (letters, digits) = text.split_once('/').unwrap();
        assert!(letters.len() == 2 && letters.bytes().all(|b| (b'a'..=b'c').contains(&b)), "{text}");
        assert!((1..=3).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()), "{text}");
    }
}

#[test]
fn schemas_are_obeyed() {
    let schema = json!({
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "who": {"$ref": "#/$defs/who"}},
        "required": ["n", "who"], "additionalProperties": false,
        "$defs": {"who": {"enum": ["me", "you"]}},
    });
    for text in texts(OutputFormat::Schema(schema)) {
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(value["n"].as_u64().is_some_and(|n| n < 100), "{text}");
        assert!(value["who"] == "me" || value["who"] == "you", "{text}");
    }
    for text in texts(OutputFormat::Object) {
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
    }
}

#[test]
fn json_without_white_space_has_none() {
    let list = json!({"type": "array", "items": {"type": "integer", "maximum": u64::MAX, "minimum": 7}, "maxItems": 3});
    let schema = json!({"type": "object", "properties": {"a": list}, "required": ["a"], "additionalProperties": false});
    for text in texts(OutputFormat::Compact(schema)) {
        assert!(text.starts_with("{\"a\":[") && !text.contains([' ', '\n', '\t']), "{text}");
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let all = value["a"].as_array().unwrap();
        assert!(all.iter().all(|n| n.as_u64().is_some_and(|n| n >= 7)), "{text}");
    }
}

#[test]
fn numbers_beyond_what_the_compiler_tells_apart_stay_within_their_bounds() {
    const LEAST: u64 = 1 << 54;
    for bounds in
        [json!({"exclusiveMaximum": LEAST + 16}), json!({"maximum": LEAST + 16, "exclusiveMaximum": true})]
    {
        let mut number = json!({"type": "integer", "minimum": LEAST});
        number.as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
        for text in texts(OutputFormat::Schema(number)) {
            let n: u64 = text.parse().unwrap();
            assert!((LEAST..LEAST + 16).contains(&n), "{n}");
        }
    }
}

/// A model that would write full-width digits, byte by byte, writes ASCII's: those are the only ones.
#[test]
fn digits_of_expressions_are_those_of_ascii() {
    let (tokenizer, grammars) = (tokenizer(), grammars());
    let byte = |byte: u8| (0..tokenizer.vocab_size() as u32).find(|&id| tokenizer.token_bytes(id) == [byte]);
    let wide: Vec<usize> = "１".bytes().filter_map(byte).map(|id| id as usize).collect();
    assert_eq!(wide.len(), 3, "the vocabulary has its bytes");
    let pattern = json!({"type": "string", "pattern": "^\\d{2}\\w$"});
    for format in [OutputFormat::Regex(r"\d{2}\w".to_owned()), OutputFormat::Schema(pattern)] {
        let grammar = grammars.compile(&format).unwrap();
        let params = SamplingParams { grammar: Some(grammar), ..SamplingParams::default() };
        let mut sampler = Sampler::new(params, &[], &[END], 1);
        let mut logits = vec![0.0; tokenizer.vocab_size()];
        wide.iter().for_each(|&id| logits[id] = 50.0);
        let tokens = (0..9).map_while(|_| sampler.sample(&logits).ok().map(|sampled| sampled.token));
        let ids: Vec<u32> = tokens.take_while(|token| *token != END).collect();
        let text = tokenizer.decode(&ids, Special::With);
        assert!(text.len() >= 3 && text.is_ascii(), "{text}");
    }
}

/// The compiler took all of these for one number, of which it looked for the opposite without an end.
#[test]
fn bounds_beyond_64_bits_are_moved_to_where_they_count_or_refused() {
    let grammars = grammars();
    for (least, most) in [
        (json!(i64::MIN), json!(i64::MIN)),
        (json!(i64::MIN), json!(i64::MIN + 1)),
        (json!(-1e20), json!(-1e19)),
        (json!(-1e22), json!(-i64::MAX)),
        (json!(1e19), json!(1e19)),
        (json!(1_u64 << 63), json!((1_u64 << 63) + 5000)),
    ] {
        let schema = json!({"type": "integer", "minimum": least, "maximum": most});
        let within = format!("start: %json {schema}");
        for format in [
            OutputFormat::Schema(
                json!({"type": "object", "properties": {"n": {"allOf": [schema, {"minimum": -1e300}]}}}),
            ),
            OutputFormat::Schema(schema),
            OutputFormat::Lark(within),
        ] {
            let refused = grammars.compile(&format).unwrap_err().to_string();
            assert!(refused.contains("bounds are within 2^63"), "{refused}");
        }
    }
    let all = json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX});
    for text in texts(OutputFormat::Schema(all)) {
        assert!(text.parse::<i64>().is_ok(), "{text}");
    }
}

/// The row of a parser that has come to so many has an entry for each that may follow.
#[test]
fn as_many_properties_may_be_left_out_as_an_object_may_have() {
    let all: serde_json::Map<String, Value> =
        (0..2000).map(|i| (format!("p{i}"), json!({"const": 0}))).collect();
    for text in texts(OutputFormat::Schema(json!({"type": "object", "properties": all}))) {
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
    }
}

#[test]
fn grammars_in_larks_syntax() {
    let found = texts(OutputFormat::Lark("start: \"(\" start \")\" | \"x\"".to_owned()));
    for text in found {
        let depth = text.find('x').unwrap();
        assert_eq!(text, format!("{}x{}", "(".repeat(depth), ")".repeat(depth)));
    }
}

#[test]
fn grammars_in_the_syntax_of_llama_cpp() {
    let lark = |text: &str| OutputFormat::Lark(text.to_owned());
    for text in texts(lark("root ::= \"(\" root \")\" | \"x\"")) {
        let depth = text.find('x').unwrap();
        assert_eq!(text, format!("{}x{}", "(".repeat(depth), ")".repeat(depth)));
    }
    // The last letters of a word may be those of what follows it.
    for text in texts(lark("root ::= word \"xy\" [0-9]?\nword ::= [a-z]{1,5} # a comment")) {
        let word = text.trim_end_matches(|c: char| c.is_ascii_digit()).strip_suffix("xy").unwrap();
        assert!((1..=5).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase()), "{text}");
    }
    let wrong = grammars().compile(&lark("root ::= (\"a\"")).unwrap_err();
    assert_eq!(wrong, GrammarError::Invalid("line 1: expected `)`".to_owned()));
}

#[test]
fn what_is_wrong_is_refused_and_the_next_works() {
    let grammars = grammars();
    let lark = |text: &str| OutputFormat::Lark(text.to_owned());
    for bad in [
        OutputFormat::Schema(json!({"type": "frog"})),
        OutputFormat::Schema(json!([1])),
        OutputFormat::Schema(json!(false)),
        OutputFormat::Schema(json!({"$ref": "https://example.org/schema.json"})),
        OutputFormat::Schema(json!({"type": "string", "pattern": "(["})),
        OutputFormat::Regex("([".to_owned()),
        OutputFormat::Choice(Vec::new()),
        lark("start: missing"),
        lark("root ::= x"),
        lark(""),
        lark(&"(".repeat(10_000)),
    ] {
        assert!(matches!(grammars.compile(&bad), Err(GrammarError::Invalid(_))), "{bad:?}");
        assert!(grammars.compile(&OutputFormat::Object).is_ok());
    }
    let long = OutputFormat::Regex("a".repeat(Budget::default().source_bytes + 1));
    assert!(matches!(grammars.compile(&long), Err(GrammarError::TooLong { .. })));
}

#[test]
fn time_and_workers_end() {
    let tokenizer = tokenizer();
    let with = |budget: Budget| Grammars::new(&tokenizer, budget).unwrap().compile(&OutputFormat::Object);
    let hasty = Budget { time: Duration::ZERO, ..Budget::default() };
    assert_eq!(with(hasty), Err(GrammarError::TooSlow(Duration::ZERO)));
    assert_eq!(with(Budget { workers: 0, ..Budget::default() }), Err(GrammarError::Busy));
}

#[test]
fn the_cache_keeps_what_was_used_last_within_its_bytes() {
    let (grammars, mut cache) = (grammars(), Cache::new(200 << 10));
    let grammar = grammars.compile(&OutputFormat::Object).unwrap();
    assert_eq!(grammars.compile(&OutputFormat::Object).unwrap(), grammar, "found, not made again");
    for key in 0..3 {
        cache.put([key; 32], grammar.clone());
    }
    assert!(cache.get(&[0; 32]).is_some());
    cache.put([3; 32], grammar.clone());
    assert_eq!([0, 1, 2, 3].map(|key| cache.get(&[key; 32]).is_some()), [true, false, true, true]);
    cache.put([3; 32], grammar.clone());
    assert_eq!(cache.len(), 3);
    cache.put([4; 32], grammars.compile(&OutputFormat::Regex("a".repeat(4000))).unwrap());
    assert_eq!(cache.len(), 3, "too large for any cache like this");
    assert!(cache.bytes() <= 200 << 10);
}

#[test]
fn a_text_that_may_end_only_ends_whatever_its_minimum() {
    let (tokenizer, grammars) = (tokenizer(), grammars());
    let grammar = grammars.compile(&OutputFormat::Choice(vec!["ab".to_owned()])).unwrap();
    let params = SamplingParams { grammar: Some(grammar), min_tokens: 9, ..SamplingParams::greedy() };
    let mut sampler = Sampler::new(params, &[], &[END], 0);
    let ids: Vec<u32> =
        (0..5).map(|_| sampler.sample(&vec![0.0; tokenizer.vocab_size()]).unwrap().token).collect();
    assert_eq!(tokenizer.decode(&ids, Special::Without), "ab");
    assert_eq!(ids.last(), Some(&END));
}

#[test]
fn what_would_grow_without_end_is_refused_and_what_is_usual_is_not() {
    // Nobody waits so long: what has no end fails this test.
    let budget = Budget { time: Duration::from_secs(3600), ..Budget::default() };
    let grammars = Grammars::new(&tokenizer(), budget).unwrap();
    let lark = |text: String| OutputFormat::Lark(text);
    let doubling: String = (1..40).map(|i| format!("A{i}: A{p} A{p}\n", p = i - 1)).collect();
    let defs =
        (0..2500).map(|i| (format!("a{i}"), json!({"anyOf": [{"$ref": format!("#/$defs/a{}", i + 1)}]})));
    let defs: serde_json::Map<String, Value> = defs.collect();
    // No text but a very long one is a multiple of all of these.
    let multiples = [2, 3, 5, 7, 11, 13, 17, 19].map(|n| format!("/(a{{{n}}})*/"));
    for endless in [
        lark(format!("start: A39\nA0: \"a\"\n{doubling}")),
        lark(format!("start: A\nA: {}\n", multiples.join(" & "))),
        OutputFormat::Schema(json!({"$defs": defs, "$ref": "#/$defs/a0"})),
    ] {
        assert!(matches!(grammars.compile(&endless), Err(GrammarError::Invalid(_))));
    }
    for usual in [
        json!({"type": "string", "minLength": 3, "maxLength": 100, "pattern": "^[a-z]+@[a-z]+\\.[a-z]{2,3}$"}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "integer", "multipleOf": 5, "minimum": 10, "maximum": 100_000}),
        json!({"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"type": "object",
            "properties": {"more": {"$ref": "#/$defs/x"}, "name": {"type": "string"}}}}}),
    ] {
        assert!(grammars.compile(&OutputFormat::Schema(usual.clone())).is_ok(), "{usual}");
    }
}

/// So many definitions, of which each refers to the next, so many levels down.
pub(crate) fn deep_schema(name: &str, definitions: usize, levels: usize) -> Value {
    let down = |i: usize| {
        let next = json!({"$ref": format!("#/$defs/{name}{}", i + 1)});
        (0..levels).fold(next, |inner, _| json!({"anyOf": [inner]}))
    };
    let mut all: serde_json::Map<String, Value> =
        (0..definitions).map(|i| (format!("{name}{i}"), down(i))).collect();
    all.insert(format!("{name}{definitions}"), json!({"type": "null"}));
    json!({"$ref": format!("#/$defs/{name}0"), "$defs": all})
}

/// Rules of which each names the next, some of them back and forth: what is measured first does not come through them.
fn back_and_forth(group: impl Fn(String) -> String) -> String {
    let first = |k: usize| {
        let before = if k > 0 { format!("\"q\" r{}", 100 * (k - 1)) } else { "\"z\"".to_owned() };
        format!("r{}: \"a\" | {before} | {}\n", 100 * k, group(format!("\"y\" r{}", 100 * k + 1)))
    };
    let other = |i: usize| format!("r{i}: \"a\" | {}\n", group(format!("\"y\" r{}", i + 1)));
    let firsts = (0..15).rev().map(first);
    let others = (0..1500).filter(|i| i % 100 > 0).map(other);
    format!("{}r1500: \"x\"\nstart: r0", firsts.chain(others).collect::<String>())
}

/// The process would end with its stack.
#[test]
fn what_would_take_all_of_the_stack_is_refused() {
    let grammars = grammars();
    let group = |inner: String| format!("{}{inner}{}", "(".repeat(26), ")".repeat(26));
    let rule = |i: usize| format!("r{i}: {}\n", group(format!("\"y\" r{}", i + 1)));
    let rules = |n: usize| -> String { (0..n).map(rule).collect::<String>() + &format!("r{n}: \"x\"\n") };
    let same_names: String = (0..900).map(|i| format!("r{i}: \"x\"\n")).collect();
    let (open, close) = ("(\"\"|".repeat(26), ")".repeat(26));
    let of_llama: String = (0..1200).map(|i| format!("a{i}::=a{i}\"x\"|{open}a{}{close}\n", i + 1)).collect();
    for deep in [
        OutputFormat::Schema(deep_schema("a", 350, 55)),
        OutputFormat::Schema(deep_schema("~0a", 350, 55)),
        OutputFormat::Lark(format!("start: %json {}", deep_schema("a", 350, 55))),
        OutputFormat::Lark(format!("start: %lark {{ start: %json {} }}", deep_schema("~1", 350, 55))),
        OutputFormat::Lark(format!("start: r0 | z\n{}z: %lark {{\nstart: \"x\"\n{same_names}}}", rules(900))),
        OutputFormat::Lark(back_and_forth(group)),
        OutputFormat::Lark(format!("root ::= a0\n{of_llama}a1200 ::= \"z\"")),
    ] {
        assert!(matches!(grammars.compile(&deep), Err(GrammarError::Invalid(_))));
    }
    for usual in [format!("start: r0\n{}", rules(190)), back_and_forth(|inner| format!("({inner})"))] {
        assert!(grammars.compile(&OutputFormat::Lark(usual)).is_ok());
    }
}
