//! A checkpoint in one GGUF file, or split over several (`-00001-of-00003.gguf`).

use super::{Entry, Metadata, parse_header};
use crate::error::{Error, Result};
use crate::file::RegularFile;
use std::collections::BTreeSet;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

const SPLITS_MAX: u64 = 99_999;

/// An open checkpoint.
#[derive(Debug)]
pub struct Gguf {
    /// Keys and values of the first file, which describes the model.
    pub metadata: Metadata,
    /// The open files.
    pub files: Vec<RegularFile>,
    /// Every tensor, with the number of its file.
    pub entries: Vec<(usize, Entry)>,
}

impl Gguf {
    /// Opens a checkpoint by any of its files.
    ///
    /// # Errors
    /// If a file is missing, breaks a rule of the format, or belongs to another checkpoint.
    pub fn open(path: &Path) -> Result<Gguf> {
        let mut paths = siblings(path).unwrap_or_else(|| vec![path.to_owned()]).into_iter();
        let first = paths.next().unwrap_or_else(|| path.to_owned());
        let (file, header) = open_one(&first)?;
        let entries = header.entries.into_iter().map(|e| (0, e)).collect();
        let mut all = Gguf { metadata: header.metadata, files: vec![file], entries };
        all.check_split(&all.metadata, 0, paths.len() as u64 + 1)?;
        for path in paths {
            all.add(&path)?;
        }
        all.check_complete()?;
        Ok(all)
    }

    /// A checkpoint without its files: what the header alone says.
    pub(crate) fn without_data(header: super::Header) -> Gguf {
        let entries = header.entries.into_iter().map(|e| (0, e)).collect();
        Gguf { metadata: header.metadata, files: vec![], entries }
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let (file, header) = open_one(path)?;
        let number = self.files.len();
        let count = self.metadata.uint("split.count")?.unwrap_or(1);
        self.check_split(&header.metadata, number as u64, count)?;
        self.entries.extend(header.entries.into_iter().map(|e| (number, e)));
        self.files.push(file);
        Ok(())
    }

    fn check_split(&self, metadata: &Metadata, number: u64, of: u64) -> Result<()> {
        let found =
            (metadata.uint("split.no")?.unwrap_or(0), metadata.uint("split.count")?.unwrap_or(1).max(1));
        if found == (number, of) {
            return Ok(());
        }
        let found = format!("it says that it is part {} of {}", found.0 + 1, found.1);
        let expected =
            format!("part {} of {of}; keep the published name `...-00001-of-00002.gguf`", number + 1);
        Err(Error::malformed(metadata.file(), found, expected))
    }

    fn check_complete(&self) -> Result<()> {
        let file = self.metadata.file();
        let names: BTreeSet<&str> = self.entries.iter().map(|(_, e)| e.name.as_str()).collect();
        if names.len() != self.entries.len() {
            return Err(Error::malformed(file, "a tensor that occurs in two of its files", "unique names"));
        }
        match self.metadata.uint("split.tensors.count")? {
            Some(count) if count != names.len() as u64 => {
                let found = format!("{} tensors in all its files", names.len());
                Err(Error::malformed(file, found, format!("the {count} of `split.tensors.count`")))
            }
            _ => Ok(()),
        }
    }
}

fn open_one(path: &Path) -> Result<(RegularFile, super::Header)> {
    let file = RegularFile::open(path)?;
    let header = {
        let reader = BufReader::with_capacity(1 << 16, file.reader()).take(file.len());
        parse_header(reader, file.len(), &file.name())?
    };
    Ok((file, header))
}

/// All files of a split checkpoint, in order, if the name is one of a split checkpoint.
pub fn siblings(path: &Path) -> Option<Vec<PathBuf>> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let five = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let count: u64 = (five(number) && five(count)).then(|| count.parse().ok())??;
    let name = |i: u64| path.with_file_name(format!("{prefix}-{i:05}-of-{count:05}.gguf"));
    (1..=SPLITS_MAX).contains(&count).then(|| (1..=count).map(name).collect())
}
