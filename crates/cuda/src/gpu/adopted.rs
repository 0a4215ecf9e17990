//! Host memory that the copy engines read as it lies there: what stays (weights that live on the host) need not pass through
//! pinned pieces, which one thread of the host would have to fill at the link's rate.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use kernels::arena::{Lasting, PAGE};

/// Bytes of one copy. A copy engine takes turns between streams at the ends of copies: behind one of a whole layer, a table of
/// a few words that kernels wait for would wait for milliseconds. Copies of 8 MiB, 150 microseconds, lose nothing of the
/// link's rate.
const COPY_BYTES: usize = 8 << 20;

/// Pinned as long as this lives.
pub(super) struct Adopted(Lasting);

// SAFETY: the memory is only read, by copies; the driver may be asked from any thread.
unsafe impl Send for Adopted {}

impl Adopted {
    /// Pins memory that begins on a page, to the end of its last one. The device's context is current.
    pub(super) fn new(memory: Lasting) -> Result<Adopted, DriverError> {
        let (address, bytes) = (memory.address().cast_mut().cast(), memory.bytes().next_multiple_of(PAGE));
        // SAFETY: the memory is mapped as long as `memory` lives, which is until it is pinned no more.
        unsafe { sys::cuMemHostRegister_v2(address, bytes, 0).result()? };
        Ok(Adopted(memory))
    }

    /// Asks for a copy, a piece after the other.
    ///
    /// # Safety
    /// The target lies in the device's memory, and the copy is done before this is dropped.
    ///
    /// # Panics
    /// If there are not as many bytes.
    pub(super) unsafe fn upload(
        &self,
        stream: sys::CUstream,
        to: u64,
        bytes: usize,
        first: usize,
    ) -> Result<(), DriverError> {
        let all = self.0.bytes();
        assert!(
            first <= all && bytes <= all - first,
            "{bytes} bytes from {first} of {all} that were adopted"
        );
        // SAFETY: in bounds, as just asserted; the rest is passed on from the caller.
        unsafe {
            let from = std::slice::from_raw_parts(self.0.address().add(first), bytes);
            from.chunks(COPY_BYTES).enumerate().try_for_each(|(i, piece)| {
                result::memcpy_htod_async(to + (i * COPY_BYTES) as u64, piece, stream)
            })
        }
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        // SAFETY: whoever has the device has waited for it. What fails here fails because the device is lost already.
        unsafe {
            let _ = sys::cuMemHostUnregister(self.0.address().cast_mut().cast()).result();
        }
    }
}
