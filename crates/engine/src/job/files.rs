//! The files of a job: answers, perhaps errors apart from them, and a state file that says whose they are.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::kept::{self, Found};
use super::ledger::{Ledger, alone, empty, folder, is_at, sync_folders, sync_whole};
use super::rewrite::Rewrite;
use super::{Input, JobError, OutputOrder, Record};

/// Where answers go.
#[derive(Clone, Debug)]
pub struct Paths {
    /// All answers, or those that are no errors.
    pub answers: PathBuf,
    /// Errors, if they go elsewhere.
    pub errors: Option<PathBuf>,
}

/// What becomes of an output that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is gone on from, if it is this job's.
    Continue,
    /// It is replaced.
    Replace,
}

/// Which answers of an earlier run are asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// None.
    Nothing,
    /// Those with a status of 500 or more.
    ServerErrors,
}

/// The files, this process's alone while it lives.
pub struct Files {
    paths: Paths,
    state_path: PathBuf,
    /// Locked.
    state: File,
    state_is_new: bool,
    /// Locked as well, until they are written to.
    outputs: Vec<File>,
    /// Those of them that were not there, as they are called where links end.
    new: Vec<PathBuf>,
}

/// What there is to do; nothing is changed yet.
#[derive(Debug)]
pub struct Outlook {
    /// The job, with the time at which it was first begun.
    pub record: Record,
    /// Positions of lines without an answer.
    pub todo: Vec<usize>,
    /// Lines that have been answered.
    pub answered: usize,
    /// Those of them that are errors.
    pub failed: usize,
    begin: Begin,
}

#[derive(Debug)]
enum Begin {
    Fresh,
    /// Whole lines of each file, in bytes and number.
    Grow([(u64, usize); 2]),
    Rewrite([Vec<Found>; 2]),
}

/// Whether a line was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    Error,
}

impl Paths {
    /// The error file's name in the record: that of a neighbour, or a whole path.
    pub fn error_name(&self) -> Option<String> {
        let errors = self.errors.as_ref()?;
        let name = match errors.file_name() {
            Some(name) if folder(errors) == folder(&self.answers) => PathBuf::from(name),
            _ => std::path::absolute(errors).unwrap_or_else(|_| errors.clone()),
        };
        Some(name.display().to_string())
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.answers), self.errors.as_ref()].into_iter().flatten().map(PathBuf::as_path)
    }
}

/// Where the state of a job with these answers is.
pub(super) fn state_path(answers: &Path) -> PathBuf {
    let mut name = answers.as_os_str().to_owned();
    name.push(".state");
    name.into()
}

impl Files {
    /// Takes the files, and finds them writable; nothing in them changes, and what was not there goes again unless a job begins.
    ///
    /// # Errors
    /// [`JobError::Busy`], [`JobError::File`].
    pub fn open(paths: Paths) -> Result<Files, JobError> {
        let state_path = state_path(&paths.answers);
        let (state, state_is_new) = loop {
            let is_new = !state_path.exists();
            let state =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&state_path);
            let state = state.map_err(JobError::file("write", &state_path))?;
            match state.try_lock() {
                // Unless whoever had it removed it in between: another would make one anew.
                Ok(()) if is_at(&state, &state_path).map_err(JobError::file("find", &state_path))? => {
                    break (state, is_new);
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(JobError::Busy(paths.answers)),
                Err(TryLockError::Error(error)) => return Err(JobError::file("lock", &state_path)(error)),
            }
        };
        let (outputs, new) = (Vec::new(), Vec::new());
        let mut files = Files { paths, state_path, state, state_is_new, outputs, new };
        for path in files.paths.each().map(Path::to_owned).collect::<Vec<_>>() {
            let is_new = !path.exists();
            files.outputs.push(alone(&path)?);
            if is_new {
                // Behind a link the file that was made, not the link.
                files.new.push(fs::canonicalize(&path).map_err(JobError::file("look at", &path))?);
            }
        }
        Ok(files)
    }

    /// Refuses an output that holds something and says not whose it is: what can be told before the job is known.
    ///
    /// # Errors
    /// [`JobError::Exists`], [`JobError::File`].
    pub fn refuse_unknown(&mut self, existing: Existing) -> Result<(), JobError> {
        match (existing, self.held()) {
            (Existing::Continue, Some(path)) if self.state()?.is_none() => Err(JobError::Exists(path)),
            _ => Ok(()),
        }
    }

