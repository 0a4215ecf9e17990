//! What nobody waits for any more: batches that took too long, what ended long ago, old files.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use engine::job::Input;
use model::api::ANSWER_ID;
use serde_json::{Value, json};

use super::batch::Batch;
use super::failed::Failed;
use super::lines::{self, Names, Unread};
use super::store::Spool;
use super::whole::naming;

/// Seconds between two looks at all files.
const FILES_EVERY_S: u64 = 60;

impl Spool {
    /// Ends batches that have taken as long as they may, but for the one that is `busy`, and removes what is old. For the
    /// one that works on batches: nobody else writes their answers.
    ///
    /// # Errors
    /// The first that the system refused; all else is done.
    pub(super) fn sweep(&self, busy: Option<&str>) -> io::Result<()> {
        let now = self.now();
        let overdue = self.overdue(now).into_iter().filter(|batch| Some(batch.id()) != busy);
        let expired: Vec<_> = overdue.map(|batch| self.expire(&batch)).collect();
        let cancelled: Vec<_> = self.cancelling(busy).iter().map(|id| self.cancel(id)).collect();
        let forgotten = self.forget_old(now);
        let deleted = if self.files_are_due(now) { self.delete_old(now) } else { Ok(()) };
        expired.into_iter().chain(cancelled).chain([forgotten, deleted]).collect()
    }

    /// Ends a batch that nobody works on: another server may have.
    fn cancel(&self, id: &str) -> io::Result<()> {
        let Some(batch) = self.batch(id) else { return Ok(()) };
        let counts = self.counts(&batch)?;
        let now = self.now();
        self.close(id, |batch| {
            batch.counted(counts);
            batch.advance("cancelled", now);
        })
    }

    /// Batches that another server had begun with have the counts that it told, before anybody goes on with them. Of one that cannot
    /// be read whoever goes on with it says why.
    pub(super) fn recount(&self) {
        for batch in self.begun() {
            if let Ok(counts) = self.counts(&batch) {
                self.tell(batch.id(), |batch| batch.counted(counts));
            }
        }
    }

    /// How many lines a batch has that nobody works on, how many of them have an answer, and how many an error.
    pub(super) fn counts(&self, batch: &Batch) -> io::Result<[usize; 3]> {
        let (completed, failed, _) = self.answered(batch)?;
        // If it cannot be read any more, there are at least the lines that were answered.
        let total = lines::read(&self.path(batch.input())).map_or(completed + failed, |input| input.len());
        Ok([total, completed, failed])
    }

    /// How many lines of a batch that nobody works on have an answer, and how many an error; their ids.
    fn answered(&self, batch: &Batch) -> io::Result<(usize, usize, Names)> {
        let mut names = Names::default();
        let mut count = |path: PathBuf| whole_lines(&path, &mut names).map_err(naming(&path));
        let (completed, failed) = (count(self.path(&batch.answers))?, count(self.path(&batch.errors))?);
        Ok((completed, failed, names))
    }

    fn files_are_due(&self, now: u64) -> bool {
        let mut swept = self.swept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let due = now >= *swept + FILES_EVERY_S;
        *swept = if due { now } else { *swept };
        due
    }

    /// One that cannot be deleted keeps no other.
    fn delete_old(&self, now: u64) -> io::Result<()> {
        let old = |file: &Value| file["expires_at"].as_u64().is_some_and(|at| at <= now);
        let mut deleted = Ok(());
        for file in self.files()?.into_iter().filter(old) {
            let id = file["id"].as_str().unwrap_or_default();
            if !self.is_in_use(id) {
                deleted = deleted.and(self.delete(id));
            }
        }
        deleted
    }

