//! Calls are found in texts, however those are cut.

use serde_json::json;

use super::*;

pub(super) fn calls(format: ToolFormat) -> Calls {
    let parameters = json!({"type": "object", "properties": {
        "s": {"type": "string"}, "n": {"type": "integer"}, "ok": {"type": "boolean"}, "all": {"type": "array"},
        "o": {"$ref": "#/$defs/o"}, "maybe": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "text": {"type": ["string", "null"]}, "any": {}, "version": {"type": ["string", "integer"]}, "one": {"enum": ["1", 2]},
    }, "$defs": {"o": {"type": "object"}}});
    let tool =
        |name| Tool::of(&json!({"function": {"name": name, "parameters": parameters}})).expect("a tool");
    Calls { format, tools: ["f", "g.h", "ein Gerät"].map(tool).into(), most: 8, beside: Beside::Text }
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
fn lists_between_marks_of_their_own() {
    let list = "[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"q\", \"arguments\": {}}]";
    let both: &[_] = &[("f", "{\"n\": 1}"), ("q", "{}")];
    check(ToolFormat::Nemotron, &format!("Yes.\n<TOOLCALL>{list}</TOOLCALL>\n"), "Yes.", both);
    check(ToolFormat::Nemotron, &format!("<TOOLCALL>{list}</TOOL"), "", both);
    check(ToolFormat::Nemotron, "<TOOLCALL>none</TOOLCALL>", "<TOOLCALL>none</TOOLCALL>", &[]);
    check(ToolFormat::Granite, &format!("<|tool_call|>{list}<|/tool_call|>"), "", both);
    let action = "[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"n\": 1}},\n    \
                  {\"tool_call_id\": \"1\", \"tool_name\": \"q\", \"parameters\": {}}\n]";
    check(ToolFormat::Cohere, &format!("<|START_ACTION|>{action}<|END_ACTION|>"), "", both);
    check(ToolFormat::Cohere, "<|START_RESPONSE|>No <b>.<|END_RESPONSE|>", "No <b>.", &[]);
    check(ToolFormat::Cohere, "<|START_R", "<|START_R", &[]);
}

#[test]
fn tags() {
    let check = |text: &str, shown: &str, calls: &[(&str, &str)]| {
        check(ToolFormat::QwenXml, text, shown, calls);
        let seed = text.replace("tool_call>", "seed:tool_call>");
        super::tests::check(ToolFormat::Seed, &seed, &shown.replace("tool_call>", "seed:tool_call>"), calls);
    };
    let one = |values: &str| format!("<tool_call>\n<function=f>\n{values}</function>\n</tool_call>");
    let value = |key: &str, value: &str| format!("<parameter={key}>\n{value}\n</parameter>\n");
    check(&one(""), "", &[("f", "{}")]);
    check(
        &one(&value("s", "a \"b\"\n\n<c> </param\n")),
        "",
        &[("f", r#"{"s": "a \"b\"\n\n<c> </param\n"}"#)],
    );
    check(
        &one("<parameter=s>flat</parameter><parameter=n>7</parameter>"),
        "",
        &[("f", r#"{"s": "flat", "n": 7}"#)],
    );
    check(&one("<parameter=s>\n</parameter>"), "", &[("f", r#"{"s": ""}"#)]);
    // Values are of the types that the schema names, and as Python prints them too.
    for (key, text, json) in [
        ("n", "-3", "-3"),
        ("n", "three", r#""three""#),
        ("ok", "True", "true"),
        ("ok", "false", "false"),
        ("all", "[1, 'it\\'s', None]", r#"[1,"it's",null]"#),
        ("all", "[1, {\"a\": 2}]", r#"[1, {"a": 2}]"#),
        ("o", "{'a': (1.5, .5, 1_000)}", r#"{"a":[1.5,0.5,1000]}"#),
        ("o", "{\"a\": 123456789012345678901}", r#"{"a": 123456789012345678901}"#),
        ("maybe", "5", "5"),
        ("maybe", "5 o'clock", r#""5 o'clock""#),
        ("text", "null", "null"),
        ("text", "\"null\"", r#""\"null\"""#),
        ("s", "5", r#""5""#),
        ("any", "5", r#""5""#),
        ("unknown", "[1]", r#""[1]""#),
    ] {
        check(&one(&value(key, text)), "", &[("f", &format!("{{\"{key}\": {json}}}"))]);
    }
    let two = format!("Well.\n\n{}\n{}\nDone.", one(&value("s", "x")), one(&value("n", "1")));
    check(&two, "Well.\n\nDone.", &[("f", r#"{"s": "x"}"#), ("f", r#"{"n": 1}"#)]);
    // Without the marker before it, as some models forget it; and two calls between one pair.
    check(&one(&value("s", "x")).replace("<tool_call>\n", ""), "", &[("f", r#"{"s": "x"}"#)]);
    let both = one("</function>\n<function=g.h>\n<parameter=n>\n1\n</parameter>\n");
    check(&both, "", &[("f", "{}"), ("g.h", r#"{"n": 1}"#)]);
    // As Qwen's other models call.
    check(
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>",
        "",
        &[("f", "{\"n\": 1}")],
    );
    // Without an end of its own.
    let open = "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n";
    check(&format!("{open}</tool_call>\nDone."), "Done.", &[("f", "{\"n\": 1}")]);
    check(&format!("{open}{open}"), "", &[("f", "{\"n\": 1}"), ("f", "{\"n\": 1")]);
    check(&format!("{open}So."), "So.", &[("f", "{\"n\": 1}")]);
    // What is no call is text, and may hold one.
    check("<tool_call>\nsoup\n</tool_call>", "<tool_call>\nsoup\n</tool_call>", &[]);
    check(&format!("<function=f {}", one("")), "<function=f", &[("f", "{}")]);
    check(&format!("<tool_call>\n<function=f>\n{}", one("")), "<tool_call>\n<function=f>", &[("f", "{}")]);
    check(&one("").replace("=f>", "=ein Gerät>"), "", &[("ein Gerät", "{}")]);
    check("<function=f> is how", "<function=f> is how", &[]);
    check("a <func", "a <func", &[]);
    check("<function=f>\n<parameter=s>\ncut of", "", &[("f", "{\"s\": \"cut of")]);
}

#[test]
fn a_text_in_tags_is_told_as_it_comes() {
    let mut parser = calls(ToolFormat::QwenXml).parser();
    let mut told = |text: &str| parser.push(text);
    let call = Part::Call { index: 0, name: "f".to_owned() };
    let arguments = |text: &str| Part::Arguments { index: 0, text: text.to_owned() };
    assert_eq!(told("<tool_call>\n<function=f>\n<parameter=s>"), [call, arguments("{\"s\": \"")]);
    assert_eq!(told("\nlet x = 1;\n"), [arguments("let x = 1;")]);
    assert_eq!(told("}</para"), [arguments("\\n}")]);
    assert_eq!(told("meter>"), [arguments("\"")]);
    assert_eq!(told("\n</function>"), [arguments("}")]);
}

#[test]
fn calls_in_python() {
    let check = |text: &str, shown: &str, calls: &[(&str, &str)]| check(ToolFormat::Olmo, text, shown, calls);
    let one = |text: &str| format!("<function_calls>{text}</function_calls>");
    check(&one("f()"), "", &[("f", "{}")]);
    check(
        &one("f(s=\"a, (b)\", n=3, ok=true)\ng.h( n = -1.5e3 , all=['x', \"it's\", None])\n"),
        "",
        &[
            ("f", r#"{"s": "a, (b)", "n": 3, "ok": true}"#),
            ("g.h", r#"{"n": -1.5e3, "all": ["x","it's",null]}"#),
        ],
    );
    check(
        &one("\nf(o={'a': {'b': []}}, s='\\u00e9\\x21\\n')\n"),
        "",
        &[("f", r#"{"o": {"a":{"b":[]}}, "s": "é!\n"}"#)],
    );
    check(&format!("So: {} then", one("f()")), "So: then", &[("f", "{}")]);
    check(&one("f(s=\"😀\", all=[True,])"), "", &[("f", r#"{"s": "😀", "all": [true]}"#)]);
    check(&one("I call f()"), &one("I call f()"), &[]);
    check(&one("ein Gerät()"), "", &[("ein Gerät", "{}")]);
    check(&one("f(5)"), &one("f(5)"), &[]);
    check(&one("f(s=wrong)"), &one("f(s=wrong)"), &[]);
    check("<function_calls>f(s=\"cut", "<function_calls>f(s=\"cut", &[]);
    check("<function_calls>f(n=1, s=\"cut", "", &[("f", "{\"n\": 1")]);
    let deep = format!("f(all={}1{})", "[".repeat(200), "]".repeat(200));
    check(&one(&deep.replace('1', "'a'")), &one(&deep.replace('1', "'a'")), &[]);
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
        (
            ToolFormat::Cohere,
            "<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {\"a\": 1}}]<|END_ACTION|>",
        ),
        (ToolFormat::Olmo, "<function_calls>f(a=1)</function_calls>"),
        (ToolFormat::QwenXml, "<tool_call><function=f><parameter=n>1</parameter></function></tool_call>"),
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
    for (text, format) in [
        ("<tool_call>\n<function=", Some(ToolFormat::QwenXml)),
        ("<seed:tool_call>\n<function=", Some(ToolFormat::Seed)),
        ("<tool_call>{name}<arg_key>", None),
        ("<TOOLCALL>", Some(ToolFormat::Nemotron)),
        ("<|START_ACTION|>", Some(ToolFormat::Cohere)),
        ("<function_calls>", Some(ToolFormat::Olmo)),
    ] {
        assert_eq!(ToolFormat::of_template(text), format, "{text}");
    }
    for (format, names) in NAMES {
        assert!(names.iter().all(|name| name.parse() == Ok(format)));
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

/// What a call has until it goes wrong is JSON, and what it goes wrong with is told.
#[test]
fn calls_that_go_wrong_have_what_was_right() {
    check(
        ToolFormat::Olmo,
        "<function_calls>f(n=1, s=oops)</function_calls>\n<function_calls>f(n=2)</function_calls>",
        "s=oops)</function_calls>",
        &[("f", "{\"n\": 1}"), ("f", "{\"n\": 2}")],
    );
    let tagged = |inner: &str| format!("<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>\n");
    let wrong = tagged("<parameter=n>\n1\n</parameter>\n<parameter=b\n")
        + &tagged("<parameter=n>\n2\n</parameter>\n");
    let found = [("f", "{\"n\": 1}"), ("f", "{\"n\": 2}")];
    check(ToolFormat::QwenXml, &wrong, "<parameter=b\n</function>\n</tool_call>", &found);
    let unclosed = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>";
    check(ToolFormat::Hermes, unclosed, "", &[("f", "{\"a\": 1}")]);
    let spaced = "<tool_call>{\"id\": 1 , \"name\":\"f\",\"arguments\":{}}</tool_call>";
    check(ToolFormat::Hermes, spaced, "", &[("f", "{}")]);
    let again = "[TOOL_CALLS]abc[TOOL_CALLS]f{\"a\":1}";
    check(ToolFormat::MistralArgs, again, "[TOOL_CALLS]abc", &[("f", "{\"a\":1}")]);
    let spaced = "[TOOL_CALLS]ein Gerät[ARGS]{\"n\": 1}";
    check(ToolFormat::MistralArgs, spaced, "", &[("ein Gerät", "{\"n\": 1}")]);
    let list = "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}";
    check(ToolFormat::Granite, &format!("{list}], and then more"), ", and then more", &[("f", "{}")]);
    check(ToolFormat::Granite, &format!("{list},]"), "", &[("f", "{}")]);
    check(ToolFormat::Granite, &format!("{list}, oops]"), ", oops]", &[("f", "{}")]);
}

#[test]
fn values_in_tags_are_of_their_types() {
    let check = |value: &str, json: &str| {
        let (key, value) = value.split_once('=').unwrap();
        let text = format!("<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>");
        check(ToolFormat::QwenXml, &text, "", &[("f", &format!("{{\"{key}\": {json}}}"))]);
    };
    check("version=1.10", "\"1.10\"");
    check("version=11", "11");
    check("one=1", "\"1\"");
    check("one=2", "2");
    // What ends a value may stand in a text within it.
    check("all=[\"</parameter>\", \"\\\"</parameter>\"]", "[\"</parameter>\", \"\\\"</parameter>\"]");
    check("all=it's", "\"it's\"");
}

/// A model that writes white space on and on.
#[test]
fn white_space_before_a_call_takes_no_more_time_the_more_there_is() {
    let mut parser = calls(ToolFormat::Llama3).parser();
    let parts = parser.push(&"\n".repeat(2_000_000));
    assert_eq!((parts, parser.n_calls()), (vec![], 0));
    let call = parser.push("{\"name\": \"f\", \"parameters\": {}}");
    assert_eq!((call.len(), parser.n_calls()), (2, 1));
}