    /// Compares what is there with the job that `record` describes.
    ///
    /// # Errors
    /// [`JobError::Exists`], [`JobError::Other`], [`JobError::Foreign`], [`JobError::File`].
    pub fn outlook(
        &mut self,
        mut record: Record,
        input: &Input,
        existing: Existing,
        retry: Retry,
    ) -> Result<Outlook, JobError> {
        let earlier = self.state()?;
        let same = earlier.as_ref().is_some_and(|earlier| earlier.differences(&record).is_empty());
        if existing == Existing::Continue && same {
            record.created = earlier.as_ref().map_or(record.created, |earlier| earlier.created);
        }
        let (Existing::Continue, Some(path)) = (existing, self.held()) else {
            return Ok(Outlook::fresh(record, input));
        };
        let earlier = earlier.ok_or(JobError::Exists(path.clone()))?;
        let differences = earlier.differences(&record);
        if !differences.is_empty() {
            return Err(JobError::Other { path, differences });
        }
        let answers = kept::read(&self.paths.answers, input)?;
        let errors = self.paths.errors.as_ref().map(|path| kept::read(path, input)).transpose()?;
        let mine = Outlook::fresh(record.clone(), input).todo;
        Ok(Outlook::new(record, mine, [answers, errors.unwrap_or_default()], retry))
    }

    /// The first of the outputs that holds something.
    fn held(&self) -> Option<PathBuf> {
        let has_content = |path: &&Path| fs::metadata(path).is_ok_and(|m| m.len() > 0);
        self.paths.each().find(has_content).map(Path::to_owned)
    }

    /// The files that go where no line is ever begun.
    pub fn unbegun(&self) -> Vec<PathBuf> {
        let state = self.state_is_new.then(|| self.state_path.clone());
        state.into_iter().chain(self.new.iter().cloned()).collect()
    }

