//! Makes a store, matrix by matrix; whoever is interrupted continues after the last whole one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use kernels::drive::free_bytes;
use kernels::reserve::reserve;
use kernels::{AlignedBytes, Team, heap, page_cache};

use super::alone::{Lock, alone, alone_at_once, clear, is_at};
use super::direct::{self, Access, SECTOR};
use super::fingerprint::fingerprint;
use super::kept::used;
use super::layout::{Layout, Place};
use super::manifest::{HEADER_BYTES, MAKE_AGAIN, Manifest, VERSION, header};
use super::open::Store;
use super::sources::{hold_the_same, sources, written};
use crate::checkpoint::Checkpoint;
use crate::decoder::{Blueprint, MatrixPlan, Packer};
use crate::error::{Error, Result};

/// Panels that are packed and written at a time are about this many bytes.
const PIECE_BYTES: usize = 8 << 20;

/// The file of packed weights.
pub(super) const PANELS: &str = "panels.bin";
/// That of their checksums.
pub(super) const CHECKSUMS: &str = "checksums.bin";

/// Makes the store of a model, or opens it where it is made.
pub struct Maker<'a> {
    /// Where weights come from.
    pub checkpoint: &'a Checkpoint,
    /// In which formats they are packed.
    pub blueprint: &'a Blueprint,
    /// Where stores are kept: each has a folder there.
    pub home: &'a Path,
}

impl Maker<'_> {
    /// The folder of this model's store, and what it is known by.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub fn place(&self) -> Result<(PathBuf, String)> {
        let fingerprint = fingerprint(self.checkpoint, self.blueprint)?;
        Ok((self.home.join(&fingerprint), fingerprint))
    }

    /// The file of packed weights, whether it is there or not.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub fn panels(&self) -> Result<PathBuf> {
        Ok(self.place()?.0.join(PANELS))
    }

    /// Bytes that the drive has given to the store already, whole or not.
    ///
    /// # Errors
    /// As [`panels`](Maker::panels).
    pub fn held_bytes(&self) -> Result<u64> {
        Ok(self.panels()?.metadata().map_or(0, |found| 512 * found.blocks()))
    }

    /// What a store is of, for people: the model, and the format that most of its weights have.
    fn told(&self) -> String {
        let (name, spec) = (self.checkpoint.name(), self.checkpoint.spec());
        let of = match self.checkpoint.seed() {
            Some(_) => format!("{name} of {}, {} layers of {}", spec.architecture, spec.layers, spec.hidden),
            // As it was typed it may say little in another folder.
            None => std::path::absolute(name).map_or(name.into(), |path| path.display().to_string()),
        };
        let formats = self.blueprint.formats();
        formats.first().map_or(of.clone(), |(format, _)| format!("{of}, {format}"))
    }

    /// Opens the store if it is there and whole, and of the files as they are now.
    ///
    /// # Errors
    /// If it is of another version, or [ruined](Error::Ruined), or the checkpoint cannot be read.
    pub fn open(&self) -> Result<Option<Store>> {
        let (folder, fingerprint) = self.place()?;
        self.open_at(&folder, &fingerprint)
    }

    fn open_at(&self, folder: &Path, fingerprint: &str) -> Result<Option<Store>> {
        let store = Store::open(folder, fingerprint, Layout::of(self.blueprint))?;
        Ok(if store.is_some() && self.is_of_the_files(folder)? { store } else { None })
    }

    /// Whether the model's files hold what they held when the store was packed. They are read only if they were written since.
    fn is_of_the_files(&self, folder: &Path) -> Result<bool> {
        let Some(mut manifest) = Manifest::read(folder)? else { return Ok(false) };
        let (packed, found) = (manifest.sources.iter().map(|file| file.written), written(self.checkpoint));
        if packed.clone().eq(found.iter().copied()) {
            return Ok(true);
        }
        // A store that was copied with its model, as into an image of a container, has other times by the system's account. Where
        // that cannot be noted, the files' own have to do: else they would be read at each start.
        let own = packed.map(|at| at.modified_ns).eq(found.iter().map(|at| at.modified_ns));
        if own && alone_at_once(folder).is_err() {
            return Ok(true);
        }
        let now = sources(self.checkpoint)?;
        if !hold_the_same(&manifest.sources, &now) {
            return Ok(false);
        }
        // Where it may not be written, or somebody else is at work, they are read again next time.
        if let Ok(Lock::Held(_alone)) = alone_at_once(folder)
            && Manifest::read(folder)?.as_ref() == Some(&manifest)
        {
            manifest.sources = now;
            let _ = manifest.write(folder);
        }
        Ok(true)
    }

    /// Makes what is missing of the store, and opens it. The drive's room is taken before anything is packed. `progress` is told the bytes that are written, from any thread;
    /// its result is whether to go on.
    ///
    /// # Errors
    /// If the checkpoint cannot be read, the drive is full, the store is of another version, or its format cannot hold the weights.
    pub fn make(&self, team: &Team, progress: &(dyn Fn(u64) + Sync)) -> Result<Store> {
        let (folder, fingerprint) = self.place()?;
        // Where nothing is to be made, nothing need be written: others may share it to read.
        match self.open_at(&folder, &fingerprint) {
            Ok(Some(store)) => {
                used(&folder);
                return Ok(store);
            }
            Ok(None) | Err(Error::Ruined { .. }) => (),
            Err(other) => return Err(other),
        }
        let _alone = alone(&folder)?;
        match self.open_at(&folder, &fingerprint) {
            Ok(Some(store)) => return Ok(store),
            Ok(None) => (),
            // None of it is known to be what was written.
            Err(Error::Ruined { .. }) => take_away(&folder.join(CHECKSUMS))?,
            Err(other) => return Err(other),
        }
        Manifest::remove(&folder)?;
        let layout = Layout::of(self.blueprint);
        let making = Making::begin(self, &folder, &fingerprint, &layout)?;
        making.take_room()?;
        if let Err(error) = making.finish(team, progress) {
            if matches!(error, Error::TooVaried { .. }) {
                // It will never be whole, and has its room of the drive already.
                let _ = clear(&folder);
            }
            return Err(making.full(error));
        }
        drop(making);
        heap::give_back();
        used(&folder);
        let store = Store::open(&folder, &fingerprint, layout)?;
        store.ok_or_else(|| Error::Store { path: folder, found: "vanished".into(), remedy: MAKE_AGAIN })
    }
}

