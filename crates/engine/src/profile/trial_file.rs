//! The drive as streamed weights use it: large direct reads, several requests at once.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use kernels::arena::PAGE;
use kernels::drive::free_bytes;
use kernels::{AlignedBytes, page_cache};
use model::store::{Access, DirectFile, Stretch, Written};

use crate::plan::drive::but_for_others;

/// Written at a time: files are multiples of it.
pub(super) const PIECE_BYTES: u64 = 8 << 20;

/// The largest read that a profile knows of.
const LEAST_BYTES: u64 = 128 << 20;

/// A file on the drive that is measured. One that was made for it is noise, and has no name: whatever happens to the process,
/// nothing of it is left.
pub struct TrialFile {
    file: DirectFile,
    bytes: u64,
    write_bytes_per_s: f64,
}

/// Times that writes take longer than reads where there is no room for them.
const HARDLY: f64 = 100.0;

impl TrialFile {
    /// Writes a file of `bytes`, rounded up to whole pieces of 8 MiB, into `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// The system's own, or [`model::Error`] as text: a full drive among them.
    pub fn write(folder: &Path, bytes: u64) -> io::Result<TrialFile> {
        std::fs::create_dir_all(folder)?;
        let bytes = bytes.next_multiple_of(PIECE_BYTES);
        let file = DirectFile::nameless(&folder.join("measured"), bytes).map_err(io::Error::other)?;
        let write_bytes_per_s = fill(&file, bytes)?;
        Ok(TrialFile { file, bytes, write_bytes_per_s })
    }

    /// The same of no more than is free and a limit allows, if there is one; an error where that is too little for the largest read.
    pub(super) fn within(folder: &Path, bytes: u64, limit: Option<u64>) -> io::Result<TrialFile> {
        let limit = limit.unwrap_or(u64::MAX);
        let allowed = room_for(folder, bytes.min(limit));
        if allowed < LEAST_BYTES {
            let mib = |bytes: u64| bytes >> 20;
            let why = match limit {
                ..LEAST_BYTES => format!("--disk allows {}", mib(limit / PIECE_BYTES * PIECE_BYTES)),
                _ => format!("{} are free", mib(allowed)),
            };
            let why = format!("it takes {} MiB there, of which {why}", mib(LEAST_BYTES));
            return Err(io::Error::other(why));
        }
        TrialFile::write(folder, allowed)
    }

