//! Graphs of kernels and products, each after the one before.
//!
//! Kernels alone are added one by one. What kernels a product of the library's is the library alone knows: with products, all is asked
//! of a stream that notes it down instead of doing it.

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::{CudaError, Graphs, Launch, Recorded, Work};

use super::code::Function;
use super::settings::{GRAPHS, wants_graphs};
use super::{Gpu, apart, lost};

/// Drivers from this version on add kernels to a graph as is done here.
const LEAST_VERSION: i32 = 12_000;
const OUT_OF_MEMORY: DriverError = DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
/// What a stream says whose notes somebody has spoilt.
const SPOILT: DriverError = DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
/// Device memory that graphs may take of what is left to the driver.
const BYTES: usize = 128 << 20;
/// As much as a graph takes for a piece of its work, and more. What is free when one is made is less by what other processes take, too.
const BYTES_EACH: usize = 64 << 10;

/// Graphs that were made, by number.
#[derive(Default)]
pub(super) struct Made {
    all: Mutex<Numbered>,
    /// Why there is none of some work, each reason once.
    refused: Mutex<BTreeSet<String>>,
}

#[derive(Default)]
struct Numbered {
    newest: u64,
    all: HashMap<u64, Exec>,
    /// Device memory of all.
    bytes: usize,
}

/// One that can be run, and the device memory that it takes.
struct Exec {
    exec: sys::CUgraphExec,
    bytes: usize,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Exec {}

/// Graphs on their way to be made.
struct Plan(sys::CUgraph);

impl Plan {
    fn new() -> Result<Plan, DriverError> {
        let mut graph = ptr::null_mut();
        // SAFETY: the driver writes one handle.
        unsafe { sys::cuGraphCreate(&mut graph, 0) }.result()?;
        Ok(Plan(graph))
    }

    /// Adds a kernel after `before`. The driver copies the arguments during the call.
    ///
    /// # Safety
    /// The function takes one structure of these bytes, whose addresses lie in the device's memory as long as the graph is used.
    unsafe fn add(
        &mut self,
        Function { function, block_bytes }: Function,
        launch: &Launch<'_>,
        before: Option<sys::CUgraphNode>,
    ) -> Result<sys::CUgraphNode, DriverError> {
        let mut args = super::words(launch.args);
        let mut parameters = [args.as_mut_ptr().cast::<c_void>()];
        let kernel = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function,
            gridDimX: launch.grid[0] as u32,
            gridDimY: launch.grid[1] as u32,
            gridDimZ: 1,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: block_bytes,
            kernelParams: parameters.as_mut_ptr(),
            extra: ptr::null_mut(),
            kern: ptr::null_mut(),
            ctx: ptr::null_mut(),
        };
        let mut node = ptr::null_mut();
        let (first, count) =
            (before.as_ref().map_or(ptr::null(), ptr::from_ref), usize::from(before.is_some()));
        // SAFETY: by this function's contract; all pointers outlive the call, and the current context is the function's.
        unsafe { sys::cuGraphAddKernelNode_v2(&mut node, self.0, first, count, &kernel) }.result()?;
        Ok(node)
    }

    /// What `ask` asks of a stream of its own, which others do not touch meanwhile; why not, in words, if the library or the driver
    /// does not go along. An error is of this time: another may have none.
    fn of_stream(
        ask: impl FnOnce(sys::CUstream) -> Result<(), String>,
    ) -> Result<Result<Plan, String>, DriverError> {
        use sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as BY_THIS_THREAD;
        let _apart = apart::noting();
        let stream = result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, 0)?;
        // SAFETY: the stream was just made, and is destroyed once nobody asks it any more.
        unsafe {
            let noted = result::stream::begin_capture(stream, BY_THIS_THREAD).and_then(|()| {
                let asked = ask(stream);
                // In any case, so that the stream can go. What was not noted down whole is no graph.
                let ended = result::stream::end_capture(stream).map(Plan);
                match (asked, ended) {
                    (_, Err(passing @ (OUT_OF_MEMORY | SPOILT))) => Err(passing),
                    (Err(why), _) => Ok(Err(why)),
                    (Ok(()), ended) => {
                        ended.map(|plan| if plan.0.is_null() { Err("it is empty".into()) } else { Ok(plan) })
                    }
                }
            });
            result::stream::destroy(stream)?;
            match noted {
                Err(OUT_OF_MEMORY | SPOILT) => noted,
                Err(why) => Ok(Err(format!("{why:?}"))),
                noted => noted,
            }
        }
    }

    fn instantiate(&self) -> Result<sys::CUgraphExec, DriverError> {
        // SAFETY: the graph is this plan's own.
        unsafe { result::graph::instantiate(self.0, sys::CUgraphInstantiate_flags(0)) }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: what was made of it lives on without it. What fails here fails because the device is lost already.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}

impl Made {
    /// None if somebody does not want them, or the driver is too old.
    pub(super) fn new(driver_version: i32) -> Result<Option<Made>, CudaError> {
        let wanted = wants_graphs(std::env::var(GRAPHS).ok().as_deref())?;
        Ok((wanted && driver_version >= LEAST_VERSION).then(Made::default))
    }

