//! The lines of a batch. They are in memory, all of the file; what is kept for each beside that is little, and there are not
//! many: a file of line ends is no batch.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use engine::job::Input;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::batch::error;

/// Most lines of a batch, as OpenAI has it.
const MOST_LINES: usize = 50_000;

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
    let bytes = fs::read(path).map_err(Unread::File)?;
    let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
    if lines > MOST_LINES { Err(Unread::TooMany(lines)) } else { Ok(Input::new(bytes)) }
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
