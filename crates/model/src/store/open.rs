//! A store that is whole.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::direct::{Access, DirectFile, Stretch};
use super::layout::{Layout, Place, Run};
use super::make::{CHECKSUMS, PANELS, forget_from};
use super::manifest::{HEADER_BYTES, MAKE_AGAIN, Manifest};
use crate::error::{Error, Result};

/// Of so many reads of a panel one is compared with its checksum, the first among them. Checking them all would cost a lane that
/// reads at 2.5 GB/s a fifth of its time (a core makes checksums of some 11 GB/s, with the instructions for it); so it is 1 %.
pub const CHECKED_EVERY: u32 = 32;

/// What becomes of a store that was found to be damaged.
const PACKED_AGAIN: &str = "start again, and what is there from that panel's matrix on is packed again";

/// Packed panels on a drive.
#[derive(Debug)]
pub struct Store {
    layout: Layout,
    panels: DirectFile,
    checksums: Vec<u32>,
    /// How often each panel has been read since it was opened, or found damaged.
    reads: Vec<AtomicU32>,
    folder: PathBuf,
}

impl Store {
    /// Opens the store in `folder`, if it is whole.
    ///
    /// # Errors
    /// If it is of another model or version, or [ruined](Error::Ruined).
    pub fn open(folder: &Path, fingerprint: &str, layout: Layout) -> Result<Option<Store>> {
        let Some(manifest) = Manifest::read(folder)? else { return Ok(None) };
        manifest.check(folder, fingerprint, &layout)?;
        let checksums = read_checksums(folder, &manifest)?;
        let path = folder.join(PANELS);
        if !path.exists() {
            return Err(Error::Ruined { path, found: "is not there".to_owned() });
        }
        let panels = DirectFile::open(&path)?;
        let len = panels.file().metadata().map_err(Error::io("read", &path))?.len();
        if len != layout.bytes() {
            let found = format!("is torn: {len} bytes long, expected {}", layout.bytes());
            return Err(Error::Ruined { path, found });
        }
        let reads = checksums.iter().map(|_| AtomicU32::new(0)).collect();
        Ok(Some(Store { layout, panels, checksums, reads, folder: folder.into() }))
    }

    /// Where each matrix lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How the drive is read.
    pub fn access(&self) -> Access {
        self.panels.access()
    }

    /// The file of panels.
    pub fn panels(&self) -> &DirectFile {
        &self.panels
    }

    /// Reads runs (in order of where they go, apart) to their places in `into`. A panel that is read for the first time is
    /// compared with its checksum, and again by every so many reads ([`CHECKED_EVERY`]): a drive may lose later what it had.
    ///
    /// # Errors
    /// If the file is unreadable, torn, or not what was written.
    pub fn read(&self, runs: &[Run], into: &mut [u8]) -> Result<()> {
        let (mut rest, mut at) = (&mut *into, 0);
        let mut stretches = Vec::with_capacity(runs.len());
        for run in runs {
            let (_, tail) = rest.split_at_mut(run.at - at);
            let (own, tail) = tail.split_at_mut(run.bytes());
            (rest, at) = (tail, run.at + run.bytes());
            stretches.push(Stretch { offset: run.file.start, into: own });
        }
        self.panels.read(stretches)?;
        runs.iter().try_for_each(|run| self.check(run, &into[run.at + run.skip..][..run.panel_bytes()]))
    }

    fn check(&self, run: &Run, bytes: &[u8]) -> Result<()> {
        let place = self.layout.places()[run.matrix];
        let first = place.panels_before + run.panels.start;
        for (number, panel) in (first..).zip(bytes.chunks_exact(place.panel_bytes.max(1))) {
            if self.is_due(number) && crc32fast::hash(panel) != self.checksums[number] {
                // Whoever reads it again is told again.
                self.reads[number].store(0, Ordering::Relaxed);
                return Err(self.damaged(number, &place));
            }
        }
        Ok(())
    }

    /// Has the matrix of a damaged panel and those behind it packed again by who opens the store next, where that can be said
    /// in its folder.
    fn damaged(&self, panel: usize, place: &Place) -> Error {
        let said = forget_from(&self.folder, self.panels.file(), place.panels_before);
        let remedy = if said.is_ok() { PACKED_AGAIN } else { MAKE_AGAIN };
        let found = format!("is damaged: panel {panel} is not what was written");
        Error::Store { path: self.folder.clone(), found, remedy }
    }

    /// Whether this read of a panel is to be checked: of neighbours that are read together another one each time.
    fn is_due(&self, number: usize) -> bool {
        let before = self.reads[number].fetch_add(1, Ordering::Relaxed);
        before == 0 || before.wrapping_add(number as u32).is_multiple_of(CHECKED_EVERY)
    }
}

fn read_checksums(folder: &Path, manifest: &Manifest) -> Result<Vec<u32>> {
    let path = folder.join(CHECKSUMS);
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read.map_err(Error::io("read", &path))?,
    };
    let whole = bytes.len() == HEADER_BYTES + 4 * manifest.panels;
    if !whole || crc32fast::hash(&bytes) != manifest.checksums_crc32 {
        let found = "has damaged checksums".to_string();
        return Err(Error::Ruined { path, found });
    }
    let sums = bytes[HEADER_BYTES..].as_chunks::<4>().0;
    Ok(sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect())
}
