//! How a batch ends on the disk. Its answers are described, then it says what became of it, and only then what its job wrote
//! down about itself goes: a server that is killed in between leaves a batch that the next one finds answered, and ends.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::json;

use super::batch::Batch;
use super::failed::{Failed, refused};
use super::store::Spool;
use super::whole::fill;

/// Bytes that are kept free while a batch is worked on: a block of most file systems each for what its answers are, what its errors
/// are, and what became of it.
const RESERVED: usize = 12 << 10;

/// A file that a batch wrote.
struct Written {
    /// What the batch calls it.
    field: &'static str,
    id: String,
    name: String,
    bytes: u64,
    keep_s: Option<u64>,
}

impl Batch {
    /// The files that it may have written, in whatever state.
    fn writes(&self, spool: &Spool) -> [Written; 2] {
        let written = |field, file: &String, end: &str| {
            let bytes = fs::metadata(spool.path(file)).map_or(0, |found| found.len());
            let name = format!("{}_{end}.jsonl", self.id());
            Written { field, id: file.clone(), name, bytes, keep_s: self.keep_s }
        };
        [written("output_file_id", &self.answers, "output"), written("error_file_id", &self.errors, "error")]
    }
}

impl Spool {
    /// All answers are on the disk: clients see them, and what became of the batch.
    ///
    /// # Errors
    /// The system's. Clients see nothing of it then, and whoever comes next can go on.
    pub(super) fn close(&self, id: &str, end: impl FnOnce(&mut Batch)) -> io::Result<()> {
        let Some(batch) = self.batch(id) else { return Ok(()) };
        remove(self.reserved(&batch));
        let (found, empty): (Vec<_>, Vec<_>) =
            batch.writes(self).into_iter().partition(|file| file.bytes > 0);
        let bytes = found.iter().map(|file| file.bytes).sum();
        self.room.grows(0);
        // Before anybody can see them, and delete them.
        self.room.add(bytes);
        if let Err(error) = self.show(id, &found, end) {
            self.room.free(bytes);
            found.iter().for_each(|file| remove(self.description(&file.id)));
            return Err(error);
        }
        empty.iter().for_each(|file| remove(self.path(&file.id)));
        remove(self.state(&batch));
        Ok(())
    }

    fn show(&self, id: &str, found: &[Written], end: impl FnOnce(&mut Batch)) -> io::Result<()> {
        for file in found {
            self.describe(&file.id, &file.name, "batch_output", file.keep_s)?;
        }
        let shown = |batch: &mut Batch| {
            found.iter().for_each(|file| batch.shown[file.field] = json!(file.id));
            end(batch);
        };
        self.update(id, shown).map(drop)
    }

    /// Ends a batch that cannot be gone on with. What was answered is for its client.
    ///
    /// # Errors
    /// The system's, as for [`close`](Spool::close).
    pub(super) fn fail(&self, batch: &Batch, failed: &Failed) -> io::Result<()> {
        self.say_failed(batch.id(), failed);
        let counts = self.counts(batch).ok();
        self.close(batch.id(), |batch| {
            // What of it was answered, or was by an earlier server, is in the files alone.
            if batch.status() != "validating" {
                counts.into_iter().for_each(|counts| batch.counted(counts));
            }
            batch.fail(&failed.told(), self.now());
        })
    }

    /// What became of a batch was written, or it is known here only: nobody has its answers then before the next server goes on with it.
    pub(super) fn settle(&self, id: &str, written: io::Result<()>) {
        let Err(error) = written else { return };
        self.say(&error);
        self.batch(id).iter().for_each(|batch| remove(self.reserved(batch)));
        self.tell(id, |batch| {
            batch.withhold();
            batch.fail(&[refused(&error)], self.now());
        });
    }

    /// Keeps room to say what becomes of a batch, whatever fills the disk meanwhile.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn reserve(&self, batch: &Batch) -> io::Result<()> {
        fill(&self.reserved(batch), &incompressible(RESERVED))
    }

    fn reserved(&self, batch: &Batch) -> PathBuf {
        self.path(&batch.answers).with_extension("room")
    }

    /// What the job of a batch writes down about itself.
    fn state(&self, batch: &Batch) -> PathBuf {
        self.path(&batch.answers).with_extension("state")
    }
}

/// So many bytes of which no file system makes fewer.
fn incompressible(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| byte()).collect()
}

