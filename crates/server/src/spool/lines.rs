//! The lines of a batch. They stay in its file and are read one at a time; what is kept for each is little, and there are not
//! many: a file of line ends is no batch.

use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use engine::job::{Input, JobError, Line};
use model::api::{VALUE_BYTES, values};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::batch::error;
use crate::config::Config;
use crate::crowd;

/// Most lines of a batch, as OpenAI has it.
const MOST_LINES: usize = 50_000;
/// What is kept of a line that is to be done: where it is, and that it is.
const LINE_BYTES: usize = Input::LINE_BYTES + size_of::<usize>();
/// The digest of a line's name, in a set that has room to grow.
const NAME_BYTES: usize = 2 * (size_of::<[u8; 32]>() + 1);

/// What all lines of a batch take, but for the one that is read; and of another that expires while it is worked on.
pub(super) const KEPT_BYTES: usize = MOST_LINES * (2 * LINE_BYTES + NAME_BYTES);

/// Why there are no lines.
pub(super) enum Unread {
    File(io::Error),
    /// So many.
    TooMany(usize),
}

impl Unread {
    /// What is told of a file that has too many.
    pub(super) fn too_many(lines: usize) -> Value {
        let message = format!("{lines} requests in the file; at most {MOST_LINES}");
        error("too_many_requests", &message, None, Value::Null)
    }
}

/// Reads a file of lines, which are counted before anything is kept of them.
pub(super) fn read(path: &Path) -> Result<Input, Unread> {
    let lines = count(path).map_err(Unread::File)?;
    if lines > MOST_LINES { Err(Unread::TooMany(lines)) } else { Input::open(path).map_err(Unread::File) }
}

/// Lines of a file that are not blank, however long they are.
fn count(path: &Path) -> io::Result<usize> {
    let mut file = BufReader::with_capacity(1 << 16, File::open(path)?);
    let (mut lines, mut blank) = (0, true);
    loop {
        let bytes = file.fill_buf()?;
        if bytes.is_empty() {
            return Ok(lines);
        }
        for byte in bytes {
            let counts = blank && !byte.is_ascii_whitespace();
            lines += usize::from(counts);
            blank = *byte == b'\n' || blank && !counts;
        }
        let read = bytes.len();
        file.consume(read);
    }
}

/// What a line may be: what a body may, or less by what a batch may take of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    bytes: usize,
    values: usize,
}

impl Most {
    pub(super) fn of(config: &Config) -> Most {
        let memory = config.spool.memory;
        Most { bytes: config.max_body_bytes.min(memory), values: memory / crowd::BYTES_A_VALUE }
    }

    /// Memory of a line and of its values.
    pub(super) fn memory(&self) -> usize {
        self.bytes + self.values * VALUE_BYTES
    }

    /// A line, unless it is larger; then it is not read.
    pub(super) fn line<'a>(&self, input: &'a Input, position: usize) -> Result<Option<Line<'a>>, JobError> {
        if input.place(position).1 > self.bytes {
            return Ok(None);
        }
        let line = input.line(position)?;
        Ok((values(&line.bytes) <= self.values).then_some(line))
    }

    /// The name of a line; one that is larger has none.
    pub(super) fn name(&self, input: &Input, position: usize) -> io::Result<String> {
        match self.line(input, position) {
            Ok(line) => Ok(line.map(|line| line.custom_id()).unwrap_or_default()),
            Err(JobError::File { source, .. }) => Err(source),
            Err(other) => Err(io::Error::other(other)),
        }
    }
}

impl Display for Most {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "a line may be: {} bytes and {} values", self.bytes, self.values)
    }
}

/// Names of lines. A name may be as long as a line, and all of them as long as the file: what is kept of each is its digest.
#[derive(Default)]
pub(super) struct Names(HashSet<[u8; 32]>);

impl Names {
    /// Whether it is new.
    pub(super) fn insert(&mut self, name: &str) -> bool {
        self.0.insert(Sha256::digest(name).into())
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains(&<[u8; 32]>::from(Sha256::digest(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_as_they_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        for text in ["", "\n\n", "a", "a\n", " \na\r\n\t b\n \n", "a\n\nb"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(count(&path).unwrap(), Input::new(text.into()).len(), "{text:?}");
        }
    }

    #[test]
    fn a_line_that_is_too_large_is_not_read_and_has_no_name() {
        let input = Input::new(b"{\"custom_id\":\"a\"}\n{\"custom_id\":\"bb\"}\n[1,2,3,4,5,6]".to_vec());
        let most = Most { bytes: 17, values: 6 };
        assert_eq!([0, 1].map(|at| most.name(&input, at).unwrap()), ["a", ""]);
        assert!(most.line(&input, 2).unwrap().is_none(), "more values than a body may have");
    }
}
