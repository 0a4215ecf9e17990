//! The driver API: context, streams, pinned memory, modules.

mod adopted;
mod algorithms;
mod apart;
mod clock;
mod code;
mod cublaslt;
mod fetches;
mod graphs;
mod idle;
mod kept;
mod look;
mod pinned;
mod settings;
mod speeds;
mod streams;
mod verdicts;

use std::ffi::c_void;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use kernels::arena::Lasting;
use kernels::queue::{self, Mark};

use crate::args::CopyArgs;
use crate::compiler::Architecture;
use crate::module::{Module, Prefill};
use crate::product::{Places, Product, Products, Room};
use crate::{CudaError, Driver, Graphs, Launch, Lost, Outcome, Together, Work};

pub use look::{DRIVER_HOST_BYTES, Memory, memory};
pub use pinned::PINNED_BYTES;
pub use speeds::Speeds;

use adopted::Adopted;
use code::{Asked, Function, Loaded};
use cublaslt::CublasLt;
use fetches::Fetches;
use graphs::Made;
use look::{architecture, look, not_given};
use pinned::{PIECE_BYTES, PIECES, Pool, SMALL_PIECE_BYTES, SMALL_PIECES};
use settings::{PREFILL, PRODUCTS, ProductsBy, prefill, products_by};
use streams::{Streams, Waits};
use verdicts::Verdicts;

/// The first devices with the products that the kernels are made of (`mma.m16n8k8` of halves).
const OLDEST: Architecture = Architecture(75);

/// A CUDA device with a stream for each queue.
pub struct Gpu {
    streams: Streams,
    up: Pool,
    down: Pool,
    /// For what is no longer than its pieces.
    small: Pool,
    name: String,
    architecture: Architecture,
    multiprocessors: usize,
    driver_version: i32,
    memory: Option<u64>,
    prefill: Prefill,
    /// None if own kernels compute all products.
    library: Option<CublasLt>,
    /// Why there is none where one would be used.
    lacks_library: Option<CudaError>,
    loaded: Mutex<Loaded>,
    /// How many blocks run side by side: it is asked for at each attention.
    together: Mutex<Asked>,
    verdicts: Mutex<Verdicts>,
    fetches: Fetches,
    /// None if kernels are started one by one.
    graphs: Option<Made>,
    adopted: Mutex<Vec<Adopted>>,
    /// The last, as what is above lies in it.
    context: Context,
}

/// The device's context, which is its own for as long as somebody retains it.
struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

impl Context {
    /// # Safety
    /// `device` is one of the driver's.
    unsafe fn of(device: sys::CUdevice) -> Result<Context, CudaError> {
        // SAFETY: passed on from the caller.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed("make a context"))?;
        Ok(Context { device, context })
    }

    /// Makes it that of this thread.
    fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: it is retained until this is dropped.
        unsafe { result::ctx::set_current(self.context) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once. What fails here fails because the device is lost already.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
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
        let device = look(ordinal)?;
        // SAFETY: the device was just given by the driver.
        unsafe { Gpu::on(device) }
    }

    /// # Safety
    /// `device` is one of the driver's.
    unsafe fn on(device: sys::CUdevice) -> Result<Gpu, CudaError> {
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSORS;
        // SAFETY: passed on from the caller; every handle below was given by the driver just before.
        unsafe {
            let context = Context::of(device)?;
            context.enter().map_err(failed("enter its context"))?;
            let architecture = architecture(device)?;
            if architecture < OLDEST {
                return Err(CudaError::Old { found: architecture.to_string(), oldest: OLDEST.to_string() });
            }
            let multiprocessors = result::device::get_attribute(device, MULTIPROCESSORS)
                .map_err(failed("tell its multiprocessors"))?;
            let prefill = prefill(std::env::var(PREFILL).ok().as_deref(), architecture)?;
            let products_by = products_by(std::env::var(PRODUCTS).ok().as_deref(), architecture)?;
            let mut driver_version = 0;
            sys::cuDriverGetVersion(&mut driver_version).result().map_err(failed("tell its version"))?;
            let (library, lacks_library) = library(products_by, driver_version)?;
            Ok(Gpu {
                streams: Streams::new()?,
                up: Pool::new(PIECES, PIECE_BYTES, Waits::Asleep)?,
                down: Pool::new(PIECES, PIECE_BYTES, Waits::Asleep)?,
                small: Pool::new(SMALL_PIECES, SMALL_PIECE_BYTES, Waits::Awake)?,
                name: result::device::get_name(device).map_err(failed("tell its name"))?,
                architecture,
                multiprocessors: multiprocessors.max(1) as usize,
                prefill,
                driver_version,
                memory: None,
                library,
                lacks_library,
                loaded: Mutex::default(),
                together: Mutex::default(),
                verdicts: Mutex::default(),
                fetches: Fetches::new()?,
                graphs: Made::new(driver_version)?,
                adopted: Mutex::default(),
                context,
            })
        }
    }

