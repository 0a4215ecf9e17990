//! Files that must not be one another: what a job reads, what it writes, and what it writes down about itself.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::{Paths, part, state_path};

/// A file that a job would write, and that it reads or writes as another too: through a link or a detour, perhaps. `written`: its files, unless it
/// writes to a stream. `beside`: what else is written while it runs, or after it.
pub fn clash(read: &[&Path], written: Option<&Paths>, beside: &[&Path]) -> Option<PathBuf> {
    let own = |paths: &Paths| -> Vec<PathBuf> {
        let each = paths.each().flat_map(|path| [path.to_owned(), part(path)]);
        each.chain([state_path(&paths.answers)]).collect()
    };
    let beside = beside.iter().map(|path| path.to_path_buf());
    let written: Vec<PathBuf> = written.map(own).unwrap_or_default().into_iter().chain(beside).collect();
    let mut taken: Vec<PathBuf> = read.iter().map(|path| resolved(path)).collect();
    written.into_iter().find(|path| {
        let path = resolved(path);
        let clashes = taken.iter().any(|other| *other == path || is_one_file(other, &path));
        taken.push(path);
        clashes
    })
}

/// Whether both are names of one file.
fn is_one_file(a: &Path, b: &Path) -> bool {
    let file =
        |path: &Path| path.metadata().ok().filter(Metadata::is_file).map(|file| (file.dev(), file.ino()));
    file(a).is_some_and(|a| Some(a) == file(b))
}

/// Where a path leads, whether something is there or not.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        path.file_name().map_or(folder.clone(), |name| folder.join(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_leads_to_the_same_file_clashes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("in"), "").unwrap();
        std::os::unix::fs::symlink(at("in"), at("link")).unwrap();
        std::fs::hard_link(at("in"), at("name")).unwrap();
        std::fs::create_dir(at("d")).unwrap();
        let clashes = |read: &str, answers: &str, errors: Option<&str>| {
            let paths = Paths { answers: at(answers), errors: errors.map(at) };
            clash(&[&at(read)], Some(&paths), &[]).is_some()
        };
        assert!(!clashes("in", "out", None) && !clashes("in", "out", Some("errors")));
        for (read, answers, errors) in [
            ("in", "link", None),
            ("in", "name", None),
            ("in", "d/../in", None),
            ("out.state", "out", None),
            ("in", "out", Some("d/../out")),
            ("in", "out", Some("out.state")),
            ("in", "out", Some("out.part")),
            ("errors.part", "out", Some("errors")),
        ] {
            assert!(clashes(read, answers, errors), "{read} {answers} {errors:?}");
        }
        let paths = Paths { answers: at("out"), errors: None };
        let beside = |written: Option<&Paths>, names: &[&str]| {
            let beside: Vec<PathBuf> = names.iter().map(|name| at(name)).collect();
            clash(&[&at("in")], written, &beside.iter().map(AsRef::as_ref).collect::<Vec<_>>()).is_some()
        };
        assert!(!beside(Some(&paths), &["record", "lanes"]) && !beside(None, &["record"]));
        assert!(beside(Some(&paths), &["out"]) && beside(Some(&paths), &["out.state"]));
        assert!(beside(None, &["link"]) && beside(None, &["record", "record"]));
    }
}
