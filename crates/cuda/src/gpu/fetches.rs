//! Copies to the host that somebody asks for later, maybe after many others were begun.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use crate::{CudaError, FETCH_BYTES};

use super::pinned::{Coming, FETCH_PIECES, Pool};
use super::streams::Waits;

/// Those that are under way, and the pieces that they come to: of no other copy, since a lane that begins many may ask for none
/// before its step is done, and its tables need pieces meanwhile.
pub(super) struct Fetches {
    pool: Pool,
    coming: Mutex<Numbered>,
}

/// By number.
#[derive(Default)]
struct Numbered {
    newest: u64,
    coming: HashMap<u64, Coming>,
}

impl Fetches {
    /// The device's context is current.
    pub(super) fn new() -> Result<Fetches, CudaError> {
        Ok(Fetches { pool: Pool::new(FETCH_PIECES, FETCH_BYTES, Waits::Awake)?, coming: Mutex::default() })
    }

    fn coming(&self) -> MutexGuard<'_, Numbered> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins one from the device, which has up to [`FETCH_BYTES`] of memory at `from`; its number.
    pub(super) fn begin(&self, stream: sys::CUstream, from: u64, bytes: usize) -> Result<u64, DriverError> {
        let one = self.pool.fetch(stream, from, bytes)?;
        let mut coming = self.coming();
        coming.newest += 1;
        let number = coming.newest;
        coming.coming.insert(number, one);
        Ok(number)
    }

    /// Shows what has come, once it has.
    ///
    /// # Panics
    /// If nobody began it, or it was asked for before.
    pub(super) fn end(&self, number: u64, view: &mut dyn FnMut(&[u8])) -> Result<(), DriverError> {
        let one = self.coming().coming.remove(&number);
        let one = one.unwrap_or_else(|| panic!("fetch {number} is asked for, and nobody began it"));
        self.pool.fetched(one, view)
    }
}
