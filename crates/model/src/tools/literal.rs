//! Values as Python writes them, which models do where they were shown calls in Python, or values that Python printed.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Map, Number, Value};

/// Most levels of lists and dictionaries in one another.
const DEPTH: usize = 64;

/// A literal of Python's or JSON's as JSON; none if a text is no such thing, whole. What is JSON stays as it is written.
pub(super) fn to_json(text: &str) -> Option<String> {
    let text = text.trim();
    if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
        return Some(text.to_owned());
    }
    let mut rest = text.chars().peekable();
    let value = value(&mut rest, DEPTH)?;
    rest.next().is_none().then(|| value.to_string())
}

fn value(rest: &mut Peekable<Chars>, depth: usize) -> Option<Value> {
    match rest.peek()? {
        '"' | '\'' => string(rest).map(Value::from),
        '[' => list(rest, ']', depth.checked_sub(1)?),
        '(' => list(rest, ')', depth.checked_sub(1)?),
        '{' => dictionary(rest, depth.checked_sub(1)?),
        _ => word(rest),
    }
}

fn skip_space(rest: &mut Peekable<Chars>) {
    while rest.next_if(|c| c.is_whitespace()).is_some() {}
}

/// Whether that comes next, which is taken then.
fn takes(rest: &mut Peekable<Chars>, c: char) -> bool {
    skip_space(rest);
    let is_next = rest.next_if_eq(&c).is_some();
    skip_space(rest);
    is_next
}

/// A list or tuple. Its last part may have a comma behind it.
fn list(rest: &mut Peekable<Chars>, end: char, depth: usize) -> Option<Value> {
    rest.next();
    let mut all = Vec::new();
    skip_space(rest);
    while !takes(rest, end) {
        all.push(value(rest, depth)?);
        if !takes(rest, ',') && rest.peek() != Some(&end) {
            return None;
        }
    }
    Some(Value::Array(all))
}

fn dictionary(rest: &mut Peekable<Chars>, depth: usize) -> Option<Value> {
    rest.next();
    let mut all = Map::new();
    skip_space(rest);
    while !takes(rest, '}') {
        let key = string(rest)?;
        if !takes(rest, ':') {
            return None;
        }
        all.insert(key, value(rest, depth)?);
        if !takes(rest, ',') && rest.peek() != Some(&'}') {
            return None;
        }
    }
    Some(Value::Object(all))
}

fn string(rest: &mut Peekable<Chars>) -> Option<String> {
    let quote = rest.next_if(|c| "\"'".contains(*c))?;
    let mut text = String::new();
    loop {
        match rest.next()? {
            c if c == quote => return Some(text),
            '\\' => escape(rest, &mut text)?,
            c => text.push(c),
        }
    }
}

/// What a backslash stands before. As in Python it stays where it means nothing.
fn escape(rest: &mut Peekable<Chars>, text: &mut String) -> Option<()> {
    let c = rest.next()?;
    let digits = match c {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => 0,
    };
    if digits > 0 {
        let unit = hex(rest, digits)?;
        text.push(if (0xd800..0xdc00).contains(&unit) { pair(rest, unit)? } else { char::from_u32(unit)? });
        return Some(());
    }
    match c {
        '\n' => (),
        '\\' | '\'' | '"' => text.push(c),
        '/' => text.push(c),
        'n' => text.push('\n'),
        't' => text.push('\t'),
        'r' => text.push('\r'),
        'b' => text.push('\u{8}'),
        'f' => text.push('\u{c}'),
        '0' => text.push('\0'),
        c => text.extend(['\\', c]),
    }
    Some(())
}

fn hex(rest: &mut Peekable<Chars>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0, |unit, _| Some(unit << 4 | rest.next()?.to_digit(16)?))
}

/// What JSON writes as two.
fn pair(rest: &mut Peekable<Chars>, high: u32) -> Option<char> {
    (rest.next()? == '\\' && rest.next()? == 'u').then_some(())?;
    let low = hex(rest, 4)?.checked_sub(0xdc00).filter(|&low| low < 0x400)?;
    char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + low)
}

/// A number, or a value that has a name.
fn word(rest: &mut Peekable<Chars>) -> Option<Value> {
    let mut word = String::new();
    while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || "+-._".contains(*c)) {
        word.push(c);
    }
    match &*word {
        "True" | "true" => Some(Value::Bool(true)),
        "False" | "false" => Some(Value::Bool(false)),
        "None" | "null" => Some(Value::Null),
        number => self::number(number).map(Value::Number),
    }
}

/// One with a point at either end, a plus or underscores among its digits too, as Python allows.
fn number(text: &str) -> Option<Number> {
    let plain = text.strip_prefix('+').unwrap_or(text).replace('_', "");
    if let Ok(number) = plain.parse() {
        return Some(number);
    }
    let is_sound = plain.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    plain.parse().ok().filter(|_| is_sound).and_then(Number::from_f64)
}