    /// Ends a batch that took too long: what was answered stays, every other line is an error, if there is room for that. One
    /// that has more lines than any batch was never begun, and is told that.
    pub(super) fn expire(&self, batch: &Batch) -> io::Result<()> {
        let id = batch.id();
        let path = self.path(batch.input());
        let input = match lines::read(&path) {
            Ok(input) => input,
            Err(Unread::File(error)) => return Err(naming(&path)(error)),
            Err(Unread::TooMany(lines)) => {
                return self.fail(batch, &Failed::Told(vec![Unread::too_many(lines)]));
            }
        };
        let (completed, earlier, answered) = self.answered(batch)?;
        let (mut left, mut bytes) = (vec![], 0);
        for at in 0..input.len() {
            if !answered.contains(&input.id(at)) {
                left.push(at);
                bytes += expired(&input, at, &self.most.name(&input, at)?).len();
            }
        }
        let mut room = self.room.begin();
        if !room.take(bytes as u64) {
            drop(room);
            return self.fail(batch, &Failed::no_room(&self.path(&batch.errors)));
        }
        // Names are read again: together they may be as long as the file.
        let told = left.iter().map(|&at| Ok(expired(&input, at, &self.most.name(&input, at)?)));
        let errors = self.path(&batch.errors);
        let failed = earlier + tell(&errors, told).map_err(naming(&errors))?;
        // They are counted anew as a file of the batch.
        drop(room);
        let now = self.now();
        self.close(id, |batch| {
            batch.counted([input.len(), completed, failed]);
            batch.advance("expired", now);
        })
    }
}

/// The lines of a file that may not be there, by their ids; a torn last one, of a server that was killed, is cut off.
fn whole_lines(path: &Path, names: &mut Names) -> io::Result<usize> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        file => file?,
    };
    let (mut reader, mut line, mut lines, mut whole) = (BufReader::new(&file), Vec::new(), 0, 0);
    while reader.read_until(b'\n', &mut line)? > 0 && line.last() == Some(&b'\n') {
        let answer: Value = serde_json::from_slice(&line).unwrap_or_default();
        let id = answer["id"].as_str().unwrap_or_default();
        names.insert(id.strip_prefix(ANSWER_ID).unwrap_or(id));
        (lines, whole) = (lines + 1, whole + line.len() as u64);
        line.clear();
    }
    file.set_len(whole)?;
    Ok(lines)
}

/// What is told of a line that nobody came to.
fn expired(input: &Input, at: usize, name: &str) -> String {
    let error = json!({
        "code": "batch_expired",
        "message": "This request could not be executed before the completion window expired.",
    });
    let id = format!("{ANSWER_ID}{}", input.id(at));
    let line = json!({"id": id, "custom_id": name, "response": null, "error": error});
    format!("{line}\n")
}