    /// What computes large products, for people.
    pub fn computes_products_by(&self) -> String {
        self.library.as_ref().map_or_else(|| "own kernels".into(), CublasLt::name)
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

    /// Makes the device's context that of this thread.
    fn bind(&self) {
        self.context.enter().unwrap_or_else(|e| lost("enter its context", e));
    }

    /// A table that waits in the queue of kernels keeps no piece from the copies of long buffers.
    fn pool_for<'a>(&'a self, bytes: usize, long: &'a Pool) -> &'a Pool {
        if bytes <= SMALL_PIECE_BYTES { &self.small } else { long }
    }

    /// That of this thread's queue.
    fn stream(&self) -> sys::CUstream {
        self.streams.of(queue::current())
    }

    /// Starts a kernel in a stream of this device. Its context is current.
    fn start(&self, stream: sys::CUstream, launch: &Launch<'_>) -> Result<(), DriverError> {
        let Function { function, block_bytes } = self.function(launch.module, launch.kernel);
        // The driver copies the arguments during the call.
        let mut args = words(launch.args);
        let (grid, block) = ((launch.grid[0] as u32, launch.grid[1] as u32, 1), (launch.threads, 1, 1));
        let mut parameters = [args.as_mut_ptr().cast::<c_void>()];
        // SAFETY: the function takes one structure of these bytes, whose addresses lie in the device's memory.
        unsafe { result::launch_kernel(function, grid, block, block_bytes, stream, &mut parameters) }
    }

    /// Asks a stream of this device for work, or says in words why not. Its context is current.
    fn ask(&self, stream: sys::CUstream, work: &Work<'_>) -> Result<(), String> {
        match work {
            Work::Kernel(launch) => self.start(stream, launch).map_err(|e| format!("{e:?}")),
            Work::Product(product, places) => {
                let library = self.library.as_ref().expect("who has none is not asked");
                // SAFETY: the device planned the places by the library's room, and they lie in its memory.
                unsafe { library.multiply(product, places, stream) }
            }
        }
    }
}

/// The library of products for the device whose context is current, or why there is none; neither where none is wanted.
fn library(
    wanted: ProductsBy,
    driver_version: i32,
) -> Result<(Option<CublasLt>, Option<CudaError>), CudaError> {
    let open = || {
        let _apart = apart::changing();
        CublasLt::open(driver_version as u32 / 1000)
    };
    match wanted {
        ProductsBy::Own => Ok((None, None)),
        ProductsBy::Library => Ok((Some(open()?), None)),
        ProductsBy::LibraryIfThere => Ok(open().map_or_else(|why| (None, Some(why)), |it| (Some(it), None))),
    }
}

/// A kernel's arguments in words, so that they are aligned.
fn words(args: &[u8]) -> Vec<u64> {
    let mut words = vec![0; args.len().div_ceil(8)];
    bytemuck::cast_slice_mut::<_, u8>(&mut words)[..args.len()].copy_from_slice(args);
    words
}

/// A device that fails at work is lost: nothing that it was asked for can be relied upon. Unwinds to whoever ends the engine and tells of
/// it: this is no mistake of the program's, whose place people would be shown.
fn lost(what: &str, why: DriverError) -> ! {
    resume_unwind(Box::new(Lost(format!("the CUDA device failed to {what}: {why:?}"))))
}

impl Driver for Gpu {
    fn allocate(&mut self, bytes: usize) -> Result<u64, CudaError> {
        assert!(self.memory.is_none(), "a device's memory is taken once");
        let (free, total) = self.memory()?;
        // SAFETY: the context is current; the memory is this device's own.
        unsafe {
            let memory = result::malloc_sync(bytes).map_err(|why| not_given(bytes, (free, total), why))?;
            // By a stream and not by all the context, which nobody may wait for while a graph of another device is noted down.
            result::memset_d8_async(memory, 0, bytes, self.streams.of(0))
                .and_then(|()| self.streams.settle(0))
                .map_err(failed("clear its memory"))?;
            self.memory = Some(memory);
            Ok(memory)
        }
    }

