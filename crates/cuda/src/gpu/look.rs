//! What there is: the driver, a device, its memory; and what is told where there is none.

use std::env;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::cublaslt::ROOM;
use super::failed;
use super::settings::{PRODUCTS, ProductsBy, products_by};
use crate::{Architecture, CudaError, compiler, device};

/// The first device, if there is one and what it takes to use it but for products.
///
/// # Errors
/// As [`Gpu::open`].
pub(super) fn look(ordinal: usize) -> Result<sys::CUdevice, CudaError> {
    // SAFETY: looks for a library of this name, and runs what it runs when it is loaded.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Library {
            library: DRIVER,
            needed_for: DRIVER_IS,
            install: DRIVER_COMES_WITH,
        });
    }
    compiler::version()?;
    result::init().map_err(|why| not_started(ordinal, why))?;
    let found = result::device::get_count().map_err(failed("count its devices"))? as usize;
    if ordinal >= found {
        return Err(CudaError::NoDevice { wanted: ordinal, found });
    }
    result::device::get(ordinal as i32).map_err(failed("open a device"))
}

/// What is told of the driver's library where there is none, or one that does not start.
const DRIVER: &str = "libcuda.so";
const DRIVER_IS: &str = "it is the NVIDIA driver, which --device cuda works through";
const DRIVER_COMES_WITH: &str = "an NVIDIA driver of CUDA 12 or newer on a machine that has such a GPU";

/// What a driver that does not start is to say.
fn not_started(wanted: usize, DriverError(why): DriverError) -> CudaError {
    use sys::CUresult::{
        CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_STUB_LIBRARY,
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
    };
    let unfit = |why: &str| CudaError::Unfit {
        library: DRIVER,
        needed_for: DRIVER_IS,
        install: DRIVER_COMES_WITH,
        why: vec![why.to_string()],
    };
    match why {
        CUDA_ERROR_NO_DEVICE => CudaError::NoDevice { wanted, found: 0 },
        CUDA_ERROR_STUB_LIBRARY => unfit(
            "it is the toolkit's stub, which programs are built against: is its folder in LD_LIBRARY_PATH?",
        ),
        CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            unfit("the kernel's module is of another version: was it updated without a restart?")
        }
        CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            unfit("it is a compatibility package, which this GPU is not supported by")
        }
        other => failed("start")(DriverError(other)),
    }
}

/// What a device is.
///
/// # Safety
/// `device` is one of the driver's.
pub(super) unsafe fn architecture(device: sys::CUdevice) -> Result<Architecture, CudaError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    // SAFETY: passed on from the caller.
    let number = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let both = number(MAJOR).and_then(|major| Ok(10 * major + number(MINOR)?));
    both.map(|both| Architecture(both as u32)).map_err(failed("tell its architecture"))
}

/// Device memory that is left to the driver: code, the threads' own memory, what libraries take.
const DRIVER_BYTES: usize = 512 << 20;

/// Host memory that driver, compiler and the library of products take once a device is opened. On an H200 (driver 580,
/// `bench/results/2026-11-26-h200`) processes had 1149 and 1171 MB more at their most than was planned, of which 1051 were a copy of
/// the embedding, which does not lie there whole any more.
pub const DRIVER_HOST_BYTES: usize = 128 << 20;

/// A device's memory before anything is taken of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that nobody has taken.
    pub free_bytes: usize,
    /// Bytes of those that are not to be handed out: what the device takes for itself, and what is left to the driver.
    pub own_bytes: usize,
    /// Whether it is the host's: what one takes, the other has not.
    pub is_hosts: bool,
}

/// [`Memory::own_bytes`]. A library that is looked for may not be there, which is found out once the device is opened.
fn own_bytes(products_by: ProductsBy) -> usize {
    let library = (products_by != ProductsBy::Own).then_some(&ROOM);
    device::own_bytes(library) + DRIVER_BYTES
}

/// The first device's memory. Nothing is taken or compiled, unlike [`Gpu::open`].
///
/// # Errors
/// As [`Gpu::open`], but for the library of products.
pub fn memory() -> Result<Memory, CudaError> {
    use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED as INTEGRATED;
    let device = look(0)?;
    // SAFETY: the device was just given by the driver.
    let architecture = unsafe { architecture(device) }?;
    let own_bytes = own_bytes(products_by(env::var(PRODUCTS).ok().as_deref(), architecture)?);
    // SAFETY: as above.
    let is_hosts = unsafe { result::device::get_attribute(device, INTEGRATED) }
        .map_err(failed("tell whether its memory is the host's"))?
        != 0;
    // SAFETY: the device was just given by the driver. Its context stays: whoever opens the device next has it at once.
    unsafe {
        let context = result::primary_ctx::retain(device).map_err(failed("make a context"))?;
        result::ctx::set_current(context).map_err(failed("enter its context"))?;
    }
    let (free_bytes, _) = result::mem_get_info().map_err(failed("tell its memory"))?;
    Ok(Memory { free_bytes, own_bytes, is_hosts })
}

/// What is wrong where the driver does not give memory.
pub(super) fn not_given(wanted: usize, (free, total): (usize, usize), why: DriverError) -> CudaError {
    match why {
        DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => CudaError::Memory { wanted, free, total },
        why => failed("give memory")(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_devices_is_no_failure_of_the_driver() {
        let told = |why| not_started(0, DriverError(why));
        use sys::CUresult as Why;
        assert_eq!(told(Why::CUDA_ERROR_NO_DEVICE), CudaError::NoDevice { wanted: 0, found: 0 });
        let stub = told(Why::CUDA_ERROR_STUB_LIBRARY).to_string();
        assert!(stub.contains("stub") && stub.contains("--device cpu"), "{stub}");
    }

    #[test]
    fn only_who_may_have_a_library_sets_memory_aside_for_it() {
        let [own, if_there, always] =
            [ProductsBy::Own, ProductsBy::LibraryIfThere, ProductsBy::Library].map(own_bytes);
        assert_eq!((if_there - own, always - own), (ROOM.bytes(), ROOM.bytes()));
        assert!(own > DRIVER_BYTES);
        // What README and help say of `--device-memory`.
        assert_eq!([own, always].map(|bytes| (bytes - DRIVER_BYTES) >> 20), [75, 363]);
        assert_eq!(DRIVER_BYTES >> 20, 512);
    }

    /// Other errors have the driver's words, which there are none of without it.
    #[test]
    fn memory_that_is_not_there_asks_for_less() {
        let told = not_given(5, (3, 4), DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        assert_eq!(told, CudaError::Memory { wanted: 5, free: 3, total: 4 });
    }
}
