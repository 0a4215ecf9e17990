//! What nobody waits for any more: batches that took too long, what ended long ago, old files.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::Path;

use engine::job::Input;
use serde_json::{Value, json};

use super::batch::Batch;
use super::lines::{self, Names, Unread};
use super::store::Spool;

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

    /// Ends a batch that nobody works on.
    fn cancel(&self, id: &str) -> io::Result<()> {
        let now = self.now();
        self.close(id, |batch| batch.advance("cancelled", now))
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

    /// Ends a batch that took too long: what was answered stays, every other line is an error. One that has more lines than
    /// any batch was never begun, and is told that.
    pub(super) fn expire(&self, batch: &Batch) -> io::Result<()> {
        let id = batch.id();
        let path = self.path(batch.input());
        let input = match lines::read(&path) {
            Ok(input) => input,
            Err(Unread::File(error)) => return Err(error),
            Err(Unread::TooMany(lines)) => return self.fail(batch, &[Unread::too_many(lines)]),
        };
        let mut answered = Names::default();
        let completed = whole_lines(&self.path(&batch.answers), &mut answered)?;
        let earlier = whole_lines(&self.path(&batch.errors), &mut answered)?;
        let left = (0..input.len()).filter(|&at| !answered.contains(&input.line(at).custom_id()));
        let failed = earlier + tell(&self.path(&batch.errors), &input, left)?;
        let now = self.now();
        self.close(id, |batch| {
            batch.counted(input.len(), completed, failed);
            batch.advance("expired", now);
        })
    }
}

/// The lines of a file that may not be there, by their names; a torn last one, of a server that was killed, is cut off.
fn whole_lines(path: &Path, names: &mut Names) -> io::Result<usize> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        file => file?,
    };
    let (mut reader, mut line, mut lines, mut whole) = (BufReader::new(&file), Vec::new(), 0, 0);
    while reader.read_until(b'\n', &mut line)? > 0 && line.last() == Some(&b'\n') {
        let answer: Value = serde_json::from_slice(&line).unwrap_or_default();
        names.insert(answer["custom_id"].as_str().unwrap_or_default());
        (lines, whole) = (lines + 1, whole + line.len() as u64);
        line.clear();
    }
    file.set_len(whole)?;
    Ok(lines)
}

/// Adds an error for each of these lines; how many they are.
fn tell(path: &Path, input: &Input, left: impl Iterator<Item = usize>) -> io::Result<usize> {
    let file: File = OpenOptions::new().append(true).create(true).open(path)?;
    let mut told = 0;
    let mut writer = BufWriter::new(&file);
    for at in left {
        let error = json!({
            "code": "batch_expired",
            "message": "This request could not be executed before the completion window expired.",
        });
        let name = input.line(at).custom_id();
        let line = json!({"id": input.id(at), "custom_id": name, "response": null, "error": error});
        writeln!(writer, "{line}")?;
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

    use super::super::store::tests::{Opened, batch};

    #[test]
    fn a_batch_that_expires_unread_tells_each_of_its_lines_unless_they_are_too_many() {
        let opened = Opened::new(1 << 20);
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