/// Says in the folder of a store whose `panels` were read that those from this one on, the first of a matrix, are not to be used:
/// whoever comes next packs them again. Of a store that somebody has made anew there nothing is said.
pub(super) fn forget_from(folder: &Path, panels: &File, panel: usize) -> Result<()> {
    // Who holds it makes the store already.
    let Lock::Held(_alone) = alone_at_once(folder)? else {
        return Err(Error::io("lock", folder)(io::ErrorKind::WouldBlock.into()));
    };
    if !is_at(panels, &folder.join(PANELS))? {
        return Ok(());
    }
    Manifest::remove(folder)?;
    let path = folder.join(CHECKSUMS);
    let sums = File::options().write(true).open(&path).map_err(Error::io("open", &path))?;
    let there = sums.metadata().map_err(Error::io("read", &path))?.len();
    sums.set_len(there.min((HEADER_BYTES + 4 * panel) as u64)).map_err(Error::io("cut", &path))
}

struct Making<'a> {
    maker: &'a Maker<'a>,
    folder: &'a Path,
    fingerprint: &'a str,
    layout: &'a Layout,
    panels: File,
    access: Access,
    checksums: File,
    /// Matrices that are there.
    whole: usize,
}

impl<'a> Making<'a> {
    fn begin(
        maker: &'a Maker<'a>,
        folder: &'a Path,
        fingerprint: &'a str,
        layout: &'a Layout,
    ) -> Result<Making<'a>> {
        let (path, sums) = (folder.join(PANELS), folder.join(CHECKSUMS));
        let options = || {
            let mut options = File::options();
            options.create(true).truncate(false).read(true).write(true);
            options
        };
        let open = || -> Result<_> {
            let (panels, access) = direct::open(&path, &options()).map_err(Error::io("create", &path))?;
            let checksums = options().open(&sums).map_err(Error::io("create", &sums))?;
            Ok((panels, access, checksums))
        };
        let (panels, access, checksums) = open()?;
        let mut making = Making { maker, folder, fingerprint, layout, panels, access, checksums, whole: 0 };
        making.whole = making.found().map_err(Error::io("read", &sums))?;
        if making.whole == 0 {
            // Others may read what is there: they keep it, and what is made now has files of its own.
            [&path, &sums].into_iter().try_for_each(|path| take_away(path))?;
            (making.panels, making.access, making.checksums) = open()?;
        }
        making.head().map_err(Error::io("write", &sums))?;
        Ok(making)
    }

    /// How many matrices an earlier attempt finished: their checksums are there.
    fn found(&self) -> io::Result<usize> {
        let mut there = [0; HEADER_BYTES];
        let known = self.checksums.read_exact_at(&mut there, 0).is_ok() && there == self.header();
        let sums = self.checksums.metadata()?.len().saturating_sub(HEADER_BYTES as u64) / 4;
        let written = self.panels.metadata()?.len();
        let is_whole = |place: &&Place| {
            known
                && (place.panels_before + place.panels) as u64 <= sums
                && place.offset + place.bytes() <= written
        };
        Ok(self.layout.places().iter().take_while(is_whole).count())
    }

    fn header(&self) -> [u8; HEADER_BYTES] {
        header(self.fingerprint, &written(self.maker.checkpoint))
    }

    /// Begins the checksums, and cuts off those of what is half there.
    fn head(&self) -> io::Result<()> {
        let panels: usize = self.layout.places()[..self.whole].iter().map(|place| place.panels).sum();
        self.checksums.set_len((HEADER_BYTES + 4 * panels) as u64)?;
        self.checksums.write_all_at(&self.header(), 0)
    }

    /// Has the drive give the file all bytes that it will have. Not in the middle of a store: where the system cannot set room
    /// aside zeros are written over the whole file. Nor where something else takes the bytes than a file.
    fn take_room(&self) -> Result<()> {
        let is_file = self.panels.metadata().map_err(self.failed("look at"))?.is_file();
        if self.whole > 0 || !is_file {
            return Ok(());
        }
        let (path, needed) = (self.folder.to_path_buf(), self.layout.bytes());
        reserve(&self.panels, needed.next_multiple_of(SECTOR as u64)).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                let free = free_bytes(&path).map_or("unknown".into(), |bytes| format!("{bytes} bytes"));
                Error::DriveSmall { path, needed, free, source }
            }
            _ => Error::io("take room on the drive for", &path)(source),
        })
    }

    /// Writes what is missing, then the manifest.
    fn finish(&self, team: &Team, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let packer = Packer::new(self.maker.checkpoint, team);
        let plans: Vec<&MatrixPlan> = self.maker.blueprint.matrices().collect();
        for (plan, place) in plans.iter().zip(self.layout.places()).skip(self.whole) {
            let sums = self.matrix(&packer, plan, place, progress)?;
            // The panels are on the drive before their checksums say so.
            self.panels.sync_data().map_err(self.failed("write"))?;
            if self.access == Access::Cached {
                page_cache::forget(&self.panels);
            }
            let at = HEADER_BYTES + 4 * place.panels_before;
            self.checksums.write_all_at(&sums, at as u64).map_err(self.failed("write"))?;
            self.maker.checkpoint.files().iter().for_each(|file| page_cache::forget(file.reader()));
        }
        self.checksums.sync_all().map_err(self.failed("write"))?;
        self.manifest()?.write(self.folder)
    }

    fn manifest(&self) -> Result<Manifest> {
        let path = self.folder.join(CHECKSUMS);
        let sums = std::fs::read(&path).map_err(Error::io("read", &path))?;
        Ok(Manifest {
            version: VERSION,
            fingerprint: self.fingerprint.to_string(),
            panels: self.layout.panels(),
            bytes: self.layout.bytes(),
            checksums_crc32: crc32fast::hash(&sums),
            sources: sources(self.maker.checkpoint)?,
            of: self.maker.told(),
        })
    }

    /// Packs and writes a matrix; its checksums, one after the other.
    fn matrix(
        &self,
        packer: &Packer<'_>,
        plan: &MatrixPlan,
        place: &Place,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<u8>> {
        let at_once = panels_at_once(place);
        let piece_bytes = (at_once.min(place.panels) * place.panel_bytes).next_multiple_of(SECTOR);
        let mut memory = AlignedBytes::zeroed(piece_bytes);
        let mut sums = Vec::with_capacity(4 * place.panels);
        for first in (0..place.panels).step_by(at_once) {
            let panels = first..(first + at_once).min(place.panels);
            let bytes = panels.len() * place.panel_bytes;
            packer.panels(plan, panels, &mut memory[..bytes], &|_| ())?;
            for panel in memory[..bytes].chunks_exact(place.panel_bytes) {
                sums.extend(crc32fast::hash(panel).to_le_bytes());
            }
            let sectors = bytes.next_multiple_of(SECTOR);
            memory[bytes..sectors].fill(0);
            let offset = place.offset + (first * place.panel_bytes) as u64;
            self.panels.write_all_at(&memory[..sectors], offset).map_err(self.failed("write"))?;
            progress(offset + sectors as u64);
        }
        Ok(sums)
    }

    fn failed(&self, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        Error::io(doing, self.folder)
    }

    /// Says what a full drive means here.
    fn full(&self, error: Error) -> Error {
        match error {
            Error::Io { source, .. }
                if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                let written = self.panels.metadata().map_or(0, |data| 512 * data.blocks());
                Error::DriveFull { path: self.folder.into(), written, needed: self.layout.bytes() }
            }
            error => error,
        }
    }
}

/// Removes a file; what is none stays, as a device does that takes the bytes instead.
fn take_away(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_file() => fs::remove_file(path).map_err(Error::io("remove", path)),
        _ => Ok(()),
    }
}

/// As many panels as make whole sectors, and about a piece.
fn panels_at_once(place: &Place) -> usize {
    let shared = 1 << place.panel_bytes.trailing_zeros().min(SECTOR.trailing_zeros());
    let whole = SECTOR / shared;
    (PIECE_BYTES / place.panel_bytes.max(1)).max(1).next_multiple_of(whole)
}
