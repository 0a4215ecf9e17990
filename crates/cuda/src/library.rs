//! NVIDIA's libraries where they may be: whatever a distribution, a toolkit or a Python package calls them.
//!
//! Looked for in this order: the folders of `BALLAST_CUDA_LIBRARIES` (parted by colons), what the system's loader finds by
//! name, the toolkit's folders (`CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`), those of an active Python environment.

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

/// Where the toolkit and Python packages put libraries.
fn usual_folders(variable: Variable<'_>) -> Vec<PathBuf> {
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable).map(PathBuf::from);
    let toolkits = toolkits.chain(["/usr/local/cuda".into()]);
    let mut folders: Vec<PathBuf> =
        toolkits.flat_map(|root| [root.join("lib64"), root.join("lib")]).collect();
    for root in ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).map(PathBuf::from) {
        folders.push(root.join("lib"));
        let packages =
            entries(&root.join("lib")).into_iter().map(|python| python.join("site-packages/nvidia"));
        folders.extend(packages.flat_map(|packages| entries(&packages)).map(|package| package.join("lib")));
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

/// Opens the first of a library's files that opens. What lies beside it and begins with `beside`, if anything does, is opened
/// before: it would look for that by name.
pub(crate) fn open(stem: &str, beside: Option<&str>, driver_major: Option<u32>) -> Option<Library> {
    candidates(stem, driver_major, &|name| std::env::var_os(name)).iter().find_map(|path| {
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
        unsafe { Library::new(path) }.ok()
    })
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
    fn named_folders_come_before_the_loader_and_the_usual_ones_after() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let files =
            ["named/libnvrtc.so.12", "env/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13"];
        for file in files.map(|file| root.join(file)) {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, []).unwrap();
        }
        let variable = |name: &str| match name {
            FOLDERS => Some(root.join("named").into_os_string()),
            "VIRTUAL_ENV" => Some(root.join("env").into_os_string()),
            "CUDA_HOME" => Some(root.join("nothing").into_os_string()),
            _ => None,
        };
        let found = candidates("nvrtc", None, &variable);
        let at = |path: &Path| found.iter().position(|found| found == path);
        let [named, packaged] = files.map(|file| at(&root.join(file)).unwrap());
        let bare = at(Path::new("libnvrtc.so.13")).unwrap();
        assert!(named < bare && bare < packaged, "{found:?}");
    }
}
