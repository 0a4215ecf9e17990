//! How a batch ends on the disk. Its answers are described, then it says what became of it, and only then what its job wrote
//! down about itself goes: a server that is killed in between leaves a batch that the next one finds answered, and ends.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::json;

use super::batch::Batch;
use super::failed::Failed;
use super::store::Spool;

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

    /// Ends a batch that cannot be gone on with. What was answered is for its client; if the disk has no room to say so, what
    /// nobody would ever find makes room.
    pub(super) fn fail(&self, batch: &Batch, failed: &Failed) -> io::Result<()> {
        self.say_failed(batch.id(), failed);
        // What an earlier server answered is in the files alone.
        let counts = self.counts(batch).ok().filter(|[_, completed, failed]| completed + failed > 0);
        let ends = |batch: &mut Batch| batch.fail(&failed.told(), self.now());
        let counted = |batch: &mut Batch| {
            counts.into_iter().for_each(|counts| batch.counted(counts));
            ends(batch);
        };
        self.close(batch.id(), counted).or_else(|_| {
            batch.writes(self).iter().for_each(|file| remove(self.path(&file.id)));
            remove(self.state(batch));
            self.update(batch.id(), ends).map(drop)
        })
    }

    /// What the job of a batch writes down about itself.
    fn state(&self, batch: &Batch) -> PathBuf {
        self.path(&batch.answers).with_extension("state")
    }
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
    fn a_batch_that_fails_without_room_leaves_no_description_without_its_file() {
        let opened = Opened::new(ANSWERS.len() as u64);
        let batch = begun(&opened);
        let spool = opened.spool();
        fs::write(spool.path(&batch.errors), ANSWERS).unwrap();
        block(spool.path(&batch.errors));
        spool.fail(&batch, &Failed::Told(vec![])).unwrap();
        assert_eq!(spool.batch(batch.id()).unwrap().status(), "failed");
        assert_eq!(spool.files().unwrap(), Vec::<Value>::new());
        assert!(!spool.path(&batch.answers).exists());
        assert!(spool.room.begin().take(ANSWERS.len() as u64), "there is room again");
    }
}
