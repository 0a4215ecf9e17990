//! From text to machine code: NVRTC, at run time.

use std::fmt;

use crate::CudaError;
use crate::module::Module;
use crate::nvrtc::Nvrtc;

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
    if module == Module::Sample {
        // The CPU's sampler does not fuse either.
        options.push("--fmad=false".to_string());
    }
    if architecture < Architecture(80) {
        options.push("-DBALLAST_MMA_BY_SHUFFLES".to_string());
    }
    options
}

/// The compiler's version, major and minor.
///
/// # Errors
/// [`CudaError::Library`] if there is no compiler.
pub fn version() -> Result<(i32, i32), CudaError> {
    Ok(Nvrtc::get()?.version())
}

/// Compiles a module.
///
/// # Errors
/// [`CudaError::Library`] if there is no compiler, [`CudaError::Compile`] with its words.
pub fn compile(module: Module, architecture: Architecture) -> Result<Compiled, CudaError> {
    let name = format!("{module}.cu");
    let compiled = Nvrtc::get()?.compile(&name, &module.source(), &options(module, architecture));
    let (cubin, log) = compiled.map_err(|log| CudaError::Compile {
        module: module.to_string(),
        architecture: architecture.to_string(),
        log,
    })?;
    Ok(Compiled { cubin, log })
}
