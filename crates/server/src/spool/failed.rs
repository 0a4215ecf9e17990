//! What goes wrong with the spool directory. What the system says names paths: whoever runs the server finds it in the log, and
//! clients hear what it comes to.

use std::io::{self, ErrorKind};
use std::path::Path;

use engine::job::JobError;
use model::api::ApiError;
use serde_json::Value;

use super::batch::error;
use super::store::Spool;
use super::whole::naming;
use crate::log::LogLevel;
use crate::refusal;

/// Why a batch fails.
pub(super) enum Failed {
    /// What its client is told; there is no more to it.
    Told(Vec<Value>),
    /// A file refuses, which is named.
    Disk(io::Error),
    Job(JobError),
}

impl From<JobError> for Failed {
    fn from(error: JobError) -> Failed {
        Failed::Job(error)
    }
}

impl Failed {
    /// What would be written is more than all files may have.
    pub(super) fn no_room(path: &Path) -> Failed {
        let why = "there is no room for more bytes (--spool-max-bytes)";
        Failed::Disk(naming(path)(io::Error::new(ErrorKind::StorageFull, why)))
    }

    /// For its client.
    pub(super) fn told(&self) -> Vec<Value> {
        match self {
            Failed::Told(errors) => errors.clone(),
            Failed::Job(JobError::Other { differences, .. }) => {
                vec![error("batch_changed", &differences.join("; "), None, Value::Null)]
            }
            Failed::Disk(why)
            | Failed::Job(JobError::File { source: why, .. } | JobError::Full { source: why, .. }) => {
                vec![refused(why)]
            }
            Failed::Job(_) => vec![refused(&ErrorKind::Other.into())],
        }
    }

    /// For whoever runs the server.
    fn cause(&self) -> Option<String> {
        match self {
            Failed::Told(_) => None,
            Failed::Disk(why) => Some(why.to_string()),
            // What else it says is of the command that goes on from there.
            Failed::Job(JobError::Full { path, source, .. }) => {
                Some(format!("cannot write {}: {source}", path.display()))
            }
            Failed::Job(why) => Some(why.to_string()),
        }
    }
}

/// The system refuses a file.
pub(super) fn refused(why: &io::Error) -> Value {
    let (code, message) = if refusal::is_full(why) {
        ("spool_full", "there is no room for the answers; delete files and send the batch again")
    } else {
        ("spool_error", "the spool directory could not be read or written")
    };
    error(code, message, None, Value::Null)
}

impl Spool {
    /// The system refuses what whoever runs the server can give.
    pub(super) fn say(&self, why: &io::Error) {
        let words = format!("ballast: the spool directory refuses: {why}");
        self.log.say(LogLevel::Error, "spool_refuses", &words);
    }

    /// The same, and what a client is told of it.
    pub(super) fn refusal(&self, why: io::Error) -> ApiError {
        self.say(&why);
        refusal::spool(&why)
    }

    /// The batch of this id fails.
    pub(super) fn say_failed(&self, id: &str, failed: &Failed) {
        if let Some(cause) = failed.cause() {
            self.log.say(LogLevel::Error, "batch_failed", &format!("ballast: {id} failed: {cause}"));
        }
    }
}
