//! `ballast simulate replay`: a recorded run, step for step.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::console::show;

pub(crate) fn replay(path: &Path) -> Result<ExitCode> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let summary =
        sim::replay(BufReader::new(file)).with_context(|| format!("replay of {}", path.display()))?;
    let sim::Replayed { requests, steps, lines } = summary;
    show!("{steps} steps of {requests} requests ({lines} lines): all as recorded")?;
    Ok(ExitCode::SUCCESS)
}
