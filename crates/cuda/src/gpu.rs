//! The driver API: context, stream, staging memory, modules.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{fs, path::PathBuf};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use sha2::{Digest, Sha256};

use crate::compiler::{self, Architecture, compile, options};
use crate::module::Module;
use crate::{CudaError, Driver, Launch};

/// Host memory that the copy engines can read: one half is filled while the other is on its way.
const STAGING_BYTES: usize = 32 << 20;

/// A CUDA device with one stream.
pub struct Gpu {
    context: sys::CUcontext,
    stream: sys::CUstream,
    name: String,
    architecture: Architecture,
    driver_version: i32,
    memory: Option<u64>,
    staging: Mutex<Staging>,
    functions: Mutex<HashMap<(Module, &'static str), sys::CUfunction>>,
}

/// Bytes per second of copies.
#[derive(Clone, Copy, Debug)]
pub struct Speeds {
    /// On the device: read and written.
    pub device_bytes_per_s: f64,
    /// From pinned host memory to the device.
    pub up_bytes_per_s: f64,
    /// From the device to pinned host memory.
    pub down_bytes_per_s: f64,
}

/// Pinned memory in two halves, each with the event of its last copy.
struct Staging {
    halves: [(*mut u8, sys::CUevent); 2],
    next: usize,
}

// SAFETY: handles of the driver may be used from any thread (which `bind` makes current); what is changed lies
// behind locks.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

fn failed(what: &str) -> impl FnOnce(DriverError) -> CudaError + '_ {
    move |why| CudaError::Driver { what: what.to_string(), why: format!("{why:?}") }
}