    /// The record of an earlier run; a torn one is none, since answers come after it.
    fn state(&mut self) -> Result<Option<Record>, JobError> {
        let mut text = String::new();
        let read = self.state.rewind().and_then(|()| self.state.read_to_string(&mut text));
        match read {
            Ok(_) => Ok(serde_json::from_str(&text).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(JobError::file("read", &self.state_path)(error)),
        }
    }

    /// Makes the files ready for the first answer. `sync_every`: how long an answer may wait for the disk.
    ///
    /// # Errors
    /// [`JobError::File`].
    pub fn begin(mut self, outlook: &Outlook, sync_every: Duration) -> Result<Writer, JobError> {
        let held = std::mem::take(&mut self.outputs);
        if !matches!(outlook.begin, Begin::Fresh) {
            // Of a rewrite that was killed. Before a job's first answer, files of such names are somebody else's.
            self.paths.each().map(part).try_for_each(|path| remove(&path))?;
        } else {
            // First nothing is anybody's, then it is ours: whoever finds an empty output asks for no state. Each is on the disk
            // before the next: answers of an earlier job beside our state would be taken for ours.
            held.iter().zip(self.paths.each()).try_for_each(|(file, path)| empty(file, path))?;
            self.write_state(&outlook.record)?;
            sync_folders(self.paths.each())?;
        }
        (self.state_is_new, self.new) = (false, Vec::new());
        let (mut ledgers, mut replaced, mut rewrite) = (Vec::new(), Vec::new(), None);
        if let Begin::Rewrite(kept) = &outlook.begin {
            for path in self.paths.each() {
                ledgers.push(Ledger::anew(&part(path), sync_every)?);
            }
            replaced = held;
            rewrite = Some(Rewrite::new(&self.paths, kept, outlook.record.order)?);
        } else {
            let lens = if let Begin::Grow(lens) = outlook.begin { lens } else { Default::default() };
            for ((file, path), len) in held.into_iter().zip(self.paths.each()).zip(lens) {
                ledgers.push(Ledger::over(file, path, len, sync_every)?);
            }
        }
        let mut ledgers = ledgers.into_iter();
        let answers = ledgers.next().expect("a job has answers");
        Ok(Writer { files: self, answers, errors: ledgers.next(), rewrite, _replaced: replaced })
    }

    fn write_state(&mut self, record: &Record) -> Result<(), JobError> {
        let text = serde_json::to_string_pretty(record).expect("plain data") + "\n";
        let state = &mut self.state;
        let written = state.set_len(0).and_then(|()| state.rewind());
        let written = written.and_then(|()| state.write_all(text.as_bytes()));
        written.map_err(JobError::file("write", &self.state_path))?;
        sync_whole(&self.state, &self.state_path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Nothing came of it: nothing stays.
        self.unbegun().iter().for_each(|path| _ = fs::remove_file(path));
    }
}

fn remove(path: &Path) -> Result<(), JobError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(JobError::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// A file that will replace `path`, beside what that leads to.
pub(super) fn part(path: &Path) -> PathBuf {
    let mut name = led_to(path).into_os_string();
    name.push(".part");
    name.into()
}

/// Gives that file its name.
pub(super) fn replace(path: &Path) -> Result<(), JobError> {
    fs::rename(part(path), led_to(path)).map_err(JobError::file("replace", path))
}

/// What a symbolic link leads to, so that the link stays; any other path itself.
fn led_to(path: &Path) -> PathBuf {
    let target = if path.is_symlink() { fs::canonicalize(path).ok() } else { None };
    target.unwrap_or_else(|| path.to_owned())
}

impl Outlook {
    /// Whether earlier answers stay until all that is asked again is there: what ends before that counts for nothing.
    pub fn rewrites(&self) -> bool {
        matches!(self.begin, Begin::Rewrite(_))
    }

    /// Everything is to do.
    pub fn fresh(record: Record, input: &Input) -> Outlook {
        let todo = (0..input.len()).filter(|&position| record.shard.owns(position)).collect();
        Outlook { record, todo, answered: 0, failed: 0, begin: Begin::Fresh }
    }

    fn new(record: Record, mine: Vec<usize>, found: [Vec<Found>; 2], retry: Retry) -> Outlook {
        let again = |found: &&Found| retry == Retry::Nothing || !found.is_server_error();
        let kept = found.each_ref().map(|file| file.iter().filter(again).cloned().collect::<Vec<_>>());
        let rewrites = kept != found;
        let kept = match record.order {
            OutputOrder::Input if !rewrites => kept.map(|file| ordered(&mine, &found, file)),
            _ => kept,
        };
        let done: std::collections::BTreeSet<usize> = kept.iter().flatten().map(|found| found.line).collect();
        let failed = kept.iter().flatten().filter(|found| !found.is_ok()).count();
        let todo = mine.into_iter().filter(|position| !done.contains(position)).collect();
        let grow = |file: &Vec<Found>| (file.last().map_or(0, |last| last.range.end), file.len());
        let begin =
            if rewrites { Begin::Rewrite(kept.clone()) } else { Begin::Grow(kept.each_ref().map(grow)) };
        Outlook { record, todo, answered: done.len(), failed, begin }
    }
}

/// What of a file can stay where answers are in the order of the input: those before the first line without one. (Such a gap is
/// left by a machine that lost power, where one of two files reached the disk and the other did not, and by a process that was
/// killed between the two names that a rewrite gives.)
fn ordered(mine: &[usize], found: &[Vec<Found>; 2], file: Vec<Found>) -> Vec<Found> {
    let done: std::collections::BTreeSet<usize> = found.iter().flatten().map(|found| found.line).collect();
    let gap = mine.iter().find(|position| !done.contains(position));
    file.into_iter().take_while(|found| gap.is_none_or(|gap| found.line < *gap)).collect()
}

/// Writes answers where they belong.
pub struct Writer {
    files: Files,
    answers: Ledger,
    errors: Option<Ledger>,
    rewrite: Option<Rewrite>,
    /// What the rewritten files are to replace: no other job's meanwhile.
    _replaced: Vec<File>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.rewrite.is_some() {
            // Those that took their places are gone by now; the others count for nothing.
            self.files.paths.each().map(part).for_each(|path| _ = fs::remove_file(path));
        }
    }
}

impl Writer {
    /// `line` has its end.
    pub(super) fn write(&mut self, position: usize, verdict: Verdict, line: &[u8]) -> Result<(), JobError> {
        if let Some(rewrite) = &mut self.rewrite {
            rewrite.copy_before(position, &mut self.answers, self.errors.as_mut())?;
        }
        match (&mut self.errors, verdict) {
            (Some(errors), Verdict::Error) => errors.append(line),
            _ => self.answers.append(line),
        }
    }

    pub(super) fn sync_if_due(&mut self) -> Result<(), JobError> {
        self.answers.sync_if_due()?;
        self.errors.as_mut().map_or(Ok(()), Ledger::sync_if_due)
    }

    /// Everything on the disk; what was rewritten takes its place if `whole`.
    pub(super) fn finish(mut self, whole: bool) -> Result<(), JobError> {
        if let (Some(rewrite), true) = (&mut self.rewrite, whole) {
            rewrite.copy_before(usize::MAX, &mut self.answers, self.errors.as_mut())?;
        }
        // Both, whatever is wrong with one of them.
        let errors = self.errors.as_mut().map_or(Ok(()), Ledger::sync);
        self.answers.sync().and(errors)?;
        if self.rewrite.is_some() {
            // Errors first: between the two, lines are missing rather than answered twice.
            for path in self.files.paths.errors.iter().chain([&self.files.paths.answers]) {
                match whole {
                    true => replace(path)?,
                    false => remove(&part(path))?,
                }
            }
            sync_folders(self.files.paths.each())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::tests::SYNCED;
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[cfg(unix)]
    #[test]
    fn a_link_to_an_output_stays_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let [link, out] = ["link", "out"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink(&out, &link).expect("linked");
        let open = || Files::open(Paths { answers: link.clone(), errors: None }).expect("writable");
        drop(open());
        assert!(link.is_symlink() && !out.exists());
        let input = Input::new(b"{}\n".to_vec());
        let outlook = Outlook::fresh(Record::new(&input, 0, BTreeMap::new()), &input);
        let mut writer = open().begin(&outlook, Duration::ZERO).expect("ready");
        writer.write(0, Verdict::Good, b"an answer\n").expect("written");
        writer.finish(true).expect("whole");
        let holds = |text: &str| {
            assert_eq!(
                (link.is_symlink(), fs::read_to_string(&out).expect("there")),
                (true, text.to_string())
            );
        };
        holds("an answer\n");
        // What replaces it takes the place of what the link leads to, and goes if it is not finished.
        let again = Outlook { begin: Begin::Rewrite(Default::default()), ..outlook };
        for (finishes, text) in [(false, "an answer\n"), (true, "another\n")] {
            let mut writer = open().begin(&again, Duration::ZERO).expect("ready");
            writer.write(0, Verdict::Good, b"another\n").expect("written");
            assert!(folder.path().join("out.part").exists());
            if finishes {
                writer.finish(true).expect("whole")
            } else {
                drop(writer)
            }
            assert!(!folder.path().join("out.part").exists() && !folder.path().join("link.part").exists());
            holds(text);
        }
    }

    /// The first line may be the last, and is on the disk by then.
    #[test]
    fn answers_whose_file_went_away_are_no_success() {
        let folder = tempfile::tempdir().expect("a folder");
        let [answers, errors] = ["out", "errors"].map(|name| folder.path().join(name));
        let input = Input::new(b"{}\n".to_vec());
        let outlook = Outlook::fresh(Record::new(&input, 0, BTreeMap::new()), &input);
        let written = |verdict, gone| {
            let paths = Paths { answers: answers.clone(), errors: Some(errors.clone()) };
            let files = Files::open(paths).expect("writable");
            let mut writer = files.begin(&outlook, Duration::ZERO).expect("ready");
            writer.write(0, verdict, b"an answer\n").expect("written");
            fs::remove_file(gone).expect("removed");
            writer.finish(true)
        };
        for (verdict, gone) in [(Verdict::Good, &answers), (Verdict::Error, &errors)] {
            let error = written(verdict, gone).expect_err("gone");
            assert!(!error.is_misuse() && error.to_string().contains(&*gone.to_string_lossy()), "{error}");
        }
        written(Verdict::Good, &errors).expect("there were none");
    }

    #[test]
    fn somebodys_file_of_a_name_that_parts_have_stays_where_nothing_was_answered() {
        let folder = tempfile::tempdir().expect("a folder");
        let [out, other] = ["out", "out.part"].map(|name| folder.path().join(name));
        fs::write(&other, "a download").expect("written");
        let input = Input::new(b"{}\n".to_vec());
        let outlook = Outlook::fresh(Record::new(&input, 0, BTreeMap::new()), &input);
        let files = Files::open(Paths { answers: out, errors: None }).expect("writable");
        files.begin(&outlook, Duration::ZERO).expect("ready").finish(true).expect("whole");
        assert_eq!(fs::read_to_string(other).expect("there"), "a download");
    }

    #[test]
    fn an_old_output_is_gone_from_the_disk_before_a_new_state_is_there() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let [answers, errors] = folders.each_ref().map(|folder| folder.path().join("out"));
        let state = state_path(&answers);
        for path in [&answers, &errors, &state] {
            fs::write(path, "of another job\n").expect("written");
        }
        let mut files =
            Files::open(Paths { answers: answers.clone(), errors: Some(errors.clone()) }).expect("writable");
        let input = Input::new(b"{}\n".to_vec());
        let record = Record::new(&input, 0, BTreeMap::new());
        let outlook = files.outlook(record, &input, Existing::Replace, Retry::Nothing).expect("replaced");
        SYNCED.take();
        files.begin(&outlook, Duration::ZERO).expect("ready");
        let (paths, lens): (Vec<PathBuf>, Vec<u64>) = SYNCED.take().into_iter().unzip();
        assert_eq!(paths[..3], [answers, errors, state.clone()]);
        assert_eq!(lens[..3], [0, 0, fs::metadata(state).expect("there").len()]);
        let synced: BTreeSet<&Path> = paths[3..].iter().map(PathBuf::as_path).collect();
        assert_eq!(synced, BTreeSet::from(folders.each_ref().map(|folder| folder.path())));
    }
}
