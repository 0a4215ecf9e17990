//! Files under names that nobody else has, until they are whole or have no name at all.
//!
//! A process's number makes no such name: containers that share a folder all have a process 1. So names are drawn, and drawn
//! again where one is taken. What a killed process left is removed by whoever begins the same file next.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Nobody writes one for so long: whoever began it is dead.
const OLDEST: Duration = Duration::from_secs(24 * 3600);
const ENDING: &str = ".draft";
/// Names that are drawn before a folder is thought broken.
const TRIES: usize = 16;

/// A file that will be another, whole or not at all. If it is never put there, it is gone.
#[derive(Debug)]
pub struct Draft {
    file: File,
    path: PathBuf,
    whole: PathBuf,
    is_put: bool,
}

impl Draft {
    /// An empty file in the folder of `whole`. Drafts of the same file that a killed process left there go.
    ///
    /// # Errors
    /// The system's own.
    pub fn of(whole: &Path) -> io::Result<Draft> {
        let (path, file) = begin(whole)?;
        Ok(Draft { file, path, whole: whole.to_owned(), is_put: false })
    }

    /// What to write to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Moves it to its place, once the drive has its bytes: a machine that loses power would else have the name and none of
    /// them.
    ///
    /// # Errors
    /// The system's own; nothing of it is left then.
    pub fn put(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, &self.whole)?;
        self.is_put = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_put {
            // On a full drive every byte counts; who could not write it is told already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A file to read and write in the folder of `name`, without a name from the beginning: whatever happens to the process,
/// nothing of it is left.
///
/// # Errors
/// The system's own.
pub fn nameless(name: &Path) -> io::Result<File> {
    let (path, file) = begin(name)?;
    fs::remove_file(path)?;
    Ok(file)
}

/// A new folder whose name begins with `name`.
///
/// # Errors
/// The system's own.
pub fn folder(name: &Path) -> io::Result<PathBuf> {
    Ok(anew(name, drawn(), |path| fs::create_dir(path))?.0)
}

fn begin(whole: &Path) -> io::Result<(PathBuf, File)> {
    // What cannot be removed stays litter, and is no reason to write nothing.
    let _ = sweep(whole);
    anew(whole, drawn(), |path| File::options().read(true).write(true).create_new(true).open(path))
}

/// Makes something under the first of these names that nothing has.
fn anew<T>(
    whole: &Path,
    numbers: impl Iterator<Item = u64>,
    make: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in numbers.take(TRIES) {
        let mut name = whole.as_os_str().to_owned();
        name.push(format!(".{number:016x}{ENDING}"));
        let path = PathBuf::from(name);
        match make(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
            made => return Ok((path, made?)),
        }
    }
    Err(taken)
}

/// Numbers that no other process draws.
fn drawn() -> impl Iterator<Item = u64> {
    std::iter::repeat_with(|| RandomState::new().build_hasher().finish())
}

/// Removes old drafts of a file.
fn sweep(whole: &Path) -> io::Result<()> {
    let folder = whole.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = whole.file_name().unwrap_or_default().as_encoded_bytes();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if is_draft(entry.file_name().as_encoded_bytes(), name) && is_old(&entry.metadata()?) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether something is called as drafts of `whole` are.
fn is_draft(name: &[u8], whole: &[u8]) -> bool {
    let number = name.strip_prefix(whole).and_then(|rest| rest.strip_prefix(b"."));
    let number = number.and_then(|rest| rest.strip_suffix(ENDING.as_bytes()));
    number.is_some_and(|number| number.len() == 16 && number.iter().all(u8::is_ascii_hexdigit))
}

fn is_old(found: &fs::Metadata) -> bool {
    let age = found.modified().ok().and_then(|at| at.elapsed().ok());
    found.is_file() && age.is_some_and(|age| age > OLDEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::SystemTime;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn two_who_write_the_same_file_at_once_do_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("x.json");
        let [mut one, mut two] = [(); 2].map(|()| Draft::of(&whole).unwrap());
        one.file().write_all(b"a long text").unwrap();
        two.file().write_all(b"short").unwrap();
        assert!(!whole.exists());
        one.put().unwrap();
        assert_eq!(fs::read(&whole).unwrap(), b"a long text");
        two.put().unwrap();
        assert_eq!(fs::read(&whole).unwrap(), b"short");
        drop(Draft::of(&whole).unwrap());
        assert_eq!(names(folder.path()), ["x.json"], "what is not put there is gone");
    }

    #[test]
    fn a_name_that_is_taken_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("x");
        let create = |path: &Path| File::create_new(path);
        anew(&whole, [7].into_iter(), create).unwrap();
        let (path, _) = anew(&whole, [7, 7, 8].into_iter(), create).unwrap();
        assert_eq!(path, folder.path().join("x.0000000000000008.draft"));
        let error = anew(&whole, std::iter::repeat(7), create).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "it ends");
        assert_ne!(super::folder(&whole).unwrap(), super::folder(&whole).unwrap());
    }

    #[test]
    fn what_a_killed_process_left_goes_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 2 * OLDEST;
        let aged = |name: &str, modified: SystemTime| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(modified).unwrap();
        };
        aged("x.00000000000000a1.draft", old);
        let stay = [
            ("x.00000000000000a2.draft", SystemTime::now()),
            ("x.00000000000000a3.draft", SystemTime::now() + 2 * OLDEST),
            ("x.a4.draft", old),
            ("x.00000000000000a5.draft.txt", old),
            ("xy.00000000000000a6.draft", old),
            ("y.00000000000000a7.draft", old),
            ("x", old),
        ];
        stay.iter().for_each(|(name, modified)| aged(name, *modified));
        nameless(&folder.path().join("x")).unwrap().write_all(b"text").unwrap();
        let mut expected = stay.map(|(name, _)| name.to_string());
        expected.sort();
        assert_eq!(names(folder.path()), expected);
    }
}