impl Gpu {
    /// Opens device number `ordinal`.
    ///
    /// # Errors
    /// [`CudaError`]: a library is missing, there is no such device, or the driver refuses.
    pub fn open(ordinal: usize) -> Result<Gpu, CudaError> {
        // SAFETY: looks for a library of this name, and runs what it runs when it is loaded.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::Library {
                library: "libcuda.so",
                needed_for: "it is the NVIDIA driver, which --device cuda works through",
                install: "an NVIDIA driver of CUDA 12 or newer on a machine that has such a GPU",
            });
        }
        compiler::version()?;
        result::init().map_err(failed("start"))?;
        let found = result::device::get_count().map_err(failed("count its devices"))? as usize;
        if ordinal >= found {
            return Err(CudaError::NoDevice { wanted: ordinal, found });
        }
        let device = result::device::get(ordinal as i32).map_err(failed("open a device"))?;
        // SAFETY: the device was just given by the driver; the context is retained for as long as the process lives.
        unsafe { Gpu::on(device) }
    }

    /// # Safety
    /// `device` is one of the driver's.
    unsafe fn on(device: sys::CUdevice) -> Result<Gpu, CudaError> {
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        // SAFETY: passed on from the caller; every handle below was given by the driver just before.
        unsafe {
            let context = result::primary_ctx::retain(device).map_err(failed("make a context"))?;
            result::ctx::set_current(context).map_err(failed("enter its context"))?;
            let number = |attribute| result::device::get_attribute(device, attribute);
            let major = number(MAJOR).map_err(failed("tell its architecture"))?;
            let minor = number(MINOR).map_err(failed("tell its architecture"))?;
            let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
            let mut driver_version = 0;
            sys::cuDriverGetVersion(&mut driver_version).result().map_err(failed("tell its version"))?;
            Ok(Gpu {
                context,
                stream: stream.map_err(failed("make a stream"))?,
                name: result::device::get_name(device).map_err(failed("tell its name"))?,
                architecture: Architecture((10 * major + minor) as u32),
                driver_version,
                memory: None,
                staging: Mutex::new(Staging { halves: [half()?, half()?], next: 0 }),
                functions: Mutex::default(),
            })
        }
    }

    /// The maker's name of it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its kernels are compiled for.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Bytes of its memory that are free, and all of them.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind();
        result::mem_get_info().map_err(failed("tell its memory"))
    }

    /// Compiles what is not compiled yet, so that the first request does not wait for it.
    ///
    /// # Errors
    /// [`CudaError::Compile`].
    pub fn prepare(&self, module: Module) -> Result<(), CudaError> {
        self.machine_code(module).map(drop)
    }

    /// What copies reach, the best of a few runs each: on the device (bytes read and written), up, and down.
    ///
    /// # Errors
    /// [`CudaError::Memory`] if the device has no half a GiB left.
    pub fn speeds(&self) -> Result<Speeds, CudaError> {
        const BYTES: usize = 256 << 20;
        const PIECE: usize = STAGING_BYTES / 2;
        let (free, total) = self.memory()?;
        let staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the memory is this function's own, the host's half is locked, and both outlive the copies, which
        // `rate` waits for.
        unsafe {
            let memory = result::malloc_sync(2 * BYTES);
            let memory = memory.map_err(|_| CudaError::Memory { wanted: 2 * BYTES, free, total })?;
            let half = std::slice::from_raw_parts_mut(staging.halves[0].0, PIECE);
            let on = self.rate(2 * BYTES, || {
                result::memcpy_dtod_async(memory + BYTES as u64, memory, BYTES, self.stream)
            });
            let up = self.rate(PIECE, || result::memcpy_htod_async(memory, half, self.stream));
            let down = self.rate(PIECE, || result::memcpy_dtoh_async(half, memory, self.stream));
            result::free_sync(memory).map_err(failed("free memory"))?;
            Ok(Speeds { device_bytes_per_s: on?, up_bytes_per_s: up?, down_bytes_per_s: down? })
        }
    }

    /// Bytes per second of `copy`, eight at a time, the best of five such runs.
    fn rate(
        &self,
        bytes: usize,
        mut copy: impl FnMut() -> Result<(), DriverError>,
    ) -> Result<f64, CudaError> {
        let mut best = 0f64;
        for _ in 0..5 {
            self.wait();
            let start = Instant::now();
            for _ in 0..8 {
                copy().map_err(failed("copy"))?;
            }
            self.wait();
            best = best.max(8.0 * bytes as f64 / start.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    /// Makes the device's context that of this thread.
    fn bind(&self) {
        // SAFETY: the context is retained until this is dropped.
        unsafe { result::ctx::set_current(self.context) }.unwrap_or_else(|e| lost("enter its context", e));
    }

    fn function(&self, module: Module, kernel: &'static str) -> sys::CUfunction {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        *functions.entry((module, kernel)).or_insert_with(|| {
            let image = self.machine_code(module).unwrap_or_else(|e| panic!("{e}"));
            let name = CString::new(kernel).expect("a kernel's name");
            // SAFETY: the image is a whole cubin; modules stay loaded as long as the context.
            unsafe {
                let loaded = result::module::load_data(image.as_ptr().cast());
                let loaded = loaded.unwrap_or_else(|e| lost(&format!("load {module}"), e));
                result::module::get_function(loaded, name)
                    .unwrap_or_else(|e| lost(&format!("find {kernel}"), e))
            }
        })
    }

    /// From the disk, or compiled and then kept there.
    fn machine_code(&self, module: Module) -> Result<Vec<u8>, CudaError> {
        let path = self.kept_at(module)?;
        if let Some(kept) = path.as_ref().and_then(|path| fs::read(path).ok()) {
            return Ok(kept);
        }
        let cubin = compile(module, self.architecture)?.cubin;
        if let Some(path) = path {
            // What cannot be kept is compiled again the next time.
            let _ = keep(&path, &cubin);
        }
        Ok(cubin)
    }

    /// A file for this text, these options, this compiler and this driver.
    fn kept_at(&self, module: Module) -> Result<Option<PathBuf>, CudaError> {
        let key =
            (module.source(), options(module, self.architecture), compiler::version()?, self.driver_version);
        let digest = Sha256::digest(format!("{key:?}"));
        let digest: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        Ok(cache.map(|cache| cache.join("ballast/kernels").join(format!("{module}-{digest}.cubin"))))
    }
}

/// Written beside its place and then moved there, so that nobody reads half of it.
fn keep(path: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let partial = path.with_extension(format!("{}.part", std::process::id()));
    fs::write(&partial, bytes)?;
    fs::rename(partial, path)
}

