//! `bench disk`: the drive's rate through the reader of streamed weights, with nothing else going on.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use kernels::{AlignedBytes, page_cache};
use model::store::{Access, DirectFile, READERS, Stretch};
use serde::Serialize;

use super::report::median;
use crate::args::DiskArgs;
use crate::console::{note, show};
use crate::output_file::JsonReport;
use crate::resolve::packed_folder;

/// Read at a time, as the panels of a part of a layer are.
const LOAD_BYTES: usize = 128 << 20;

/// What was measured.
#[derive(Serialize)]
struct Disk {
    folder: PathBuf,
    bytes: u64,
    /// Whether the page cache was bypassed.
    direct: bool,
    requests_at_once: usize,
    /// Median of the repetitions.
    read_bytes_per_s: f64,
    read_bytes_per_s_all: Vec<f64>,
    /// Bytes of the file that the page cache held at the end.
    cached_bytes: u64,
}

/// The file that is read; it goes when the command ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn disk(args: DiskArgs) -> Result<ExitCode> {
    let json = JsonReport::open(args.json.as_deref())?;
    let folder = args.dir.unwrap_or_else(packed_folder);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let bytes = args.size.next_multiple_of(LOAD_BYTES as u64);
    let scratch = Scratch(folder.join(format!("bench-disk-{}", std::process::id())));
    write(&scratch.0, bytes).with_context(|| format!("cannot write {}", scratch.0.display()))?;
    let file = DirectFile::open(&scratch.0)?;
    if file.access() == Access::Cached {
        note!(
            "this file system has no direct reads: they go through the page cache, which is told to forget them"
        );
    }
    let rates: Vec<f64> = (0..args.reps).map(|_| read(&file, bytes)).collect::<Result<_>>()?;
    let report = Disk {
        folder,
        bytes,
        direct: file.access() == Access::Direct,
        requests_at_once: READERS,
        read_bytes_per_s: median(&rates),
        read_bytes_per_s_all: rates,
        cached_bytes: page_cache::cached_bytes(file.file())?,
    };
    json.write(&report)?;
    show!(
        "{:.2} GB/s read, {} requests at once, {} bytes left in the page cache",
        report.read_bytes_per_s / 1e9,
        report.requests_at_once,
        report.cached_bytes
    )?;
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut state = 1u64;
    let noise: Vec<u8> = (0..LOAD_BYTES / 16)
        .flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.rotate_left(20).to_le_bytes()
        })
        .collect();
    for _ in 0..bytes / noise.len() as u64 {
        file.write_all(&noise)?;
        file.sync_data()?;
        page_cache::forget(&file);
    }
    Ok(())
}

/// Bytes per second of one pass over the file.
fn read(file: &DirectFile, bytes: u64) -> Result<f64> {
    let mut memory = AlignedBytes::zeroed(LOAD_BYTES);
    let begin = Instant::now();
    for offset in (0..bytes).step_by(LOAD_BYTES) {
        file.read(vec![Stretch { offset, into: &mut memory }])?;
    }
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}