    fn prepare(&self, modules: &[Module]) -> Result<(), CudaError> {
        self.load_all(modules)
    }

    fn upload(&self, to: u64, bytes: usize, fill: &mut dyn FnMut(usize, &mut [u8])) {
        self.bind();
        let pool = self.pool_for(bytes, &self.up);
        pool.upload(self.stream(), to, bytes, fill).unwrap_or_else(|e| lost("copy to it", e));
    }

    /// A kernel reads it from pinned memory: an engine or two make all copies of a direction, and a table would wait there for the
    /// 8 MiB of weights before it, as often as a layer has tables.
    fn put(&self, to: u64, table: &[u8]) {
        self.bind();
        let carry = &mut |from: u64, first: usize, bytes: usize| {
            let quads = bytes.div_ceil(16);
            let args = CopyArgs { from, to: to + first as u64, quads: quads as u64 };
            let (module, kernel, args) = (Module::Rows, "copy_quads", bytemuck::bytes_of(&args));
            // Few threads a block, as many as find registers beside blocks of attention that stay until their layer is done.
            self.launch(&Launch { module, kernel, grid: [quads.div_ceil(64), 1], threads: 64, args });
        };
        // Long tables in several pieces, not in those that weights wait for.
        self.small.lend(self.stream(), table, carry).unwrap_or_else(|e| lost("copy to it", e));
    }

    fn download(&self, from: u64, bytes: usize, view: &mut dyn FnMut(usize, &[u8])) {
        self.bind();
        let pool = self.pool_for(bytes, &self.down);
        pool.download(self.stream(), from, bytes, view).unwrap_or_else(|e| lost("copy from it", e));
    }

    fn adopt(&self, memory: Lasting) -> Result<u64, CudaError> {
        self.bind();
        let what = format!("pin {} bytes of host memory", memory.bytes());
        let (memory, there) = Adopted::new(memory).map_err(failed(&what))?;
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        Ok(there)
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) {
        self.bind();
        // SAFETY: the device found both places; what was adopted goes with the device, which is waited for before.
        let asked = unsafe { adopted::copy(self.stream(), from, to, bytes) };
        asked.unwrap_or_else(|e| lost("copy between it and the host", e));
    }

    fn fetch(&self, from: u64, bytes: usize) -> u64 {
        self.bind();
        self.fetches.begin(self.stream(), from, bytes).unwrap_or_else(|e| lost("copy from it", e))
    }

    fn fetched(&self, fetch: u64, view: &mut dyn FnMut(&[u8])) {
        self.bind();
        self.fetches.end(fetch, view).unwrap_or_else(|e| lost("copy from it", e));
    }

    fn together(&self, module: Module, kernel: &'static str, threads: u32) -> Together {
        let mut together = self.together.lock().unwrap_or_else(PoisonError::into_inner);
        *together
            .entry((module, kernel, threads))
            .or_insert_with(|| self.ask_together(module, kernel, threads))
    }

