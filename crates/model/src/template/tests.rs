//! Against Python's Jinja2 (scripts/template_fixtures.py), and against hostile templates.

use std::collections::HashMap;

use serde_json::json;

use super::*;
use crate::tokenizer::TokenizerConfig;

const CASES: &str = include_str!("../../tests/fixtures/templates/cases.json");
const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/templates");

fn fixture(name: &str) -> ChatTemplate {
    let source = std::fs::read_to_string(format!("{DIR}/{name}.jinja")).unwrap();
    ChatTemplate::new(&source).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn special() -> SpecialTexts {
    let text = |t: &str| Some(t.to_owned());
    SpecialTexts { bos: text("<s>"), eos: text("</s>"), pad: None, unk: text("<unk>") }
}

fn render(template: &ChatTemplate, conversation: &Value, now: i64) -> Result<String, TemplateError> {
    let mut extra = conversation.as_object().unwrap().clone();
    ["messages", "tools", "add_generation_prompt"].iter().for_each(|k| drop(extra.shift_remove(*k)));
    let plain = conversation["add_generation_prompt"] == false;
    template.render(&Conversation {
        messages: conversation["messages"].as_array().unwrap(),
        tools: conversation.get("tools"),
        extra: Some(&extra),
        ending: if plain { Ending::Plain } else { Ending::GenerationPrompt },
        special: special(),
        now: WallClock { unix_s: now, utc_offset_s: 0 },
        ..Conversation::default()
    })
}

#[test]
fn published_templates_render_as_in_python() {
    let fixtures: Value = serde_json::from_str(CASES).unwrap();
    let mut templates = HashMap::new();
    let mut wrong = Vec::new();
    for case in fixtures["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let template = templates.entry(name).or_insert_with(|| fixture(name));
        let got = render(template, &case["conversation"], fixtures["now"].as_i64().unwrap());
        let expected = match (&case["text"], &case["error"]) {
            (Value::String(text), _) => Ok(text.clone()),
            (_, Value::String(why)) => Err(TemplateError::Refused(why.clone())),
            _ if got.is_err() => continue,
            _ => Err(TemplateError::Missing),
        };
        // A null that a template refuses comes as an empty text, which it may refuse in other words.
        let messages = case["conversation"]["messages"].as_array().unwrap();
        let refused =
            [&got, &expected].map(|said| matches!(said, Err(TemplateError::Refused(_)))) == [true; 2];
        let has_null = messages.iter().any(|message| message.get("content").is_some_and(Value::is_null));
        if got != expected && !(refused && has_null) {
            wrong.push(format!("{name} {}\n  got      {got:?}\n  expected {expected:?}", case["name"]));
        }
    }
    assert!(templates.len() > 20, "twenty families and one of Python's oddities");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn user(content: Value) -> Vec<Value> {
    vec![json!({"role": "user", "content": content})]
}

fn rendered(source: &str, messages: &[Value]) -> Result<String, TemplateError> {
    ChatTemplate::new(source)?.render(&Conversation { messages, ..Conversation::default() })
}

#[test]
fn content_takes_the_form_that_the_template_prints() {
    let parts = user(json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]));
    let text = user(json!("one"));
    let wants_text = "{{ messages[0].content.strip() }}";
    assert_eq!(rendered(wants_text, &parts).unwrap(), "one\ntwo");
    assert_eq!(rendered(wants_text, &text).unwrap(), "one");
    let wants_parts = "{% for part in messages[0].content %}[{{ part.text }}]{% endfor %}";
    assert_eq!(rendered(wants_parts, &parts).unwrap(), "[one][two]");
    assert_eq!(rendered(wants_parts, &text).unwrap(), "[one]");
}

/// Those of Mistral Small 3.2 print `content|string` of a tool.
#[test]
fn parts_of_a_tools_result_are_joined_where_texts_are_printed_too() {
    let source = "{% for m in messages %}{% if m.role == 'tool' or m.content is string %}{{ m.content | string }}{% else %}\
                  {% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}";
    let parts = json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
    let messages = [("user", &parts), ("tool", &parts)].map(|(role, c)| json!({"role": role, "content": c}));
    assert_eq!(rendered(source, &messages).unwrap(), "[one][two]one\ntwo");
    // Others print them as they print anybody's.
    let source = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
                  {% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}";
    assert_eq!(rendered(source, &messages).unwrap(), "[one][two][one][two]");
}

