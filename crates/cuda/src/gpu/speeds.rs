//! What copies reach.

use cudarc::driver::result::{self, DriverError};

use super::cublaslt::{CublasLt, ROOM};
use super::look::not_given;
use super::pinned::PIECE_BYTES;
use super::streams::Event;
use super::{Gpu, failed};
use crate::product::{Layout, Numbers, Places, Product};
use crate::{CudaError, Driver};

/// Pieces that the link is timed with, 1 GiB: its beginning and end count for nothing.
const PIECES_TIMED: usize = 256;

/// The link's own rate is that of copies so long that what lies between them is nothing.
const LONG_BYTES: usize = 64 << 20;

/// Bytes per second of copies.
#[derive(Clone, Copy, Debug)]
pub struct Speeds {
    /// On the device: read and written.
    pub device_bytes_per_s: f64,
    /// From pinned host memory to the device, a piece as the engine copies them after the other.
    pub up_bytes_per_s: f64,
    /// From the device to pinned host memory, likewise.
    pub down_bytes_per_s: f64,
    /// What the link can do, up and down.
    pub link_bytes_per_s: [f64; 2],
}

impl Gpu {
    /// What copies reach, the best of a few runs each: on the device (bytes read and written), up, and down.
    ///
    /// # Errors
    /// [`CudaError::Memory`] if the device has no half a GiB left.
    pub fn speeds(&self) -> Result<Speeds, CudaError> {
        const BYTES: usize = 256 << 20;
        let (free, total) = self.memory()?;
        let stream = self.stream();
        // SAFETY: the memory is this function's own, the piece is lent to it, and both outlive the copies, which
        // `rate` waits for.
        unsafe {
            let memory = result::malloc_sync(2 * BYTES);
            let memory = memory.map_err(|why| not_given(2 * BYTES, (free, total), why))?;
            let on = self.rate(2 * BYTES, 32, || {
                result::memcpy_dtod_async(memory + BYTES as u64, memory, BYTES, stream)
            });
            let both = |host: &mut [u8], copies: usize| {
                let up = self.rate(host.len(), copies, || result::memcpy_htod_async(memory, host, stream));
                let down = self.rate(host.len(), copies, || result::memcpy_dtoh_async(host, memory, stream));
                Ok([up?, down?])
            };
            let pieces = self.up.with_piece(|piece| both(&mut piece[..PIECE_BYTES], PIECES_TIMED));
            result::free_sync(memory).map_err(failed("free memory"))?;
            let [up_bytes_per_s, down_bytes_per_s] = pieces.map_err(failed("copy"))??;
            let link_bytes_per_s = self.link_bytes_per_s()?;
            Ok(Speeds { device_bytes_per_s: on?, up_bytes_per_s, down_bytes_per_s, link_bytes_per_s })
        }
    }

    /// What the link can do, up and down, bytes per second: the best of a few runs each of copies that are long.
    ///
    /// # Errors
    /// [`CudaError::Memory`] if the device has no 64 MiB left, [`CudaError::Driver`] if they cannot be pinned on the host.
    pub fn link_bytes_per_s(&self) -> Result<[f64; 2], CudaError> {
        let (free, total) = self.memory()?;
        let stream = self.stream();
        // SAFETY: both memories are this function's own, and outlive the copies, which `rate` waits for.
        unsafe {
            let memory = result::malloc_sync(LONG_BYTES);
            let memory = memory.map_err(|why| not_given(LONG_BYTES, (free, total), why))?;
            let rates = result::malloc_host(LONG_BYTES, 0).and_then(|long| {
                let host = std::slice::from_raw_parts_mut(long.cast::<u8>(), LONG_BYTES);
                let copies = PIECES_TIMED * PIECE_BYTES / LONG_BYTES;
                let up = self.rate(LONG_BYTES, copies, || result::memcpy_htod_async(memory, host, stream));
                let down = self.rate(LONG_BYTES, copies, || result::memcpy_dtoh_async(host, memory, stream));
                result::free_host(long).map(|()| [up, down])
            });
            result::free_sync(memory).map_err(failed("free memory"))?;
            let [up, down] = rates.map_err(failed("pin memory"))?;
            Ok([up?, down?])
        }
    }

