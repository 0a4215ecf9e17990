//! One tier's memory: taken from the system once, handed out in aligned pieces, never grown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytemuck::Pod;

/// Pieces begin on a cache line, as the tile loads and the packed panels want it.
pub const ALIGN: usize = 64;
/// Pieces of a page or more begin on one: a drive reads into them without a copy.
pub const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// A piece of one arena. Plain data: holding one gives no access to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buf {
    arena: u32,
    offset: usize,
    bytes: usize,
}

impl Buf {
    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The piece `[start, start + bytes)` of this one.
    ///
    /// # Panics
    /// If it does not lie inside.
    pub fn slice(&self, start: usize, bytes: usize) -> Buf {
        assert!(start.checked_add(bytes).is_some_and(|end| end <= self.bytes), "slice outside its buffer");
        Buf { arena: self.arena, offset: self.offset + start, bytes }
    }

    /// Whether they have a byte in common.
    pub fn overlaps(&self, other: &Buf) -> bool {
        self.arena == other.arena
            && self.offset < other.offset + other.bytes
            && other.offset < self.offset + self.bytes
    }
}

/// Not enough left in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} bytes were asked of a memory of {capacity} bytes that has {left} left")]
pub struct Full {
    /// Bytes asked for.
    pub asked: usize,
    /// Bytes that are still free.
    pub left: usize,
    /// Bytes in all.
    pub capacity: usize,
}

/// What of a memory is taken, without the memory itself: a device's may be out of the host's reach.
#[derive(Debug)]
pub struct Ledger {
    id: u32,
    capacity: usize,
    used: usize,
}

impl Ledger {
    /// A memory of `capacity` bytes, all of it free.
    pub fn new(capacity: usize) -> Ledger {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Ledger { id: NEXT.fetch_add(1, Ordering::Relaxed), capacity, used: 0 }
    }

    /// Bytes in all.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes `bytes` from what is left.
    ///
    /// # Errors
    /// [`Full`] if there is not as much.
    pub fn take(&mut self, bytes: usize) -> Result<Buf, Full> {
        let offset = self.used.next_multiple_of(if bytes >= PAGE { PAGE } else { ALIGN });
        let size = bytes.next_multiple_of(ALIGN);
        let left = self.capacity.saturating_sub(offset);
        if size > left {
            return Err(Full { asked: bytes, left, capacity: self.capacity });
        }
        let buf = Buf { arena: self.id, offset, bytes };
        self.used = offset + size;
        Ok(buf)
    }

    /// Where a piece begins, in bytes from the memory's first.
    ///
    /// # Panics
    /// If it belongs to another memory.
    pub fn offset(&self, buf: &Buf) -> usize {
        assert!(buf.arena == self.id, "a buffer of another tier's memory was given to this device");
        assert!(buf.offset + buf.bytes <= self.capacity, "buffer outside its arena");
        buf.offset
    }
}

/// A tier's whole budget, mapped at once. Pages cost real memory when they are first written.
pub struct Arena {
    ledger: Ledger,
    mapping: Arc<Mapping>,
}

/// Memory of the system's, which has it again when nobody does here.
struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: a plain range of memory; who may touch which piece when is the contract of the arena's `get` and `get_mut`, which are
// unsafe for that reason.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A piece of an arena that stays where it is for as long as this lives, whatever becomes of the arena: for devices that read
/// and write host memory by themselves.
#[derive(Clone)]
pub struct Lasting {
    mapping: Arc<Mapping>,
    offset: usize,
    bytes: usize,
}

impl Lasting {
    /// Its first byte. Who may read or write from there on, and when, is the contract of the arena's `get` and `get_mut`.
    pub fn address(&self) -> *const u8 {
        // SAFETY: the offset lies inside the mapping, as it did when the arena gave it out.
        unsafe { self.mapping.base.add(self.offset) }
    }

    /// Its length. The mapping goes on to the end of its last page at the least.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Arena {
    /// Maps `capacity` bytes (rounded up to a large page, of which the system gives what is touched), zeroed.
    ///
    /// # Errors
    /// The system's own, if it does not give the address space.
    pub fn new(capacity: usize) -> std::io::Result<Arena> {
        let whole = capacity / HUGE_PAGE * HUGE_PAGE;
        let capacity = capacity.max(1).next_multiple_of(HUGE_PAGE);
        // SAFETY: an anonymous private mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                capacity,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        #[cfg(target_os = "linux")]
        // SAFETY: advice over the mapping just made; huge pages are a wish, so the result does not matter. The last one would
        // take more than was asked for: it stays small pages.
        unsafe {
            libc::madvise(base, whole, libc::MADV_HUGEPAGE);
        }
        let mapping = Arc::new(Mapping { base: base.cast(), bytes: capacity });
        Ok(Arena { ledger: Ledger::new(capacity), mapping })
    }