/// Clients send back what they were answered.
#[test]
fn nulls_and_no_calls_are_left_out() {
    for calls in [json!(null), json!([])] {
        let message = json!({"role": "assistant", "content": "hi", "refusal": null, "tool_calls": calls});
        assert_eq!(rendered("{{ messages[0] | list }}", &[message]).unwrap(), "['role', 'content']");
    }
}

#[test]
fn arguments_of_calls_are_objects_whatever_the_client_sent() {
    let call = |arguments: Value| {
        let calls =
            json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]);
        vec![json!({"role": "assistant", "content": null, "tool_calls": calls})]
    };
    let source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
    assert_eq!(rendered(source, &call(json!({"a": 1}))).unwrap(), "{\"a\": 1}");
    assert_eq!(rendered(source, &call(json!("{\"b\":2,\"a\":[]}"))).unwrap(), "{\"b\": 2, \"a\": []}");
    assert_eq!(rendered(source, &call(json!(" "))).unwrap(), "{}");
    assert_eq!(rendered(source, &call(json!("no json"))).unwrap(), "\"no json\"");
    assert_eq!(rendered(source, &call(json!(null))).unwrap(), "{}");
    let mut without = call(json!(null));
    without[0]["tool_calls"][0]["function"] = json!({"name": "f"});
    assert_eq!(rendered(source, &without).unwrap(), "{}");
}

/// DeepSeek R1's template adds them to other texts, and prints calls only where the content is null.
#[test]
fn arguments_of_calls_are_texts_for_templates_that_add_them() {
    let calls =
        "{% for c in m.tool_calls %}{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}";
    let answers = |of: &str| format!("{{% for m in messages if m.role == 'assistant' %}}{of}{{% endfor %}}");
    let adds = answers(calls);
    let looks =
        answers(&format!("{{% if m.content is none %}}{calls}{{% else %}}{{{{ m.content }}}}{{% endif %}}"));
    for (arguments, said) in [
        (json!({"a": [1, "é"]}), "f({\"a\": [1, \"é\"]})"),
        (json!("{\"b\":2}"), "f({\"b\":2})"),
        (json!(""), "f({})"),
        (json!("no json"), "f(no json)"),
    ] {
        let calls = json!([{"type": "function", "function": {"name": "f", "arguments": arguments}}]);
        let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
        for source in [&adds, &looks] {
            assert_eq!(rendered(source, std::slice::from_ref(&message)).unwrap(), said, "{source}");
        }
    }
}

#[test]
fn what_has_a_length_and_items_is_a_sequence() {
    let test = "{% for x in ['a', [1], {'a': 1}, 1, none] %}{{ x is sequence }} {% endfor %}";
    assert_eq!(rendered(test, &user(json!("hi"))).unwrap(), "True True True False False ");
}

#[test]
fn bad_messages_are_named() {
    let refuse = |messages: Value| {
        let messages = messages.as_array().unwrap().clone();
        rendered("{{ messages }}", &messages).unwrap_err().to_string()
    };
    let good = json!({"role": "user", "content": "hi"});
    assert!(refuse(json!([])).starts_with("messages: there are no messages"));
    assert!(refuse(json!([good, 7])).contains("messages[1]"));
    assert!(refuse(json!([{"content": "x"}])).contains("role is missing"));
    assert!(refuse(json!([{"role": "king", "content": "x"}])).contains("king"));
    assert!(refuse(json!([{"role": "user"}])).contains("content is missing"));
    assert!(refuse(json!([{"role": "user", "content": 5}])).contains("content is a string"));
    let image = json!([{"type": "image_url", "image_url": {"url": "http://x"}}]);
    assert!(refuse(json!([{"role": "user", "content": image}])).contains("image_url"));
}

/// Templates that do not know them leave out what they say.
#[test]
fn developers_are_the_system_to_those_who_do_not_know_them() {
    let said = |role: &str| [vec![json!({"role": role, "content": "Be kind."})], user(json!("hi"))].concat();
    let text = |name: &str, role: &str| {
        fixture(name).render(&Conversation {
            special: special(),
            messages: &said(role),
            ..Conversation::default()
        })
    };
    for name in ["qwen2.5", "smollm2", "llama-3"] {
        assert_eq!(text(name, "developer").unwrap(), text(name, "system").unwrap(), "{name}");
    }
    let knows = "{% for m in messages %}{% if m.role == 'developer' %}D{% else %}S{% endif %}{% endfor %}";
    assert_eq!(rendered(knows, &said("developer")).unwrap(), "DS");
}

#[test]
fn a_template_takes_the_systems_words_later_or_not() {
    for (name, takes) in
        [("qwen2.5", true), ("llama-3", true), ("smollm2", true), ("gemma-2", false), ("mistral-v3", false)]
    {
        assert_eq!(fixture(name).takes_system_later(), takes, "{name}");
    }
}

