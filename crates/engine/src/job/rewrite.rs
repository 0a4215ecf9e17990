//! Answers that replace earlier ones: what stays is copied into new files, which take the old ones' place at the end.
//! Until then the old ones are as they were.

use std::fs::File;
use std::iter::Peekable;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::vec::IntoIter;

use super::files::Paths;
use super::kept::Found;
use super::ledger::Ledger;
use super::{JobError, OutputOrder};

/// What is still to be copied.
pub(super) struct Rewrite {
    old: [Option<(PathBuf, File)>; 2],
    /// Which file, and where in it; in the order of the input where that is the order of the output.
    left: Peekable<IntoIter<(usize, Found)>>,
    order: OutputOrder,
}

impl Rewrite {
    /// `kept`: of answers and errors.
    pub(super) fn new(
        paths: &Paths,
        kept: &[Vec<Found>; 2],
        order: OutputOrder,
    ) -> Result<Rewrite, JobError> {
        let open = |path: PathBuf| match File::open(&path) {
            Ok(file) => Ok(Some((path, file))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(JobError::file("read", &path)(error)),
        };
        let errors = paths.errors.clone().map(open).transpose()?.flatten();
        let old = [open(paths.answers.clone())?, errors];
        let all =
            kept.iter().enumerate().flat_map(|(file, found)| found.iter().map(move |f| (file, f.clone())));
        let mut left: Vec<_> = all.collect();
        if order == OutputOrder::Input {
            left.sort_by_key(|(_, found)| found.line);
        }
        Ok(Rewrite { old, left: left.into_iter().peekable(), order })
    }

    /// Copies what comes before the answer to line `position`: everything, where order is that of completion.
    pub(super) fn copy_before(
        &mut self,
        position: usize,
        answers: &mut Ledger,
        mut errors: Option<&mut Ledger>,
    ) -> Result<(), JobError> {
        let order = self.order;
        let due = |(_, found): &(usize, Found)| order == OutputOrder::Completion || found.line < position;
        while let Some((file, found)) = self.left.next_if(due) {
            let Some((path, old)) = &self.old[file] else { continue };
            let mut bytes = vec![0; (found.range.end - found.range.start) as usize];
            old.read_exact_at(&mut bytes, found.range.start).map_err(JobError::file("read", path))?;
            match (&mut errors, file) {
                (Some(errors), 1) => errors.append(&bytes)?,
                _ => answers.append(&bytes)?,
            }
        }
        Ok(())
    }
}
