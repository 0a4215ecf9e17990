//! A GPU where there is none: processes that take `stand_in/*.cpp` for NVIDIA's libraries. So what speaks to the driver is run too, not
//! only what would run on the device.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use tempfile::TempDir;

use crate::host;

const SOURCES: [(&str, &str); 4] = [
    ("device.h", include_str!("device.h")),
    ("driver.cpp", include_str!("driver.cpp")),
    ("nvrtc.cpp", include_str!("nvrtc.cpp")),
    ("cublaslt.cpp", include_str!("cublaslt.cpp")),
];
/// The names under which the one library is looked for.
const NAMES: [&str; 3] = ["libcuda.so", "libnvrtc.so.12", "libcublasLt.so.12"];
/// The variable that names the compiler and its options.
const COMPILER: &str = "BALLAST_STAND_IN_COMPILER";
/// The folder beside it that lacks the last.
const WITHOUT_PRODUCTS: &str = "without-products";

/// A device of compute capability 8.0. Commands may have `BALLAST_STAND_IN_MEMORY` (bytes that it has), `BALLAST_STAND_IN_SEED` (of
/// how its streams overtake each other), `BALLAST_STAND_IN_LAUNCHES` (kernels after which it is lost),
/// `BALLAST_STAND_IN_GRAPH_BYTES` (that a graph takes for each of its kernels), `BALLAST_STAND_IN_NOTES` (graphs that are to be made of
/// what streams note down, at the least), `BALLAST_STAND_IN_UNMADE` (1 if it makes none of those), `BALLAST_STAND_IN_INTEGRATED` (1 if
/// its memory is the host's), `BALLAST_STAND_IN_ELSEWHERE` (1 if it has other addresses than the host for the host's memory),
/// `BALLAST_STAND_IN_REGISTERS` (that each of its threads has), `BALLAST_STAND_IN_FAILS` (a call that fails once for want of memory, and
/// which of its name, as in `cuMemHostAlloc 3`) and `BALLAST_STAND_IN_REFUSES`, `BALLAST_STAND_IN_LACKS` (see `cublaslt.cpp`) besides.
pub(crate) struct StandIn {
    libraries: PathBuf,
    header: PathBuf,
    compiler: String,
    /// Machine code of this one.
    cache: TempDir,
}

impl StandIn {
    /// One, if there is a compiler for it; says so if not.
    pub(crate) fn new() -> Option<StandIn> {
        let compiler = host::compiler()?;
        let cache = tempfile::tempdir().expect("a folder for machine code");
        let libraries = libraries(&compiler);
        Some(StandIn { header: host::header(&compiler, &[]), libraries, compiler, cache })
    }

    /// Whether this process has one.
    #[allow(dead_code, reason = "other programs have no such tests")]
    pub(crate) fn is_there() -> bool {
        env::var_os(COMPILER).is_some()
    }

    /// Gives it to a command.
    pub(crate) fn given_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("LD_LIBRARY_PATH", &self.libraries)
            .env("BALLAST_CUDA_LIBRARIES", &self.libraries)
            .env("XDG_CACHE_HOME", self.cache.path())
            .env_remove("BALLAST_CACHE")
            .env("BALLAST_STAND_IN_HEADER", &self.header)
            .env("BALLAST_STAND_IN_LIBRARIES", env!("CARGO_TARGET_TMPDIR"))
            .env(COMPILER, format!("{} {}", self.compiler, host::OPTIONS.join(" ")))
    }

    /// The same, where there is no library of products.
    #[allow(dead_code, reason = "other programs have no such tests")]
    pub(crate) fn without_products(mut self) -> StandIn {
        self.libraries.push(WITHOUT_PRODUCTS);
        self
    }

    /// Runs tests of a file of this program, by their names, in a process of their own that has it.
    ///
    /// # Panics
    /// If one of them fails, is skipped or is not there.
    #[allow(dead_code, reason = "other programs have no such tests")]
    pub(crate) fn runs(&self, file: &str, tests: &[&str]) {
        self.runs_with(file, tests, &[]);
    }

    /// The same with these variables; what they print.
    #[allow(dead_code, reason = "other programs have no such tests")]
    pub(crate) fn runs_with(&self, file: &str, tests: &[&str], variables: &[(&str, &str)]) -> String {
        let mut again = Command::new(env::current_exe().expect("this program"));
        let again = self.given_to(&mut again).envs(variables.iter().copied());
        let output = again
            .args(tests.iter().map(|test| format!("{file}::{test}")))
            .args(["--exact", "--nocapture"])
            .output()
            .expect("it runs");
        let told =
            [output.stdout, output.stderr].map(|told| String::from_utf8_lossy(&told).into_owned()).concat();
        let all_ran = told.contains(&format!("{} passed", tests.len())) && !told.contains("skipped");
        assert!(output.status.success() && all_ran, "{}: {told}", output.status);
        told
    }
}

/// A folder with the libraries, compiled at first use and kept with the build.
fn libraries(compiler: &str) -> PathBuf {
    let names = NAMES.into_iter().chain([WITHOUT_PRODUCTS]);
    let text: String = SOURCES.iter().map(|(_, text)| *text).chain(names).collect();
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = kept.join(format!("stand-in-{:016x}", host::fnv(text.as_bytes())));
    if folder.exists() {
        return folder;
    }
    let partial = tempfile::tempdir_in(kept).expect("the target folder can be written");
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-Wall", "-Werror"]);
    for (name, text) in SOURCES {
        let path = partial.path().join(name);
        fs::write(&path, text).expect("the target folder can be written");
        if name.ends_with(".cpp") {
            command.arg(path);
        }
    }
    let output = command
        .arg("-o")
        .arg(partial.path().join("stand-in.so"))
        .arg("-ldl")
        .output()
        .expect("it ran before");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let without = partial.path().join(WITHOUT_PRODUCTS);
    fs::create_dir(&without).expect("the target folder can be written");
    for name in NAMES {
        symlink("stand-in.so", partial.path().join(name)).expect("a link");
    }
    for name in &NAMES[..2] {
        symlink("../stand-in.so", without.join(name)).expect("a link");
    }
    // Unless another program was faster.
    let _ = fs::rename(partial.keep(), &folder);
    folder
}
