//! Host memory that the copy engines and kernels reach as it lies there: what stays (weights and KV that live on the host) need not
//! pass through pinned pieces, which one thread of the host would have to fill or empty at the link's rate.

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;
use kernels::arena::{Lasting, PAGE};

/// Bytes of one copy. A copy engine takes turns between streams at the ends of copies: behind one of a whole layer, a table of
/// a few words that kernels wait for would wait for milliseconds. Copies of 8 MiB, 150 microseconds, lose nothing of the
/// link's rate.
const COPY_BYTES: usize = 8 << 20;

/// Pinned as long as this lives.
pub(super) struct Adopted(Lasting);

// SAFETY: nobody here reads or writes the memory; the driver may be asked from any thread.
unsafe impl Send for Adopted {}

impl Adopted {
    /// Pins memory that begins on a page, to the end of its last one, and where the device has it. The device's context is current.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn new(memory: Lasting) -> Result<(Adopted, u64), DriverError> {
        let (address, bytes) = (memory.address().cast_mut().cast(), memory.bytes().next_multiple_of(PAGE));
        let mut there = 0;
        // SAFETY: the memory is mapped as long as `memory` lives, which is until it is pinned no more.
        unsafe {
            sys::cuMemHostRegister_v2(address, bytes, sys::CU_MEMHOSTREGISTER_DEVICEMAP).result()?;
            let adopted = Adopted(memory);
            sys::cuMemHostGetDevicePointer_v2(&mut there, address, 0).result()?;
            Ok((adopted, there))
        }
    }
}

/// Asks for a copy, a piece after the other.
///
/// # Safety
/// One of the places lies in the device's memory and the other in adopted memory, which stays there until the copy is done.
pub(super) unsafe fn copy(
    stream: sys::CUstream,
    from: u64,
    to: u64,
    bytes: usize,
) -> Result<(), DriverError> {
    (0..bytes).step_by(COPY_BYTES).try_for_each(|at| {
        let length = COPY_BYTES.min(bytes - at);
        // SAFETY: passed on from the caller.
        unsafe { sys::cuMemcpyAsync(to + at as u64, from + at as u64, length, stream) }.result()
    })
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // SAFETY: whoever has the device has waited for it. What fails here fails because the device is lost already.
        unsafe {
            let _ = sys::cuMemHostUnregister(self.0.address().cast_mut().cast()).result();
        }
    }
}
