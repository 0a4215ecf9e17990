//! The requests: one JSON object a line.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use model::api::{ApiError, BatchLine};
use sha2::{Digest, Sha256};

use super::{JobError, name};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Wrong lines that are told one by one.
const WRONG_SHOWN: usize = 20;
/// Bytes of a file that are looked at together.
const BUFFER_BYTES: usize = 256 << 10;

/// A file of requests. Where it is long it stays where it is: in memory is where its lines are.
pub struct Input {
    source: Source,
    lines: Vec<Place>,
    digest: String,
}

enum Source {
    Memory(Vec<u8>),
    File(File, PathBuf),
}

/// Where a line is that is not blank.
struct Place {
    /// Counted from 1, blank ones too.
    number: usize,
    start: u64,
    /// Without the line's end.
    len: usize,
    /// The beginning of its SHA-256.
    digest: [u8; 8],
}

/// A line that is not blank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Counted from 1, blank ones too.
    pub number: usize,
    /// Without the line's end.
    pub bytes: Cow<'a, [u8]>,
}

/// What can be said of an input without a model.
#[derive(Debug, Default)]
pub struct Checked {
    /// Lines that are no requests at all.
    pub invalid: usize,
    /// What is wrong with the first of them; the message names the line.
    pub wrong: Vec<ApiError>,
    /// Lines whose `custom_id` an earlier line has.
    pub same_name: usize,
}

impl Input {
    /// Bytes that are held for each line of a file.
    pub const LINE_BYTES: usize = size_of::<Place>();

    /// Takes the bytes of a file. Only `\n` ends a line (JSON may hold a bare `\r`); a byte order mark is no request.
    pub fn new(bytes: Vec<u8>) -> Input {
        let found = read_places(&bytes[..]).and_then(|(digest, mut lines)| {
            for line in &mut lines {
                let start = line.start as usize;
                line.digest = short_digest(&bytes[start..start + line.len])?;
            }
            Ok((digest, lines))
        });
        let (digest, lines) = found.expect("memory can be read");
        Input { source: Source::Memory(bytes), lines, digest }
    }

    /// Reads where the lines of a file are, which stays open. Lines are read when they are asked for, and must be then what they
    /// are now.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Input> {
        let mut file = File::open(path)?;
        let (digest, mut lines) = read_places(BufReader::with_capacity(BUFFER_BYTES, &file))?;
        for line in &mut lines {
            file.seek(SeekFrom::Start(line.start))?;
            let bytes = (&file).take(line.len as u64);
            line.digest = short_digest(BufReader::with_capacity(line.len.min(BUFFER_BYTES), bytes))?;
        }
        Ok(Input { source: Source::File(file, path.to_owned()), lines, digest })
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

    /// Bytes of memory that this takes.
    pub fn bytes(&self) -> usize {
        let whole = match &self.source {
            Source::Memory(bytes) => bytes.len(),
            Source::File(..) => 0,
        };
        whole + self.lines.len() * Input::LINE_BYTES
    }

    /// The number of a line, and its bytes.
    pub fn place(&self, position: usize) -> (usize, usize) {
        let place = &self.lines[position];
        (place.number, place.len)
    }

