//! The spool directory, this server's alone.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use model::api::ApiError;
use serde_json::Value;
use tokio::sync::Notify;

use super::batch::Batch;
use super::file::describe;
use super::gone::Gone;
use super::kind::Kind;
use super::lines::Most;
use super::room::Room;
use super::whole::{found, named, naming, private, read_json, write_whole};
use crate::clock::Clock;
use crate::config::{Config, SpoolLimits};
use crate::log::Log;
use crate::refusal;

/// Files and batches.
pub(crate) struct Spool {
    root: PathBuf,
    /// Locked while the server lives.
    _lock: File,
    pub(super) limits: SpoolLimits,
    /// What a line of a batch may be.
    pub(super) most: Most,
    clock: Clock,
    pub(super) log: Log,
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
        lock.try_lock().map_err(|why| match io::Error::from(why) {
            error if error.kind() == ErrorKind::WouldBlock => io::Error::other("another server uses it"),
            error => error,
        })?;
        let spool = Spool {
            root: root.to_owned(),
            _lock: lock,
            limits: config.spool,
            most: Most::of(config),
            clock: config.clock.clone(),
            log: config.log.clone(),
            room: Arc::new(Room::new(config.spool.bytes)),
            swept: Mutex::default(),
            gone: Mutex::default(),
            batches: Mutex::default(),
            news: Notify::new(),
        };
        // What cannot be read may be there all the same: nothing is taken for nobody's until all is known.
        for path in spool.described(Kind::Batch)? {
            let Some(value) = read_json(&path)? else { continue };
            let batch =
                Batch::from_json(&value).ok_or_else(|| named(&path)(ErrorKind::InvalidData.into()))?;
            spool.lock().insert(batch.id().to_string(), batch);
        }
        spool.tidy()?;
        spool.recount();
        Ok(spool)
    }

    /// What another server left half done is removed; what stays takes room.
    fn tidy(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("files"))? {
            let path = entry?.path();
            let id = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if !Kind::File.owns(id) {
                continue;
            }
            let part = path.extension().and_then(|part| part.to_str());
            let stays = match part {
                // They are counted and described once all of them are there; until then their job goes by its state.
                None | Some("state") if self.is_written(id) => true,
                None | Some("json") if !self.is_written(id) => {
                    read_json(&self.description(id))?.is_some() && self.path(id).exists()
                }
                _ => false,
            };
            if !stays {
                fs::remove_file(&path)?;
            } else if part.is_none() && !self.is_written(id) {
                self.room.add(fs::metadata(&path)?.len());
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
        let path = self.path(id);
        private(&path).map_err(naming(&path))
    }

    /// The bytes are there: from now on clients see the file. `keep_s`: how long, if not as long as it can be.
    pub(super) fn describe(
        &self,
        id: &str,
        name: &str,
        purpose: &str,
        keep_s: Option<u64>,
    ) -> io::Result<Value> {
        let path = self.path(id);
        let bytes = fs::metadata(&path).map_err(naming(&path))?.len();
        let now = self.now();
        let most = self.limits.keep.as_secs();
        let expires_at = now + keep_s.unwrap_or(most).min(most);
        let description = describe(id, (name, purpose), bytes, now, expires_at);
        write_whole(&self.description(id), &description)?;
        Ok(description)
    }

    /// Where it is written what a file is.
    pub(super) fn description(&self, id: &str) -> PathBuf {
        self.path(id).with_extension("json")
    }

    /// What is known of a file; nothing if there is none.
    pub(super) fn file(&self, id: &str) -> Option<Value> {
        if !Kind::File.owns(id) {
            return None;
        }
        read_json(&self.description(id)).ok().flatten()
    }

    /// All files, newest first.
    pub(super) fn files(&self) -> io::Result<Vec<Value>> {
        let described = self.described(Kind::File)?;
        // One that cannot be read keeps no other; the next start says so.
        let mut files: Vec<Value> = described.iter().filter_map(|path| read_json(path).ok()?).collect();
        newest_first(&mut files);
        Ok(files)
    }

    /// Finds room for another file.
    pub(super) fn find_room(&self) -> Result<(), ApiError> {
        let folder = self.root.join("files");
        let there = fs::read_dir(&folder).map_err(|why| self.refusal(naming(&folder)(why)))?.count();
        if there < 2 * self.limits.files { Ok(()) } else { Err(refusal::spool_full()) }
    }

    /// Removes a file. What it is goes first: bytes that nothing describes are nobody's. Bytes that somebody else removed
    /// are none.
    ///
    /// # Errors
    /// The system's; that there is no such file, where somebody else deleted it.
    pub(super) fn delete(&self, id: &str) -> io::Result<()> {
        let created = self.file(id).and_then(|file| file["created_at"].as_u64()).unwrap_or_default();
        let (path, description) = (self.path(id), self.description(id));
        let bytes = found(fs::metadata(&path)).map_err(naming(&path))?.map_or(0, |data| data.len());
        fs::remove_file(&description).map_err(naming(&description))?;
        self.gone.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).note(id, created);
        found(fs::remove_file(&path)).map_err(naming(&path))?;
        self.room.free(bytes);
        Ok(())
    }

    /// Whether a batch that has not ended reads or writes this file.
    pub(super) fn is_in_use(&self, id: &str) -> bool {
        self.lock().values().any(|batch| !batch.has_ended() && (batch.input() == id || batch.writes_to(id)))
    }

    /// Whether a batch that has not ended writes this file.
    fn is_written(&self, id: &str) -> bool {
        self.lock().values().any(|batch| !batch.has_ended() && batch.writes_to(id))
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
        let record = self.record(id);
        found(fs::remove_file(&record)).map_err(naming(&record))?;
        batches.remove(id);
        Ok(())
    }

    /// Forgets batches that ended long ago. One that cannot be forgotten keeps no other.
    pub(super) fn forget_old(&self, now: u64) -> io::Result<()> {
        let mut batches = self.lock();
        let keep = self.limits.keep.as_secs();
        let old = |batch: &Batch| batch.has_ended() && batch.ended_at() + keep <= now;
        let old: Vec<String> =
            batches.iter().filter(|(_, batch)| old(batch)).map(|(id, _)| id.clone()).collect();
        let forgotten: Vec<_> = old.iter().map(|id| self.forget(&mut batches, id)).collect();
        forgotten.into_iter().collect()
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

    /// Batches that somebody has begun with, and not ended.
    pub(super) fn begun(&self) -> Vec<Batch> {
        let is_begun = |batch: &&Batch| !batch.has_ended() && batch.status() != "validating";
        self.lock().values().filter(is_begun).cloned().collect()
    }

    fn record(&self, id: &str) -> PathBuf {
        assert!(Kind::Batch.owns(id), "only ids become paths");
        self.root.join("batches").join(format!("{id}.json"))
    }

    fn write(&self, batches: &mut BTreeMap<String, Batch>, batch: Batch) -> io::Result<()> {
        let id = batch.id().to_string();
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

    /// Where things of a kind are described; what lies beside them under other names is somebody else's.
    fn described(&self, kind: Kind) -> io::Result<Vec<PathBuf>> {
        let folder = self.root.join(kind.folder());
        let paths = fs::read_dir(&folder).map_err(naming(&folder))?.map(|entry| Ok(entry?.path()));
        let is_ours = |path: &PathBuf| {
            let id = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            kind.owns(id) && path.extension().is_some_and(|extension| extension == "json")
        };
        paths.filter(|path| path.as_ref().map_or(true, is_ours)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Batch>> {
        self.batches.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn newest_first(all: &mut [Value]) {
    all.sort_by_key(|entry| std::cmp::Reverse(super::place_of(entry)));
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    /// A spool directory of a test's own.
    pub(in super::super) struct Opened {
        folder: TempDir,
        config: Config,
        spool: Option<Spool>,
    }

    impl Opened {
        /// With room for so many bytes.
        pub(in super::super) fn new(bytes: u64) -> Opened {
            let folder = tempfile::tempdir().unwrap();
            let spool = SpoolLimits { bytes, ..SpoolLimits::default() };
            let config =
                Config { spool, clock: Clock::new(|| 10_000_000), ..Config::new(([127, 0, 0, 1], 0).into()) };
            let mut opened = Opened { folder, config, spool: None };
            opened.again();
            opened
        }

        /// By the next server.
        pub(in super::super) fn again(&mut self) {
            self.try_again().unwrap();
        }

        fn try_again(&mut self) -> io::Result<()> {
            self.spool = None;
            self.spool = Some(Spool::open(self.folder.path(), &self.config)?);
            Ok(())
        }

        pub(in super::super) fn spool(&self) -> &Spool {
            self.spool.as_ref().unwrap()
        }

        pub(in super::super) fn path(&self) -> &Path {
            self.folder.path()
        }
    }

    /// The batch of this number.
    pub(in super::super) fn batch(n: u64, created: u64) -> Batch {
        let request = json!({"input_file_id": format!("file-{n}"), "endpoint": "/v1/completions", "completion_window": "24h"});
        let ids = [format!("batch_{n}"), format!("file-a{n}"), format!("file-e{n}")];
        Batch::new(&request, ids, (created, 100_000)).unwrap()
    }

    /// A file of so many bytes, made at this time, and counted.
    fn put(spool: &Spool, id: &str, bytes: usize, created: u64) {
        fs::write(spool.path(id), "x".repeat(bytes)).unwrap();
        let description = describe(id, ("x", "batch"), bytes as u64, created, created);
        write_whole(&spool.description(id), &description).unwrap();
        spool.room.add(bytes as u64);
    }

    #[test]
    fn what_an_operator_removed_is_deleted_all_the_same() {
        let mut opened = Opened::new(1000);
        for id in ["file-1", "file-2"] {
            put(opened.spool(), id, 0, 1);
            fs::remove_file(opened.spool().path(id)).unwrap();
        }
        opened.spool().delete("file-1").unwrap();
        assert_eq!(opened.spool().delete("file-1").unwrap_err().kind(), ErrorKind::NotFound);
        opened.again();
        assert_eq!(opened.spool().files().unwrap(), Vec::<Value>::new(), "nobody can read the other one");
    }

    /// Nothing that it speaks of is nobody's for that.
    #[test]
    fn what_cannot_be_read_ends_the_start_and_everything_stays() {
        let mut opened = Opened::new(1000);
        put(opened.spool(), "file-1", 10, 1);
        put(opened.spool(), "file-2", 10, 1);
        opened.spool().put(batch(1, 1)).unwrap().unwrap();
        let answers = opened.spool().path(&batch(1, 1).answers);
        fs::write(&answers, "an answer\n").unwrap();
        let (record, description) = (opened.spool().record("batch_1"), opened.spool().description("file-2"));
        let damage = |path: &Path, says: Option<&str>| match says {
            Some(text) => fs::write(path, text),
            None => fs::remove_file(path).and_then(|()| fs::create_dir(path)),
        };
        for (path, says) in [
            (&record, None),
            (&record, Some("{")),
            (&record, Some("[]")),
            (&description, None),
            (&description, Some("")),
        ] {
            let kept = fs::read(path).unwrap();
            damage(path, says).unwrap();
            let why = opened.try_again().unwrap_err().to_string();
            assert!(why.contains(path.to_str().unwrap()), "{why}");
            assert!(answers.exists() && opened.path().join("files/file-2").exists());
            let _ = fs::remove_dir(path);
            fs::write(path, kept).unwrap();
        }
        // What is somebody else's stops nobody, and while a server runs one file keeps no other from being listed.
        fs::write(opened.path().join("batches/._batch_1.json"), "").unwrap();
        opened.again();
        assert_eq!(opened.spool().files().unwrap().len(), 2);
        fs::write(description, "").unwrap();
        assert_eq!(opened.spool().files().unwrap().len(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_deleted_keeps_no_other() {
        let opened = Opened::new(1000);
        let spool = opened.spool();
        for (id, created) in [("file-1", 1), ("file-2", 2), ("file-3", 3)] {
            put(spool, id, 10, created);
        }
        // A folder is no file, whoever asks for its end.
        fs::remove_file(spool.path("file-2")).unwrap();
        fs::create_dir(spool.path("file-2")).unwrap();
        assert!(spool.sweep(None).is_err());
        assert!(!spool.path("file-1").exists() && !spool.path("file-3").exists());
    }

    #[test]
    fn a_batch_whose_record_is_gone_is_forgotten_like_others() {
        let opened = Opened::new(1000);
        let spool = opened.spool();
        for n in 1..4 {
            spool.put(batch(n, 1)).unwrap().unwrap();
            spool.update(&format!("batch_{n}"), |batch| batch.advance("completed", n)).unwrap();
        }
        fs::remove_file(spool.record("batch_1")).unwrap();
        // A folder is no file, whoever asks for its end.
        fs::remove_file(spool.record("batch_2")).unwrap();
        fs::create_dir(spool.record("batch_2")).unwrap();
        assert!(spool.forget_old(u64::MAX / 2).is_err());
        let left: Vec<Value> = spool.batches().into_iter().map(|batch| batch["id"].clone()).collect();
        assert_eq!(left, ["batch_2"]);
    }

    #[test]
    fn answers_of_a_batch_that_goes_on_are_not_counted_as_files() {
        let mut opened = Opened::new(30);
        put(opened.spool(), "file-1", 10, 1);
        let batch = batch(1, 1000);
        put(opened.spool(), &batch.answers, 20, 1);
        opened.spool().put(batch).unwrap().unwrap();
        opened.again();
        assert!(opened.spool().room.begin().take(20) && !opened.spool().room.begin().take(21));
        assert_eq!(
            opened.spool().files().unwrap().len(),
            1,
            "what it reads is a file, what it writes is none yet"
        );
    }
}
