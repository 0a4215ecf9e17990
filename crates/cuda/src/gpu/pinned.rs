//! Host memory that the copy engines can read and write: pieces of a pool, which every copy passes through.
//!
//! ```text
//! up    [fill 0][fill 1][fill 2]          down           [view 0][view 1]
//!               [copy 0][copy 1][copy 2]         [copy 0][copy 1][copy 2]
//! ```

use std::collections::VecDeque;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::{CudaError, FETCH_BYTES};

use super::failed;
use super::idle::{Borrowed, Idle};
use super::streams::{Event, Waits};

/// Long enough for a copy to reach the link's rate.
pub(super) const PIECE_BYTES: usize = 4 << 20;
/// 32 MiB in all, half for each direction: a copy down whose piece's last copy was one up would wait for what that waits for.
pub(super) const PIECES: usize = 4;
/// Room for most tables. There are many: one is free again once its copy is done, which comes after kernels.
pub(super) const SMALL_PIECE_BYTES: usize = 32 << 10;
/// 4 MiB in all.
pub(super) const SMALL_PIECES: usize = 128;
/// 512 KiB in all. Of these more are made when a step has more batches than that: none of them can wait for another.
pub(super) const FETCH_PIECES: usize = 16;
/// Host memory that a device pins, but for what steps of many batches fetch.
pub const PINNED_BYTES: usize =
    2 * PIECES * PIECE_BYTES + SMALL_PIECES * SMALL_PIECE_BYTES + FETCH_PIECES * FETCH_BYTES;
/// Pieces of one copy from the device that are under way at once.
const AHEAD: usize = 2;

/// Memory, and the event of its last copy.
struct Piece {
    memory: *mut u8,
    /// What kernels know it by.
    there: u64,
    /// Bytes of it.
    room: usize,
    event: Event,
}

// SAFETY: whoever has a piece is alone with its memory; the driver's handles may be used from any thread.
unsafe impl Send for Piece {}

impl Piece {
    /// Takes its memory. The device's context is current.
    fn new(room: usize, waits: Waits) -> Result<Piece, DriverError> {
        let event = Event::new(waits)?;
        // SAFETY: the context is current; the memory is freed with the piece.
        let memory = unsafe { result::malloc_host(room, sys::CU_MEMHOSTALLOC_DEVICEMAP)? };
        let mut piece = Piece { memory: memory.cast(), there: 0, room, event };
        // SAFETY: as above; the driver writes one address.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut piece.there, memory, 0) }.result()?;
        Ok(piece)
    }

    /// Its first bytes.
    ///
    /// # Safety
    /// No copy of the piece is under way.
    unsafe fn bytes(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.room, "a piece of {bytes} bytes");
        // SAFETY: the memory is that long, and this piece's alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory, bytes) }
    }

    /// Asks for a copy from the device, which has `bytes` of memory at `from`, once the piece's last one is done.
    fn ask(&mut self, stream: sys::CUstream, from: u64, bytes: usize) -> Result<(), DriverError> {
        self.event.reach()?;
        // SAFETY: the event says that the piece's last copy is done; the source lies in the device's memory.
        unsafe { result::memcpy_dtoh_async(self.bytes(bytes), from, stream) }
    }

    /// Names what was asked for last.
    fn mark(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the stream is of the context that the event was made in, as are all that a pool is given.
        unsafe { self.event.record(stream) }
    }

    /// What has come, once it has.
    fn end(&mut self, bytes: usize) -> Result<&[u8], DriverError> {
        self.event.reach()?;
        // SAFETY: the event says that the copy is done.
        Ok(unsafe { self.bytes(bytes) })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: nobody has the memory any more, and whoever has the device has waited for it, or lost it as it failed to say where a copy
        // ends. What fails here fails because it is lost.
        let _ = unsafe { result::free_host(self.memory.cast()) };
    }
}

