//! Methods of Python's strings that minijinja's own set leaves out and templates call.

use minijinja::value::{Tuple, Value, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::space::HOLD;

/// A method of a value, as Python has it.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == HOLD {
        // An assignment, as the template has it.
        let why = format!("can only assign to attributes of a namespace, not of a {}", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, why));
    }
    match value.as_str().map(|text| of_text(state, text, name, args)) {
        Some(Ok(Some(result))) => Ok(result),
        Some(Err(error)) => Err(error),
        Some(Ok(None)) | None => unknown_method_callback(state, value, name, args),
    }
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
            let parts = at.map_or_else(|| text.split_whitespace().count(), |at| text.matches(at).count());
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

/// Up to so many words, the last first; then what is before them, as it is but for its end.
fn words_from_the_end(text: &str, most: usize) -> Vec<&str> {
    let (mut rest, mut words) = (text.trim_end(), Vec::new());
    while !rest.is_empty() {
        let gap = rest.rfind(char::is_whitespace).filter(|_| words.len() < most);
        let (before, word) = gap.map_or(("", rest), |at| (rest[..at].trim_end(), rest[at..].trim_start()));
        words.push(word);
        rest = before;
    }
    words
}
