//! Arguments as `key=value, ..`, values as JSON has them.

use serde_json::Value;

use super::super::types::{Object, objects};
use super::{bounded, value};
use crate::grammar::quoted;

/// What a tool takes; of parameters that may be one of several objects, one of those.
pub(super) fn arguments(tool: &Value, index: usize) -> String {
    let root = &tool["function"]["parameters"];
    let mut rules = Vec::new();
    let all = objects(root).into_iter().enumerate();
    let all = all.map(|(at, one)| object(one, root, &format!("value_{index}_{at}"), &mut rules));
    let all: Vec<String> = bounded(all).collect();
    let all = if all.is_empty() { "\"\"".to_owned() } else { all.join(" | ") };
    format!("arguments_{index}: {all}\n{}", rules.join("\n"))
}

/// Those that there must be come first. `rule`: the beginning of names for rules of values.
fn object((all, required): Object<'_>, root: &Value, rule: &str, rules: &mut Vec<String>) -> String {
    let (needed, free): (Vec<_>, Vec<_>) = all.iter().partition(|(key, _)| required.contains(&key.as_str()));
    let named = |at: usize| format!("{rule}_{at}");
    let one = |(at, (key, schema)): (usize, &(&String, &Value))| {
        format!("{}: {} {}", named(at), quoted(&format!("{key}=")), value(schema, root))
    };
    rules.extend(bounded(needed.iter().chain(&free).enumerate().map(one)));
    let maybe =
        |from: usize| (from..all.len()).map(|at| format!(" (\", \" {})?", named(at))).collect::<String>();
    match needed.len() {
        0 if free.is_empty() => "\"\"".to_owned(),
        // Whichever is first has no comma before it.
        0 => {
            let firsts = bounded((0..free.len()).map(|at| named(at) + &maybe(at + 1)));
            format!("({})?", firsts.collect::<Vec<_>>().join(" | "))
        }
        n => (0..n).map(named).collect::<Vec<_>>().join(" \", \" ") + &maybe(n),
    }
}
