//! A file on its way to the disk.

use std::io;
use std::path::PathBuf;

use tokio::io::AsyncWriteExt;

use super::room::Taken;
use super::store::Spool;

/// A file that is gone again unless it is kept: a client that goes away leaves nothing that nobody counts.
pub(super) struct Unkept(Option<PathBuf>);

impl Unkept {
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unkept {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // If it cannot be removed, the next server does.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A new file for so many bytes as come. Once it cannot be written, the rest is read and dropped: a client that still sends
/// would not hear why.
pub(super) struct Incoming {
    file: tokio::fs::File,
    unkept: Unkept,
    /// Whether there was room so far.
    fits: io::Result<bool>,
}

impl Incoming {
    pub(super) fn create(spool: &Spool, id: &str) -> io::Result<Incoming> {
        let file = tokio::fs::File::from_std(spool.create(id)?);
        Ok(Incoming { file, unkept: Unkept(Some(spool.path(id))), fits: Ok(true) })
    }

    pub(super) async fn write(&mut self, bytes: &[u8], taken: &mut Taken) {
        if matches!(self.fits, Ok(true)) {
            let has_room = taken.take(bytes.len() as u64);
            self.fits = if has_room { self.file.write_all(bytes).await.map(|()| true) } else { Ok(false) };
        }
    }

    /// All of it is on the disk, to be kept; nothing where all files may not have so many bytes.
    pub(super) async fn end(mut self) -> io::Result<Option<Unkept>> {
        if !self.fits? {
            return Ok(None);
        }
        self.file.flush().await?;
        self.file.sync_all().await?;
        Ok(Some(self.unkept))
    }
}