fn half() -> Result<(*mut u8, sys::CUevent), CudaError> {
    // SAFETY: the context is current; the memory is freed with it.
    let memory = unsafe { result::malloc_host(STAGING_BYTES / 2, 0) };
    let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
    Ok((memory.map_err(failed("pin host memory"))?.cast(), event.map_err(failed("make an event"))?))
}

/// A device that fails at work is lost: nothing that it was asked for can be relied upon.
fn lost(what: &str, why: DriverError) -> ! {
    panic!("the CUDA device failed to {what}: {why:?}")
}

impl Driver for Gpu {
    fn allocate(&mut self, bytes: usize) -> Result<u64, CudaError> {
        assert!(self.memory.is_none(), "a device's memory is taken once");
        let (free, total) = self.memory()?;
        // SAFETY: the context is current; the memory is this device's own.
        unsafe {
            let memory =
                result::malloc_sync(bytes).map_err(|_| CudaError::Memory { wanted: bytes, free, total })?;
            result::memset_d8_sync(memory, 0, bytes).map_err(failed("clear its memory"))?;
            self.memory = Some(memory);
            Ok(memory)
        }
    }

    fn upload(&self, to: u64, bytes: &[u8]) {
        self.bind();
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        for (i, piece) in bytes.chunks(STAGING_BYTES / 2).enumerate() {
            let (memory, event) = staging.halves[staging.next];
            staging.next = 1 - staging.next;
            let target = to + (i * (STAGING_BYTES / 2)) as u64;
            // SAFETY: the event says that the half's last copy is done; the piece fits it; the address is in the
            // device's memory, as the caller's buffer is.
            let sent = unsafe {
                result::event::synchronize(event).and_then(|()| {
                    let half = std::slice::from_raw_parts_mut(memory, piece.len());
                    half.copy_from_slice(piece);
                    result::memcpy_htod_async(target, half, self.stream)?;
                    result::event::record(event, self.stream)
                })
            };
            sent.unwrap_or_else(|e| lost("copy to it", e));
        }
    }

    fn download(&self, from: u64, bytes: &mut [u8]) {
        self.bind();
        // SAFETY: the address is in the device's memory; the bytes live until the stream is waited for.
        let done = unsafe {
            result::memcpy_dtoh_async(bytes, from, self.stream)
                .and_then(|()| result::stream::synchronize(self.stream))
        };
        done.unwrap_or_else(|e| lost("copy from it", e));
    }

    fn launch(&self, launch: &Launch<'_>) {
        self.bind();
        let function = self.function(launch.module, launch.kernel);
        // The driver copies the arguments during the call; words, so that they are aligned.
        let mut args = vec![0u64; launch.args.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<_, u8>(&mut args)[..launch.args.len()].copy_from_slice(launch.args);
        let grid = (launch.grid[0] as u32, launch.grid[1] as u32, 1);
        let mut parameters = [args.as_mut_ptr().cast::<c_void>()];
        // SAFETY: the function takes one structure of these bytes, whose addresses lie in the device's memory.
        let started = unsafe {
            result::launch_kernel(function, grid, (launch.threads, 1, 1), 0, self.stream, &mut parameters)
        };
        started.unwrap_or_else(|e| lost(&format!("start {} {:?}", launch.kernel, launch.grid), e));
    }

    fn wait(&self) {
        self.bind();
        // SAFETY: the stream is this device's own.
        unsafe { result::stream::synchronize(self.stream) }.unwrap_or_else(|e| lost("finish its work", e));
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: nothing is under way once the stream is waited for, and nobody else has the memory. What fails here
        // fails because the device is lost already.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::synchronize(self.stream);
            if let Some(memory) = self.memory {
                let _ = result::free_sync(memory);
            }
            let staging = self.staging.get_mut().unwrap_or_else(PoisonError::into_inner);
            for (memory, event) in staging.halves {
                let _ = result::free_host(memory.cast());
                let _ = result::event::destroy(event);
            }
            let _ = result::stream::destroy(self.stream);
        }
    }
}
