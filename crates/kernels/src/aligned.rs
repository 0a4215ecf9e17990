//! Memory for packed weights and scratch: aligned for vector loads, on huge pages where that pays.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::arena::PAGE;

const LINE: usize = 64;
const HUGE_PAGE: usize = 2 << 20;

/// Bytes that begin on a cache line; as many as fill a page, on one, as direct reads from a drive want it; from 2 MiB on, on a huge
/// page (a panel of weights is read once and in order, and with small pages the hardware's prefetcher stops at each of them).
pub struct AlignedBytes {
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes, as a Vec does.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `len` zero bytes. Aborts, as a `Vec` does, if the system has no memory left.
    pub fn zeroed(len: usize) -> AlignedBytes {
        if len == 0 {
            return AlignedBytes { data: NonNull::dangling(), len };
        }
        let layout = layout(len);
        // SAFETY: the layout is not empty.
        let data = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        advise_huge_pages(data, len);
        // SAFETY: `data` was allocated with `len` bytes.
        unsafe { data.write_bytes(0, len) };
        AlignedBytes { data, len }
    }
}

fn layout(len: usize) -> Layout {
    let align = match len {
        HUGE_PAGE.. => HUGE_PAGE,
        PAGE.. => PAGE,
        _ => LINE,
    };
    Layout::from_size_align(len, align).expect("a length that fits the address space")
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(data: NonNull<u8>, len: usize) {
    if len >= HUGE_PAGE {
        // SAFETY: advice about our own pages; it changes no contents, and a refusal does no harm.
        unsafe { libc::madvise(data.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_data: NonNull<u8>, _len: usize) {}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated with the same layout.
            unsafe { dealloc(self.data.as_ptr(), layout(self.len)) };
        }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that we own (or none, at a dangling pointer).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBytes({})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_and_zero() {
        for len in [0, 1, 100, PAGE, PAGE + 1, HUGE_PAGE + 1] {
            let mut bytes = AlignedBytes::zeroed(len);
            assert!(bytes.len() == len && bytes.iter().all(|b| *b == 0));
            let begin = if len < PAGE { LINE } else { PAGE };
            assert!(len == 0 || bytes.as_ptr().addr().is_multiple_of(begin));
            bytes.fill(1);
        }
    }
}