    /// The line at this position among those that are not blank.
    ///
    /// # Errors
    /// [`JobError::File`]: its file cannot be read, or somebody changed it.
    pub fn line(&self, position: usize) -> Result<Line<'_>, JobError> {
        let place = &self.lines[position];
        let bytes = match &self.source {
            Source::Memory(bytes) => Cow::Borrowed(&bytes[place.start as usize..][..place.len]),
            Source::File(file, path) => place.read(file).map_err(JobError::file("read", path))?.into(),
        };
        Ok(Line { number: place.number, bytes })
    }

    /// All lines that are not blank.
    pub fn lines(&self) -> impl Iterator<Item = Result<Line<'_>, JobError>> {
        (0..self.len()).map(|position| self.line(position))
    }

    /// The position of a line of this number.
    pub(super) fn position(&self, number: usize) -> Option<usize> {
        self.lines.binary_search_by_key(&number, |place| place.number).ok()
    }

    /// What the answer to a line is called: nothing else has this name, and any job on this input gives it.
    pub fn id(&self, position: usize) -> String {
        let Place { number, digest, .. } = &self.lines[position];
        format!("{}-{number}-{}", &self.digest[..16], hex(&digest[..4]))
    }

    /// Reads all lines, without a model.
    ///
    /// # Errors
    /// As for [`line`](Input::line).
    pub fn check(&self) -> Result<Checked, JobError> {
        // Names may be as long as lines: digests of them are held, and those no longer than until something else needs more.
        let (mut names, mut checked) = (Vec::with_capacity(self.len()), Checked::default());
        for line in self.lines() {
            match line?.parse() {
                Ok(request) => {
                    names.push(short_digest::<16>(request.custom_id.as_bytes()).expect("memory can be read"));
                }
                Err(error) => {
                    checked.invalid += 1;
                    checked.wrong.extend((checked.invalid <= WRONG_SHOWN).then_some(error));
                }
            }
        }
        names.sort_unstable();
        checked.same_name = names.windows(2).filter(|two| two[0] == two[1]).count();
        Ok(checked)
    }
}

impl Place {
    fn read(&self, file: &File) -> io::Result<Vec<u8>> {
        let changed =
            || io::Error::other(format!("line {} was changed while the batch was under way", self.number));
        let mut bytes = vec![0; self.len];
        file.read_exact_at(&mut bytes, self.start).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => changed(),
            _ => error,
        })?;
        if short_digest(&bytes[..])? == self.digest { Ok(bytes) } else { Err(changed()) }
    }
}

/// SHA-256 of a file, and where its lines are, yet without their digests. However long a line is, little of it is in memory.
fn read_places(mut from: impl BufRead) -> io::Result<(String, Vec<Place>)> {
    let (mut whole, mut lines) = (Sha256::new(), Vec::new());
    let (mut at, mut mark) = (0, 0);
    // The line that is being read: its number, where it begins, and where its last byte ends that is no blank.
    let (mut number, mut start, mut end) = (1, 0, 0);
    let mut ends = |number: usize, start: u64, end: u64| {
        if end > start {
            lines.push(Place { number, start, len: (end - start) as usize, digest: [0; 8] });
        }
    };
    loop {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            break;
        }
        whole.update(bytes);
        for &byte in bytes {
            if mark == at && at < 3 && byte == BYTE_ORDER_MARK[at as usize] {
                mark += 1;
            }
            at += 1;
            if mark == 3 && at == 3 {
                (start, end) = (3, 3);
            } else if byte == b'\n' {
                ends(number, start, end);
                (number, start, end) = (number + 1, at, at);
            } else if !byte.is_ascii_whitespace() {
                end = at;
            }
        }
        let read = bytes.len();
        from.consume(read);
    }
    ends(number, start, end);
    Ok((hex(&whole.finalize()), lines))
}

/// The beginning of a digest.
fn short_digest<const BYTES: usize>(mut from: impl BufRead) -> io::Result<[u8; BYTES]> {
    let mut digest = Sha256::new();
    loop {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            let mut short = [0; BYTES];
            short.copy_from_slice(&digest.finalize()[..BYTES]);
            return Ok(short);
        }
        digest.update(bytes);
        let read = bytes.len();
        from.consume(read);
    }
}

