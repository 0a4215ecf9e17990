//! What the host's C++ compiler makes of kernels and of the stand-ins for NVIDIA's libraries.

use std::env;
use std::process::Command;

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
pub(crate) const HEADER: &str =
    concat!(include_str!("../../../kernels/emulate.h"), include_str!("../../../kernels/emulate_wgmma.h"));

/// How kernels are compiled; what follows are definitions, the text's file, `-o` and the library's.
pub(crate) const OPTIONS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-fno-gnu-unique",
    "-shared",
    "-ffp-contract=off",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
];

/// Fowler, Noll and Vo's hash, 1a, of 64 bits.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
