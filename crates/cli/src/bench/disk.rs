//! `bench disk`: the drive's rate through the reader of streamed weights, with nothing else going on.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use engine::counted;
use engine::profile::TrialFile;
use model::store::{Access, READERS};
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
    /// Of the file, synced piece by piece.
    write_bytes_per_s: f64,
    /// Bytes of the file that the page cache held at the end.
    cached_bytes: u64,
}

pub(crate) fn disk(args: DiskArgs) -> Result<ExitCode> {
    let json = JsonReport::open(args.json.as_deref())?;
    let folder = args.dir.unwrap_or_else(packed_folder);
    let drive = TrialFile::write(&folder, args.size.next_multiple_of(LOAD_BYTES as u64))
        .with_context(|| format!("cannot write a file to measure in {}", folder.display()))?;
    match drive.access() {
        Access::Direct => {}
        Access::Cached => note!(
            "this file system has no direct reads: they go through the page cache, which is told to forget them"
        ),
        Access::Memory => {
            note!(
                "this file system is in memory (tmpfs): what is measured here is no drive; name another --dir"
            );
        }
    }
    let rates: Vec<f64> = (0..args.reps).map(|_| rate(&drive)).collect::<Result<_>>()?;
    let report = Disk {
        folder,
        bytes: drive.bytes(),
        direct: drive.access() == Access::Direct,
        requests_at_once: READERS,
        read_bytes_per_s: median(&rates),
        read_bytes_per_s_all: rates,
        write_bytes_per_s: drive.write_bytes_per_s(),
        cached_bytes: drive.cached_bytes()?,
    };
    json.write(&report)?;
    show!(
        "{:.2} GB/s read, {} at once, {} bytes left in the page cache; {:.2} GB/s written",
        report.read_bytes_per_s / 1e9,
        counted(report.requests_at_once, "request"),
        report.cached_bytes,
        report.write_bytes_per_s / 1e9
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Bytes per second of one pass over the file.
fn rate(drive: &TrialFile) -> Result<f64> {
    let seconds: f64 = drive.read(LOAD_BYTES, drive.bytes())?.iter().sum();
    Ok(drive.bytes() as f64 / seconds)
}
