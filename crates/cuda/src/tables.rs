//! Small tables that kernels read (ids, positions, block tables), on their way to the device.
//!
//! A ring of device memory for each queue: a table stays until the ring comes round, which waits for the queue's kernels. The layers of a
//! step ask for the same tables again and again; those are found, not sent. Passes have places of their own (`repeat`).

use std::collections::HashMap;

use crate::Driver;
use crate::repeat::Repeating;

/// The ring.
pub(crate) struct Tables {
    base: u64,
    bytes: usize,
    next: usize,
    /// Those that it has.
    known: HashMap<Vec<u8>, u64>,
}

impl Tables {
    /// A ring over `bytes` of device memory at `base`.
    pub(crate) fn new(base: u64, bytes: usize) -> Tables {
        Tables { base, bytes, next: 0, known: HashMap::new() }
    }

    /// Before the tables of one call, `bytes` together: none of them may come round to another.
    pub(crate) fn reserve(&mut self, driver: &impl Driver, bytes: usize) {
        assert!(
            bytes <= self.bytes,
            "tables of {bytes} bytes for one call, and there is room for {}",
            self.bytes
        );
        if self.next + bytes > self.bytes {
            driver.settle();
            self.next = 0;
            self.known.clear();
        }
    }

    /// Where the device has `values`: in a pass with the pass's other tables, else in the ring.
    pub(crate) fn put<D: Driver, T: bytemuck::NoUninit>(
        &mut self,
        driver: &Repeating<D>,
        values: &[T],
    ) -> u64 {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if let Some(at) = driver.table(bytes) {
            return at;
        }
        if let Some(at) = self.known.get(bytes) {
            return *at;
        }
        assert!(self.next + bytes.len() <= self.bytes, "tables were not reserved");
        let at = self.base + self.next as u64;
        driver.put(at, bytes);
        self.next += padded(bytes.len());
        self.known.insert(bytes.to_vec(), at);
        at
    }
}

/// What a table takes of the ring.
pub(crate) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}
