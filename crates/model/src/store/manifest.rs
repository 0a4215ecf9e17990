//! The small files of a store: its manifest, and the header of its checksums.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::layout::Layout;
use super::sources::SourceFile;
use crate::error::{Error, Result};
use crate::file::Written;

/// Goes up with every change of the files, or of how kernels read panels (a test has what panels are now).
pub(super) const VERSION: u32 = 1;
/// What to do about a store that is of no use.
pub(super) const MAKE_AGAIN: &str = "remove it (`ballast stores --remove` with the name of its folder) and it is made again, or name another with --offload-dir";

/// Its file.
pub(super) const NAME: &str = "manifest.json";
/// The same while it is written.
pub(super) const PART: &str = "manifest.json.part";
/// Bytes before the first checksum.
pub(super) const HEADER_BYTES: usize = 64;
const MAGIC: &[u8; 12] = b"ballastpanel";

/// Written when the store is whole.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) version: u32,
    pub(super) fingerprint: String,
    pub(super) panels: usize,
    pub(super) bytes: u64,
    /// Of the file of checksums.
    pub(super) checksums_crc32: u32,
    /// The files that it was packed from; none of random weights.
    #[serde(default)]
    pub(super) sources: Vec<SourceFile>,
    /// What it was packed from, and as what, for people.
    #[serde(default)]
    pub(super) of: String,
}

impl Manifest {
    /// Removes that of a folder, if it has any.
    pub(super) fn remove(folder: &Path) -> Result<()> {
        let path = folder.join(NAME);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Reads the manifest of a folder; none where the store is not whole yet.
    pub(super) fn read(folder: &Path) -> Result<Option<Manifest>> {
        let path = folder.join(NAME);
        let text = match std::fs::read(&path) {
            // What a drive that lost its power may have kept of it: as good as none, and made again from whole panels.
            Ok(text) if text.is_empty() => return Ok(None),
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        let found = |found: String| Error::Ruined { path: path.clone(), found };
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|e| found(format!("has no readable manifest ({e})")))?;
        match value["version"].as_u64() {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => {
                let found = format!("is of version {version}, this program reads {VERSION}");
                return Err(Error::Store { path, found, remedy: MAKE_AGAIN });
            }
            None => return Err(found("has a manifest without a version".into())),
        }
        let manifest = serde_json::from_value(value);
        manifest.map(Some).map_err(|e| found(format!("has a manifest that is not one ({e})")))
    }

    /// Writes it beside its place first, so that it is there whole or not at all, also after a power cut.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let (path, whole) = (folder.join(PART), folder.join(NAME));
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        let write = || -> io::Result<()> {
            let mut file = File::create(&path)?;
            file.write_all(&text)?;
            file.sync_all()
        };
        write().map_err(Error::io("write", &path))?;
        std::fs::rename(&path, &whole).map_err(Error::io("create", &whole))?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io("write", folder))
    }

    /// An error unless the store is that of a fingerprint and a layout.
    pub(super) fn check(&self, folder: &Path, fingerprint: &str, layout: &Layout) -> Result<()> {
        let same =
            self.fingerprint == fingerprint && (self.panels, self.bytes) == (layout.panels(), layout.bytes());
        let found = || "is of another model, or of other formats".to_string();
        if same {
            Ok(())
        } else {
            Err(Error::Store { path: folder.into(), found: found(), remedy: MAKE_AGAIN })
        }
    }
}

/// The beginning of the checksums' file: whose they are, of files that were last written at these times.
pub(super) fn header(fingerprint: &str, written: &[Written]) -> [u8; HEADER_BYTES] {
    let times = written.iter().flat_map(|at| [at.modified_ns, at.changed_ns]);
    let times: Vec<u8> = times.flat_map(i64::to_le_bytes).collect();
    let mut header = [0; HEADER_BYTES];
    header[..12].copy_from_slice(MAGIC);
    header[12..16].copy_from_slice(&VERSION.to_le_bytes());
    header[16..48].copy_from_slice(&fingerprint.as_bytes()[..32]);
    header[48..52].copy_from_slice(&crc32fast::hash(&times).to_le_bytes());
    header
}
