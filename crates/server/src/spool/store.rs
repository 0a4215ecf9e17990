//! The spool directory, this server's alone.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;
use tokio::sync::Notify;

use super::batch::Batch;
use super::file::describe;
use super::gone::Gone;
use super::room::Room;
use crate::clock::Clock;
use crate::config::{Config, SpoolLimits};

/// Files and batches.
pub(crate) struct Spool {
    root: PathBuf,
    /// Locked while the server lives.
    _lock: File,
    pub(super) limits: SpoolLimits,
    clock: Clock,
    /// What all files take.
    pub(super) room: Arc<Room>,
    /// When files were last looked at for those that expire.
    pub(super) swept: Mutex<u64>,
    /// Of pages that begin after something that is deleted by now.
    pub(super) gone: Mutex<Gone>,
    batches: Mutex<BTreeMap<String, Batch>>,
    /// A batch is there to be worked on.
    pub(super) news: Notify,
}

/// As many batches wait as may.
#[derive(Debug)]
pub(super) struct TooMany;

/// What ids begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Batch,
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Kind::File => "file-",
            Kind::Batch => "batch_",
        }
    }

    /// A new id, of a number that no other has.
    pub(super) fn id(self, number: &str) -> String {
        format!("{}{number}", self.prefix())
    }

    /// Whether this may be an id that was made here: nothing else becomes a path.
    pub(super) fn owns(self, id: &str) -> bool {
        let digits = id.strip_prefix(self.prefix()).unwrap_or_default();
        (1..=40).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

impl Spool {
    /// Takes the directory, and finds the batches that another server left.
    ///
    /// # Errors
    /// The system's, or that another server has it.
    pub(crate) fn open(root: &Path, config: &Config) -> io::Result<Spool> {
        let folder = |path: PathBuf| DirBuilder::new().recursive(true).mode(0o700).create(path);
        folder(root.join("files"))?;
        folder(root.join("batches"))?;
        let lock = private(&root.join("lock"))?;
        lock.try_lock().map_err(|_| io::Error::other("another server uses it"))?;
        let spool = Spool {
            root: root.to_owned(),
            _lock: lock,
            limits: config.spool,
            clock: config.clock.clone(),
            room: Arc::new(Room::new(config.spool.bytes)),
            swept: Mutex::default(),
            gone: Mutex::default(),
            batches: Mutex::default(),
            news: Notify::new(),
        };
        for value in spool.described("batches")? {
            if let Some(batch) = Batch::from_json(&value) {
                let id = batch.shown["id"].as_str().unwrap_or_default().to_string();
                spool.lock().insert(id, batch);
            }
        }
        spool.tidy()?;
        Ok(spool)
    }

    /// What another server left half done is removed; what stays takes room.
    fn tidy(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("files"))? {
            let path = entry?.path();
            let id = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let described = self.file(id).is_some();
            // Answers of a batch that goes on are counted with it.
            let answers = self.is_in_use(id);
            if described && path.extension().is_none() {
                self.room.add(fs::metadata(&path)?.len());
            } else if !described && !answers && Kind::File.owns(id) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Seconds since 1970.
    pub(super) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Where the bytes of a file are.
    pub(super) fn path(&self, id: &str) -> PathBuf {
        assert!(Kind::File.owns(id), "only ids become paths");
        self.root.join("files").join(id)
    }

    /// A new file, readable by this user only.
    pub(super) fn create(&self, id: &str) -> io::Result<File> {
        private(&self.path(id))
    }

    /// The bytes are there: from now on clients see the file.
    pub(super) fn describe(&self, id: &str, name: &str, purpose: &str) -> io::Result<Value> {
        let bytes = fs::metadata(self.path(id))?.len();
        let now = self.now();
        let description = describe(id, (name, purpose), bytes, now, now + self.limits.keep.as_secs());
        write_whole(&self.path(id).with_extension("json"), &description)?;
        Ok(description)
    }

    /// What is known of a file; nothing if there is none.
    pub(super) fn file(&self, id: &str) -> Option<Value> {
        if !Kind::File.owns(id) {
            return None;
        }
        read_json(&self.path(id).with_extension("json"))
    }

    /// All files, newest first.
    pub(super) fn files(&self) -> io::Result<Vec<Value>> {
        let mut files = self.described("files")?;
        newest_first(&mut files);
        Ok(files)
    }

    /// Whether there is room for another.
    pub(super) fn has_room(&self) -> io::Result<bool> {
        Ok(fs::read_dir(self.root.join("files"))?.count() < 2 * self.limits.files)
    }

    /// Removes a file. What it is goes first: bytes that nothing describes are nobody's.
    pub(super) fn delete(&self, id: &str) -> io::Result<()> {
        let created = self.file(id).and_then(|file| file["created_at"].as_u64()).unwrap_or_default();
        let bytes = fs::metadata(self.path(id))?.len();
        fs::remove_file(self.path(id).with_extension("json"))?;
        self.gone.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).note(id, created);
        fs::remove_file(self.path(id))?;
        self.room.free(bytes);
        Ok(())
    }

    /// Whether a batch that has not ended reads or writes this file.
    pub(super) fn is_in_use(&self, id: &str) -> bool {
        let uses =
            |batch: &Batch| batch.shown["input_file_id"] == id || batch.answers == id || batch.errors == id;
        self.lock().values().any(|batch| !batch.has_ended() && uses(batch))
    }

    /// A batch.
    pub(super) fn batch(&self, id: &str) -> Option<Batch> {
        self.lock().get(id).cloned()
    }

    /// All batches as clients see them, newest first.
    pub(super) fn batches(&self) -> Vec<Value> {
        let mut all: Vec<Value> = self.lock().values().map(|batch| batch.shown.clone()).collect();
        newest_first(&mut all);
        all
    }

    /// The oldest batch that is still to be worked on.
    pub(super) fn next(&self) -> Option<Batch> {
        let batches = self.lock();
        let waiting = batches.values().filter(|batch| !batch.has_ended());
        waiting
            .min_by_key(|batch| (batch.shown["created_at"].as_u64(), batch.shown["id"].to_string()))
            .cloned()
    }

    /// Takes a new batch, here and on the disk. Where there are as many as may be, the one that ended first is forgotten.
    ///
    /// # Errors
    /// The inner one: none has ended.
    pub(super) fn put(&self, batch: Batch) -> io::Result<Result<(), TooMany>> {
        let mut batches = self.lock();
        while batches.len() >= self.limits.batches {
            let ended = batches.iter().filter(|(_, batch)| batch.has_ended());
            let Some(first) = ended.min_by_key(|(_, batch)| batch.ended_at()).map(|(id, _)| id.clone())
            else {
                return Ok(Err(TooMany));
            };
            self.forget(&mut batches, &first)?;
        }
        self.write(&mut batches, batch).map(Ok)
    }

    /// Nothing is known of a batch any more; its files stay.
    fn forget(&self, batches: &mut BTreeMap<String, Batch>, id: &str) -> io::Result<()> {
        fs::remove_file(self.record(id))?;
        batches.remove(id);
        Ok(())
    }

    /// Forgets batches that ended long ago.
    pub(super) fn forget_old(&self, now: u64) -> io::Result<()> {
        let mut batches = self.lock();
        let keep = self.limits.keep.as_secs();
        let old = |batch: &Batch| batch.has_ended() && batch.ended_at() + keep <= now;
        let old: Vec<String> =
            batches.iter().filter(|(_, batch)| old(batch)).map(|(id, _)| id.clone()).collect();
        old.iter().try_for_each(|id| self.forget(&mut batches, id))
    }

    /// Ids of those that are to be cancelled, but for the one that is `busy`.
    pub(super) fn cancelling(&self, busy: Option<&str>) -> Vec<String> {
        let batches = self.lock();
        let idle =
            batches.iter().filter(|(id, batch)| busy != Some(id.as_str()) && batch.status() == "cancelling");
        idle.map(|(id, _)| id.clone()).collect()
    }

    /// Batches that have taken as long as they may.
    pub(super) fn overdue(&self, now: u64) -> Vec<Batch> {
        self.lock().values().filter(|batch| batch.is_overdue(now)).cloned().collect()
    }

    fn record(&self, id: &str) -> PathBuf {
        assert!(Kind::Batch.owns(id), "only ids become paths");
        self.root.join("batches").join(format!("{id}.json"))
    }

    fn write(&self, batches: &mut BTreeMap<String, Batch>, batch: Batch) -> io::Result<()> {
        let id = batch.shown["id"].as_str().unwrap_or_default().to_string();
        write_whole(&self.record(&id), &batch.to_json())?;
        batches.insert(id, batch);
        Ok(())
    }

    /// Changes a batch here only; how far it is can be found again.
    pub(super) fn tell(&self, id: &str, change: impl FnOnce(&mut Batch)) {
        if let Some(batch) = self.lock().get_mut(id) {
            change(batch);
        }
    }

    /// Changes a batch that has not ended, here and on the disk; nobody else changes it meanwhile. Gives it as it was then.
    pub(super) fn update(&self, id: &str, change: impl FnOnce(&mut Batch)) -> io::Result<Option<Batch>> {
        let mut batches = self.lock();
        let Some(mut batch) = batches.get(id).filter(|batch| !batch.has_ended()).cloned() else {
            return Ok(None);
        };
        change(&mut batch);
        self.write(&mut batches, batch.clone())?;
        Ok(Some(batch))
    }

    fn described(&self, folder: &str) -> io::Result<Vec<Value>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.root.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                found.extend(read_json(&path));
            }
        }
        Ok(found)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Batch>> {
        self.batches.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn newest_first(all: &mut [Value]) {
    all.sort_by_key(|entry| std::cmp::Reverse(super::place_of(entry)));
}

fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Writes a file so that whoever reads it finds the old or the new one.
fn write_whole(path: &Path, value: &Value) -> io::Result<()> {
    let part = path.with_extension("part");
    let written = private(&part).and_then(|mut file| {
        file.write_all(value.to_string().as_bytes())?;
        file.sync_all()
    });
    if written.is_err() {
        // On a full disk every byte counts; if it was not even begun, there is nothing to remove.
        let _ = fs::remove_file(&part);
    }
    written.and_then(|()| fs::rename(part, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_of_ours_become_paths() {
        for id in ["file-0", "file-0123456789abcdef0"] {
            assert!(Kind::File.owns(id), "{id}");
        }
        for id in [
            "",
            "file-",
            "file-../x",
            "file-0/../1",
            "batch_0",
            "file-0.json",
            "file-%2e",
            "../file-0",
            "file-\0",
        ] {
            assert!(!Kind::File.owns(id), "{id}");
        }
        assert!(Kind::Batch.owns("batch_7f") && !Kind::Batch.owns("file-7f"));
    }
}
