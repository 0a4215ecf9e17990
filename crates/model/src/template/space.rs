//! `namespace()`, which may be changed while a template runs: minijinja's own, as nothing else there, could be made to hold
//! itself, and whoever printed it would never come to an end. Ours holds nothing that holds a namespace.
//!
//! The engine assigns to its own kind alone, so `{% set ns.x = 1 %}` is rewritten to a call of [`HOLD`] ([`super::rewrite`]); an
//! assignment that were overlooked there is an error.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Kwargs, Object, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

/// The method that assigns.
pub(super) const HOLD: &str = "__hold";
/// Deepest nesting of a value that is held, or written as JSON.
const DEEPEST: usize = 64;

#[derive(Debug, Default)]
struct Space {
    held: Mutex<BTreeMap<Arc<str>, Value>>,
}

/// The function `namespace`, with the words of `dict`.
pub(super) fn namespace(state: &State, first: Option<Value>, rest: Kwargs) -> Result<Value, Error> {
    let space = Space::default();
    for (key, value) in pairs(first)?.into_iter().chain(named(&rest)?) {
        space.hold(state, &key, value)?;
    }
    Ok(Value::from_object(space))
}

fn pairs(first: Option<Value>) -> Result<Vec<(String, Value)>, Error> {
    let Some(first) = first else { return Ok(Vec::new()) };
    if first.kind() != ValueKind::Map {
        return Err(invalid(format!(
            "namespace: expected a dict or keyword arguments, got {}",
            first.kind()
        )));
    }
    first.try_iter()?.map(|key| Ok((key.to_string(), first.get_item(&key)?))).collect()
}

fn named(words: &Kwargs) -> Result<Vec<(String, Value)>, Error> {
    words.args().map(|name| Ok((name.to_owned(), words.get(name)?))).collect()
}

impl Space {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Value>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, state: &State, key: &str, value: Value) -> Result<(), Error> {
        check_plain(state, &value)?;
        self.all().insert(key.into(), value);
        Ok(())
    }
}

impl Object for Space {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.all().get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.all().keys().cloned().map(Value::from).collect())
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        if method != HOLD {
            return Err(ErrorKind::UnknownMethod.into());
        }
        let (key, value): (&str, Value) = from_args(args)?;
        self.hold(state, key, value)?;
        Ok(Value::from(()))
    }
}

/// A value that is no namespace, holds none, and is not nested too deep. Looking costs steps.
fn check_plain(state: &State, value: &Value) -> Result<(), Error> {
    walk(state, value, 0, &|value| match value.downcast_object_ref::<Space>() {
        Some(_) => Err(invalid("a namespace cannot be held by a namespace".into())),
        None => Ok(()),
    })
}

/// A value that is not nested too deep to be written out, nor too long: that costs steps.
pub(super) fn check_depth(state: &State, value: &Value) -> Result<(), Error> {
    walk(state, value, 0, &|_| Ok(()))
}

fn walk(
    state: &State,
    value: &Value,
    depth: usize,
    check: &impl Fn(&Value) -> Result<(), Error>,
) -> Result<(), Error> {
    // 64 bytes of text are a step, as in all that the engine makes.
    state.consume_fuel(1 + value.as_str().map_or(0, |text| text.len() as u64 / 64))?;
    check(value)?;
    if depth == DEEPEST {
        return Err(invalid(format!("a value is nested deeper than {DEEPEST}")));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.try_for_each(|item| walk(state, &item, depth + 1, check))
        }
        ValueKind::Map => value.try_iter()?.try_for_each(|key| {
            walk(state, &key, depth + 1, check)?;
            walk(state, &value.get_item(&key)?, depth + 1, check)
        }),
        _ => Ok(()),
    }
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}