    /// So many bytes at most of a file that is there already, and is only read. Nothing could be written beside it: plans that would
    /// are told that it takes long.
    pub(super) fn there(path: &Path, most: u64) -> io::Result<TrialFile> {
        let file = DirectFile::open(path).map_err(io::Error::other)?;
        let bytes = file.file().metadata()?.len().min(most) / PIECE_BYTES * PIECE_BYTES;
        let mut trial = TrialFile { file, bytes, write_bytes_per_s: f64::INFINITY };
        if bytes == 0 {
            return Err(io::Error::other("it has less than 8 MiB to be read"));
        }
        let seconds: f64 = trial.read(PIECE_BYTES as usize, bytes)?.into_iter().sum();
        trial.write_bytes_per_s = bytes as f64 / seconds / HARDLY;
        Ok(trial)
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the page cache is bypassed.
    pub fn access(&self) -> Access {
        self.file.access()
    }

    /// Bytes per second that it was written with, to the drive and not to memory.
    pub fn write_bytes_per_s(&self) -> f64 {
        self.write_bytes_per_s
    }

    /// Bytes of it that the page cache holds.
    ///
    /// # Errors
    /// The system's own.
    pub fn cached_bytes(&self) -> io::Result<u64> {
        page_cache::cached_bytes(self.file.file())
    }

    /// Seconds of each read of `each` bytes, one after the other, until `in_all` are read.
    ///
    /// # Errors
    /// The drive's.
    pub fn read(&self, each: usize, in_all: u64) -> io::Result<Vec<f64>> {
        let mut memory = AlignedBytes::zeroed(each);
        let offsets = (0..self.bytes - each as u64 + 1).step_by(each).cycle();
        let reads = (in_all / each as u64).max(1) as usize;
        offsets.take(reads).map(|offset| self.read_one(offset, &mut memory)).collect()
    }

    /// Seconds of each read of these sizes by turns, once through the file.
    ///
    /// # Errors
    /// The drive's.
    pub fn read_by_turns(&self, sizes: &[usize]) -> io::Result<Vec<f64>> {
        let mut memory = AlignedBytes::zeroed(largest(sizes));
        let reads = self.turns(sizes);
        reads.map(|(offset, bytes)| self.read_one(offset, &mut memory[..bytes])).collect()
    }

    /// Reads these sizes by turns, again and again until told to stop; counts the bytes.
    ///
    /// # Errors
    /// The drive's.
    pub fn read_until(&self, stop: &AtomicBool, sizes: &[usize], read: &AtomicU64) -> io::Result<()> {
        let mut memory = AlignedBytes::zeroed(largest(sizes));
        while !stop.load(Ordering::Relaxed) {
            for (offset, bytes) in self.turns(sizes).take_while(|_| !stop.load(Ordering::Relaxed)) {
                self.read_one(offset, &mut memory[..bytes])?;
                read.fetch_add(bytes as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Where reads of these sizes begin that follow one another, as many as the file has.
    fn turns(&self, sizes: &[usize]) -> impl Iterator<Item = (u64, usize)> {
        let mut end = 0;
        let reads = sizes.iter().copied().cycle().map(move |bytes| {
            let begin = end;
            end += bytes as u64;
            (begin, bytes)
        });
        let all = self.bytes;
        reads.take_while(move |(begin, bytes)| begin + *bytes as u64 <= all)
    }

    fn read_one(&self, offset: u64, into: &mut [u8]) -> io::Result<f64> {
        let begin = Instant::now();
        self.file.read(vec![Stretch { offset, into }]).map_err(io::Error::other)?;
        Ok(begin.elapsed().as_secs_f64())
    }
}

/// Whole pieces of so many bytes that a folder's drive has free, but for a margin.
pub(super) fn room_for(folder: &Path, bytes: u64) -> u64 {
    free_bytes(folder).map_or(bytes, |free| bytes.min(but_for_others(free))) / PIECE_BYTES * PIECE_BYTES
}

fn largest(sizes: &[usize]) -> usize {
    sizes.iter().copied().max().unwrap_or(PAGE)
}

/// Writes noise, past the page cache; bytes per second until the drive has it.
fn fill(file: &DirectFile, bytes: u64) -> io::Result<f64> {
    let mut state = 1u64;
    let mut noise = AlignedBytes::zeroed(PIECE_BYTES as usize);
    for number in noise.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        number.copy_from_slice(&state.rotate_left(20).to_le_bytes());
    }
    let from = &*noise;
    let begin = Instant::now();
    for offset in (0..bytes).step_by(PIECE_BYTES as usize) {
        file.write(vec![Written { offset, from }]).map_err(io::Error::other)?;
    }
    file.file().sync_data()?;
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_as_large_as_it_may_be_or_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let within = |limit| TrialFile::within(folder.path(), 136 << 20, limit).map(|trial| trial.bytes());
        assert_eq!(within(None).unwrap(), 136 << 20);
        assert_eq!(within(Some((128 << 20) + 5)).unwrap(), 128 << 20);
        let why = within(Some(100 << 20)).unwrap_err().to_string();
        assert!(why.contains("128 MiB") && why.contains("--disk allows 96"), "{why}");
    }

    #[test]
    fn what_is_there_can_be_read_instead() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("panels");
        std::fs::write(&path, vec![7; (PIECE_BYTES + 5) as usize]).unwrap();
        let trial = TrialFile::there(&path, u64::MAX).unwrap();
        assert_eq!((trial.bytes(), trial.read(1 << 20, 3 << 20).unwrap().len()), (PIECE_BYTES, 3));
        assert!(trial.write_bytes_per_s().is_finite() && trial.write_bytes_per_s() > 0.0);
        std::fs::write(&path, vec![7; 2 * PIECE_BYTES as usize]).unwrap();
        assert_eq!(TrialFile::there(&path, 2 * PIECE_BYTES - 1).unwrap().bytes(), PIECE_BYTES);
        assert!(TrialFile::there(&path, PIECE_BYTES - 1).is_err());
    }

    #[test]
    fn a_trial_leaves_nothing_on_the_drive_or_in_its_cache() {
        let folder = tempfile::tempdir().unwrap();
        let trial = TrialFile::write(folder.path(), 3 << 20).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it has no name");
        assert_eq!(trial.bytes(), PIECE_BYTES);
        assert_eq!(trial.read(1 << 20, 4 << 20).unwrap().len(), 4);
        if trial.access() == Access::Direct {
            assert_eq!(trial.cached_bytes().unwrap(), 0);
        }
    }
}
