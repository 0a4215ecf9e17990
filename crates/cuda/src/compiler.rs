//! From text to machine code: NVRTC, at run time.

use std::fmt;

use crate::CudaError;
use crate::module::Module;
use crate::nvrtc::{Nvrtc, Target};

/// What machine code is made for: 90 is compute capability 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Architecture(pub u32);

impl Architecture {
    /// The one whose tensor cores multiply for warpgroups. Newer ones do not.
    pub const WARPGROUPS: Architecture = Architecture(90);
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.0)
    }
}

/// A module as machine code.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// What the driver loads: machine code, or PTX of an older architecture where the compiler does not know this one yet.
    pub cubin: Vec<u8>,
    /// What the compiler said: warnings, and each kernel's registers and spills.
    pub log: String,
}

/// What the compiler is told, beside the architecture.
pub(crate) fn options(module: Module, architecture: Architecture) -> Vec<String> {
    let mut options = vec!["--std=c++17".to_string(), "--ptxas-options=-v".to_string()];
    options.extend(module.defines());
    if module == Module::Sample {
        // The CPU's sampler does not fuse either.
        options.push("--fmad=false".to_string());
    }
    if architecture < Architecture(80) {
        options.push("-DBALLAST_MMA_BY_HALVES".to_string());
    }
    options
}

/// What is compiled for a device, given what the compiler knows (the oldest first): its own machine code, else PTX of the newest
/// architecture before it. None if it is older than all of them.
fn target(known: &[u32], Architecture(device): Architecture) -> Option<Target> {
    let newest = known.iter().copied().rfind(|known| *known <= device)?;
    Some(if newest == device { Target::Machine(device) } else { Target::Driver(newest) })
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
    let (nvrtc, name) = (Nvrtc::get()?, format!("{module}.cu"));
    let failed =
        |log| CudaError::Compile { module: module.to_string(), architecture: architecture.to_string(), log };
    let known = nvrtc.architectures().map_err(failed)?;
    let target = target(&known, architecture).ok_or_else(|| {
        let (major, minor) = nvrtc.version();
        let oldest = known.first().copied().unwrap_or_default();
        failed(format!(
            "NVRTC {major}.{minor} compiles for sm_{oldest} and newer; install that of an older CUDA"
        ))
    })?;
    let mut options = options(module, architecture);
    // What newer devices do not have is compiled for this one alone.
    let alone = if matches!(module, Module::Warpgroups { .. }) { "a" } else { "" };
    options.push(match target {
        Target::Machine(number) => format!("--gpu-architecture=sm_{number}{alone}"),
        Target::Driver(number) => format!("--gpu-architecture=compute_{number}{alone}"),
    });
    let compiled = nvrtc.compile(&name, &module.source(), &options, target);
    let (cubin, log) = compiled.map_err(failed)?;
    Ok(Compiled { cubin, log })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_the_compiler_does_not_know_get_ptx_of_the_newest_before_them() {
        let known = [75, 80, 90, 100];
        let of = |device| target(&known, Architecture(device));
        assert_eq!([of(80), of(100)], [Some(Target::Machine(80)), Some(Target::Machine(100))]);
        assert_eq!([of(87), of(120)], [Some(Target::Driver(80)), Some(Target::Driver(100))]);
        assert_eq!(of(70), None);
    }
}
