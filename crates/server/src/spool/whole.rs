//! Files of the spool directory that say something: each appears whole, and says which it is where it cannot be read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::Value;

/// What a file says, if it is there. They appear whole: one that says nothing is damaged.
pub(super) fn read_json(path: &Path) -> io::Result<Option<Value>> {
    let Some(bytes) = found(fs::read(path)).map_err(named(path))? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes).map_err(io::Error::from);
    value.map(Some).map_err(named(path))
}

/// Names the file that is in the way, and what moving it would come to.
pub(super) fn named(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| {
        let words = "without it a server starts, and removes what only it speaks of";
        io::Error::new(error.kind(), format!("cannot read {}: {error} ({words})", path.display()))
    }
}

/// Names the file or folder that refuses.
pub(super) fn naming(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// What was asked of a file, unless it is not there.
pub(super) fn found<T>(asked: io::Result<T>) -> io::Result<Option<T>> {
    match asked {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        asked => asked.map(Some),
    }
}

pub(super) fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Fills a file, which is on the disk then; or there is none.
pub(super) fn fill(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = private(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    // On a full disk every byte counts; if it was not even begun, there is nothing to remove.
    written.inspect_err(|_| _ = fs::remove_file(path)).map_err(naming(path))
}

/// Writes a file so that whoever reads it finds the old or the new one, and after a power cut the new one, with all that was made
/// in its folder before.
pub(super) fn write_whole(path: &Path, value: &Value) -> io::Result<()> {
    let (part, folder) =
        (path.with_extension("part"), path.parent().expect("it lies in a folder of the spool"));
    fill(&part, value.to_string().as_bytes())?;
    fs::rename(part, path).map_err(naming(path))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(naming(folder))
}
