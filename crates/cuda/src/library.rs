//! NVIDIA's libraries where they may be: whatever a distribution, a toolkit or a Python package calls them.
//!
//! Looked for in this order: the folders of `BALLAST_CUDA_LIBRARIES` (parted by colons), what the system's loader finds by
//! name, the toolkit's folders (`CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda` and its versions), those of Python packages: of an
//! active environment, of the environment whose `python3` comes first in `PATH`, of the user, of the system. Packages of CUDA
//! 13 share a folder (`nvidia/cu13/lib`); those of CUDA 12 have one each (`nvidia/cuda_nvrtc/lib`, `nvidia/cublas/lib`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use libloading::Library;

/// Folders that are looked at first.
pub(crate) const FOLDERS: &str = "BALLAST_CUDA_LIBRARIES";

/// Major versions that are known to have what is asked of them.
const MAJORS: [u32; 2] = [13, 12];

/// File names of a library, the best first: of the version that the driver speaks, older, newer. A driver does not take
/// machine code of a newer compiler.
fn names(stem: &str, driver_major: Option<u32>) -> Vec<String> {
    let mut majors = MAJORS;
    majors.sort_by_key(|&major| (driver_major.is_some_and(|driver| major > driver), u32::MAX - major));
    let numbered = majors.iter().map(|major| format!("lib{stem}.so.{major}"));
    numbered.chain([format!("lib{stem}.so")]).collect()
}

/// Entries of a folder, or none if there is no such folder; in order of their names.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// What is asked of the environment.
type Variable<'a> = &'a dyn Fn(&str) -> Option<std::ffi::OsString>;

/// Roots of the toolkit: those that are named, then `/usr/local/cuda` and, the newest first, versions beside it.
fn toolkits(variable: Variable<'_>, local: &Path) -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(PathBuf::from);
    let is_version = |path: &PathBuf| {
        path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("cuda-"))
    };
    let versions = entries(local).into_iter().rev().filter(is_version);
    named.chain([local.join("cuda")]).chain(versions).collect()
}

/// Roots of Python: environments, the user's packages, the system's.
fn pythons(variable: Variable<'_>) -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).map(PathBuf::from);
    let searched = variable("PATH").map(|all| std::env::split_paths(&all).collect::<Vec<_>>());
    let first = searched.unwrap_or_default().into_iter().find(|folder| folder.join("python3").exists());
    let first = first.and_then(|folder| folder.parent().map(Path::to_path_buf));
    let user = variable("HOME").map(|home| PathBuf::from(home).join(".local"));
    active.chain(first).chain(user).chain(["/usr/local".into(), "/usr".into()]).collect()
}

/// Where the toolkit and Python packages put libraries.
fn usual_folders(variable: Variable<'_>) -> Vec<PathBuf> {
    let toolkits = toolkits(variable, Path::new("/usr/local"));
    let mut folders: Vec<PathBuf> =
        toolkits.iter().flat_map(|root| [root.join("lib64"), root.join("lib")]).collect();
    for root in pythons(variable) {
        folders.push(root.join("lib"));
        let pythons = entries(&root.join("lib"));
        // Debian's own Python looks elsewhere than others.
        let kinds = ["site-packages", "dist-packages"];
        let packages = kinds.iter().flat_map(|kind| pythons.iter().map(move |python| python.join(kind)));
        let makers = packages.flat_map(|packages| entries(&packages.join("nvidia")));
        folders.extend(makers.map(|package| package.join("lib")));
    }
    folders
}

/// What is to be tried, in order: paths, and bare names that the system's loader looks for.
fn candidates(stem: &str, driver_major: Option<u32>, variable: Variable<'_>) -> Vec<PathBuf> {
    let names = names(stem, driver_major);
    let within = |folders: Vec<PathBuf>| -> Vec<PathBuf> {
        let there = folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
        there.filter(|path| path.is_file()).collect()
    };
    let asked = variable(FOLDERS).map(|all| std::env::split_paths(&all).collect()).unwrap_or_default();
    let mut found = within(asked);
    found.extend(names.iter().map(PathBuf::from));
    found.extend(within(usual_folders(variable)));
    found
}

/// Why no file of a library serves.
#[derive(Debug, PartialEq)]
pub(crate) struct Refused {
    /// Those that opened, each with what was said of it. None if there is no such library.
    pub(crate) why: Vec<String>,
}

