//! What can go wrong with a job; errors of single lines are answers.

use std::io;
use std::path::{Path, PathBuf};

use crate::front::request::Failure;
use crate::words::counted;

/// Why a job did not begin, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A file or folder refuses.
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        /// `read`, `write`, ...
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The answers cannot be written, and those before are safe.
    #[error("cannot write {}: {source}; safe there: {}, from which the same command goes on (without --overwrite)", path.display(), counted(*safe, "answer"))]
    Full {
        /// Where.
        path: PathBuf,
        /// Whole lines in the file.
        safe: usize,
        /// Why.
        source: io::Error,
    },
    /// The stream for the answers is closed or full.
    #[error("cannot write the answers: {0}")]
    Stream(io::Error),
    /// Another process works on the same output.
    #[error("another job is writing {}: wait for it, or choose another output file", .0.display())]
    Busy(PathBuf),
    /// There is something in the output, and nothing says whose it is.
    #[error("{} exists: choose another output file, or say --overwrite", .0.display())]
    Exists(PathBuf),
    /// There is the beginning of another job in the output.
    #[error(
        "{} holds the answers of another job ({}): choose another output file, or say --overwrite",
        path.display(),
        differences.join("; ")
    )]
    Other {
        /// The output.
        path: PathBuf,
        /// What differs, and how.
        differences: Vec<String>,
    },
    /// A line of the output that this job cannot have written.
    #[error("line {line} of {} is no answer of this job ({why}): choose another output file, or say --overwrite", path.display())]
    Foreign {
        /// The output.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The shards do not make a whole.
    #[error("{0}")]
    Shards(String),
    /// The engine died.
    #[error(transparent)]
    Engine(#[from] Failure),
}

impl JobError {
    /// Names the file that refuses.
    pub(super) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JobError {
        move |source| JobError::File { what, path: path.to_owned(), source }
    }

    /// Whether the command was wrong, and not the world.
    pub fn is_misuse(&self) -> bool {
        use JobError::{Exists, File, Foreign, Other, Shards};
        match self {
            // What was named is not there.
            File { what, source, .. } => *what == "read" && source.kind() == io::ErrorKind::NotFound,
            _ => matches!(self, Exists(_) | Other { .. } | Foreign { .. } | Shards(_)),
        }
    }
}