/// A piece that somebody reads or writes until its event. Where no event can say so, nobody may have it again, nor free it: the device
/// is lost, and who uses it may not know yet.
fn marked(piece: Borrowed<'_, Piece>, stream: sys::CUstream) -> Result<Borrowed<'_, Piece>, DriverError> {
    match piece.mark(stream) {
        Ok(()) => Ok(piece),
        Err(why) => {
            piece.abandon();
            Err(why)
        }
    }
}

/// A copy from the device that is under way.
pub(super) struct Coming {
    piece: Piece,
    bytes: usize,
}

/// Pieces of one length, taken for a copy and given back after it.
pub(super) struct Pool {
    piece_bytes: usize,
    waits: Waits,
    idle: Idle<Piece>,
}

impl Pool {
    /// Takes the memory of `pieces`. The device's context is current.
    pub(super) fn new(pieces: usize, piece_bytes: usize, waits: Waits) -> Result<Pool, CudaError> {
        let all = (0..pieces).map(|_| Piece::new(piece_bytes, waits)).collect::<Result<_, _>>();
        Ok(Pool { piece_bytes, waits, idle: Idle::new(all.map_err(failed("pin host memory"))?) })
    }

    /// Copies to the device, which has `bytes` of memory at `to`. `fill` writes each piece.
    pub(super) fn upload(
        &self,
        stream: sys::CUstream,
        to: u64,
        bytes: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<(), DriverError> {
        for at in (0..bytes).step_by(self.piece_bytes) {
            let mut piece = self.idle.borrow();
            piece.event.reach()?;
            // SAFETY: the event says that the piece's last copy is done; the target lies in the device's memory.
            unsafe {
                let staged = piece.bytes(self.piece_bytes.min(bytes - at));
                fill(at, staged);
                result::memcpy_htod_async(to + at as u64, staged, stream)?;
            }
            marked(piece, stream)?;
        }
        Ok(())
    }

    /// Hands pieces of `table` to `carry`, which asks for a kernel that reads them: where they are for kernels, in memory with room
    /// for a multiple of 16 bytes, the first byte's number and how many there are.
    pub(super) fn lend(
        &self,
        stream: sys::CUstream,
        table: &[u8],
        carry: &mut dyn FnMut(u64, usize, usize),
    ) -> Result<(), DriverError> {
        for (i, bytes) in table.chunks(self.piece_bytes).enumerate() {
            let mut piece = self.idle.borrow();
            piece.event.reach()?;
            // SAFETY: the event says that whoever read the piece last is done with it.
            unsafe {
                piece.bytes(bytes.len()).copy_from_slice(bytes);
                carry(piece.there, i * self.piece_bytes, bytes.len());
            }
            marked(piece, stream)?;
        }
        Ok(())
    }

    /// Begins to copy as much as a piece has room for from the device, which has `bytes` of memory at `from`. It waits for no
    /// piece: those of other fetches may be given back only after this one's.
    pub(super) fn fetch(
        &self,
        stream: sys::CUstream,
        from: u64,
        bytes: usize,
    ) -> Result<Coming, DriverError> {
        let mut piece = self.idle.take_or(|| Piece::new(self.piece_bytes, self.waits))?;
        piece.ask(stream, from, bytes)?;
        match piece.mark(stream) {
            Ok(()) => Ok(Coming { piece, bytes }),
            Err(why) => {
                // As in `marked`.
                std::mem::forget(piece);
                Err(why)
            }
        }
    }

    /// Shows what has come, once it has.
    pub(super) fn fetched(&self, mut coming: Coming, view: &mut dyn FnMut(&[u8])) -> Result<(), DriverError> {
        view(coming.piece.end(coming.bytes)?);
        self.idle.give(coming.piece);
        Ok(())
    }

    /// Copies from the device, which has `bytes` of memory at `from`. `view` sees each piece.
    pub(super) fn download(
        &self,
        stream: sys::CUstream,
        from: u64,
        bytes: usize,
        view: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), DriverError> {
        let mut starts = (0..bytes).step_by(self.piece_bytes);
        let length = |at: usize| self.piece_bytes.min(bytes - at);
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < AHEAD && starts.len() > 0 {
                // Who has a piece waits for none: copies that wait for each other's pieces would wait for ever.
                let piece =
                    if under_way.is_empty() { Some(self.idle.borrow()) } else { self.idle.borrow_if_any() };
                let (Some(mut piece), Some(at)) = (piece, starts.next()) else { break };
                piece.ask(stream, from + at as u64, length(at))?;
                under_way.push_back((at, marked(piece, stream)?));
            }
            let Some((at, mut piece)) = under_way.pop_front() else { return Ok(()) };
            view(at, piece.end(length(at))?);
        }
    }

    /// Lends one piece's memory, while no copy of it is under way.
    pub(super) fn with_piece<T>(&self, f: impl FnOnce(&mut [u8]) -> T) -> Result<T, DriverError> {
        let mut piece = self.idle.borrow();
        piece.event.reach()?;
        // SAFETY: the event says that the piece's last copy is done.
        Ok(f(unsafe { piece.bytes(self.piece_bytes) }))
    }
}
