//! What the device asks of whatever runs its kernels: a GPU's driver, or the emulation of the tests.

use std::time::Instant;

use kernels::arena::Lasting;
use kernels::queue::Mark;

use crate::CudaError;
use crate::module::{Module, Prefill};
use crate::product::{Places, Product, Products};

/// Queues that a driver has: as many as a program has lanes.
pub const QUEUES: usize = 8;

/// Most bytes of a [`fetch`](Driver::fetch).
pub const FETCH_BYTES: usize = 32 << 10;

/// One kernel over a grid of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Where the kernel is.
    pub module: Module,
    /// Its name there.
    pub kernel: &'static str,
    /// Blocks: x, y.
    pub grid: [usize; 2],
    /// Threads of a block: a multiple of 32.
    pub threads: u32,
    /// Its one argument, a structure of [`args`](crate::args).
    pub args: &'a [u8],
}

/// Blocks of a kernel, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    /// As many as the device runs so; at least one.
    pub blocks: usize,
    /// Registers that a multiprocessor which has its share of them has left.
    pub registers_left: usize,
}

/// What comes of a module's trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is used.
    Passed,
    /// Nobody uses it any more.
    Failed,
    /// This process does without it, and the next one tries it again: it could not be tried, or stood still or was slower while
    /// something else may have had the device.
    Open,
}

/// Queues of copies and kernels over one memory. Those of a queue are done in the order in which they are asked for; which
/// queue a call goes to is [`kernels::queue::current`].
///
/// After the memory is there nothing returns an error: a device that fails at work is lost, and the call unwinds with
/// [`Lost`](crate::Lost), which ends the engine.
pub trait Driver: Send + Sync {
    /// Takes the device's memory, zeroed, once; returns the address of its first byte (aligned to 256).
    ///
    /// # Errors
    /// [`CudaError::Memory`] if there is not as much.
    fn allocate(&mut self, bytes: usize) -> Result<u64, CudaError>;

    /// Compiles modules, so that the first kernel does not wait for it.
    ///
    /// # Errors
    /// [`CudaError::Compile`].
    fn prepare(&self, modules: &[Module]) -> Result<(), CudaError>;

    /// Copies `bytes` to the device. `fill` writes them, piece after piece: the first byte's number, and room.
    fn upload(&self, to: u64, bytes: usize, fill: &mut dyn FnMut(usize, &mut [u8]));

    /// Writes a table that kernels read, to a place with room for a multiple of 16 bytes: not behind long copies of other queues,
    /// where the driver can help it.
    fn put(&self, to: u64, table: &[u8]) {
        let fill = &mut |first: usize, into: &mut [u8]| into.copy_from_slice(&table[first..][..into.len()]);
        self.upload(to, table.len(), fill);
    }

    /// Copies `bytes` from the device, once everything before in this queue is done, and shows them piece after piece: the
    /// first byte's number, and the bytes.
    fn download(&self, from: u64, bytes: usize, view: &mut dyn FnMut(usize, &[u8]));

    /// Takes note of host memory, whole pages, that copies and kernels read and write as it lies there: the address that its
    /// first byte has for them.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if it refuses.
    fn adopt(&self, memory: Lasting) -> Result<u64, CudaError>;

    /// Copies `bytes` between the device's memory and adopted memory, whichever of both is where.
    fn copy(&self, from: u64, to: u64, bytes: usize);

    /// Begins to copy up to [`FETCH_BYTES`] from the device, once everything before in this queue is done. A number by which
    /// they are to be asked for, once, by any thread.
    fn fetch(&self, from: u64, bytes: usize) -> u64;

    /// Shows what a [`fetch`](Driver::fetch) brought, once it is there.
    fn fetched(&self, fetch: u64, view: &mut dyn FnMut(&[u8]));

    /// Blocks of a kernel, of so many threads, that the device runs side by side.
    fn together(&self, module: Module, kernel: &'static str, threads: u32) -> Together;

    /// Starts a kernel.
    fn launch(&self, launch: &Launch<'_>);

    /// What makes graphs of kernels, if something does.
    fn graphs(&self) -> Option<&dyn Graphs> {
        None
    }

    /// What computes large products, if not the device's own kernels.
    fn products(&self) -> Option<&dyn Products> {
        None
    }

    /// Which kernel attends of many rows.
    fn prefill(&self) -> Prefill {
        Prefill::default()
    }

    /// What it did otherwise than is fastest so far and why, in words, each once.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// Seconds that what `work` asks for takes on the device, by its own clock; nothing where it has none.
    fn time(&self, _work: &mut dyn FnMut()) -> Option<f64> {
        None
    }

    /// Whether a module that is tried before it is used has passed its trial; nothing where it had none.
    fn verdict(&self, _module: Module) -> Option<bool> {
        None
    }

    /// Runs a trial, and remembers what came of it. Should the trial end the process or lose the device, the module is tried once more;
    /// should that do so too, it has not passed for those that come after.
    fn try_out(&self, _module: Module, _trial: &mut dyn FnMut() -> Outcome) {}

    /// What this thread asks `queue` for from now on begins once everything that `after` names is done.
    fn enter(&self, queue: usize, after: &[Mark]);

    /// Names what was asked for in a queue so far. A mark that was not made stands for the next one of its queue.
    fn mark(&self, mark: Mark);

    /// Waits until what a mark names is done. Any thread may call it.
    fn reach(&self, mark: Mark);

    /// When what a mark names was done, where that is known; it is. Marks up to this one are forgotten.
    fn when(&self, mark: Mark) -> Option<Instant>;

    /// Waits until everything before in this thread's queue is done. The thread leaves its core to others.
    fn settle(&self);

    /// Waits until everything before in every queue is done.
    fn wait(&self);
}

/// What a graph is made of.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// A kernel.
    Kernel(Launch<'a>),
    /// A product of the library's, who can compute it.
    Product(Product, Places),
}

/// What came of making a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// A graph, by its number.
    As(u64),
    /// There is no memory for another.
    NoRoom,
    /// Somebody else has spoilt it.
    NotNow,
    /// There is none of such work.
    Never,
}

/// Work that is started together, each piece after the one before.
pub trait Graphs {
    /// Makes a graph of this, and does none of it.
    fn record(&self, work: &[Work<'_>]) -> Recorded;

    /// Starts a graph's work in this thread's queue.
    fn replay(&self, graph: u64);

    /// A graph is not asked for again. It may be under way.
    fn forget(&self, graph: u64);
}
