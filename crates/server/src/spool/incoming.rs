//! A file on its way to the disk.

use std::io::{self, ErrorKind};
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
    refused: Option<io::Error>,
}

impl Incoming {
    pub(super) fn create(spool: &Spool, id: &str) -> io::Result<Incoming> {
        let file = tokio::fs::File::from_std(spool.create(id)?);
        Ok(Incoming { file, unkept: Unkept(Some(spool.path(id))), refused: None })
    }

    pub(super) async fn write(&mut self, bytes: &[u8], taken: &mut Taken) {
        if self.refused.is_none() && !taken.take(bytes.len() as u64) {
            self.refused = Some(ErrorKind::StorageFull.into());
        }
        if self.refused.is_none() {
            self.refused = self.file.write_all(bytes).await.err();
        }
    }

    /// All of it is on the disk, to be kept.
    pub(super) async fn end(mut self) -> io::Result<Unkept> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        self.file.flush().await?;
        self.file.sync_all().await?;
        Ok(self.unkept)
    }
}
