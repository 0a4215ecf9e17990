//! A file that a command will fill: found writable before anything heavy happens. What it held stays until all of the new text is on the
//! drive.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use engine::job::clash;
use serde::Serialize;

use crate::console::{Misuse, ReportTo, report_goes_to, write_report};

/// A file that can be written. If nothing ever is, it is as it was before, or absent where it was not.
pub(crate) struct OutputFile {
    path: PathBuf,
    place: Place,
}

enum Place {
    /// A device or pipe, or what the process writes to already.
    Stream(File),
    /// A file, behind all links, that may not be there yet.
    File(PathBuf),
}

impl OutputFile {
    /// Finds the file writable and changes nothing. Standard output, where a command has it, is for its caller to know by `-`.
    pub(crate) fn open(path: &Path) -> Result<OutputFile> {
        if path == Path::new("-") {
            bail!(Misuse(
                "what this flag names is a file, and `-` is standard output: name a file".to_string()
            ));
        }
        let place = Place::of(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(OutputFile { path: path.to_owned(), place })
    }

    /// Fills it; a file is replaced whole, or stays what it was.
    pub(crate) fn replace(&mut self, bytes: &[u8]) -> Result<()> {
        self.filled(|target| replace(target, bytes), bytes)
    }

    /// Adds a line to a file; a last line that had no end gets one.
    pub(crate) fn add_line(&mut self, line: &[u8]) -> Result<()> {
        let line = [line, b"\n"].concat();
        self.filled(|target| add_line(target, &line), &line)
    }

    fn filled(&mut self, file: impl FnOnce(&Path) -> io::Result<()>, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.place {
            Place::Stream(stream) => stream.write_all(bytes),
            Place::File(target) => file(target),
        };
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        let was_there = path.exists();
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        if !file.metadata()?.is_file() || is_the_shells(path) {
            return Ok(Place::Stream(file));
        }
        let target = fs::canonicalize(path)?;
        if !was_there {
            fs::remove_file(&target)?;
        }
        Ok(Place::File(target))
    }
}

/// Refuses outputs of one command that are one file: the later would take the place of the earlier.
pub(crate) fn apart<'a>(written: impl IntoIterator<Item = Option<&'a Path>>) -> Result<()> {
    let is_file = |path: &&Path| *path != Path::new("-") && !is_the_shells(path);
    let files: Vec<&Path> = written.into_iter().flatten().filter(is_file).collect();
    let Some(twice) = clash(&[], None, &files) else { return Ok(()) };
    bail!(Misuse(format!(
        "{} would be two of the files that are written: choose other names",
        twice.display()
    )))
}

/// Whether it is what the process writes to already: what leads there may be a file, which others add to.
pub(crate) fn is_the_shells(path: &Path) -> bool {
    ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"].iter().any(|place| path.starts_with(place))
}

/// Puts a new file in the place of an old one, with its permissions.
fn replace(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let steps = Steps { create: |part| File::create(part), rename: |part, target| fs::rename(part, target) };
    steps.replace(target, bytes)
}

/// Why a file may be written, and none beside it: its folder's permissions, or a drive that is only read and has another mounted there.
const NO_ROOM_BESIDE: [io::ErrorKind; 2] =
    [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem];

/// What may be refused with a file that may be written.
struct Steps {
    create: fn(&Path) -> io::Result<File>,
    rename: fn(&Path, &Path) -> io::Result<()>,
}

impl Steps {
    fn replace(&self, target: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut name = target.file_name().map_or_else(OsString::new, OsString::from);
        name.push(".part");
        let part = target.with_file_name(name);
        let new = match (self.create)(&part) {
            Err(refused) if NO_ROOM_BESIDE.contains(&refused.kind()) => return fs::write(target, bytes),
            new => new,
        };
        let written = new.and_then(|mut new| {
            if let Ok(old) = fs::metadata(target) {
                new.set_permissions(old.permissions())?;
            }
            new.write_all(bytes)?;
            new.sync_all()?;
            match (self.rename)(&part, target) {
                // A file that is mounted by itself, as containers are lent one, keeps its place.
                Err(busy) if busy.kind() == io::ErrorKind::ResourceBusy => {
                    fs::write(target, bytes)?;
                    let _ = fs::remove_file(&part);
                    Ok(())
                }
                renamed => renamed,
            }
        });
        written.inspect_err(|_| {
            // If it was not even begun, there is nothing to remove.
            let _ = fs::remove_file(&part);
        })
    }
}

/// At once: what was there stays, whatever becomes of the line.
fn add_line(target: &Path, line: &[u8]) -> io::Result<()> {
    let text = match fs::read(target) {
        Err(none) if none.kind() == io::ErrorKind::NotFound => Vec::new(),
        text => text?,
    };
    let between: &[u8] = if text.last().is_some_and(|&byte| byte != b'\n') { b"\n" } else { b"" };
    let mut file = OpenOptions::new().append(true).create(true).open(target)?;
    file.write_all(&[between, line].concat())
}

