//! A driver whose device is the host: the kernels' text compiled as C++, behind `kernels/emulate.h`.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, fs};

use cuda::module::Module;
use cuda::{CudaError, Driver, Launch};

/// The entries of the libraries that are loaded.
type Loaded = HashMap<(Module, Mma), &'static Mutex<Start>>;
type Start = unsafe extern "C" fn(*const i8, u32, u32, u32, u32, *const c_void) -> i32;

/// Which product the emulated tensor cores compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mma {
    /// As the instruction's definition says.
    Defined,
    /// Through the kernels' own shuffles, as on devices without bf16.
    ByShuffles,
}

/// As a device's memory is aligned.
#[derive(Clone, Copy)]
#[repr(align(256))]
struct Line(#[allow(dead_code)] [u8; 256]); // Read through addresses only.

/// Memory of the host, and the compiled kernels.
pub(crate) struct Emulator {
    memory: Vec<Line>,
    mma: Mma,
}

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

impl Emulator {
    /// A device with no memory yet.
    pub(crate) fn new(mma: Mma) -> Emulator {
        Emulator { memory: Vec::new(), mma }
    }
}

/// The library of a module, compiled at first use and kept with the build.
fn library(module: Module, mma: Mma) -> PathBuf {
    const EMULATE: &str = include_str!("../../kernels/emulate.h");
    let text = format!("{EMULATE}\n{}", module.source());
    let mut options: Vec<String> =
        ["-std=c++17", "-O1", "-fPIC", "-fno-gnu-unique", "-shared", "-ffp-contract=off", "-Wall", "-Werror"]
            .map(String::from)
            .to_vec();
    options.push("-Wno-unknown-pragmas".into());
    options.extend(module.defines());
    if mma == Mma::ByShuffles {
        options.push("-DBALLAST_MMA_BY_SHUFFLES".into());
    }
    let key = fnv(format!("{text}{options:?}").as_bytes());
    let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{module}-{key:016x}"));
    let (library, source) = (base.with_extension("so"), base.with_extension("cpp"));
    if !library.exists() {
        fs::write(&source, text).expect("the target folder can be written");
        let partial = base.with_extension("part");
        let mut command = Command::new(compiler().expect("a compiler, as the test has asked"));
        let output =
            command.args(options).arg(&source).arg("-o").arg(&partial).output().expect("it ran before");
        assert!(output.status.success(), "{module}:\n{}", String::from_utf8_lossy(&output.stderr));
        fs::rename(partial, &library).expect("the target folder can be written");
    }
    library
}

/// Fowler, Noll and Vo's hash, 1a, of 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The entry of a module's library. A library runs one block at a time: its threads are fibers of the caller.
fn start(module: Module, mma: Mma) -> &'static Mutex<Start> {
    static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    loaded.entry((module, mma)).or_insert_with(|| {
        let path = CString::new(library(module, mma).to_str().expect("a path of text")).expect("a path");
        // SAFETY: our own library, which has the entry with this signature.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!handle.is_null(), "{module} does not load");
            let entry = libc::dlsym(handle, c"ballast_launch".as_ptr());
            assert!(!entry.is_null(), "{module} has no entry");
            Box::leak(Box::new(Mutex::new(std::mem::transmute::<*mut c_void, Start>(entry))))
        }
    })
}

impl Driver for Emulator {
    fn allocate(&mut self, bytes: usize) -> Result<u64, CudaError> {
        self.memory = vec![Line([0; 256]); bytes.div_ceil(256)];
        Ok(self.memory.as_mut_ptr() as u64)
    }

    fn upload(&self, to: u64, bytes: &[u8]) {
        // SAFETY: the address lies in the memory above, as the device's ledger says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
    }

    fn download(&self, from: u64, bytes: &mut [u8]) {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    }

    fn launch(&self, launch: &Launch<'_>) {
        let args: Vec<u64> =
            launch.args.chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        let name = CString::new(launch.kernel).unwrap();
        let entry = start(launch.module, self.mma).lock().unwrap_or_else(PoisonError::into_inner);
        let [x, y] = launch.grid.map(|n| n as u32);
        // SAFETY: the arguments are the kernel's, and point into the memory above.
        let missing = unsafe { entry(name.as_ptr(), x, y, 1, launch.threads, args.as_ptr().cast()) };
        assert_eq!(missing, 0, "{} has no kernel {}", launch.module, launch.kernel);
    }

    fn wait(&self) {}
}
