//! What an answer must be: `response_format`, vLLM's `structured_outputs`, its older `guided_*` names, and llama.cpp's.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::ApiError;
use super::fields::Fields;
use crate::grammar::{GrammarError, OutputFormat, SOURCE_BYTES, any_object};
use crate::sampling::Grammar;
use crate::tokenizer::Tokenizer;

/// How long it is looked for which part of a format is wrong.
const LOOK: Duration = Duration::from_secs(5);
/// Most choices to choose from.
pub(super) const MAX_CHOICES: usize = 4096;
/// Keys of `structured_outputs` that say how, not what.
pub(super) const MANNERS: [&str; 5] = [
    "disable_fallback",
    "disable_any_whitespace",
    "disable_additional_properties",
    "whitespace_pattern",
    "backend",
];

/// A format, and the field that asks for it.
pub(super) struct Asked {
    pub(super) param: &'static str,
    pub(super) format: OutputFormat,
    /// What it is made of, by the fields that say it: one of them is wrong if it is.
    pub(super) parts: Vec<(String, OutputFormat)>,
}

impl Asked {
    /// Makes the grammar.
    pub(super) fn compile(&self, tokenizer: &Tokenizer) -> Result<Grammar, ApiError> {
        tokenizer.grammar(&self.format).map_err(|error| {
            let own = |(field, format): &(String, OutputFormat)| match tokenizer.grammar(format) {
                Err(own @ GrammarError::Invalid(_)) => Some(refused(self.param, field, &own)),
                _ => None,
            };
            // All of them together may take no longer than one.
            let until = Instant::now() + LOOK;
            let mut parts = self.parts.iter().take_while(|_| Instant::now() < until);
            let named = matches!(error, GrammarError::Invalid(_)).then(|| parts.find_map(own));
            named.flatten().unwrap_or_else(|| refused(self.param, self.param, &error))
        })
    }
}

/// `field`: what is wrong, in `param` or all of it.
fn refused(param: &'static str, field: &str, error: &GrammarError) -> ApiError {
    let invalid = ApiError::invalid(param, format!("{field}: {error}"));
    match error {
        GrammarError::Busy => {
            ApiError { status: 503, kind: "overloaded_error", code: Some("server_overloaded"), ..invalid }
        }
        GrammarError::TooLong { .. } | GrammarError::TooSlow(_) => {
            ApiError { code: Some("grammar_limit"), ..invalid }
        }
        GrammarError::Invalid(_) => ApiError { code: Some("invalid_grammar"), ..invalid },
    }
}

/// Reads all fields that ask for a format; one of them may.
pub(super) fn asked(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let all = [response_format(fields)?, structured_outputs(fields)?];
    let mut all: Vec<Asked> = all.into_iter().flatten().chain(by_name(fields)?).collect();
    if all.len() > 1 {
        let message = format!("{} and {} exclude each other", all[0].param, all[1].param);
        return Err(ApiError::invalid(all[1].param, message));
    }
    Ok(all.pop())
}

fn response_format(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let param = "response_format";
    let Some(format) = fields.object(param)? else { return Ok(None) };
    let wrong = |why: &str| ApiError::invalid(param, format!("{param}: {why}"));
    let format = match format.get("type").and_then(Value::as_str) {
        Some("text") => return Ok(None),
        Some("json_object") => match format.get("schema") {
            Some(schema) if !schema.is_null() => OutputFormat::Schema(schema.clone()),
            _ => OutputFormat::Object,
        },
        Some("json_schema") => match format.get("json_schema").and_then(|named| named.get("schema")) {
            Some(schema) if !schema.is_null() => OutputFormat::Schema(schema.clone()),
            _ => return Err(wrong("json_schema.schema is missing")),
        },
        Some("structural_tag") => return Err(ApiError::not_supported(param, "structural_tag")),
        _ => return Err(wrong("type: expected text, json_object or json_schema")),
    };
    Ok(Some(Asked { param, format, parts: vec![] }))
}

fn structured_outputs(fields: &mut Fields) -> Result<Option<Asked>, ApiError> {
    let param = "structured_outputs";
    let Some(all) = fields.object(param)? else { return Ok(None) };
    let says = |(key, value): &(&String, &Value)| !value.is_null() && !MANNERS.contains(&key.as_str());
    let mut kinds = all.iter().filter(says);
    let wrong = |why: &str| Err(ApiError::invalid(param, format!("{param}: {why}")));
    let (Some((key, value)), None) = (kinds.next(), kinds.next()) else {
        return wrong("expected exactly one of json, json_object, regex, choice, grammar");
    };
    match key.as_str() {
        "json_object" if *value == false => Ok(None),
        "json" | "json_object" | "regex" | "choice" | "grammar" => match of_kind(key, value) {
            Some(format) => Ok(Some(Asked { param, format: mannered(format, all), parts: vec![] })),
            None => wrong(&format!("{key} is not of the form that it must have, or empty")),
        },
        "structural_tag" => Err(ApiError::not_supported(param, "structural_tag")),
        _ => wrong("expected exactly one of json, json_object, regex, choice, grammar"),
    }
}

/// As `structured_outputs` says how. What white space there may be otherwise, and by whom it is seen to, is ours to choose; other
/// properties than a schema's there are none anyway, where it is one schema that describes an object.
fn mannered(format: OutputFormat, manners: &Map<String, Value>) -> OutputFormat {
    if manners.get("disable_any_whitespace") != Some(&Value::Bool(true)) {
        return format;
    }
    match format {
        OutputFormat::Schema(schema) => OutputFormat::Compact(schema),
        OutputFormat::Object => OutputFormat::Compact(any_object()),
        format => format,
    }
}

/// Each kind by a field of its own: as older versions of vLLM have it, and llama.cpp.
fn by_name(fields: &mut Fields) -> Result<Vec<Asked>, ApiError> {
    fields.value("guided_decoding_backend");
    let names = [
        ("guided_json", "json"),
        ("guided_json_object", "json_object"),
        ("guided_regex", "regex"),
        ("guided_choice", "choice"),
        ("guided_grammar", "grammar"),
        ("json_schema", "json"),
        ("grammar", "grammar"),
    ];
    let mut asked = Vec::new();
    for (param, kind) in names {
        let Some(value) = fields.value(param) else { continue };
        if kind == "json_object" && *value == false {
            continue;
        }
        let wrong = || {
            ApiError::invalid(
                param,
                format!("{param} is not of the form that it must have, empty, or too long"),
            )
        };
        asked.push(Asked { param, format: of_kind(kind, value).ok_or_else(wrong)?, parts: vec![] });
    }
    Ok(asked)
}

fn of_kind(kind: &str, value: &Value) -> Option<OutputFormat> {
    match (kind, value) {
        ("json", Value::Object(_)) => Some(OutputFormat::Schema(value.clone())),
        // Values take more memory than their text, which is counted as one.
        ("json", Value::String(text)) if text.len() > SOURCE_BYTES => None,
        ("json", Value::String(text)) => serde_json::from_str(text).ok().map(OutputFormat::Schema),
        ("json_object", Value::Bool(true)) => Some(OutputFormat::Object),
        ("regex", Value::String(expression)) => Some(OutputFormat::Regex(expression.clone())),
        ("grammar", Value::String(grammar)) => Some(OutputFormat::Lark(grammar.clone())),
        ("choice", Value::Array(texts)) if (1..=MAX_CHOICES).contains(&texts.len()) => {
            let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            texts.iter().map(text).collect::<Option<_>>().map(OutputFormat::Choice)
        }
        _ => None,
    }
}
