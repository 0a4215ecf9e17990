//! The drive as streamed weights use it: large direct reads, several requests at once.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use kernels::{AlignedBytes, page_cache};
use model::store::{Access, DirectFile, Stretch};

/// Written at a time: files are multiples of it.
pub(super) const PIECE_BYTES: u64 = 8 << 20;
/// The drive has them after so many.
const SYNCED_PIECES: u64 = 8;

/// A file of noise on the drive that is measured; it goes when this does.
pub struct TrialFile {
    path: PathBuf,
    file: DirectFile,
    bytes: u64,
    write_bytes_per_s: f64,
}

impl Drop for TrialFile {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Memory that direct reads may go to: it begins on a page, whatever its size.
struct Aligned {
    bytes: AlignedBytes,
    len: usize,
}

impl Aligned {
    const PAGE: usize = 4096;

    fn new(len: usize) -> Aligned {
        Aligned { bytes: AlignedBytes::zeroed(len + Self::PAGE), len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let begin = self.bytes.as_ptr().align_offset(Self::PAGE);
        &mut self.bytes[begin..begin + self.len]
    }
}

/// Removes the file if it does not become a [`TrialFile`].
struct Unfinished<'a>(Option<&'a Path>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl TrialFile {
    /// Writes a file of `bytes`, rounded up to whole pieces of 8 MiB, into `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// The system's own, or [`model::Error`] as text where it cannot be read back.
    pub fn write(folder: &Path, bytes: u64) -> io::Result<TrialFile> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("bench-disk-{}", std::process::id()));
        let mut unfinished = Unfinished(Some(&path));
        let bytes = bytes.next_multiple_of(PIECE_BYTES);
        let write_bytes_per_s = fill(&path, bytes)?;
        let file = DirectFile::open(&path).map_err(io::Error::other)?;
        unfinished.0 = None;
        drop(unfinished);
        Ok(TrialFile { path, file, bytes, write_bytes_per_s })
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
        let mut memory = Aligned::new(each);
        let offsets = (0..self.bytes - each as u64 + 1).step_by(each).cycle();
        let reads = (in_all / each as u64).max(1) as usize;
        offsets.take(reads).map(|offset| self.read_one(offset, memory.bytes())).collect()
    }

    /// Seconds of each read of these sizes by turns, once through the file.
    ///
    /// # Errors
    /// The drive's.
    pub fn read_by_turns(&self, sizes: &[usize]) -> io::Result<Vec<f64>> {
        let mut memory = Aligned::new(largest(sizes));
        let reads = self.turns(sizes);
        reads.map(|(offset, bytes)| self.read_one(offset, &mut memory.bytes()[..bytes])).collect()
    }

    /// Reads these sizes by turns, again and again until told to stop; counts the bytes.
    ///
    /// # Errors
    /// The drive's.
    pub fn read_until(&self, stop: &AtomicBool, sizes: &[usize], read: &AtomicU64) -> io::Result<()> {
        let mut memory = Aligned::new(largest(sizes));
        while !stop.load(Ordering::Relaxed) {
            for (offset, bytes) in self.turns(sizes).take_while(|_| !stop.load(Ordering::Relaxed)) {
                self.read_one(offset, &mut memory.bytes()[..bytes])?;
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

fn largest(sizes: &[usize]) -> usize {
    sizes.iter().copied().max().unwrap_or(Aligned::PAGE)
}

/// Bytes per second.
fn fill(path: &Path, bytes: u64) -> io::Result<f64> {
    let mut file = File::create(path)?;
    let mut state = 1u64;
    let noise: Vec<u8> = (0..PIECE_BYTES / 8)
        .flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.rotate_left(20).to_le_bytes()
        })
        .collect();
    let begin = Instant::now();
    let pieces = bytes / PIECE_BYTES;
    for piece in 1..=pieces {
        file.write_all(&noise)?;
        if piece % SYNCED_PIECES == 0 || piece == pieces {
            file.sync_data()?;
            page_cache::forget(&file);
        }
    }
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}