/// Adds these lines; how many they are.
fn tell(path: &Path, lines: impl Iterator<Item = io::Result<String>>) -> io::Result<usize> {
    let file: File = OpenOptions::new().append(true).create(true).open(path)?;
    let mut told = 0;
    let mut writer = BufWriter::new(&file);
    for line in lines {
        writer.write_all(line?.as_bytes())?;
        told += 1;
    }
    writer.flush()?;
    drop(writer);
    file.sync_all()?;
    Ok(told)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::super::store::tests::{Opened, batch};
    use super::{ANSWER_ID, Input};

    fn answer(input: &Input, at: usize) -> String {
        format!("{{\"id\":\"{ANSWER_ID}{}\"}}\n", input.id(at))
    }

    /// A batch of three lines, one of which is answered and another half.
    fn torn(opened: &Opened, created: u64) -> super::Batch {
        let batch = batch(1, created);
        let lines: String = (0..3)
            .map(|n| json!({"custom_id": format!("line {n}"), "x": "y".repeat(100)}).to_string() + "\n")
            .collect();
        fs::write(opened.spool().path(batch.input()), &lines).unwrap();
        let whole = answer(&Input::new(lines.into()), 1);
        fs::write(opened.spool().path(&batch.answers), format!("{whole}{}", &whole[..9])).unwrap();
        opened.spool().put(batch.clone()).unwrap().unwrap();
        batch
    }

    #[test]
    fn a_batch_of_another_server_is_cancelled_with_what_is_whole_and_counted() {
        let opened = Opened::new(1000);
        let spool = opened.spool();
        let batch = torn(&opened, spool.now());
        spool.update(batch.id(), |batch| batch.advance("cancelling", spool.now())).unwrap();
        spool.sweep(Some(batch.id())).unwrap();
        assert_eq!(spool.batch(batch.id()).unwrap().status(), "cancelling", "somebody works on it");
        spool.sweep(None).unwrap();
        let ended = spool.batch(batch.id()).unwrap().shown;
        assert_eq!(
            (&ended["status"], &ended["output_file_id"]),
            (&json!("cancelled"), &json!(batch.answers))
        );
        assert_eq!(ended["request_counts"], json!({"total": 3, "completed": 1, "failed": 0}));
        let input = Input::open(&spool.path(batch.input())).unwrap();
        assert_eq!(fs::read_to_string(spool.path(&batch.answers)).unwrap(), answer(&input, 1));
    }

    #[test]
    fn a_batch_that_another_server_began_with_keeps_its_counts() {
        let mut opened = Opened::new(10_000);
        let batch = torn(&opened, opened.spool().now());
        opened.spool().describe(batch.input(), "lines", "batch", None).unwrap();
        let counts = |opened: &mut Opened| {
            opened.again();
            opened.spool().batch(batch.id()).unwrap().shown["request_counts"].clone()
        };
        assert_eq!(counts(&mut opened)["total"], 0, "nobody began with it");
        let now = opened.spool().now();
        opened.spool().update(batch.id(), |batch| batch.advance("in_progress", now)).unwrap();
        assert_eq!(counts(&mut opened), json!({"total": 3, "completed": 1, "failed": 0}));
    }

    #[test]
    fn lines_that_expire_are_told_where_there_is_room_for_that() {
        for (bytes, status, errors) in [(600, "expired", 2), (150, "failed", 0)] {
            let opened = Opened::new(bytes);
            let (spool, batch) = (opened.spool(), torn(&opened, 1000));
            spool.sweep(None).unwrap();
            let ended = spool.batch(batch.id()).unwrap();
            assert_eq!(ended.status(), status, "{}", ended.shown);
            let told = fs::read_to_string(spool.path(&batch.errors)).unwrap_or_default();
            assert_eq!(told.lines().count(), errors, "{told}");
            let is_id = |line: &str| line.contains(&format!("\"id\":\"{ANSWER_ID}"));
            assert!(told.lines().all(is_id), "as of any answer: {told}");
            let code = &ended.shown["errors"]["data"][0]["code"];
            assert_eq!(code == "spool_full", status == "failed", "{code}");
            let written = [&batch.answers, &batch.errors]
                .map(|file| fs::metadata(spool.path(file)).map_or(0, |it| it.len()));
            assert!(
                spool.room.begin().take(bytes - written.iter().sum::<u64>()),
                "{written:?} and no more is taken"
            );
        }
    }

    #[test]
    fn a_batch_that_expires_unread_tells_each_of_its_lines_unless_they_are_too_many() {
        let opened = Opened::new(1 << 30);
        let spool = opened.spool();
        for (n, lines) in [(1, 50_000), (2, 50_001)] {
            let batch = batch(n, 1000);
            fs::write(spool.path(batch.input()), "\n1".repeat(lines)).unwrap();
            spool.put(batch).unwrap().unwrap();
        }
        spool.sweep(None).unwrap();
        let ended = [1, 2].map(|n| spool.batch(&format!("batch_{n}")).unwrap());
        assert_eq!(ended[0].shown["request_counts"]["failed"], 50_000, "{}", ended[0].shown);
        assert_eq!((ended[0].status(), ended[1].status()), ("expired", "failed"));
        assert_eq!(ended[1].shown["errors"]["data"][0]["code"], "too_many_requests");
        assert!(!spool.path(&ended[1].errors).exists());
    }
}
