//! Machine code on the disk. The driver is given an address and no length, and believes what a cubin says of its own: of one
//! that was cut short it would read what lies behind. So a file says how long it is and what its bytes come to.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

/// Before the code: its length in bytes, least significant first, and its SHA-256.
const HEADER: usize = 8 + 32;

/// Where code is kept: in the cache folder of everything else (`model::source::Places`, which this crate does not know).
pub(super) fn folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let home = std::env::home_dir();
    // As in a service's file, where no shell has replaced the `~`.
    let expanded = |path: PathBuf| match (path.strip_prefix("~"), &home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    };
    let said = |name| variable(name).filter(|value| !value.is_empty()).map(|value| expanded(value.into()));
    let caches = || said("XDG_CACHE_HOME").or_else(|| Some(home.as_ref()?.join(".cache")));
    let ours = said("BALLAST_CACHE").or_else(|| Some(caches()?.join("ballast")));
    Some(ours?.join("kernels"))
}

/// The code that [`keep`] wrote; nothing if there is none, or not all of it, or something else.
pub(super) fn read(path: &Path) -> Option<Vec<u8>> {
    let mut header = fs::read(path).ok()?;
    if header.len() < HEADER {
        return None;
    }
    let code = header.split_off(HEADER);
    (header == header_of(&code)).then_some(code)
}

/// Written beside its place and moved there once the disk has it, so that nobody finds half of it.
pub(super) fn keep(path: &Path, code: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)?;
    let mut partial = NamedTempFile::new_in(folder)?;
    partial.write_all(&header_of(code))?;
    partial.write_all(code)?;
    partial.as_file().sync_all()?;
    Ok(partial.persist(path).map(drop)?)
}

fn header_of(code: &[u8]) -> Vec<u8> {
    [(code.len() as u64).to_le_bytes().as_slice(), &Sha256::digest(code)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_lies_in_the_cache_folder() {
        let with = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            folder(&value).unwrap().display().to_string()
        };
        assert_eq!(with(&[("BALLAST_CACHE", "/b"), ("XDG_CACHE_HOME", "/x")]), "/b/kernels");
        assert_eq!(with(&[("BALLAST_CACHE", ""), ("XDG_CACHE_HOME", "/x")]), "/x/ballast/kernels");
        let home = std::env::home_dir().unwrap().join(".cache/ballast/kernels");
        assert_eq!(with(&[("BALLAST_CACHE", "~/.cache/ballast")]), home.display().to_string());
        assert_eq!(with(&[("XDG_CACHE_HOME", "")]), home.display().to_string(), "not the working directory");
    }

    #[test]
    fn only_what_was_kept_whole_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels/some.cubin");
        assert_eq!(read(&path), None);
        let code: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        keep(&path, &code).unwrap();
        assert_eq!(read(&path).as_ref(), Some(&code));
        let whole = fs::read(&path).unwrap();
        for short in [0, 7, HEADER - 1, HEADER, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..short]).unwrap();
            assert_eq!(read(&path), None, "{short} bytes");
        }
        for changed in [0, 20, HEADER, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[changed] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path), None, "byte {changed}");
        }
        fs::write(&path, [whole.as_slice(), b"more"].concat()).unwrap();
        assert_eq!(read(&path), None);
        // As code was kept before it had a header.
        fs::write(&path, &code).unwrap();
        assert_eq!(read(&path), None);
        keep(&path, &code).unwrap();
        assert_eq!((read(&path), fs::read_dir(path.parent().unwrap()).unwrap().count()), (Some(code), 1));
    }
}