    fn launch(&self, launch: &Launch<'_>) {
        self.bind();
        let started = self.start(self.stream(), launch);
        started.unwrap_or_else(|e| lost(&format!("start {} {:?}", launch.kernel, launch.grid), e));
    }

    fn prefill(&self) -> Prefill {
        self.prefill
    }

    fn remarks(&self) -> Vec<String> {
        let products = self.library.as_ref().map_or_else(Vec::new, CublasLt::refused);
        let products = products.into_iter().map(|why| format!("cuBLASLt refused {why}"));
        let lacks =
            |why: &CudaError| format!("large products are computed by own kernels, which are slower: {why}");
        let lacks = self.lacks_library.iter().map(lacks);
        lacks.chain(products).chain(self.graphs.iter().flat_map(Made::remarks)).collect()
    }

    fn time(&self, work: &mut dyn FnMut()) -> Option<f64> {
        self.seconds_of(work).ok()
    }

    fn verdict(&self, module: Module) -> Option<bool> {
        let mut verdicts = self.verdicts();
        let kept = || verdicts::read(&self.verdict_at(module)?);
        let known = verdicts.get(&module).copied().or_else(kept)?;
        verdicts.insert(module, known);
        Some(known)
    }

    fn try_out(&self, module: Module, trial: &mut dyn FnMut() -> Outcome) {
        let passed = verdicts::keep(self.verdict_at(module).as_deref(), trial);
        self.verdicts().insert(module, passed);
    }

    fn graphs(&self) -> Option<&dyn Graphs> {
        self.graphs.is_some().then_some(self as &dyn Graphs)
    }

    fn products(&self) -> Option<&dyn Products> {
        self.library.is_some().then_some(self as &dyn Products)
    }

    fn enter(&self, queue: usize, after: &[Mark]) {
        self.bind();
        self.streams.enter(queue, after).unwrap_or_else(|e| lost("order its streams", e));
    }

    fn mark(&self, mark: Mark) {
        self.bind();
        self.streams.mark(mark);
    }

    fn reach(&self, mark: Mark) {
        self.bind();
        self.streams.reach(mark).unwrap_or_else(|e| lost("finish its work", e));
    }

    fn when(&self, mark: Mark) -> Option<Instant> {
        self.bind();
        self.streams.when(mark).unwrap_or_else(|e| lost("tell the time", e))
    }

    fn settle(&self) {
        self.bind();
        self.streams.settle(queue::current()).unwrap_or_else(|e| lost("finish its work", e));
    }

    fn wait(&self) {
        self.bind();
        self.streams.wait().unwrap_or_else(|e| lost("finish its work", e));
    }
}

impl Products for Gpu {
    fn room(&self) -> Room {
        cublaslt::ROOM
    }

    fn can(&self, product: &Product, places: &Places) -> bool {
        self.bind();
        self.library.as_ref().is_some_and(|library| library.algorithm(product, places).is_some())
    }

    fn has_taken(&self, product: &Product, places: &Places) -> bool {
        self.library.as_ref().is_some_and(|library| library.has_taken(product, places))
    }

    fn multiply(&self, product: &Product, places: &Places) -> bool {
        self.bind();
        let library = self.library.as_ref().expect("who has none is not asked");
        let Err(why) = self.ask(self.stream(), &Work::Product(*product, *places)) else {
            library.took(product, places);
            return true;
        };
        // Of a device that is lost the library says that it failed, too, and own kernels would find the same.
        let settled = self.streams.settle(queue::current());
        settled.unwrap_or_else(|e| lost(&format!("multiply by cuBLASLt ({why})"), e));
        library.gave_up(product, places, &why);
        false
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: nothing is under way once the streams are waited for, and nobody else has the memory. What fails here
        // fails because the device is lost already. Streams, events and pinned memory go after this, in this context.
        unsafe {
            let _ = self.context.enter();
            let _ = self.streams.wait();
            let _apart = apart::changing();
            let _ = self.graphs.as_ref().map(Made::clear);
            self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner).unload();
            if let Some(memory) = self.memory {
                let _ = result::free_sync(memory);
            }
        }
    }
}
