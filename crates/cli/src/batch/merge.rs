//! `ballast batch merge`: the outputs of all shards of a job, made one.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use engine::counted;
use engine::job::{Existing, Paths, merge as merge_files};

use super::{EXIT_SOME_FAILED, apart, only_a_file};
use crate::args::MergeArgs;
use crate::console::note;

pub(super) fn merge(args: MergeArgs) -> Result<ExitCode> {
    only_a_file(&args.output)?;
    args.error_file.as_deref().map_or(Ok(()), only_a_file)?;
    let into = Paths { answers: args.output, errors: args.error_file };
    let read: Vec<&Path> = args.shards.iter().map(AsRef::as_ref).collect();
    apart(&read, Some(&into), &[])?;
    let existing = if args.overwrite { Existing::Replace } else { Existing::Continue };
    let merged = merge_files(&args.shards, &into, existing)?;
    let (answers, shards) = (counted(merged.lines, "answer"), counted(args.shards.len(), "shard"));
    note!("{answers} of {shards}, {} of them errors", merged.failed);
    Ok(if merged.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_SOME_FAILED) })
}
