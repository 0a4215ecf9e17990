//! Arguments as `key=value, ..`, values as JSON has them.

use serde_json::Value;

use super::super::types::properties;
use super::value;
use crate::grammar::quoted;

/// Those that there must be come first.
pub(super) fn arguments(tool: &Value, index: usize) -> String {
    let root = &tool["function"]["parameters"];
    let Some((all, required)) = properties(root) else { return format!("arguments_{index}: \"\"") };
    let (needed, free): (Vec<_>, Vec<_>) = all.iter().partition(|(key, _)| required.contains(&key.as_str()));
    let rule = |(at, (key, schema)): (usize, &(&String, &Value))| {
        format!("value_{index}_{at}: {} {}", quoted(&format!("{key}=")), value(schema, root))
    };
    let rules: Vec<String> = needed.iter().chain(&free).enumerate().map(rule).collect();
    let named = |at: usize| format!("value_{index}_{at}");
    let maybe =
        |from: usize| (from..all.len()).map(|at| format!(" (\", \" {})?", named(at))).collect::<String>();
    let whole = match needed.len() {
        0 if free.is_empty() => "\"\"".to_owned(),
        // Whichever is first has no comma before it.
        0 => {
            let firsts = (0..free.len()).map(|at| named(at) + &maybe(at + 1));
            format!("({})?", firsts.collect::<Vec<_>>().join(" | "))
        }
        n => (0..n).map(named).collect::<Vec<_>>().join(" \", \" ") + &maybe(n),
    };
    format!("arguments_{index}: {whole}\n{}", rules.join("\n"))
}
