//! How many bytes the files have together, and may have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Counts bytes of files: those that are there, those on their way in, those that a batch writes now.
#[derive(Debug)]
pub(super) struct Room {
    most: u64,
    used: AtomicU64,
    /// Answers of the batch that is worked on.
    growing: AtomicU64,
}

/// Bytes that are taken until it is dropped; or for good.
pub(super) struct Taken {
    room: Arc<Room>,
    bytes: u64,
}

impl Room {
    pub(super) fn new(most: u64) -> Room {
        Room { most, used: AtomicU64::new(0), growing: AtomicU64::new(0) }
    }

    /// A file is there.
    pub(super) fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, SeqCst);
    }

    /// A file is gone.
    pub(super) fn free(&self, bytes: u64) {
        self.used.fetch_sub(bytes, SeqCst);
    }

    /// Nothing yet, for a file on its way.
    pub(super) fn begin(self: &Arc<Self>) -> Taken {
        Taken { room: Arc::clone(self), bytes: 0 }
    }

    /// The batch that is worked on has written so much; whether that is too much.
    pub(super) fn grows(&self, bytes: u64) -> bool {
        self.growing.store(bytes, SeqCst);
        self.used.load(SeqCst) + bytes > self.most
    }
}

impl Taken {
    /// Takes so much more; whether there was room.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let beside = self.room.growing.load(SeqCst);
        let fits = |used: u64| (used + beside + bytes <= self.room.most).then_some(used + bytes);
        let taken = self.room.used.fetch_update(SeqCst, SeqCst, fits).is_ok();
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// The file is there.
    pub(super) fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.free(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_unless_it_is_kept() {
        let room = Arc::new(Room::new(10));
        let mut one = room.begin();
        assert!(one.take(6) && !one.take(5) && one.take(1));
        assert!(!room.begin().take(4));
        one.keep();
        {
            assert!(room.begin().take(3));
        }
        assert!(!room.grows(3) && room.grows(4));
        assert!(!room.begin().take(1), "what a batch writes is in the way");
        room.grows(0);
        room.free(7);
        assert!(room.begin().take(10));
    }
}