/// Where the report goes that `--json` wants, if it does.
pub(crate) enum JsonReport {
    Nowhere,
    File(OutputFile),
    /// Standard output, whose name is `-`.
    Standard,
}

impl JsonReport {
    /// Finds the file writable.
    pub(crate) fn open(path: Option<&Path>) -> Result<JsonReport> {
        let (report, to) = match path {
            None => return Ok(JsonReport::Nowhere),
            Some(path) if path == Path::new("-") => (JsonReport::Standard, ReportTo::StandardOutput),
            Some(path) => (JsonReport::File(OutputFile::open(path)?), ReportTo::File),
        };
        report_goes_to(to);
        Ok(report)
    }

    /// Fills it.
    pub(crate) fn write(self, report: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(report)?;
        match self {
            JsonReport::Nowhere => Ok(()),
            JsonReport::File(mut file) => file.replace(format!("{text}\n").as_bytes()),
            JsonReport::Standard => write_report(&text),
        }
    }

    /// Adds it as a line to what is there.
    pub(crate) fn append(self, report: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(report)?;
        match self {
            JsonReport::Nowhere => Ok(()),
            JsonReport::File(mut file) => file.add_line(text.as_bytes()),
            JsonReport::Standard => write_report(&text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_dash_names_no_file() {
        let refused = OutputFile::open(Path::new("-")).err().unwrap();
        assert!(refused.is::<Misuse>() && !Path::new("-").exists(), "{refused}");
        assert!(OutputFile::open(Path::new("./-")).is_ok(), "that does");
    }

    #[test]
    fn nothing_is_lost_before_there_is_something_new() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new, link) =
            (folder.path().join("old"), folder.path().join("new"), folder.path().join("link"));
        fs::write(&old, "old text").unwrap();
        std::os::unix::fs::symlink(&new, &link).unwrap();
        let mut files = [&old, &new, &link].map(|path| OutputFile::open(path).unwrap());
        // A process that is killed now leaves nothing behind.
        assert_eq!(names(folder.path()), ["link", "old"]);
        assert_eq!(fs::read_to_string(&old).unwrap(), "old text");
        files.iter_mut().for_each(|file| file.replace(b"new").unwrap());
        assert_eq!(names(folder.path()), ["link", "new", "old"]);
        assert!(link.is_symlink());
        for path in [&old, &new] {
            assert_eq!(fs::read_to_string(path).unwrap(), "new");
        }
        for _ in 0..2 {
            JsonReport::open(Some(&new)).unwrap().append(&[1]).unwrap();
        }
        assert_eq!(fs::read_to_string(&new).unwrap(), "new\n[1]\n[1]\n");
    }

    #[test]
    fn memory_holds_files_of_its_own() {
        let all = ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/shm/report", "/tmp/dev/stdout"];
        assert_eq!(all.map(|path| is_the_shells(Path::new(path))), [true, true, true, false, false]);
    }

    #[test]
    fn a_file_keeps_what_it_held_where_the_new_text_does_not_come_to_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("report");
        fs::write(&report, "old text").unwrap();
        let mut file = OutputFile::open(&report).unwrap();
        // Where the new file would be written there is something else.
        fs::create_dir(folder.path().join("report.part")).unwrap();
        file.replace(b"new").unwrap_err();
        assert_eq!(fs::read_to_string(&report).unwrap(), "old text");
    }

    #[test]
    fn what_keeps_its_place_is_filled_there() {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy, StorageFull};
        let create: fn(&Path) -> io::Result<File> = |part| File::create(part);
        let rename: fn(&Path, &Path) -> io::Result<()> = |_, _| Err(StorageFull.into());
        let refused = [
            Steps { create: |_| Err(PermissionDenied.into()), rename },
            Steps { create: |_| Err(ReadOnlyFilesystem.into()), rename },
            Steps { create, rename: |_, _| Err(ResourceBusy.into()) },
        ];
        for steps in refused {
            let folder = tempfile::tempdir().unwrap();
            let report = folder.path().join("report");
            fs::write(&report, "the old text").unwrap();
            steps.replace(&report, b"new").unwrap();
            assert_eq!(fs::read_to_string(&report).unwrap(), "new");
            assert_eq!(names(folder.path()), ["report"], "the part is gone");
            // Anything else is an error, and the file is as it was.
            Steps { create, rename }.replace(&report, b"newer").unwrap_err();
            assert_eq!(fs::read_to_string(&report).unwrap(), "new");
        }
    }

    #[test]
    fn permissions_stay() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("report");
        fs::write(&report, "").unwrap();
        fs::set_permissions(&report, fs::Permissions::from_mode(0o600)).unwrap();
        OutputFile::open(&report).unwrap().replace(b"new").unwrap();
        assert_eq!(fs::metadata(&report).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
