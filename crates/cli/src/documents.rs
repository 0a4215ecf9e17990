//! `ballast man` and `ballast completions`: documents made from the definition of the command line.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Cli, CompletionsArgs, ManArgs, ShellName};
use crate::console::{show, write_out};

/// Writes a page for each command.
pub(crate) fn man(args: &ManArgs) -> Result<ExitCode> {
    let dir = &args.dir;
    let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
    written.with_context(|| format!("cannot write manual pages to {}", dir.display()))?;
    show!("manual pages are in {0}: man -l {0}/ballast.1", dir.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a script that completes command lines.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let shell = match args.shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    // The generator panics where its writer fails: standard output may.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ballast", &mut script);
    write_out(format_args!("{}", String::from_utf8_lossy(&script)))?;
    Ok(ExitCode::SUCCESS)
}
