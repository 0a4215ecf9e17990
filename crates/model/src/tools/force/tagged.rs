//! Arguments as `<parameter=key>value</parameter>`, where texts are as they are and other values as JSON has them.

use serde_json::Value;

use super::super::tagged::{END_OF_PARAMETER, PARAMETER};
use super::super::types::{Object, Types, leaves, objects};
use super::{bounded, value};
use crate::grammar::{ecma, quoted};

/// What stands between a parameter's name and its value, and between that and its end.
pub(super) type Around = [&'static str; 2];

/// Qwen's.
pub(super) const OWN_LINES: Around = [">\n", "\n"];
/// Seed's.
pub(super) const ONE_LINE: Around = [">", ""];

/// Any text and what ends it.
const TEXT: &str = "text";

/// What all rules of calls need beside their own.
pub(super) fn shared() -> String {
    text(TEXT, "(?s:.*)")
}

/// A rule of a text, up to the first end of it.
fn text(rule: &str, expression: &str) -> String {
    format!("{rule}[suffix={}]: /{expression}/", quoted(END_OF_PARAMETER))
}

/// What a tool takes; of parameters that may be one of several objects, one of those.
pub(super) fn arguments(tool: &Value, index: usize, around: Around) -> String {
    let root = &tool["function"]["parameters"];
    let mut rules = Vec::new();
    let all = objects(root).into_iter().enumerate();
    let all = all.map(|(at, one)| object(one, root, &format!("value_{index}_{at}"), around, &mut rules));
    let all: Vec<String> = bounded(all).collect();
    let all = if all.is_empty() { "\"\"".to_owned() } else { all.join(" | ") };
    format!("arguments_{index}: {all}\n{}", rules.join("\n"))
}

/// `rule`: the beginning of names for rules of texts that have a form.
fn object(
    (all, required): Object<'_>,
    root: &Value,
    rule: &str,
    around: Around,
    rules: &mut Vec<String>,
) -> String {
    let one = |(at, (key, schema)): (usize, &(&String, &Value))| {
        let one = parameter(schema, root, &format!("{rule}_{at}"), around, rules);
        let opens = quoted(&format!("{PARAMETER}{key}{}", around[0]));
        let end = if required.contains(&key.as_str()) { "" } else { "?" };
        format!("({opens} {one} \"\\n\"){end}")
    };
    let all: Vec<String> = bounded(all.iter().enumerate().map(one)).collect();
    if all.is_empty() { "\"\"".to_owned() } else { all.join(" ") }
}

/// A value and what ends it. `rule`: a name for texts that have a form, of which there is one more for each.
fn parameter(
    schema: &Value,
    root: &Value,
    rule: &str,
    [_, before]: Around,
    rules: &mut Vec<String>,
) -> String {
    let end = quoted(&format!("{before}{END_OF_PARAMETER}"));
    let mut forms = Vec::new();
    for (at, leaf) in leaves(schema, root).into_iter().enumerate() {
        let form = match Form::of(leaf, root) {
            Form::Texts(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                format!("({}) {end}", texts.join(" | "))
            }
            Form::Json => format!("{} {end}", value(leaf, root)),
            Form::Expression(expression) => {
                let rule = format!("{rule}_{at}");
                rules.push(text(&rule, &format!("({expression}){}", before.replace('\n', "\\n"))));
                rule
            }
            // Whatever else it may be is a text, too.
            Form::Any => return TEXT.to_owned(),
        };
        forms.push(form);
    }
    // Of what comes to no end nothing is said.
    if forms.is_empty() { TEXT.to_owned() } else { format!("({})", forms.join(" | ")) }
}

/// What a value may be.
enum Form {
    /// Any text.
    Any,
    /// One of these.
    Texts(Vec<String>),
    /// A text that an expression describes.
    Expression(String),
    /// No text.
    Json,
}

impl Form {
    fn of(leaf: &Value, root: &Value) -> Self {
        let types = Types::of(leaf, root);
        if !types.may_be_text() {
            return Form::Json;
        }
        let chosen = leaf["enum"].as_array().map(Vec::as_slice);
        let chosen = chosen.or_else(|| leaf.get("const").map(std::slice::from_ref));
        if let Some(chosen) = chosen {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            return Form::Texts(chosen.iter().map(text).collect());
        }
        match (types.is_text(), leaf["pattern"].as_str()) {
            (true, Some(pattern)) => Form::Expression(anywhere(pattern)),
            (true, None) => lengths(leaf).map_or(Form::Any, Form::Expression),
            _ => Form::Any,
        }
    }
}

/// Texts in which a pattern is found, as JSON Schema has it: each of its branches has ends of its own.
fn anywhere(pattern: &str) -> String {
    let any = |is_end: bool| if is_end { "" } else { "(?s:.*)" };
    let one = |branch: &str| {
        let begins = branch.starts_with('^');
        let escapes = branch.strip_suffix('$').map(|rest| rest.len() - rest.trim_end_matches('\\').len());
        let ends = escapes.is_some_and(|count| count % 2 == 0);
        let within = &branch[usize::from(begins)..branch.len() - usize::from(ends)];
        format!("{}({}){}", any(begins), slashed(&ecma(within)), any(ends))
    };
    branches(pattern).into_iter().map(one).collect::<Vec<_>>().join("|")
}

/// What an expression chooses among, outside of groups and classes.
fn branches(pattern: &str) -> Vec<&str> {
    let (mut found, mut first, mut depth, mut is_class, mut is_escaped) = (Vec::new(), 0, 0, false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if std::mem::take(&mut is_escaped) => {}
            '\\' => is_escaped = true,
            ']' => is_class = false,
            '[' => is_class = true,
            '(' if !is_class => depth += 1,
            ')' if !is_class => depth -= 1,
            '|' if !is_class && depth == 0 => {
                found.push(&pattern[first..at]);
                first = at + 1;
            }
            _ => {}
        }
    }
    found.push(&pattern[first..]);
    found
}

/// An expression as it stands between slashes.
fn slashed(expression: &str) -> String {
    let (mut out, mut rest) = (String::new(), expression.chars());
    while let Some(c) = rest.next() {
        match c {
            '\\' => out.extend(['\\'].into_iter().chain(rest.next())),
            '/' => out.push_str("\\/"),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

fn lengths(leaf: &Value) -> Option<String> {
    let [least, most] = ["minLength", "maxLength"].map(|key| leaf[key].as_u64());
    let least = least.filter(|&least| least > 0);
    (least.is_some() || most.is_some()).then(|| {
        let most = most.map_or_else(String::new, |most| most.to_string());
        format!("(?s:.{{{},{most}}})", least.unwrap_or(0))
    })
}
