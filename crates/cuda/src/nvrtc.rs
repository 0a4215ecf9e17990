//! The few functions of NVRTC that are needed, of whichever version is found.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null;
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;

use crate::{CudaError, library};

type Program = *mut c_void;
type Status = c_int;

/// What the library compiles to, and for which architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Machine code.
    Machine(u32),
    /// PTX, which the driver of a newer device makes machine code of.
    Driver(u32),
}

/// The library's functions; it stays open for as long as the process.
pub(crate) struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    architectures: Tells,
    list_architectures: Tells,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ptx_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    ptx: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    message: unsafe extern "C" fn(Status) -> *const c_char,
    _library: Library,
}

/// The driver's version of CUDA, 12 for instance, if there is one.
fn driver_major() -> Option<u32> {
    let mut version = 0;
    // SAFETY: looks for a library of this name, and asks it for a number.
    let told = unsafe { sys::is_culib_present() && sys::cuDriverGetVersion(&mut version).result().is_ok() };
    told.then_some(version as u32 / 1000)
}

/// Whether the driver, if there is one, takes what a compiler of this version makes: machine code of its own CUDA and older ones.
fn suits((major, minor): (i32, i32), driver_major: Option<u32>) -> Result<(), String> {
    match driver_major {
        Some(driver) if major > driver as i32 => {
            Err(format!("it compiles for CUDA {major}.{minor}, and the driver is of CUDA {driver}"))
        }
        _ => Ok(()),
    }
}

/// A function of the library that writes numbers to a place.
type Tells = unsafe extern "C" fn(*mut c_int) -> Status;

/// The architectures that it lists, in order.
///
/// # Safety
/// `list` writes as many as `count` says, or fewer.
unsafe fn listed(count: Tells, list: Tells) -> Result<Vec<u32>, Status> {
    let done = |status| if status == 0 { Ok(()) } else { Err(status) };
    let mut number = 0;
    // SAFETY: the place lives through the call.
    done(unsafe { count(&mut number) })?;
    let mut all = vec![0; number.max(0) as usize];
    // SAFETY: the list is as long as the library said.
    done(unsafe { list(all.as_mut_ptr()) })?;
    let mut known: Vec<u32> = all.into_iter().filter(|one| *one > 0).map(|one| one as u32).collect();
    known.sort_unstable();
    Ok(known)
}

