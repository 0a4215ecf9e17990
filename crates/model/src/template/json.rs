//! `tojson` as Hugging Face defines it for chat templates: Python's `json.dumps`, without the HTML
//! escapes of Jinja's own.

use minijinja::value::{Kwargs, Value as Jinja};
use minijinja::{Error, ErrorKind, State};
use serde_json::Value;

use super::{python, space};

/// Spaces of an indent at most.
const INDENT_MAX: usize = 64;

/// The filter, with the keyword arguments of `json.dumps` that templates use. Its first argument without a name is `ensure_ascii`, as
/// in transformers, and not Jinja's `indent`.
pub(super) fn tojson(
    state: &State,
    value: Jinja,
    ascii: Option<Jinja>,
    kwargs: Kwargs,
) -> Result<Jinja, Error> {
    if value.is_undefined() {
        return Err(invalid("an undefined value is not JSON"));
    }
    let ascii = match ascii {
        Some(ascii) => Some(ascii),
        None => kwargs.get::<Option<Jinja>>("ensure_ascii")?,
    };
    let indent = match kwargs.get::<Option<Jinja>>("indent")?.filter(|i| !i.is_none()) {
        None => None,
        Some(i) => Some(indent(&i).ok_or_else(|| invalid("indent is a text, or a count of spaces"))?),
    };
    let (item, key) = match kwargs.get::<Option<Jinja>>("separators")?.filter(|s| !s.is_none()) {
        Some(pair) => separators(&pair)?,
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let dump = Dump {
        indent,
        item,
        key,
        ascii: ascii.is_some_and(|ascii| ascii.is_true()),
        sorted: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    space::check_depth(state, &value)?;
    let value = serde_json::to_value(&value).map_err(|e| invalid(&e.to_string()))?;
    let mut out = String::new();
    dump.write(&value, 0, &mut out);
    Ok(Jinja::from(out))
}

/// What a level is indented by.
fn indent(indent: &Jinja) -> Option<String> {
    match indent.as_str() {
        Some(text) => (text.len() <= INDENT_MAX).then(|| text.to_owned()),
        None => indent.as_usize().map(|spaces| " ".repeat(spaces.min(INDENT_MAX))),
    }
}

fn separators(pair: &Jinja) -> Result<(String, String), Error> {
    match pair.try_iter()?.take(3).collect::<Vec<_>>().as_slice() {
        [item, key] => Ok((item.to_string(), key.to_string())),
        _ => Err(invalid("separators are two strings")),
    }
}

/// A value of a request as a value of the template engine.
pub(super) fn to_jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(b) => Jinja::from(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Jinja::from(i),
            (_, Some(u)) => Jinja::from(u),
            _ => Jinja::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(s) => Jinja::from(s.as_str()),
        Value::Array(items) => Jinja::from(items.iter().map(to_jinja).collect::<Vec<_>>()),
        Value::Object(map) => Jinja::from_pairs(map.iter().map(|(k, v)| (k.as_str(), to_jinja(v)))),
    }
}

/// A value in Python's words for it.
pub(super) fn dumps(value: &Value) -> String {
    let (item, key) = (", ".to_owned(), ": ".to_owned());
    let mut out = String::new();
    Dump { indent: None, item, key, ascii: false, sorted: false }.write(value, 0, &mut out);
    out
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {why}"))
}

struct Dump {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sorted: bool,
}

impl Dump {
    fn write(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Null => out.push_str("null"),
            Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Value::Number(n) => python::number(n, out),
            Value::String(s) => self.string(s, out),
            Value::Array(items) => {
                self.list(['[', ']'], items, depth, out, |item, out| self.write(item, depth + 1, out));
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sorted {
                    entries.sort_by_key(|&(k, _)| k);
                }
                self.list(['{', '}'], &entries, depth, out, |(k, v), out| {
                    self.string(k, out);
                    out.push_str(&self.key);
                    self.write(v, depth + 1, out);
                });
            }
        }
    }

    fn list<T>(
        &self,
        [open, close]: [char; 2],
        items: &[T],
        depth: usize,
        out: &mut String,
        write: impl Fn(&T, &mut String),
    ) {
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item);
            }
            self.line(depth + 1, out);
            write(item, out);
        }
        if !items.is_empty() {
            self.line(depth, out);
        }
        out.push(close);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn string(&self, s: &str, out: &mut String) {
        out.push('"');
        for c in s.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && c as u32 > 0x7e) => escape(c, out),
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn escape(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}