/// It may not be there; if it cannot be removed, the next server does.
fn remove(path: PathBuf) {
    let _ = fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::store::tests::{Opened, batch};
    use super::*;

    const ANSWERS: &str = "an answer\n";

    /// A batch under way, with some answers.
    fn begun(opened: &Opened) -> Batch {
        let batch = batch(1, 1000);
        opened.spool().put(batch.clone()).unwrap().unwrap();
        for file in [opened.spool().path(&batch.answers), opened.spool().state(&batch)] {
            fs::write(file, ANSWERS).unwrap();
        }
        batch
    }

    /// Something that makes a file unwritable, whoever asks.
    fn block(path: PathBuf) -> PathBuf {
        let part = path.with_extension("part");
        fs::create_dir(&part).unwrap();
        part
    }

    #[test]
    fn a_batch_that_cannot_be_closed_can_be_gone_on_with() {
        let mut opened = Opened::new(2 * ANSWERS.len() as u64);
        let batch = begun(&opened);
        let blocked = block(opened.path().join("batches").join(batch.id()));
        let closed =
            |opened: &Opened| opened.spool().close(batch.id(), |batch| batch.advance("completed", 2000));
        assert!(closed(&opened).is_err());
        let spool = opened.spool();
        assert!(spool.state(&batch).exists() && spool.path(&batch.answers).exists());
        assert!(!spool.description(&batch.answers).exists(), "clients see nothing of it");
        assert!(spool.room.begin().take(2 * ANSWERS.len() as u64), "what is not shown takes no room");
        fs::remove_dir(blocked).unwrap();
        // As a server that was killed later would have left it.
        spool.describe(&batch.answers, "x", "batch_output", None).unwrap();
        opened.again();
        closed(&opened).unwrap();
        let spool = opened.spool();
        assert!(!spool.state(&batch).exists());
        assert_eq!(spool.files().unwrap().len(), 1);
        assert!(spool.room.begin().take(ANSWERS.len() as u64), "it is counted once");
        assert!(!spool.room.begin().take(ANSWERS.len() as u64 + 1), "and it is counted");
    }

    #[test]
    fn what_a_batch_that_ended_left_of_its_job_goes() {
        let mut opened = Opened::new(1000);
        let batch = begun(&opened);
        opened.spool().close(batch.id(), |batch| batch.advance("completed", 2000)).unwrap();
        // As a server that was killed before it removed it would have left it.
        fs::write(opened.spool().state(&batch), "x").unwrap();
        opened.again();
        assert!(!opened.spool().state(&batch).exists());
        assert!(opened.spool().path(&batch.answers).exists());
    }

    #[test]
    fn a_batch_that_cannot_be_failed_keeps_its_answers_for_the_next_server() {
        let mut opened = Opened::new(1000);
        let batch = begun(&opened);
        let spool = opened.spool();
        fs::write(spool.path(&batch.errors), ANSWERS).unwrap();
        spool.update(batch.id(), |batch| batch.advance("in_progress", 2000)).unwrap();
        spool.tell(batch.id(), |batch| batch.counted([2, 1, 1]));
        let blocked = block(spool.path(&batch.errors));
        let failed = Failed::Told(vec![]);
        spool.settle(batch.id(), spool.fail(&batch, &failed));
        let told = spool.batch(batch.id()).unwrap().shown;
        assert_eq!((&told["status"], &told["output_file_id"]), (&json!("failed"), &Value::Null));
        assert_eq!(
            told["request_counts"],
            json!({"total": 2, "completed": 0, "failed": 0}),
            "none can be had"
        );
        assert_eq!(spool.files().unwrap(), Vec::<Value>::new());
        assert!(spool.room.begin().take(1000), "what is not shown takes no room");
        fs::remove_dir(blocked).unwrap();
        opened.again();
        let spool = opened.spool();
        spool.fail(&batch, &failed).unwrap();
        let told = spool.batch(batch.id()).unwrap().shown;
        assert_eq!(
            (&told["output_file_id"], &told["error_file_id"]),
            (&json!(batch.answers), &json!(batch.errors))
        );
        assert_eq!(told["request_counts"], json!({"total": 2, "completed": 1, "failed": 1}));
        assert_eq!(spool.files().unwrap().len(), 2);
    }

    #[test]
    fn room_is_kept_for_the_end_of_a_batch_and_is_there_when_that_is_told() {
        let mut opened = Opened::new(1000);
        let batch = begun(&opened);
        let spool = opened.spool();
        spool.reserve(&batch).unwrap();
        assert_eq!(fs::metadata(spool.reserved(&batch)).unwrap().len(), RESERVED as u64);
        // What its answers are cannot be written: only what went before that is gone.
        let blocked = block(spool.path(&batch.answers));
        assert!(spool.fail(&batch, &Failed::Told(vec![])).is_err());
        assert!(!spool.reserved(&batch).exists() && spool.state(&batch).exists(), "the next server goes on");
        assert_eq!(fs::read_to_string(spool.path(&batch.answers)).unwrap(), ANSWERS);
        fs::remove_dir(blocked).unwrap();
        spool.reserve(&batch).unwrap();
        // As a server that was killed would have left it.
        opened.again();
        assert!(!opened.spool().reserved(&batch).exists() && opened.spool().path(&batch.answers).exists());
    }
}
