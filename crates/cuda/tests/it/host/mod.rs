//! What the host's C++ compiler makes of kernels and of the stand-ins for NVIDIA's libraries.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The system's C++ compiler, if there is one; says so if not.
///
/// # Panics
/// If there is none and `BALLAST_REQUIRE_EMULATION` is set.
pub(crate) fn compiler() -> Option<String> {
    let name = env::var("CXX").unwrap_or_else(|_| "c++".into());
    let works = Command::new(&name).arg("--version").output().is_ok_and(|output| output.status.success());
    if works && cfg!(target_arch = "x86_64") {
        return Some(name);
    }
    assert!(env::var_os("BALLAST_REQUIRE_EMULATION").is_none(), "there is no C++ compiler `{name}`");
    eprintln!("skipped: emulation needs an x86-64 machine and a C++ compiler (`{name}` does not run)");
    None
}

/// What stands before the kernels' text.
pub(crate) const HEADER: &str = include_str!("../../../kernels/emulate.h");

/// How kernels are compiled: a shift that C++ does not define ends the process (by a trap, which needs no library), as devices differ
/// from hosts there. What follows are definitions, `-include` with the [`header`], the text's file, `-o` and the library's.
pub(crate) const OPTIONS: [&str; 11] = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-fno-gnu-unique",
    "-shared",
    "-ffp-contract=off",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-fsanitize=shift",
    "-fsanitize-undefined-trap-on-error",
];

/// The file of [`HEADER`], and beside it what the compiler has read of it with these definitions: half of the time that a
/// library takes otherwise. Made at first use and kept with the build.
pub(crate) fn header(compiler: &str, defines: &[&str]) -> PathBuf {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let key = fnv([&[compiler, HEADER], defines, &OPTIONS].concat().join("\n").as_bytes());
    let folder = kept.join(format!("emulate-{key:016x}"));
    if !folder.exists() {
        let partial = tempfile::tempdir_in(kept).expect("the target folder can be written");
        let text = partial.path().join("emulate.h");
        fs::write(&text, HEADER).expect("the target folder can be written");
        let mut command = Command::new(compiler);
        command.args(OPTIONS).args(defines).args(["-x", "c++-header"]).arg(&text);
        let output = command.arg("-o").arg(partial.path().join("emulate.h.gch")).output();
        let output = output.expect("it ran before");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // Unless another program was faster.
        let _ = fs::rename(partial.keep(), &folder);
    }
    folder.join("emulate.h")
}

/// Fowler, Noll and Vo's hash, 1a, of 64 bits.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