    fn all(&self) -> MutexGuard<'_, Numbered> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why there is no graph of some work, in words: its kernels are started one by one.
    pub(super) fn remarks(&self) -> Vec<String> {
        self.refused().iter().map(|why| format!("no graph was made of some steps: {why}")).collect()
    }

    /// Gives up a graph. If it is under way it ends first, as the driver promises.
    fn forget(&self, graph: u64) -> Result<(), DriverError> {
        let mut all = self.all();
        let Some(Exec { exec, bytes }) = all.all.remove(&graph) else { return Ok(()) };
        all.bytes -= bytes;
        // SAFETY: nobody else has it any more.
        unsafe { result::graph::exec_destroy(exec) }
    }

    /// Gives up all of them. The device's context is current.
    pub(super) fn clear(&self) -> Result<(), DriverError> {
        let numbers: Vec<u64> = self.all().all.keys().copied().collect();
        numbers.into_iter().try_for_each(|graph| self.forget(graph))
    }
}

impl Gpu {
    /// This work on its way to be a graph; why not, if there is none of such work.
    fn plan(&self, work: &[Work<'_>]) -> Result<Result<Plan, String>, DriverError> {
        let kernels =
            work.iter().filter_map(|work| if let Work::Kernel(launch) = work { Some(launch) } else { None });
        if kernels.clone().count() < work.len() {
            // Loaded and searched for now: nothing may be while a stream notes down.
            kernels.for_each(|launch| _ = self.function(launch.module, launch.kernel));
            if !work.iter().all(|work| self.is_known(work)) {
                return Ok(Err("the library of products has no algorithm for one of theirs".to_owned()));
            }
            return Plan::of_stream(|stream| work.iter().try_for_each(|work| self.ask(stream, work)));
        }
        let mut plan = Plan::new()?;
        let mut before = None;
        for launch in kernels {
            let function = self.function(launch.module, launch.kernel);
            // SAFETY: as for a launch of its own; the device's memory is freed after its graphs.
            before = Some(unsafe { plan.add(function, launch, before)? });
        }
        Ok(Ok(plan))
    }

    /// Whether it is no product, or one that the library has an algorithm for.
    fn is_known(&self, work: &Work<'_>) -> bool {
        let Work::Product(product, places) = work else { return true };
        self.library.as_ref().is_some_and(|library| library.algorithm(product, places).is_some())
    }

    /// A planned graph of so many pieces of work, and the device memory that it took.
    fn make(&self, plan: &Plan, pieces: usize) -> Result<Exec, DriverError> {
        let free = || result::mem_get_info().map(|(free, _)| free);
        let free_before = free()?;
        plan.instantiate().and_then(|exec| {
            // SAFETY: the graph was just made; it is brought to the device now, so that its memory is taken.
            let there = unsafe { result::graph::upload(exec, self.stream()) };
            let free_after = there.and_then(|()| free()).inspect_err(|_| {
                // SAFETY: nobody has it yet. The error that is told is the first.
                let _ = unsafe { result::graph::exec_destroy(exec) };
            })?;
            Ok(Exec { exec, bytes: free_before.saturating_sub(free_after).min(pieces * BYTES_EACH) })
        })
    }
}

impl Graphs for Gpu {
    fn record(&self, work: &[Work<'_>]) -> Recorded {
        self.bind();
        let made = self.graphs.as_ref().expect("who makes none is not asked");
        let made_of = |plan: Result<Plan, String>| match plan {
            Ok(plan) => self.make(&plan, work.len()).map(Ok),
            Err(why) => Ok(Err(why)),
        };
        let exec = match self.plan(work).and_then(made_of) {
            Ok(Ok(exec)) => exec,
            Err(OUT_OF_MEMORY) => return Recorded::NoRoom,
            Err(SPOILT) => return Recorded::NotNow,
            Ok(Err(why)) => {
                made.refused().insert(why);
                return Recorded::Never;
            }
            // Where what was asked for before is done all the same, this driver makes no graph of such work.
            Err(why) => {
                self.streams.settle(0).unwrap_or_else(|_| lost("make a graph of kernels", why));
                made.refused().insert(format!("{why:?}"));
                return Recorded::Never;
            }
        };
        let mut all = made.all();
        all.newest += 1;
        all.bytes += exec.bytes;
        let number = all.newest;
        all.all.insert(number, exec);
        if all.bytes <= BYTES {
            return Recorded::As(number);
        }
        drop(all);
        made.forget(number).unwrap_or_else(|e| lost("give up a graph of kernels", e));
        Recorded::NoRoom
    }

    fn replay(&self, graph: u64) {
        self.bind();
        let made = self.graphs.as_ref().expect("who makes none is not asked").all();
        let exec = made.all.get(&graph).unwrap_or_else(|| panic!("graph {graph} was given up")).exec;
        // SAFETY: the graph is there, as is the stream.
        unsafe { result::graph::launch(exec, self.stream()) }
            .unwrap_or_else(|e| lost("start a graph of kernels", e));
    }

    fn forget(&self, graph: u64) {
        self.bind();
        let made = self.graphs.as_ref().expect("who makes none is not asked");
        made.forget(graph).unwrap_or_else(|e| lost("give up a graph of kernels", e));
    }
}
