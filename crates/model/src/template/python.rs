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

/// Whether Python's `str.strip()` takes it away: separators of files, groups, records and units too.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// The filter `int`: its default, 0 if there is none, for what is no number.
pub(super) fn int(value: &Value, default: Option<Value>) -> Value {
    let number = match value.as_str() {
        Some(text) => {
            let text = text.trim_matches(is_space);
            text.parse::<i64>().ok().or_else(|| text.parse::<f64>().ok().and_then(whole))
        }
        None if value.kind() == ValueKind::Bool => Some(i64::from(value.is_true())),
        None => value.as_i64().or_else(|| f64::try_from(value.clone()).ok().and_then(whole)),
    };
    number.map_or_else(|| default.unwrap_or_else(|| 0.into()), Value::from)
}

fn whole(number: f64) -> Option<i64> {
    number.is_finite().then_some(number.trunc() as i64)
}

/// The filter `float`: its default, 0 if there is none, for what is no number.
pub(super) fn float(value: &Value, default: Option<Value>) -> Value {
    let number = match value.as_str() {
        Some(text) => text.trim_matches(is_space).parse::<f64>().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    };
    number.map_or_else(|| default.unwrap_or_else(|| 0.0.into()), Value::from)
}

/// `repr()` of Python, of a value that is not nested too deep.
fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => digits(f64::try_from(value.clone())?, out),
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
            c if is_printable(c) => out.push(c),
            c => {
                let _ = match c as u32 {
                    code @ ..0x100 => write!(out, "\\x{code:02x}"),
                    code @ ..0x1_0000 => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(q);
}

/// What Python prints as it is, but for code points that no character has: none of the categories Cc, Cf, Co, Zl, Zp, and of Zs the
/// space alone.
fn is_printable(c: char) -> bool {
    let formats = matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}');
    let own = matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{ffffd}' | '\u{100000}'..='\u{10fffd}');
    c == ' ' || !(c.is_control() || c.is_whitespace() || formats || own)
}

/// A JSON number as Python would write it.
pub(super) fn number(n: &serde_json::Number, out: &mut String) {
    match n.as_f64().filter(|_| n.is_f64()) {
        Some(x) => digits(x, out),
        None => out.push_str(&n.to_string()),
    }
}

/// Shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn digits(x: f64, out: &mut String) {
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
