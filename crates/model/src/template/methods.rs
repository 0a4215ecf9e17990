//! Methods of Python's values that templates call and minijinja's own set leaves out, or has otherwise.

use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::python::{is_space, string};
use super::space::HOLD;

/// A method of a value, as Python has it.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == HOLD {
        // An assignment, as the template has it.
        let why = format!("can only assign to attributes of a namespace, not of a {}", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    let own = match value.as_str() {
        Some(text) => of_text(state, text, name, args)?,
        None => of_values(value, name, args)?,
    };
    own.map_or_else(|| unknown_method_callback(state, value, name, args), Ok)
}

/// Those of lists and objects. Nothing if it is none of these.
fn of_values(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(match (value.kind(), name) {
        // Nothing changes a value here, so that it is as good as a copy.
        (ValueKind::Seq | ValueKind::Map, "copy") => {
            let () = from_args(args)?;
            Some(value.clone())
        }
        (ValueKind::Seq, "index") => {
            let (wanted,): (Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == wanted);
            let missing = || Error::new(ErrorKind::InvalidOperation, "the list has no such item");
            Some(at.ok_or_else(missing)?.into())
        }
        _ => None,
    })
}

/// The filter `trim`.
pub(super) fn trim(state: &State, value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = string(state, value)?;
    Ok(stripped(text.as_str().unwrap_or_default(), "strip", chars).to_owned())
}

/// A text without these characters, without white space if there are none, at the ends that a method of this name takes them from.
fn stripped<'a>(text: &'a str, name: &str, chars: Option<&str>) -> &'a str {
    let is = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    match name {
        "lstrip" => text.trim_start_matches(is),
        "rstrip" => text.trim_end_matches(is),
        _ => text.trim_matches(is),
    }
}

/// Each letter behind one that is none is a large one, the others small.
fn title(text: &str) -> String {
    let mut within = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if within {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        within = c.is_alphabetic();
    }
    out
}

/// Nothing if it is none of these.
fn of_text(state: &State, text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            stripped(text, name, chars).into()
        }
        "title" => {
            let () = from_args(args)?;
            title(text).into()
        }
        "index" => {
            let (part,): (&str,) = from_args(args)?;
            let missing = || Error::new(ErrorKind::InvalidOperation, "substring not found");
            let at = text.find(part).ok_or_else(missing)?;
            text[..at].chars().count().into()
        }
        "partition" => {
            let (at,): (&str,) = from_args(args)?;
            let (before, after) = separated(at, |at| text.split_once(at))?.unwrap_or((text, ""));
            parts(before, if before.len() < text.len() { at } else { "" }, after)
        }
        "rpartition" => {
            let (at,): (&str,) = from_args(args)?;
            let (before, after) = separated(at, |at| text.rsplit_once(at))?.unwrap_or(("", text));
            parts(before, if after.len() < text.len() { at } else { "" }, after)
        }
        "rsplit" => {
            let (at, most): (Option<&str>, Option<i64>) = from_args(args)?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            // Parts of short text take more memory than the text.
            let parts = at.map_or_else(|| words(text).count(), |at| text.matches(at).count());
            state.consume_fuel(parts.min(most) as u64)?;
            let mut found: Vec<&str> = match at {
                Some(at) => separated(at, |at| text.rsplitn(most.saturating_add(1), at).collect())?,
                None => words_from_the_end(text, most),
            };
            found.reverse();
            found.into_iter().map(Value::from).collect()
        }
        _ => return Ok(None),
    }))
}

fn separated<'a, T>(at: &'a str, f: impl FnOnce(&'a str) -> T) -> Result<T, Error> {
    match at {
        "" => Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        at => Ok(f(at)),
    }
}

fn parts(before: &str, at: &str, after: &str) -> Value {
    Tuple::from([before, at, after].map(Value::from)).into()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// Up to so many words, the last first; then what is before them, as it is but for its end.
fn words_from_the_end(text: &str, most: usize) -> Vec<&str> {
    let (mut rest, mut words) = (text.trim_end_matches(is_space), Vec::new());
    while !rest.is_empty() {
        let gap = rest.rfind(is_space).filter(|_| words.len() < most);
        let (before, word) = gap.map_or(("", rest), |at| {
            (rest[..at].trim_end_matches(is_space), rest[at..].trim_start_matches(is_space))
        });
        words.push(word);
        rest = before;
    }
    words
}
