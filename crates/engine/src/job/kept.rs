//! What an earlier run left in an output: whole lines, each known by its id.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::ops::Range;
use std::path::Path;

use model::api::ANSWER_ID;
use serde::Deserialize;

use super::{Input, JobError};

/// From here on a status says that the fault was not the line's.
const SERVER_ERROR: u16 = 500;

/// An answer in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its line of the input: the position among lines that are not blank, or the number, as the reader asked.
    pub(super) line: usize,
    pub(super) status: u16,
    /// Its bytes in the file, the line's end included.
    pub(super) range: Range<u64>,
}

/// What an answer says of itself, as far as it matters here.
#[derive(Deserialize)]
struct Said {
    id: String,
    custom_id: String,
    response: Response,
}

#[derive(Deserialize)]
struct Response {
    status_code: u16,
}

impl Found {
    pub(super) fn is_server_error(&self) -> bool {
        self.status >= SERVER_ERROR
    }

    pub(super) fn is_ok(&self) -> bool {
        self.status == 200
    }
}

/// Why an answer is not taken.
enum Unfit {
    /// It is to something else.
    Foreign(&'static str),
    /// The input cannot be read any more.
    Unread(JobError),
}

/// The answers to lines of `input` (by position) in a file; a torn last line is none, a file that is not there has none.
pub(super) fn read(path: &Path, input: &Input) -> Result<Vec<Found>, JobError> {
    scan(path, |id, custom_id| {
        let number = line_number(id).ok_or(Unfit::Foreign("its id is of another kind"))?;
        let position = input.position(number).ok_or(Unfit::Foreign("the input has no such line"))?;
        if input.id(position) != id {
            return Err(Unfit::Foreign("its id belongs to another input"));
        }
        let same = input.line(position).map_err(Unfit::Unread)?.custom_id() == custom_id;
        same.then_some(position).ok_or(Unfit::Foreign("its custom_id is not that of its line"))
    })
}

/// The answers in a file, by number of line, whose ids begin with `digest`.
pub(super) fn read_numbered(path: &Path, digest: &str) -> Result<Vec<Found>, JobError> {
    scan(path, |id, _| {
        let number = line_number(id).filter(|_| id.starts_with(digest));
        number.ok_or(Unfit::Foreign("its id belongs to another input"))
    })
}

fn scan(path: &Path, line_of: impl Fn(&str, &str) -> Result<usize, Unfit>) -> Result<Vec<Found>, JobError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.map_err(JobError::file("read", path))?,
    };
    let (mut reader, mut found, mut bytes, mut at) = (BufReader::new(file), Vec::new(), Vec::new(), 0u64);
    loop {
        bytes.clear();
        let read = reader.read_until(b'\n', &mut bytes).map_err(JobError::file("read", path))?;
        if bytes.last() != Some(&b'\n') {
            return Ok(found);
        }
        let foreign = |why| JobError::Foreign { path: path.to_owned(), line: found.len() + 1, why };
        let said: Said =
            serde_json::from_slice(&bytes).map_err(|_| foreign("it is not in the batch format"))?;
        let id = said.id.strip_prefix(ANSWER_ID).unwrap_or_default();
        let line = line_of(id, &said.custom_id).map_err(|unfit| match unfit {
            Unfit::Foreign(why) => foreign(why),
            Unfit::Unread(error) => error,
        })?;
        found.push(Found { line, status: said.response.status_code, range: at..at + read as u64 });
        at += read as u64;
    }
}

/// The middle of `digest-number-digest`.
fn line_number(id: &str) -> Option<usize> {
    id.split('-').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: &str, custom_id: &str) -> String {
        format!(
            "{{\"id\":\"batch_req_{id}\",\"custom_id\":\"{custom_id}\",\"response\":{{\"status_code\":200}}}}\n"
        )
    }

    #[test]
    fn whole_lines_count_and_foreign_ones_are_named() {
        let input = Input::new(b"{\"custom_id\":\"a\"}\n\n{\"custom_id\":\"b\"}\n".to_vec());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let read_back = |text: String| {
            std::fs::write(&path, text).expect("written");
            read(&path, &input)
        };
        assert_eq!(read(&path, &input).expect("nothing there"), []);
        let (second, first) = (answer(&input.id(1), "b"), answer(&input.id(0), "a"));
        for torn in 0..first.len() {
            let found = read_back(format!("{second}{}", &first[..torn])).expect("ours");
            assert_eq!(found.len(), 1, "{torn} bytes of the last line");
            assert_eq!((found[0].line, found[0].range.end), (1, second.len() as u64));
        }
        for wrong in [answer("0-1-0", "a"), answer(&input.id(0), "b"), "{}\n".into(), "\0\n".into()] {
            let error = read_back(format!("{second}{wrong}")).expect_err("foreign").to_string();
            assert!(error.contains("line 2 of"), "{error}");
        }
    }
}