/// Takes the first of a library's files that opens and that `serves`, which says why if not: one may be too new for the driver, and
/// an older one lie further on. What lies beside a file and begins with `beside`, if anything does, is opened before: it would look
/// for that by name.
pub(crate) fn open<T>(
    stem: &str,
    beside: Option<&str>,
    driver_major: Option<u32>,
    serves: impl Fn(Library) -> Result<T, String>,
) -> Result<T, Refused> {
    let candidates = candidates(stem, driver_major, &|name| std::env::var_os(name));
    first_that_serves(&candidates, |path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let is_beside = |other: &PathBuf| {
            let name = other.file_name().and_then(OsStr::to_str).unwrap_or_default();
            beside.is_some_and(|beside| name.starts_with(beside)) && !name.contains(".alt.")
        };
        for other in folder.map(entries).unwrap_or_default().into_iter().filter(is_beside) {
            // SAFETY: runs what NVIDIA's library runs when it is loaded.
            if let Ok(library) = unsafe { Library::new(&other) } {
                // It stays for as long as the process, as what needs it does.
                std::mem::forget(library);
            }
        }
        // SAFETY: as above.
        unsafe { Library::new(path) }.ok().map(&serves)
    })
}

/// What `open` makes of the first path of which it makes something: nothing of what there is not, an error of what does not serve.
fn first_that_serves<T>(
    paths: &[PathBuf],
    open: impl Fn(&Path) -> Option<Result<T, String>>,
) -> Result<T, Refused> {
    let mut why = Vec::new();
    for path in paths {
        match open(path) {
            Some(Ok(serves)) => return Ok(serves),
            Some(Err(does_not)) => why.push(format!("{}: {does_not}", path.display())),
            None => {}
        }
    }
    Err(Refused { why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_comes_first_and_newer_ones_last() {
        assert_eq!(names("nvrtc", Some(12)), ["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so"]);
        for driver in [None, Some(13), Some(14)] {
            assert_eq!(names("nvrtc", driver), ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]);
        }
    }

    #[test]
    fn what_does_not_serve_is_passed_over_and_told_of() {
        let paths = ["none", "13", "12"].map(PathBuf::from);
        let open = |serves: &'static str| {
            move |path: &Path| match path.to_str() {
                Some("none") => None,
                Some(name) if name == serves => Some(Ok(path.to_path_buf())),
                _ => Some(Err("too new".to_string())),
            }
        };
        assert_eq!(first_that_serves(&paths, open("12")), Ok(PathBuf::from("12")));
        let why = vec!["13: too new".to_string(), "12: too new".to_string()];
        assert_eq!(first_that_serves(&paths, open("11")), Err(Refused { why }));
        assert_eq!(first_that_serves(&paths[..1], open("12")), Err(Refused { why: vec![] }));
    }

    fn make(root: &Path, file: &str) -> PathBuf {
        let file = root.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, []).unwrap();
        file
    }

    #[test]
    fn named_folders_come_before_the_loader_and_the_usual_ones_after() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let named = make(root, "named/libnvrtc.so.12");
        let packaged = make(root, "env/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        let variable = |name: &str| match name {
            FOLDERS => Some(root.join("named").into_os_string()),
            "VIRTUAL_ENV" => Some(root.join("env").into_os_string()),
            "CUDA_HOME" => Some(root.join("nothing").into_os_string()),
            _ => None,
        };
        let found = candidates("nvrtc", None, &variable);
        let at = |path: &Path| found.iter().position(|found| found == path).unwrap();
        let bare = at(Path::new("libnvrtc.so.13"));
        assert!(at(&named) < bare && bare < at(&packaged), "{found:?}");
    }

    #[test]
    fn packages_of_both_versions_are_found_though_no_environment_is_active() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        make(root, "venv/bin/python3");
        let files = [
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
            "home/.local/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
            "conda/lib/python3.10/dist-packages/nvidia/cublas/lib/libcublasLt.so.12",
        ]
        .map(|file| make(root, file));
        let variable = |name: &str| match name {
            "PATH" => Some(std::env::join_paths([root.join("bin"), root.join("venv/bin")]).unwrap()),
            "HOME" => Some(root.join("home").into_os_string()),
            "CONDA_PREFIX" => Some(root.join("conda").into_os_string()),
            _ => None,
        };
        let found = candidates("cublasLt", Some(13), &variable);
        let at = |path: &PathBuf| found.iter().position(|found| found == path).unwrap();
        let [first, user, active] = files.each_ref().map(at);
        assert!(active < first && first < user, "{found:?}");
    }

    #[test]
    fn versions_of_the_toolkit_are_looked_at_after_the_one_without_a_number() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in ["cuda-12.8", "cuda-13.0", "share"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let found = toolkits(&|_| None, root);
        assert_eq!(found, ["cuda", "cuda-13.0", "cuda-12.8"].map(|name| root.join(name)));
    }
}
