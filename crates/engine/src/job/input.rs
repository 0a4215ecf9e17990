//! The requests: one JSON object a line.

use std::collections::HashSet;
use std::ops::Range;

use model::api::{ApiError, BatchLine};
use serde_json::Value;
use sha2::{Digest, Sha256};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A file of requests, in memory.
pub struct Input {
    bytes: Vec<u8>,
    lines: Vec<(usize, Range<usize>)>,
    digest: String,
}

/// A line that is not blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Counted from 1, blank ones too.
    pub number: usize,
    /// Without the line's end.
    pub bytes: &'a [u8],
}

/// What can be said of an input without a model.
#[derive(Debug, Default)]
pub struct Checked {
    /// What is wrong with each line that is no request at all; the message names the line.
    pub invalid: Vec<ApiError>,
    /// Lines whose `custom_id` an earlier line has.
    pub same_name: usize,
}

impl Input {
    /// Takes the bytes of a file. Only `\n` ends a line (JSON may hold a bare `\r`); a byte order mark is no request.
    pub fn new(bytes: Vec<u8>) -> Input {
        let digest = hex(&Sha256::digest(&bytes));
        let begin = if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
        let mut lines = Vec::new();
        let mut at = begin;
        for (number, line) in (1..).zip(bytes[begin..].split(|&byte| byte == b'\n')) {
            let text = line.trim_ascii_end();
            if !text.is_empty() {
                lines.push((number, at..at + text.len()));
            }
            at += line.len() + 1;
        }
        Input { bytes, lines, digest }
    }

    /// SHA-256 of the file, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Lines that are not blank.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The line at this position among those that are not blank.
    pub fn line(&self, position: usize) -> Line<'_> {
        let (number, range) = &self.lines[position];
        Line { number: *number, bytes: &self.bytes[range.clone()] }
    }

    /// All lines that are not blank.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        (0..self.len()).map(|position| self.line(position))
    }

    /// The position of a line of this number.
    pub(super) fn position(&self, number: usize) -> Option<usize> {
        self.lines.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    /// What the answer to a line is called: nothing else has this name, and any job on this input gives it.
    pub fn id(&self, position: usize) -> String {
        let line = self.line(position);
        format!("{}-{}-{}", &self.digest[..16], line.number, &hex(&Sha256::digest(line.bytes))[..8])
    }

    /// Reads all lines, without a model.
    pub fn check(&self) -> Checked {
        let (mut names, mut checked) = (HashSet::new(), Checked::default());
        for line in self.lines() {
            match line.parse() {
                Ok(request) => checked.same_name += usize::from(!names.insert(request.custom_id)),
                Err(error) => checked.invalid.push(error),
            }
        }
        checked
    }
}

impl Line<'_> {
    /// The request.
    ///
    /// # Errors
    /// What is wrong, naming the line.
    pub fn parse(&self) -> Result<BatchLine, ApiError> {
        let parsed = match std::str::from_utf8(self.bytes) {
            Ok(text) => BatchLine::parse(text),
            Err(error) => {
                Err(ApiError::invalid("body", format!("byte {} is not UTF-8 text", error.valid_up_to() + 1)))
            }
        };
        let named = |error: ApiError| format!("line {}: {}", self.number, error.message);
        parsed.map_err(|error| ApiError { message: named(error.clone()), ..error })
    }

    /// The client's name for it, even if it is wrong in another place.
    pub fn custom_id(&self) -> String {
        let value: Option<Value> = serde_json::from_slice(self.bytes).ok();
        value.and_then(|value| value["custom_id"].as_str().map(str::to_string)).unwrap_or_default()
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_line_feeds_end_lines_and_blank_ones_do_not_count() {
        let input = Input::new(b"\xef\xbb\xbfa\r\n\n b\rc \n".to_vec());
        let found: Vec<_> = input.lines().map(|line| (line.number, line.bytes)).collect();
        assert_eq!(found, [(1, &b"a"[..]), (3, b" b\rc")]);
        assert_eq!((input.position(3), input.position(2)), (Some(1), None));
    }

    #[test]
    fn a_broken_line_keeps_its_name() {
        let input = Input::new(b"{\"custom_id\": \"x\", \"method\": \"GET\"}\n{".to_vec());
        assert_eq!((input.line(0).custom_id(), input.line(1).custom_id()), ("x".into(), String::new()));
        let wrong = input.check().invalid;
        assert_eq!((wrong.len(), &wrong[0].message[..]), (2, "line 1: method: expected POST"));
    }

    #[test]
    fn ids_tell_inputs_lines_and_texts_apart() {
        let (a, b) = (Input::new(b"x\nx\ny".to_vec()), Input::new(b"x\nx\nz".to_vec()));
        let ids: std::collections::BTreeSet<_> =
            (0..3).flat_map(|position| [a.id(position), b.id(position)]).collect();
        assert_eq!(ids.len(), 6);
        assert_eq!(a.id(0), Input::new(b"x\nx\ny".to_vec()).id(0));
    }
}
