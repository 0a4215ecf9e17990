//! `ballast simulate replay`: a recorded run, step for step.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use engine::counted;

use crate::console::{show, unreadable};

pub(crate) fn replay(path: &Path) -> Result<ExitCode> {
    let file = File::open(path).map_err(unreadable(path))?;
    let summary =
        sim::replay(BufReader::new(file)).with_context(|| format!("replay of {}", path.display()))?;
    let sim::Replayed { requests, steps, lines, in_flight, unfinished } = summary;
    let (steps, requests, lines) =
        (counted(steps, "step"), counted(requests, "request"), counted(lines, "line"));
    show!("{steps} of {requests} ({lines}): all as recorded")?;
    if in_flight + unfinished > 0 {
        let (open, flying) = (counted(unfinished, "request"), counted(in_flight, "step"));
        show!(
            "the record ends before its run did, with {open} unfinished and {flying} in flight: nothing later was compared"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
