//! From text to machine code: NVRTC, at run time.

use std::ffi::{CString, c_char};
use std::fmt;

use cudarc::nvrtc::{result, sys};

use crate::CudaError;
use crate::module::Module;

/// What machine code is made for: 90 is compute capability 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Architecture(pub u32);

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.0)
    }
}

/// A module as machine code.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// What the driver loads.
    pub cubin: Vec<u8>,
    /// What the compiler said: warnings, and each kernel's registers and spills.
    pub log: String,
}

/// What the compiler is told, beside the architecture.
pub(crate) fn options(module: Module, architecture: Architecture) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_string(),
        "--ptxas-options=-v".to_string(),
    ];
    options.extend(module.defines());
    if architecture < Architecture(80) {
        options.push("-DBALLAST_MMA_BY_SHUFFLES".to_string());
    }
    options
}

/// The compiler's version, major and minor.
///
/// # Errors
/// [`CudaError::Library`] if there is no compiler.
pub(crate) fn version() -> Result<(i32, i32), CudaError> {
    present()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there, and both places live through the call.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    Ok((major, minor))
}

fn present() -> Result<(), CudaError> {
    // SAFETY: looks for a library of this name, and runs what it runs when it is loaded.
    let found = unsafe { sys::is_culib_present() };
    let missing = CudaError::Library {
        library: "libnvrtc.so",
        needed_for: "it compiles the kernels for the device",
        install: "the CUDA toolkit's run-time compiler (for instance `pip install nvidia-cuda-nvrtc-cu12`, with its folder in LD_LIBRARY_PATH)",
    };
    found.then_some(()).ok_or(missing)
}

/// Compiles a module.
///
/// # Errors
/// [`CudaError::Library`] if there is no compiler, [`CudaError::Compile`] with its words.
pub fn compile(module: Module, architecture: Architecture) -> Result<Compiled, CudaError> {
    present()?;
    let failed = |log: String| CudaError::Compile {
        module: module.to_string(),
        architecture: architecture.to_string(),
        log,
    };
    let source = CString::new(module.source()).map_err(|e| failed(e.to_string()))?;
    let name = CString::new(format!("{module}.cu")).map_err(|e| failed(e.to_string()))?;
    let program = result::create_program(&source, Some(&name)).map_err(|e| failed(e.to_string()))?;
    // SAFETY: the program was made above and is destroyed below; source and name live until then.
    unsafe {
        let done = result::compile_program(program, &options(module, architecture));
        let log = text(&result::get_program_log(program).unwrap_or_default());
        let cubin = done.map_err(|e| format!("{e}\n{log}")).and_then(|()| cubin(program));
        // A program that is not destroyed costs memory and nothing else.
        let _ = result::destroy_program(program);
        Ok(Compiled { cubin: cubin.map_err(failed)?, log })
    }
}

/// # Safety
/// The program was compiled and is not destroyed.
unsafe fn cubin(program: sys::nvrtcProgram) -> Result<Vec<u8>, String> {
    let mut size = 0;
    // SAFETY: passed on from the caller.
    unsafe { sys::nvrtcGetCUBINSize(program, &mut size) }.result().map_err(|e| e.to_string())?;
    let mut bytes = vec![0u8; size];
    // SAFETY: as above; the buffer is as long as the compiler said.
    unsafe { sys::nvrtcGetCUBIN(program, bytes.as_mut_ptr().cast()) }.result().map_err(|e| e.to_string())?;
    Ok(bytes)
}

fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
