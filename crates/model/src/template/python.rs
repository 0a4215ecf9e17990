//! Values printed as Python prints them (`{{ true }}` is `True` in every published template's eyes).

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, Output, State};

use super::space::check_depth;

/// The formatter of `{{ }}`: `str()` of Python.
pub(super) fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.kind() {
        ValueKind::String => out.write_str(value.as_str().unwrap_or_default()),
        ValueKind::Undefined => Ok(()),
        _ => out.write_str(&text(state, value)?),
    };
    written.map_err(Error::from)
}

/// `str()` of what is no text.
fn text(state: &State, value: &Value) -> Result<String, Error> {
    check_depth(state, value)?;
    let mut text = String::new();
    repr(value, &mut text)?;
    Ok(text)
}

/// The filter `string`, which the engine would have print as much as there is.
pub(super) fn string(state: &State, value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String | ValueKind::Undefined => Ok(Value::from(value.to_string())),
        _ => text(state, value).map(Value::from),
    }
}

/// Jinja2's test `iterable`, which is false for `none`.
pub(super) fn iterable(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
}

/// Jinja2's test `sequence`: what has a length and items, so texts and objects too.
pub(super) fn sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), Map | Seq | String | Undefined)
}

/// `repr()` of Python, of a value that is not nested too deep.
fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => float(f64::try_from(value.clone())?, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let n = value.len();
            let [open, close] = if value.is_tuple() { ["(", ")"] } else { ["[", "]"] };
            out.push_str(open);
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&item, out)?;
            }
            out.push_str(if value.is_tuple() && n == Some(1) { "," } else { "" });
            out.push_str(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Single quotes, unless the text holds one and no double quote.
fn quote(text: &str, out: &mut String) {
    let q = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(q);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == q => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(q);
}

/// A JSON number as Python would write it.
pub(super) fn number(n: &serde_json::Number, out: &mut String) {
    match n.as_f64().filter(|_| n.is_f64()) {
        Some(x) => float(x, out),
        None => out.push_str(&n.to_string()),
    }
}

/// Shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn float(x: f64, out: &mut String) {
    let magnitude = x.abs();
    if !x.is_finite() {
        out.push_str(if x.is_nan() {
            "nan"
        } else if x > 0.0 {
            "inf"
        } else {
            "-inf"
        });
    } else if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let scientific = format!("{x:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.abs());
    } else {
        let _ = write!(out, "{x:?}");
    }
}