fn continued(messages: &[Value]) -> Conversation<'_> {
    Conversation { messages, ending: Ending::ContinueFinal, ..Conversation::default() }
}

#[test]
fn the_last_message_can_be_continued() {
    let messages = [user(json!("hi")), vec![json!({"role": "assistant", "content": "Sure, the "})]].concat();
    let text = fixture("smollm2").render(&continued(&messages)).unwrap();
    assert!(text.ends_with("<|im_start|>assistant\nSure, the "), "{text}");
    let trimmed = fixture("llama-3").render(&Conversation { special: special(), ..continued(&messages) });
    assert!(trimmed.unwrap().ends_with("\n\nSure, the"));
    // Wherever else the text is.
    for content in ["<", "e", "|", "", "<|im_end|>", "hi"] {
        let messages = [user(json!("hi")), vec![json!({"role": "assistant", "content": content})]].concat();
        let text = fixture("smollm2").render(&continued(&messages)).unwrap();
        assert!(text.ends_with(&format!("<|im_start|>assistant\n{content}")), "{text}");
    }
    let parts = json!([{"type": "text", "text": "ab"}, {"type": "text", "text": "e"}]);
    let messages = [user(json!("hi")), vec![json!({"role": "assistant", "content": parts})]].concat();
    let text = fixture("gemma-3").render(&Conversation { special: special(), ..continued(&messages) });
    assert!(text.unwrap().ends_with("<start_of_turn>model\nabe"));
    let changed = |source: &str| {
        let messages = vec![json!({"role": "assistant", "content": "Sure"})];
        let why = ChatTemplate::new(source).unwrap().render(&continued(&messages)).unwrap_err().to_string();
        assert!(why.contains("messages[0]") && why.contains("changes the text to continue"), "{why}");
    };
    changed("{{ messages[0].content | upper }}");
    changed("{{ messages[0].role }}");
}