impl Line<'_> {
    /// The request.
    ///
    /// # Errors
    /// What is wrong, naming the line.
    pub fn parse(&self) -> Result<BatchLine, ApiError> {
        let parsed = match std::str::from_utf8(&self.bytes) {
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
        name::custom_id(&self.bytes)
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same bytes in memory and as a file.
    fn both(folder: &tempfile::TempDir, bytes: &[u8]) -> [Input; 2] {
        let path = folder.path().join("in.jsonl");
        std::fs::write(&path, bytes).expect("written");
        [Input::new(bytes.to_vec()), Input::open(&path).expect("readable")]
    }

    #[test]
    fn only_line_feeds_end_lines_and_blank_ones_do_not_count() {
        let folder = tempfile::tempdir().expect("a folder");
        for input in both(&folder, b"\xef\xbb\xbfa\r\n\n b\rc \n") {
            let found: Vec<_> = input.lines().map(|line| line.expect("readable")).collect();
            let line = |number, bytes: &'static [u8]| Line { number, bytes: bytes.into() };
            assert_eq!(found, [line(1, b"a"), line(3, b" b\rc")]);
            assert_eq!((input.position(3), input.position(2)), (Some(1), None));
            assert_eq!(input.place(1), (3, 4));
        }
        for nothing in [&b""[..], b"\xef\xbb\xbf", b"\xef\xbb\xbf \n\t", b"\n\n"] {
            assert!(both(&folder, nothing).iter().all(Input::is_empty), "{nothing:?}");
        }
        for part_of_a_mark in [&b"\xef\xbb"[..], b"\xef\xbba\nb"] {
            for input in both(&folder, part_of_a_mark) {
                assert_eq!(input.line(0).expect("readable").bytes[..2], b"\xef\xbb"[..]);
            }
        }
    }

    #[test]
    fn a_long_file_is_the_same_as_one_in_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let lines: Vec<String> = (0..50).map(|n| "x y ".repeat(n * n * 10) + " \t").collect();
        let [memory, file] = both(&folder, lines.join("\n").as_bytes());
        assert_eq!((memory.digest(), memory.len()), (file.digest(), file.len()));
        assert!(file.bytes() < memory.bytes() / 50);
        for at in 0..memory.len() {
            assert_eq!((memory.line(at).unwrap(), memory.id(at)), (file.line(at).unwrap(), file.id(at)));
        }
    }

    #[test]
    fn a_line_that_somebody_changes_is_no_other_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let [_, input] = both(&folder, b"one\ntwo\nthree");
        std::fs::write(folder.path().join("in.jsonl"), b"one\nTWO\n").expect("written");
        assert_eq!(input.line(0).expect("the same").bytes.as_ref(), b"one");
        for changed in [1, 2] {
            let error = input.line(changed).expect_err("another").to_string();
            assert!(error.contains("in.jsonl") && error.contains("was changed"), "{error}");
        }
    }

    #[test]
    fn a_broken_line_keeps_its_name() {
        let input = Input::new(b"{\"custom_id\": \"x\", \"method\": \"GET\"}\n{".to_vec());
        let name = |at| input.line(at).expect("readable").custom_id();
        assert_eq!((name(0), name(1)), ("x".into(), String::new()));
        let checked = input.check().expect("readable");
        assert_eq!((checked.invalid, &checked.wrong[0].message[..]), (2, "line 1: method: expected POST"));
    }

    #[test]
    fn names_are_counted_and_wrong_lines_told_as_far_as_people_read() {
        let line = |name: &str| {
            format!(r#"{{"custom_id":"{name}","method":"POST","url":"/v1/completions","body":{{}}}}"#)
        };
        let long = "x".repeat(1 << 20);
        let names = ["a", "b", "a", &long[..], "", "a", &long[1..], &long[..]];
        let lines = [names.map(line).join("\n"), "{\n".repeat(30)].join("\n");
        let checked = Input::new(lines.into_bytes()).check().expect("readable");
        assert_eq!((checked.same_name, checked.invalid, checked.wrong.len()), (3, 30, WRONG_SHOWN));
        assert!(checked.wrong[19].message.starts_with("line 28: "), "{}", checked.wrong[19].message);
    }

    #[test]
    fn ids_tell_inputs_lines_and_texts_apart() {
        let (a, b) = (Input::new(b"x\nx\ny".to_vec()), Input::new(b"x\nx\nz".to_vec()));
        let ids: std::collections::BTreeSet<_> =
            (0..3).flat_map(|position| [a.id(position), b.id(position)]).collect();
        assert_eq!(ids.len(), 6);
        assert_eq!(a.id(0), Input::new(b"x\nx\ny".to_vec()).id(0));
        let (digest, line) = (hex(&Sha256::digest(b"x\nx\ny")), hex(&Sha256::digest(b"x")));
        assert_eq!(a.id(1), format!("{}-2-{}", &digest[..16], &line[..8]));
    }
}
