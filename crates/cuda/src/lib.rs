//! The other device: NVIDIA GPUs through the driver API, found at run time.
//!
//! Nothing of CUDA is needed to build this crate, nor to run a program that has it: the driver and the
//! run-time compiler are loaded when a device is opened, and what is missing is named. The kernels
//! (`kernels/*.cu`) are compiled for the device at first use and kept on disk. The same text runs on the CPU
//! in the tests, behind the same [`GpuDevice`]: only the [`Driver`] is another.

mod adopted;
pub mod args;
mod attend;
mod compiler;
mod copies;
mod device;
mod driver;
mod error;
mod gpu;
mod in_rows;
mod library;
mod linear;
pub mod module;
mod needs;
mod nvrtc;
pub mod product;
mod ranges;
mod repeat;
mod rows;
mod sample;
mod slots;
mod sparse;
mod tables;
mod trial;

pub use compiler::{Architecture, Compiled, compile, version as compiler_version};
pub use device::GpuDevice;
pub use driver::{Driver, FETCH_BYTES, Graphs, Launch, Outcome, QUEUES, Recorded, Together, Work};
pub use error::{CudaError, Lost};
pub use gpu::{DRIVER_HOST_BYTES, Gpu, Memory, PINNED_BYTES, Speeds, memory};

/// A CUDA device whose memory is handed out by [`kernels::device::Device::take`].
pub type CudaDevice = GpuDevice<Gpu>;

/// Bytes per second of long copies between the host and the first CUDA device, in the slower direction.
///
/// # Errors
/// As [`open`]; the device needs 64 MiB for a moment.
pub fn link_bytes_per_s() -> Result<f64, CudaError> {
    let [up, down] = Gpu::open(0)?.link_bytes_per_s()?;
    Ok(up.min(down))
}

/// Opens the first CUDA device and takes `bytes` of its memory, and more for its own use (see [`Memory`]).
///
/// # Errors
/// [`CudaError`]: which library or device is missing, or how much memory there is.
pub fn open(bytes: usize) -> Result<CudaDevice, CudaError> {
    GpuDevice::new(Gpu::open(0)?, bytes)
}