#[test]
fn hostile_templates_are_stopped() {
    let message = user(json!("hi"));
    let limit = |source: &str| {
        let error = rendered(source, &message).unwrap_err();
        assert!(matches!(error, TemplateError::Limit(_)), "{error:?}");
    };
    limit("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
    limit("{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}");
    limit("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}");
    // Text that becomes more and more, whoever makes it.
    for more in ["ns.x ~ ns.x", "ns.x.replace('a', 'aa')", "ns.x.replace('a', ns.x)"] {
        let grows = format!("{{% for i in range(60) %}}{{% set ns.x = {more} %}}{{% endfor %}}");
        limit(&format!("{{% set ns = namespace(x='aa') %}}{grows}"));
    }
    for split in ["ns.x.rsplit(' ')", "ns.x.rsplit()"] {
        let grows = "{% for i in range(22) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
        limit(&format!("{{% set ns = namespace(x='a ') %}}{grows}{{% set n = {split} | length %}}"));
    }
    let failing = [
        "{% for %}",
        "{{",
        "{% include 'x' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].nope.nope }}",
        "{{ 1 // 0 }}",
        "{{ 'a' * 999999999999 }}",
        "{{ [1][::0] }}",
        "{{ undefined | tojson }}",
        "{{ strftime_now('%Q') }}",
        // Values that hold themselves, or are nested without end.
        "{% set ns = namespace() %}{% set ns.me = ns %}",
        "{% set ns = namespace() %}{% set ns.me = [{'a': ns}] %}",
        "{% set ns = namespace() %}{% set ns.me | default(ns, true) %}{% endset %}",
        "{% set ns = namespace(a=namespace()) %}",
        "{% set ns = namespace() %}{% set ns.a, ns.b = ns, ns %}",
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
    ];
    for source in failing {
        rendered(source, &message).unwrap_err();
    }
    assert_eq!(rendered("{{ [][::-1] }}{{ ''[::-1] }}", &message).unwrap(), "[]");
    rendered(&"{% if 1 %}".repeat(50_000), &message).unwrap_err();
    rendered(&format!("{{{{ {} }}}}", "(".repeat(100_000)), &message).unwrap_err();
    assert!(matches!(
        ChatTemplate::new(&" ".repeat(MAX_SOURCE_BYTES + 1)),
        Err(TemplateError::TooLong { .. })
    ));
}

/// What recursion can be driven to.
#[test]
fn values_may_be_nested_as_deep_as_a_template_has_brackets() {
    let deeper = |x: &str, lines: usize| {
        format!("{{% set {x} = {}{x}{} %}}", "[".repeat(70), "]".repeat(70)).repeat(lines)
    };
    let nested =
        |lines| format!("{{% set x = 1 %}}{}{{% set y = 1 %}}{}", deeper("x", lines), deeper("y", lines));
    let macros = format!(
        "{{% macro f(x, n) %}}{}{{% if n %}}{{{{ f(x, n - 1) }}}}{{% else %}}{{{{ x ~ '' }}}}{{% endif %}}{{% endmacro %}}{{{{ f(1, 19) }}}}",
        deeper("x", NESTS / 71)
    );
    let half = NESTS / 142;
    for (source, fine) in [
        (nested(half), true),
        (nested(half) + "{{ x ~ '' }}{{ x == y }}", true),
        (nested(half) + "{{ x | tojson }}", false),
        (nested(half) + "{{ x | string }}", false),
        (nested(half) + "{{ x }}", false),
        (nested(NESTS / 70), false),
        (macros, true),
    ] {
        let text = rendered(&source, &user(json!("hi")));
        assert_eq!(text.is_ok(), fine, "{source:.300}: {text:.200?}");
    }
}

/// What is written costs steps before there is memory for it.
#[test]
fn values_that_share_their_parts_are_written_out_no_further_than_steps_go() {
    let doubled = format!("{{% set x = ['aaaa'] %}}{}", "{% set x = [x, x] %}".repeat(35));
    let long = "{% set x = ['x' * 1000000] * 100000 %}".to_owned();
    for (value, then) in [&doubled, &long]
        .into_iter()
        .flat_map(|v| ["{{ x }}", "{{ x | tojson }}", "{{ x | string }}"].map(|t| (v, t)))
    {
        let error = rendered(&format!("{value}{then}"), &user(json!("hi"))).unwrap_err();
        assert!(matches!(error, TemplateError::Limit(_)), "{then}: {error:?}");
    }
}

#[test]
fn namespaces_hold_what_they_are_given() {
    let source = "{% set ns = namespace({'z': 0}, a=1) %}{% for i in [2, 3] %}{% set ns.a = ns.a + i %}{% endfor %}\
                  {% set ns.text %}<{{ ns.a }}>{% endset %}{{ ns.text }}{{ ns.z }}{{ ns.none is defined }}{% for k in ns %}{{ k }}{% endfor %}";
    assert_eq!(rendered(source, &user(json!("hi"))).unwrap(), "<6>0Falseatextz");
}

#[test]
fn templates_are_found_in_their_published_places() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let config = |json: Value| TokenizerConfig::parse(json.to_string().as_bytes()).unwrap();
    let text = |config: &TokenizerConfig, tools| {
        let template = Templates::find(dir, config)?.choose(tools)?;
        let messages = user(json!("x"));
        template.render(&Conversation { messages: &messages, ..Conversation::default() })
    };
    let none = TokenizerConfig::default();
    assert_eq!(text(&none, Tools::Absent), Err(TemplateError::Missing));
    std::fs::write(dir.join("chat_template.json"), r#"{"chat_template": "from json"}"#).unwrap();
    assert_eq!(text(&none, Tools::Absent).unwrap(), "from json");
    assert_eq!(text(&config(json!({"chat_template": "one"})), Tools::Absent).unwrap(), "one");
    let named = json!([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]);
    let named = config(json!({"chat_template": named}));
    assert_eq!(text(&named, Tools::Absent).unwrap(), "plain");
    assert_eq!(text(&named, Tools::Given).unwrap(), "tools");
    let map = config(json!({"chat_template": {"tool_use": "tools", "default": "plain"}}));
    assert_eq!(text(&map, Tools::Given).unwrap(), "tools");
    let odd = json!([{"name": "a", "template": "a"}, {"name": "b", "template": "b"}]);
    let error = text(&config(json!({"chat_template": odd})), Tools::Absent).unwrap_err();
    assert!(error.to_string().contains("a, b"));
    std::fs::write(dir.join("chat_template.jinja"), "from jinja").unwrap();
    assert_eq!(text(&named, Tools::Given).unwrap(), "from jinja");
    std::fs::create_dir_all(dir.join("additional_chat_templates")).unwrap();
    std::fs::write(dir.join("additional_chat_templates/tool_use.jinja"), "additional").unwrap();
    assert_eq!(text(&none, Tools::Given).unwrap(), "additional");
    assert_eq!(text(&none, Tools::Absent).unwrap(), "from jinja");
    // They are found without another file, too.
    std::fs::remove_file(dir.join("chat_template.jinja")).unwrap();
    assert_eq!(text(&none, Tools::Given).unwrap(), "additional");
    // The default is the model's own; one for tools is not it.
    assert_eq!(text(&named, Tools::Absent).unwrap(), "plain");
    assert_eq!(text(&named, Tools::Given).unwrap(), "additional");
    std::fs::remove_file(dir.join("chat_template.json")).unwrap();
    assert!(text(&none, Tools::Absent).unwrap_err().to_string().contains("tool_use"));
}

#[test]
fn tool_calls_of_another_type_are_refused() {
    let with = |calls: Value| {
        let messages = vec![json!({"role": "assistant", "content": "x", "tool_calls": calls})];
        rendered("{{ messages[0].content }}", &messages)
    };
    for fine in [Value::Null, json!([]), json!([{"function": {"name": "f", "arguments": "{}"}}])] {
        assert_eq!(with(fine).unwrap(), "x");
    }
    for wrong in [json!(1), json!("f"), json!([1]), json!({})] {
        assert!(with(wrong.clone()).unwrap_err().to_string().contains("tool_calls"), "{wrong}");
    }
    let odd_part = json!({"role": "user", "content": [{"type": {}, "text": "x"}]});
    assert!(rendered("x", &[odd_part]).unwrap_err().to_string().contains("type"));
    let of_a_tool = json!({"role": "tool", "content": "x", "tool_call_id": 1});
    assert!(rendered("x", &[of_a_tool]).unwrap_err().to_string().contains("tool_call_id"));
}

/// Jinja2 reads "\r\n" and a lone "\r" as "\n", in texts of a template too, but not where a text writes them.
#[test]
fn line_ends_of_every_kind_are_line_feeds() {
    let message = user(json!("a\r\nb"));
    let source = "{% set x = 'p\r\nq' %}\r\n{{ x }}\r-{{ messages[0].content }}\r\n\r\n{{ '\\r' }}\r\n";
    assert_eq!(rendered(source, &message).unwrap(), "p\nq\n-a\r\nb\n\n\r");
    assert_eq!(ChatTemplate::new(source).unwrap().source(), source);
    let published = std::fs::read_to_string(format!("{DIR}/smollm2.jinja")).unwrap();
    let windows = published.replace('\n', "\r\n");
    assert_eq!(rendered(&windows, &message).unwrap(), rendered(&published, &message).unwrap());
}

#[test]
fn results_of_tools_may_have_mistrals_name() {
    let called = json!([{"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}]);
    for name in ["mistral-v3", "mistral-v7"] {
        let say = |role: &str| {
            let messages = [
                json!({"role": "user", "content": "hi"}),
                json!({"role": "assistant", "content": null, "tool_calls": called}),
                json!({"role": role, "content": "7", "tool_call_id": "abcdefghi"}),
            ];
            let talk = Conversation { messages: &messages, special: special(), ..Conversation::default() };
            fixture(name).render(&talk).unwrap()
        };
        assert_eq!(say("tool_results"), say("tool"), "{name}");
    }
}

/// Clients send back the null that a tool call's message has; plain templates add it to a text.
#[test]
fn the_null_of_a_tool_call_is_an_empty_text_for_templates_that_print_it() {
    let adds = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}";
    let prints = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let adds_before_the_last = "{% for m in messages %}<{{ m.role }}>{% if loop.last %}{{ m.content }}{% else %}{{ m.content.strip() }}{% endif %}{% endfor %}";
    let refuses = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{{ raise_exception('no text') }}{% endif %}{% endfor %}";
    let adds_bos =
        "{{ bos_token + '' }}{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}";
    let looks = "{% for m in messages %}<{{ m.role }}>{% if m.content is none %}call{% else %}{{ m.content }}{% endif %}{% endfor %}";
    let call = json!([{"type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    for with in [json!({"content": null}), json!({})] {
        let mut called = json!({"role": "assistant", "tool_calls": call});
        called.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
        let messages = vec![
            json!({"role": "user", "content": "None?"}),
            called,
            json!({"role": "tool", "content": "4", "tool_call_id": "1"}),
        ];
        let said = |source| {
            let conversation =
                Conversation { messages: &messages, special: special(), ..Conversation::default() };
            ChatTemplate::new(source).unwrap().render(&conversation).unwrap()
        };
        let plain = "<user>None?<assistant><tool>4";
        for source in [adds, prints, adds_before_the_last, refuses] {
            assert_eq!(said(source), plain, "{source}");
        }
        assert_eq!(said(adds_bos), format!("<s>{plain}"));
        assert_eq!(said(looks), "<user>None?<assistant>call<tool>4");
    }
}
