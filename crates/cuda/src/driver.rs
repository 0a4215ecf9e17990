//! What the device asks of whatever runs its kernels: a GPU's driver, or the emulation of the tests.

use crate::CudaError;
use crate::module::Module;

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

/// A stream of copies and kernels over one memory. They are done in the order in which they are asked for.
///
/// After the memory is there nothing returns an error: a device that fails at work is lost, and the call panics with the
/// driver's words, which ends the engine.
pub trait Driver: Send + Sync {
    /// Takes the device's memory, zeroed, once; returns the address of its first byte (aligned to 256).
    ///
    /// # Errors
    /// [`CudaError::Memory`] if there is not as much.
    fn allocate(&mut self, bytes: usize) -> Result<u64, CudaError>;

    /// Copies bytes to the device. They may be reused at once.
    fn upload(&self, to: u64, bytes: &[u8]);

    /// Copies bytes from the device, once everything before is done.
    fn download(&self, from: u64, bytes: &mut [u8]);

    /// Starts a kernel.
    fn launch(&self, launch: &Launch<'_>);

    /// Waits until everything before is done.
    fn wait(&self);
}