    /// Takes `bytes` from what is left.
    ///
    /// # Errors
    /// [`Full`] if there is not as much.
    pub fn take(&mut self, bytes: usize) -> Result<Buf, Full> {
        self.ledger.take(bytes)
    }

    /// Bytes taken so far.
    pub fn used(&self) -> usize {
        self.ledger.used
    }

    /// Whether `buf` is a piece of this arena.
    pub fn owns(&self, buf: &Buf) -> bool {
        buf.arena == self.ledger.id
    }

    /// A piece as values.
    ///
    /// # Safety
    /// Nobody writes the piece while the slice lives.
    ///
    /// # Panics
    /// If the piece belongs to another arena, or its size or place does not suit `T`.
    pub unsafe fn get<T: Pod>(&self, buf: &Buf) -> &[T] {
        let (data, len) = self.locate(buf);
        // SAFETY: in bounds and aligned (checked by `locate`), initialised (mapped zeroed), and not
        // written meanwhile by the caller's promise.
        unsafe { std::slice::from_raw_parts(data, len) }
    }

    /// A piece as values to write.
    ///
    /// # Safety
    /// Nobody else reads or writes the piece while the slice lives.
    ///
    /// # Panics
    /// As [`get`](Arena::get).
    #[allow(clippy::mut_from_ref)] // The contract above is what `&mut self` would say for the whole arena.
    pub unsafe fn get_mut<T: Pod>(&self, buf: &Buf) -> &mut [T] {
        let (data, len) = self.locate(buf);
        // SAFETY: as in `get`, and not read meanwhile either.
        unsafe { std::slice::from_raw_parts_mut(data, len) }
    }

    /// A piece's memory, beyond the life of the arena.
    ///
    /// # Panics
    /// If it belongs to another arena.
    pub fn lasting(&self, buf: &Buf) -> Lasting {
        Lasting { mapping: Arc::clone(&self.mapping), offset: self.ledger.offset(buf), bytes: buf.bytes }
    }

    fn locate<T: Pod>(&self, buf: &Buf) -> (*mut T, usize) {
        let offset = self.ledger.offset(buf);
        assert!(
            buf.bytes.is_multiple_of(size_of::<T>()) && offset.is_multiple_of(align_of::<T>()),
            "buffer does not suit its type"
        );
        // SAFETY: the offset lies inside the mapping, as just asserted.
        (unsafe { self.mapping.base.add(offset) }.cast(), buf.bytes / size_of::<T>())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `Arena::new`, which nothing borrows any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Asserts that none of `written` overlaps another buffer of the call.
///
/// # Panics
/// If one does.
pub fn assert_disjoint(written: &[&Buf], read: &[&Buf]) {
    for (i, w) in written.iter().enumerate() {
        let clash = written[i + 1..].iter().chain(read).any(|other| w.overlaps(other));
        assert!(!clash, "a kernel's output overlaps another of its buffers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_disjoint_and_counted() {
        let mut arena = Arena::new(1 << 20).unwrap();
        let (a, b) = (arena.take(100).unwrap(), arena.take(64).unwrap());
        assert_eq!((a.offset % ALIGN, b.offset % ALIGN, arena.used()), (0, 0, 192));
        assert!(!a.overlaps(&b) && a.overlaps(&a.slice(99, 1)));
        let page = arena.take(PAGE + 1).unwrap();
        assert_eq!((page.offset, arena.used()), (PAGE, 2 * PAGE + ALIGN));
    }

    #[test]
    fn running_out_is_an_answer() {
        let mut arena = Arena::new(HUGE_PAGE).unwrap();
        arena.take(HUGE_PAGE - 64).unwrap();
        let full = arena.take(65).unwrap_err();
        assert_eq!((full.asked, full.left), (65, 64));
    }

    #[test]
    #[should_panic(expected = "another tier")]
    fn another_arenas_buffer_is_refused() {
        let (mut a, b) = (Arena::new(64).unwrap(), Arena::new(64).unwrap());
        let buf = a.take(64).unwrap();
        // SAFETY: nothing else touches either arena here.
        unsafe { b.get::<u8>(&buf) };
    }

    #[test]
    fn a_lasting_piece_outlives_its_arena() {
        let mut arena = Arena::new(1 << 20).unwrap();
        let buf = (arena.take(100).unwrap(), arena.take(2 * PAGE).unwrap()).1;
        // SAFETY: nothing else touches the arena here.
        unsafe { arena.get_mut::<u8>(&buf) }.fill(7);
        let lasting = arena.lasting(&buf);
        drop(arena);
        assert!(lasting.address().addr().is_multiple_of(PAGE));
        // SAFETY: the memory is there as long as the piece.
        let bytes = unsafe { std::slice::from_raw_parts(lasting.address(), lasting.bytes()) };
        assert_eq!(bytes, [7; 2 * PAGE]);
    }
}