    /// Seconds that the device takes, by its own clock, for what `work` asks for in this thread's queue.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn seconds_of(&self, work: impl FnOnce()) -> Result<f64, CudaError> {
        self.bind();
        let stream = self.stream();
        let event = || Event::timed().map_err(failed("make an event"));
        let (begin, end) = (event()?, event()?);
        // SAFETY: the stream is this device's own, as the events are.
        let record = |event: &Event| unsafe { event.record(stream) }.map_err(failed("record an event"));
        record(&begin)?;
        work();
        record(&end)?;
        end.reach().map_err(failed("finish its work"))?;
        Ok(f64::from(begin.ms_to(&end).map_err(failed("tell the time"))?) / 1e3)
    }

    /// Operations per second of the library's product of large bf16 matrices, the best of a few runs; none if there is no
    /// library.
    ///
    /// # Errors
    /// [`CudaError::Memory`] if the device has no half a GiB left.
    pub fn product_rate(&self) -> Result<Option<f64>, CudaError> {
        const SIDE: usize = 8192;
        const MATRIX: usize = 2 * SIDE * SIDE;
        let Some(library) = &self.library else { return Ok(None) };
        let (free, total) = self.memory()?;
        let wanted = 3 * MATRIX + ROOM.workspace_bytes;
        // SAFETY: the context is current, and the memory this function's own.
        let memory = unsafe { result::malloc_sync(wanted) };
        let memory = memory.map_err(|why| not_given(wanted, (free, total), why))?;
        // Small numbers of either sign, no two alike beside each other: zeros would be multiplied faster.
        self.upload(memory, 2 * MATRIX, &mut |first, into| {
            for (i, number) in into.chunks_exact_mut(2).enumerate() {
                let bits = (first / 2 + i) as u32;
                let bits = bits.wrapping_mul(2_654_435_761) >> 16;
                number.copy_from_slice(&((bits as u16 & 0x807f) | 0x3f00).to_le_bytes());
            }
        });
        let [a, b, d, workspace] = [0, 1, 2, 3].map(|matrix| memory + (matrix * MATRIX) as u64);
        let rate = self.rate_of(library, SIDE, &Places { a, b, d, bias: 0, workspace });
        // SAFETY: nothing is under way, as the rate was waited for.
        unsafe { result::free_sync(memory).map_err(failed("free memory"))? };
        rate.map(Some)
    }

    fn rate_of(&self, library: &CublasLt, side: usize, places: &Places) -> Result<f64, CudaError> {
        const PRODUCTS: usize = 10;
        let matrix =
            Layout { numbers: Numbers::Bf16, rows: side, cols: side, stride: side, transposed: false };
        let a = Layout { transposed: true, ..matrix };
        let product = Product { a, b: matrix, d: matrix, adds: false, biased: false };
        let mut best = 0f64;
        for _ in 0..5 {
            let mut asked = Ok(());
            let seconds = self.seconds_of(|| {
                // SAFETY: the caller's memory has room for three such matrices and the workspace.
                let multiply = |_| unsafe { library.multiply(&product, places, self.stream()) };
                asked = (0..PRODUCTS).try_for_each(multiply);
            })?;
            asked.map_err(|why| CudaError::Driver { what: "multiply".into(), why })?;
            best = best.max(PRODUCTS as f64 * 2.0 * (side as f64).powi(3) / seconds);
        }
        Ok(best)
    }

    /// Bytes per second of `copy`, so many at a time by the device's clock, the best of five such runs.
    fn rate(
        &self,
        bytes: usize,
        copies: usize,
        mut copy: impl FnMut() -> Result<(), DriverError>,
    ) -> Result<f64, CudaError> {
        let mut best = 0f64;
        for _ in 0..5 {
            let mut asked = Ok(());
            let seconds = self.seconds_of(|| asked = (0..copies).try_for_each(|_| copy()))?;
            asked.map_err(failed("copy"))?;
            best = best.max((copies * bytes) as f64 / seconds);
        }
        Ok(best)
    }
}