impl Nvrtc {
    /// The library, opened at the first call.
    ///
    /// # Errors
    /// [`CudaError::Library`] if there is none, [`CudaError::Unfit`] if none serves.
    pub(crate) fn get() -> Result<&'static Nvrtc, CudaError> {
        static FOUND: OnceLock<Result<Nvrtc, CudaError>> = OnceLock::new();
        let open = || {
            let driver = driver_major();
            library::open("nvrtc", Some("libnvrtc-builtins."), driver, |library| {
                Nvrtc::serving(library, driver)
            })
        };
        let without = |refused| {
            CudaError::without(
                "libnvrtc.so",
                "it compiles the kernels for the device",
                "the CUDA toolkit's run-time compiler, of CUDA 12 or 13 and not newer than the driver (for instance `pip install \
                 nvidia-cuda-nvrtc-cu12`, with its folder in BALLAST_CUDA_LIBRARIES)",
                refused,
            )
        };
        FOUND.get_or_init(|| open().map_err(without)).as_ref().map_err(Clone::clone)
    }

    /// The library, if the driver takes what it compiles.
    fn serving(library: Library, driver_major: Option<u32>) -> Result<Nvrtc, String> {
        let nvrtc = Nvrtc::of(library).ok_or("it lacks functions")?;
        suits(nvrtc.version(), driver_major).map(|()| nvrtc)
    }

    fn of(library: Library) -> Option<Nvrtc> {
        // SAFETY: the functions have these signatures in every version since 11.1, and live as long as the library.
        unsafe {
            Some(Nvrtc {
                version: *library.get(b"nvrtcVersion").ok()?,
                create: *library.get(b"nvrtcCreateProgram").ok()?,
                compile: *library.get(b"nvrtcCompileProgram").ok()?,
                log_size: *library.get(b"nvrtcGetProgramLogSize").ok()?,
                log: *library.get(b"nvrtcGetProgramLog").ok()?,
                architectures: *library.get(b"nvrtcGetNumSupportedArchs").ok()?,
                list_architectures: *library.get(b"nvrtcGetSupportedArchs").ok()?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize").ok()?,
                cubin: *library.get(b"nvrtcGetCUBIN").ok()?,
                ptx_size: *library.get(b"nvrtcGetPTXSize").ok()?,
                ptx: *library.get(b"nvrtcGetPTX").ok()?,
                destroy: *library.get(b"nvrtcDestroyProgram").ok()?,
                message: *library.get(b"nvrtcGetErrorString").ok()?,
                _library: library,
            })
        }
    }

    /// Major and minor.
    pub(crate) fn version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both places live through the call.
        unsafe { (self.version)(&mut major, &mut minor) };
        (major, minor)
    }

    /// What it makes machine code for, 90 for sm_90: the oldest first.
    ///
    /// # Errors
    /// Its words.
    pub(crate) fn architectures(&self) -> Result<Vec<u32>, String> {
        // SAFETY: the functions are the library's.
        let all = unsafe { listed(self.architectures, self.list_architectures) };
        all.map_err(|status| self.words(status))
    }

    fn words(&self, status: Status) -> String {
        // SAFETY: the library gives a text of its own for every number.
        unsafe { CStr::from_ptr((self.message)(status)) }.to_string_lossy().into_owned()
    }

    fn result(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        Err(self.words(status))
    }

    /// Machine code, or text for the driver to compile, and what the compiler said of it.
    ///
    /// # Errors
    /// Its words.
    pub(crate) fn compile(
        &self,
        name: &str,
        source: &str,
        options: &[String],
        target: Target,
    ) -> Result<(Vec<u8>, String), String> {
        let text = |text: &str| CString::new(text).map_err(|e| e.to_string());
        let (name, source) = (text(name)?, text(source)?);
        let options = options.iter().map(|option| text(option)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        // SAFETY: texts live through the calls; the program is made first and destroyed last.
        unsafe {
            self.result((self.create)(&mut program, source.as_ptr(), name.as_ptr(), 0, null(), null()))?;
            let done = self.result((self.compile)(program, options.len() as c_int, options.as_ptr()));
            let log = self.bytes(program, self.log_size, self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_string();
            let (size, write) = match target {
                Target::Machine(_) => (self.cubin_size, self.cubin),
                Target::Driver(_) => (self.ptx_size, self.ptx),
            };
            let code = done.and_then(|()| self.bytes(program, size, write));
            // A program that is not destroyed costs memory and nothing else.
            (self.destroy)(&mut program);
            code.map(|code| (code, log.clone())).map_err(|why| format!("{why}\n{log}"))
        }
    }

    /// # Safety
    /// The program is not destroyed, and the functions tell a size and write as many bytes.
    unsafe fn bytes(
        &self,
        program: Program,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        write: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, String> {
        let mut length = 0;
        // SAFETY: passed on from the caller; the buffer is as long as the library said.
        unsafe {
            self.result(size(program, &mut length))?;
            let mut bytes = vec![0u8; length];
            self.result(write(program, bytes.as_mut_ptr().cast()))?;
            Ok(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn three(count: *mut c_int) -> Status {
        // SAFETY: the caller's place.
        unsafe { *count = 3 };
        0
    }

    extern "C" fn two_of_them(list: *mut c_int) -> Status {
        // SAFETY: the caller has room for three.
        unsafe { [*list, *list.add(1)] = [90, 75] };
        0
    }

    extern "C" fn fails(_: *mut c_int) -> Status {
        11
    }

    #[test]
    fn a_compiler_that_is_newer_than_the_driver_does_not_serve() {
        assert_eq!(
            [suits((12, 9), Some(12)), suits((12, 0), Some(13)), suits((13, 0), None)],
            [Ok(()), Ok(()), Ok(())]
        );
        let why = suits((13, 1), Some(12)).unwrap_err();
        assert_eq!(why, "it compiles for CUDA 13.1, and the driver is of CUDA 12");
    }

    #[test]
    fn architectures_are_those_that_the_library_lists() {
        // SAFETY: two are written where there is room for three.
        let told = unsafe { [listed(three, two_of_them), listed(fails, two_of_them), listed(three, fails)] };
        assert_eq!(told, [Ok(vec![75, 90]), Err(11), Err(11)]);
    }
}
