//! Machine code of modules, from the disk or from the compiler, and the kernels in it.

use std::collections::HashMap;
use std::ffi::CString;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::{iter, thread};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use sha2::{Digest, Sha256};

use super::{Gpu, failed, kept, lost};
use crate::compiler::{self, compile, options};
use crate::module::Module;
use crate::{CudaError, Lost, Together};

/// The modules that are loaded, and their kernels.
#[derive(Default)]
pub(super) struct Loaded {
    modules: Vec<(Module, sys::CUmodule)>,
    functions: HashMap<(Module, &'static str), Function>,
}

impl Loaded {
    /// Gives the device's memory for code back.
    ///
    /// # Safety
    /// The context is current, and no kernel of these runs or is asked for any more.
    pub(super) unsafe fn unload(&mut self) {
        self.functions.clear();
        for (_, module) in self.modules.drain(..) {
            // SAFETY: passed on from the caller. What fails here fails because the device is lost already.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}

/// What was asked of blocks side by side, by kernel and threads of a block.
pub(super) type Asked = HashMap<(Module, &'static str, u32), Together>;

/// Registers of a multiprocessor, and the unit in which a thread is given its share.
const REGISTERS: usize = 65536;
const REGISTERS_UNIT: usize = 8;

/// A kernel, and the memory that each of its blocks is given at a launch.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub(super) function: sys::CUfunction,
    pub(super) block_bytes: u32,
}

impl Gpu {
    /// Compiled side by side, on as many threads as there are cores: a compiler's run takes seconds. Then loaded, so that the
    /// device's memory for code is taken now.
    pub(super) fn load_all(&self, modules: &[Module]) -> Result<(), CudaError> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(modules.len());
        let next = AtomicUsize::new(0);
        let compile = || {
            let taken = || modules.get(next.fetch_add(1, Ordering::Relaxed));
            let code = |module: &Module| Ok((*module, self.machine_code(*module)?));
            iter::from_fn(taken).map(code).collect::<Result<Vec<_>, CudaError>>()
        };
        let all = thread::scope(|scope| {
            let runs: Vec<_> = (0..threads).map(|_| scope.spawn(compile)).collect();
            let ended = runs.into_iter().map(|run| run.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.collect::<Result<Vec<_>, _>>()
        })?;
        let mut loaded = self.loaded();
        all.into_iter().flatten().try_for_each(|(module, code)| self.load(module, code, &mut loaded))
    }

    fn loaded(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn function(&self, module: Module, kernel: &'static str) -> Function {
        let mut loaded = self.loaded();
        if !loaded.functions.contains_key(&(module, kernel)) {
            // One that nobody prepared: its compilation holds up this call, and whoever needs another meanwhile.
            let code = self.machine_code(module);
            let done = code.and_then(|code| self.load(module, code, &mut loaded));
            done.unwrap_or_else(|e| resume_unwind(Box::new(Lost(e.to_string()))));
        }
        let function = loaded.functions.get(&(module, kernel));
        *function.unwrap_or_else(|| panic!("{module} has no kernel {kernel}"))
    }

    /// Blocks of a kernel that the device runs side by side, as the driver counts them.
    pub(super) fn ask_together(&self, module: Module, kernel: &'static str, threads: u32) -> Together {
        use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS as REGISTERS_OF_A_THREAD;
        self.bind();
        let Function { function, block_bytes } = self.function(module, kernel);
        // SAFETY: the context is current; the function is loaded, and stays so until this is dropped.
        let told = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(
                function,
                threads as i32,
                block_bytes as usize,
            )
            .and_then(|each| {
                Ok((each, result::function::get_function_attribute(function, REGISTERS_OF_A_THREAD)?))
            })
        };
        let (each, registers) =
            told.unwrap_or_else(|e| lost(&format!("tell how many blocks of {kernel} it runs"), e));
        let each = each.max(1) as usize;
        let taken = each * threads as usize * (registers.max(0) as usize).next_multiple_of(REGISTERS_UNIT);
        Together { blocks: self.multiprocessors * each, registers_left: REGISTERS.saturating_sub(taken) }
    }

    /// Loads a module that is not loaded yet, and finds all its kernels. What was kept on the disk and the driver refuses is
    /// compiled again.
    fn load(&self, module: Module, (image, from): Code, all: &mut Loaded) -> Result<(), CudaError> {
        if all.modules.iter().any(|(loaded, _)| *loaded == module) {
            return Ok(());
        }
        self.bind();
        let what = format!("load {module}");
        let loaded = match (load_image(&image), from) {
            (Err(_), Origin::Disk) => load_image(&self.compile(module)?),
            (loaded, _) => loaded,
        };
        let loaded = loaded.map_err(failed(&what))?;
        let found = |kernel: &&'static str| Ok(((module, *kernel), self.find(module, loaded, kernel)?));
        let found: Result<Vec<_>, CudaError> = module.kernels().iter().map(found).collect();
        // It counts as loaded with all of its kernels or not at all: who asks for it again may have more luck.
        let found = found.inspect_err(|_| {
            // SAFETY: the module was just loaded, and nobody has a kernel of it. The error that is told is the first.
            let _ = unsafe { result::module::unload(loaded) };
        })?;
        all.modules.push((module, loaded));
        all.functions.extend(found);
        Ok(())
    }

    /// A kernel of a module that was just loaded.
    fn find(
        &self,
        module: Module,
        loaded: sys::CUmodule,
        kernel: &'static str,
    ) -> Result<Function, CudaError> {
        use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MOST;
        let name = CString::new(kernel).expect("a kernel's name");
        // SAFETY: the caller has the module.
        let function = unsafe { result::module::get_function(loaded, name) };
        let function = function.map_err(failed(&format!("find {kernel}")))?;
        let block_bytes = module.block_bytes(kernel, self.architecture) as u32;
        if block_bytes > 0 {
            // SAFETY: the function was just found. More than 48 KiB of shared memory must be asked for.
            let allowed = unsafe { sys::cuFuncSetAttribute(function, MOST, block_bytes as i32) };
            let what = format!("give the blocks of {kernel} {block_bytes} bytes");
            allowed.result().map_err(failed(&what))?;
        }
        Ok(Function { function, block_bytes })
    }

    /// From the disk, or compiled and then kept there.
    fn machine_code(&self, module: Module) -> Result<Code, CudaError> {
        match self.kept_at(module)?.and_then(|path| kept::read(&path)) {
            Some(kept) => Ok((kept, Origin::Disk)),
            None => Ok((self.compile(module)?, Origin::Compiler)),
        }
    }

    fn compile(&self, module: Module) -> Result<Vec<u8>, CudaError> {
        let cubin = compile(module, self.architecture)?.cubin;
        if let Some(path) = self.kept_at(module)? {
            // What cannot be kept is compiled again the next time.
            let _ = kept::keep(&path, &cubin);
        }
        Ok(cubin)
    }

    /// A file for this text, these options, this compiler and this driver.
    pub(super) fn kept_at(&self, module: Module) -> Result<Option<PathBuf>, CudaError> {
        let key = (
            module.source(),
            options(module, self.architecture),
            self.architecture.0,
            compiler::version()?,
            self.driver_version,
        );
        let digest = Sha256::digest(format!("{key:?}"));
        let digest: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let folder = kept::folder(&|name| std::env::var_os(name));
        Ok(folder.map(|folder| folder.join(format!("{module}-{digest}.cubin"))))
    }
}

/// Machine code, and where it comes from.
type Code = (Vec<u8>, Origin);

/// Where machine code comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Disk,
    Compiler,
}

fn load_image(image: &[u8]) -> Result<sys::CUmodule, DriverError> {
    // SAFETY: the context is current. The image is a whole cubin, as the compiler made it just now or before it was kept
    // (`kept::read` gives back nothing else): the driver reads no further than the length that it tells of itself.
    unsafe { result::module::load_data(image.as_ptr().cast()) }
}
