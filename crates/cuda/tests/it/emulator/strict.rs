//! What the emulation does not let pass, though a device might.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use super::{Start, entry_of};
use crate::host::{OPTIONS, compiler, header};

/// Of two warps at the most: each block tells what it finds in memory that it has not written yet.
const TEXT: &str = "
struct Args { unsigned* found; };
KERNEL(looks, Args, 64) {
  __shared__ unsigned mine;
  if (threadIdx.x == 0) a.found[blockIdx.x] = mine, mine = 5;
}
";

/// The entry of its library, and the folder that this is in.
fn looks() -> Option<(TempDir, Start)> {
    let compiler = compiler()?;
    let folder = tempfile::tempdir().expect("a folder");
    let [source, library] = ["looks.cpp", "looks.so"].map(|name| folder.path().join(name));
    fs::write(&source, TEXT).expect("it can be written");
    let mut command = Command::new(&compiler);
    command.args(OPTIONS).arg("-include").arg(header(&compiler, &[])).arg(&source).arg("-o").arg(&library);
    let output = command.output().expect("it ran before");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let entry = entry_of(&library);
    Some((folder, entry))
}

#[test]
fn a_block_finds_nonsense_and_has_no_more_threads_than_its_bounds() {
    let Some((_folder, entry)) = looks() else { return };
    let mut found = [0u32; 3];
    let args = [found.as_mut_ptr() as u64];
    // SAFETY: the kernel takes the address of words, and each of three blocks writes one.
    let launch = |threads| unsafe { entry(c"looks".as_ptr(), 3, 1, threads, 0, args.as_ptr().cast(), 8) };
    assert_eq!([launch(64), launch(96)], [0, 3]);
    assert_eq!(found, [u32::MAX; 3]);
}
